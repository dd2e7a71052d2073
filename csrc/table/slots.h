/* slots.h: which slots rows take.
 *
 * Purpose: slots are reused in the order of the epochs that freed them; many of one epoch, in
 * ascending order (seal.c). Taking one also depends on how far a cut (cut.h), which makes them
 * fewer, has come.
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  SL1. Each slot below `slots` is in one of these states: its row lives, or died in the open
 *       epoch, or was dropped from an admission in it (R2); or its name is in the ring, once; or, from PST_CUT_TURN on, it lies above the cut.
 *       Where a name leaves the ring without being taken, the row's header stays as it is. It bears
 *       neither the epoch's stamp nor its number, so undoing passes it over.
 */
#ifndef PST_SLOTS_H
#define PST_SLOTS_H

#include "memory/handle.h"

static inline pst_ring *pst_slot_ring(const pst_table *t) {
    return &t->m->rings[PST_RING_SLOTS];
}

/* How many rows the open epoch has made, and a number that stays the same while it is open. */
static inline uint64_t pst_rows_made(const pst_table *t) {
    return t->reused + t->m->slots;
}

/* Takes a reusable slot if the window allows one, else a fresh one. REQUIRES: there is room for a
 * fresh one. */
void pst_slot_take(pst_table *t, uint32_t *slot);
/* Takes the ring's next name. REQUIRES: there is one. Its old index entry is removed first: as soon
 * as the ring's head has passed the name, undoing takes the slot for an insert of this epoch
 * (I4). */
void pst_slot_take_named(pst_table *t, uint32_t *slot);
/* Frees the slot of a row that died in the open epoch. Part of sealing. */
pst_status pst_slot_free(pst_table *t, uint32_t slot);

/* ---- how far a cut is ------------------------------------------------------------------------ */

static inline void pst_cut_phase(pst_table *t, uint32_t phase, uint32_t at) {
    pst_put32(&t->m->cut_at, at);
    pst_put32(&t->m->cut_phase, phase);
}

/* In PST_CUT_TURN: has the ring gone round? */
static inline int pst_cut_is_turned(const pst_table *t) {
    return (int32_t)(pst_slot_ring(t)->head - t->m->cut_at) >= 0;
}

/* Ends the cut. */
void pst_cut_end(pst_table *t);

#endif
