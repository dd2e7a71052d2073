/* parts.h: what several files say of one key, kept until all of them have said it.
 *
 * Purpose: reads of files end in any order, and the bytes of a record are gone when the next one is
 * read. A row is made of its records in the order of files.
 *
 * Thread safety: plain memory of one thread.
 *
 * Complexity: O(bytes of a record).
 */
#ifndef PST_PARTS_H
#define PST_PARTS_H

#include "base/budget.h"
#include "base/buffer.h"

#define PST_NO_PART UINT32_MAX

/* Zeroes with a schema, as files have it, and a charge are empty ones. */
typedef struct pst_parts {
    const pst_schema *schema;
    int32_t n_keys; /* the first columns of the key that are kept, too */
    pst_buffer bytes;
    pst_charge charge;
} pst_parts;

/* Keeps a record: what it says of its states, and of which element. `before`: the part of the same
 * key that was kept last, or PST_NO_PART; *part names the new one. PST_NO_MEMORY, PST_LIMIT;
 * PST_TOO_LARGE: more than 32 GB of them. */
pst_status pst_parts_add(pst_parts *p, uint32_t before, int32_t file, const pst_record *r,
                         uint32_t *part);
/* A part's record; of its key are there the element and the columns that are kept. Bytes are valid
 * until one is kept. */
void pst_parts_get(const pst_parts *p, uint32_t part, pst_record *r);
/* The one that was kept before it. */
uint32_t pst_parts_before(const pst_parts *p, uint32_t part);
int32_t pst_parts_file(const pst_parts *p, uint32_t part);
/* Do these n parts, all of a key and oldest first, leave nothing of it? 0 also where that is not seen
 * at once. Of keys that were deleted with their timers it is: no row has to be made to know that. */
int pst_parts_leave_nothing(const pst_parts *p, const uint32_t *parts, uint32_t n);
/* Forgets all records, and keeps the memory. */
void pst_parts_clear(pst_parts *p);
void pst_parts_free(pst_parts *p);

#endif
