/* pool.h: buffers that are used again from epoch to epoch.
 *
 * Purpose: what an epoch changed is gathered into buffers that fault no pages in once a table has
 * been sealed a few times.
 *
 * Thread safety: all functions; the pool is shared by a table and its sealed epochs and has a lock.
 */
#ifndef PST_POOL_H
#define PST_POOL_H

#include "base/budget.h"
#include "base/buffer.h"

typedef struct pst_pool pst_pool;

/* NULL: no memory. */
pst_pool *pst_pool_create(pst_budget *budget);
/* The table lets go of the pool; the buffers are freed with the last sealed epoch. */
void pst_pool_release(pst_pool *p);

/* Takes buffers with room for `words` words, and a charge for what is written to them.
 * PST_NO_MEMORY; the buffers are to be given back in any case. */
pst_status pst_pool_take(pst_pool *p, size_t words, pst_words *entries, pst_buffer *bytes,
                         pst_charge *charge);
/* Gives buffers back, of which `used` words were written to. They are kept or freed; large ones are
 * kept as long as the kernel has no other use for their memory, and are not charged. */
void pst_pool_give(pst_pool *p, size_t used, pst_words *entries, pst_buffer *bytes,
                   pst_charge *charge);

#endif
