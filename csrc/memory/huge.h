/* huge.h: huge pages for tables in shared memory.
 *
 * Purpose: where the system gives shared memory small pages, a random row costs a TLB miss beside
 * the cache's. The thread that writes a table's delta collapses what the table has filled into huge
 * pages, at most PST_HUGE_MOST per epoch; all processes that map the file have them at their next
 * access.
 *
 * Thread safety: taking belongs to the table's writer. What was taken belongs to its own thread,
 * and knows the file, but neither the table nor its mapping, which may be gone by then.
 *
 * Invariants
 *  H1. Only ranges without holes are collapsed, so that no memory is taken: a hole would be filled.
 *  H2. The descriptor is an open file of its own: it does not hold the table's lock.
 *  H3. It is a hint: after any failure the pages stay small and it is not tried again.
 */
#ifndef PST_HUGE_H
#define PST_HUGE_H

#include <stdint.h>

struct pst_table;

enum { PST_HUGE_PAGE = 2 << 20, PST_HUGE_MOST = 32 };

typedef struct pst_huge {
    uint32_t n;
    int fd;                     /* if n > 0 */
    uint64_t at[PST_HUGE_MOST]; /* offsets in the file */
} pst_huge;

/* Takes the next huge pages that the table has filled: none of a table on the heap. */
void pst_huge_take(struct pst_table *t, pst_huge *huge);
/* Collapses them and closes the file; nothing is left to do then. */
void pst_huge_make(pst_huge *huge);
/* Only closes the file. */
void pst_huge_drop(pst_huge *huge);

#endif
