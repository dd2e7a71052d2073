/* alloc.h: blocks of memory by size class.
 *
 * Purpose: blocks for variable-length values, page tables and index pages. What is freed comes back
 * through the ring of its class (ring.h).
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  B3. A block that was taken in the open epoch (`born`) has never been seen by a sealed epoch. It
 *      goes to a chain of the open epoch and may be taken again at once.
 *
 * Complexity: O(1), growth of a ring amortised.
 */
#ifndef PST_ALLOC_H
#define PST_ALLOC_H

#include "memory/handle.h"

/* The most names of blocks in spans that are being left that one allocation puts back into the
 * ring. */
enum { PST_MOST_SKIPPED = 16 };

pst_status pst_block_alloc(pst_table *t, uint32_t size_class, uint32_t *granule);
pst_status pst_block_free(pst_table *t, uint32_t size_class, uint32_t granule, int born);
/* Moves what the open epoch freed of its own to the rings. Part of sealing. */
pst_status pst_block_settle(pst_table *t);

#endif
