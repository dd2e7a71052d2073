/* slots.h: which slots rows take.
 *
 * Purpose: slots are reused in the order in which they were freed, and how a cut that makes them fewer
 * stands is known where they are taken. cut.h says how a table is cut.
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  SL1. A slot below `slots` is a row's that lives, or one that died in the open epoch, or its name is in
 *       the ring once, or it lies above the cut (from PST_CUT_TURN on). A name that leaves the ring other
 *       than by being taken leaves the row's header as it is, which bears no stamp of the window, so that
 *       undoing passes it over.
 */
#ifndef PST_SLOTS_H
#define PST_SLOTS_H

#include "memory/handle.h"

static inline pst_ring *pst_slot_ring(const pst_table *t) {
    return &t->m->rings[PST_RING_SLOTS];
}

/* A reusable slot if the window allows one, else a fresh one, for which there is room. */
void pst_slot_take(pst_table *t, uint32_t *slot);
/* The ring's next name, which there is. Its old entry goes first: from the moment that the ring's head has
 * passed it, undoing takes the slot for an insert of this epoch (I4). */
void pst_slot_take_named(pst_table *t, uint32_t *slot);
/* Of a row that died in the open epoch. Part of sealing. */
pst_status pst_slot_free(pst_table *t, uint32_t slot);

/* ---- how far a cut is ----------------------------------------------------------------------------- */

static inline void pst_cut_phase(pst_table *t, uint32_t phase, uint32_t at) {
    pst_put32(&t->m->cut_at, at);
    pst_put32(&t->m->cut_phase, phase);
}

/* In PST_CUT_TURN: has the ring gone round? */
static inline int pst_cut_is_turned(const pst_table *t) {
    return (int32_t)(pst_slot_ring(t)->head - t->m->cut_at) >= 0;
}

/* There is none any more. */
void pst_cut_end(pst_table *t);

#endif
