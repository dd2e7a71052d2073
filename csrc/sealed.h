/* sealed.h: what an epoch changed, in memory of its own.
 *
 * Purpose: the after-images of changed columns, gathered while sealing, sorted and written later
 * by any thread.
 *
 * Thread safety: a pst_sealed belongs to one thread at a time and never looks at its table. The
 * pool of buffers is shared by a table and its sealed epochs and has a lock.
 *
 * Invariants
 *  G1. A row is gathered only if it logically changed: before and after are compared, so what was
 *      touched and put back, or inserted and deleted, leaves nothing.
 *  G2. Records carry keys and values, never slots or granules.
 *  G3. Buffers are recycled, so that in a steady state sealing faults no pages in.
 */
#ifndef PST_SEALED_H
#define PST_SEALED_H

#include "table.h"

pst_status pst_sealed_gather(pst_table *t, const pst_lineage *lineage, pst_sealed **sealed);

typedef struct pst_pool pst_pool;
pst_pool *pst_pool_create(void);
/* The table lets go; buffers die with the last sealed epoch. */
void pst_pool_release(pst_pool *p);

#endif
