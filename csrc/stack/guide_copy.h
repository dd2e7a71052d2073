/* guide_copy.h: what was read of a file's guide, in a file of its own, for all processes of a host.
 *
 * Purpose: a guide's parts are read and checked as they are wanted. Who has read one puts it into the
 * copy, which all map, so that it is read once for a host and takes memory once.
 *
 * A copy is as large as all parts together, with holes where nothing was put. Behind its header lies a
 * byte per part, which is set once the part is there: nobody looks into a hole, as a file system in
 * memory that is full has no page for it.
 *
 * Thread safety: one thread at a time; others may look into parts that they have got. Other processes
 * may put the same parts at the same time: they write the same bytes.
 *
 * Invariants
 *  MB2. A copy gets its name with its header and its bytes per part whole, and only where no other one
 *       has it. One that is missing, of another file, or open to others is made anew; a part of it that
 *       is damaged is put once more. What cannot be made or put is no error: there is no copy of it
 *       then. What killed processes left of one is removed by whoever makes the next.
 *
 * Complexity: O(1) to open, and to put a part besides its bytes; O(parts / 4096) to make.
 */
#ifndef PST_GUIDE_COPY_H
#define PST_GUIDE_COPY_H

#include <sys/types.h>

#include "base/budget.h"
#include "guide/sst_guide.h"

typedef struct pst_guide_copy {
    char *name;           /* NULL: there is none */
    const uint8_t *image; /* mapped; parts lie where its owner says */
    size_t bytes;
    dev_t device;
    ino_t inode;
    uint32_t parts;
    uint32_t put;  /* by this process, and its own header */
    int is_closed; /* to further parts, as there is no room */
} pst_guide_copy;

/* Where the first part may lie. */
size_t pst_guide_copy_head(uint32_t parts);

/* Maps the copy of the guide, of so many bytes and parts, whose name begins with `guides`, and makes
 * it where it is missing. There is none where that fails. */
void pst_guide_copy_open(pst_guide_copy *c, const char *guides, const pst_guide *g, size_t bytes,
                         uint32_t parts, pst_budget *budget);
void pst_guide_copy_close(pst_guide_copy *c);

/* A part that somebody has put: it is to be checked. NULL: nobody has. */
const uint8_t *pst_guide_copy_part(const pst_guide_copy *c, uint32_t part, size_t offset);
/* Puts a part that was checked, and returns where it is in the copy; NULL: it cannot be put. What is
 * there may not be what was put, if somebody else wrote to it: it is to be checked. */
const uint8_t *pst_guide_copy_put(pst_guide_copy *c, uint32_t part, size_t offset,
                                  const uint8_t *data, size_t size, pst_budget *budget);

#endif
