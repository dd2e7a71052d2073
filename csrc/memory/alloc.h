/* alloc.h: blocks of memory by size class, and the rings through which memory is reused.
 *
 * Purpose: blocks for variable-length values, page tables and index pages. What is freed is
 * reused only when no epoch that can be read or returned to may still refer to it.
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  B1. A name that is pushed to a ring in epoch n can be popped in epoch n + 3 at the earliest:
 *      pop stops at the tail that was sealed three epochs before the open one.
 *  B2. A ring's cells from the head of three epochs ago to the tail are never overwritten, so a
 *      roll back that restores older positions finds the names that belonged to them. Growing
 *      copies cells to where the doubled capacity looks for them and then stores the capacity;
 *      so does shrinking, when all of them lie in one half.
 *  B3. A block that was taken in the open epoch (`born`) has never been seen by a sealed epoch. It
 *      goes to a chain of the open epoch and may be taken again at once.
 *  B4. All positions live in the open epoch's meta: undoing the epoch undoes taking and freeing.
 *
 * Classes: 16, 32, 48, 64 bytes, then four to a doubling; at most a fifth of a block is padding
 * above that. All operations are O(1), growth of a ring amortised.
 */
#ifndef PST_ALLOC_H
#define PST_ALLOC_H

#include "pystate.h"

struct pst_table;

uint32_t pst_class_of(uint64_t bytes); /* bytes in 1 .. PST_MAX_BYTES */

static inline uint64_t pst_class_size(uint32_t size_class) {
    if (size_class < 4)
        return (size_class + UINT64_C(1)) * 16;
    return (5 + (size_class & UINT64_C(3))) << ((size_class >> 2) + 3);
}

/* Names of blocks in spans that are to be left that taking one puts back into its ring. */
enum { PST_MOST_SKIPPED = 16 };

pst_status pst_block_alloc(struct pst_table *t, uint32_t size_class, uint32_t *granule);
pst_status pst_block_free(struct pst_table *t, uint32_t size_class, uint32_t granule, int born);
/* Moves what the open epoch freed of its own to the rings. Part of sealing. */
pst_status pst_block_settle(struct pst_table *t);

/* Room for so many more names. A size class is the ring of its blocks, so what is about to put one in
 * another's place can be sure that the old one will be free again. */
pst_status pst_ring_reserve(struct pst_table *t, uint32_t ring, uint32_t n);
pst_status pst_ring_push(struct pst_table *t, uint32_t ring, uint32_t name);
/* Gives half of a ring back that is nearly empty; more where it is called again. Part of sealing. */
void pst_ring_shrink(struct pst_table *t, uint32_t ring);
/* PST_NOT_FOUND: nothing may be reused yet. */
pst_status pst_ring_pop(struct pst_table *t, uint32_t ring, uint32_t *name);
/* The name at a position between sealed_head[2] and tail. */
uint32_t pst_ring_at(const struct pst_table *t, uint32_t ring, uint32_t position);

#endif
