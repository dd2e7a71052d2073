/* ring.h: names in the order in which they were freed.
 *
 * Purpose: what is freed is reused only when no epoch that can be read or returned to may still
 * refer to it. The names are of slots, or of the blocks of one size class.
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  B1. A name that is pushed to a ring in epoch n can be popped in epoch n + 3 at the earliest, or
 *      once nobody can return to what was before n: pop stops at the tail that was sealed three
 *      epochs before the open one, or with `floor`, whichever is later. `sealed_tail` and
 *      `sealed_head` of an epoch below `floor` are those of `floor`.
 *  B2. A ring's cells from that epoch's head to the tail are never overwritten, so a
 *      roll back that restores older positions finds the names that belonged to them. Growing
 *      copies cells to where the doubled capacity looks for them and then stores the capacity.
 *      Shrinking does the same, when all names lie in one half.
 *  B4. All positions live in the open epoch's meta: undoing the epoch undoes taking and freeing.
 *
 * Complexity: O(1), growth amortised.
 */
#ifndef PST_RING_H
#define PST_RING_H

#include "memory/handle.h"

static inline uint32_t *pst_ring_cells(const pst_table *t, uint32_t ring) {
    return (uint32_t *)pst_space(&t->arena, (int)(PST_SPACE_RING + ring));
}

/* The name at a position between sealed_head[2] and tail. */
static inline uint32_t pst_ring_at(const pst_table *t, uint32_t ring, uint32_t position) {
    return pst_get32(pst_ring_cells(t, ring) +
                     (position & (uint32_t)(t->h->ring_capacity[ring] - 1)));
}

/* Doubles a ring. PST_NO_SPACE, PST_LIMIT, PST_NO_MEMORY, PST_TOO_LARGE. */
pst_status pst_ring_grow(pst_table *t, uint32_t ring);

/* Makes room for n more names. The ring of a size class lists its blocks, so whoever replaces a
 * block first makes sure here that the old one can be freed. */
static inline pst_status pst_ring_reserve(pst_table *t, uint32_t ring, uint32_t n) {
    const pst_ring *r = &t->m->rings[ring];
    pst_status s = PST_OK;
    while (!s && (uint32_t)t->h->ring_capacity[ring] - (r->tail - r->sealed_head[2]) < n)
        s = pst_ring_grow(t, ring);
    return s;
}

static inline pst_status pst_ring_push(pst_table *t, uint32_t ring, uint32_t name) {
    pst_ring *r = &t->m->rings[ring];
    pst_status s = pst_ring_reserve(t, ring, 1);
    if (s)
        return s;
    pst_put32(pst_ring_cells(t, ring) + (r->tail & (uint32_t)(t->h->ring_capacity[ring] - 1)),
              name);
    pst_put32(&r->tail, r->tail + 1);
    return PST_OK;
}

/* PST_NOT_FOUND: nothing may be reused yet. */
static inline pst_status pst_ring_pop(pst_table *t, uint32_t ring, uint32_t *name) {
    pst_ring *r = &t->m->rings[ring];
    if (r->head == r->sealed_tail[2])
        return PST_NOT_FOUND;
    *name = pst_ring_at(t, ring, r->head);
    pst_put32(&r->head, r->head + 1);
    return PST_OK;
}

/* Gives half of a nearly empty ring back; more when called again. Part of sealing. */
void pst_ring_shrink(pst_table *t, uint32_t ring);

#endif
