/* slots.h: which slots rows take, and how a table comes to have fewer of them.
 *
 * Purpose: slots are reused in the order in which they were freed, so after most rows have gone those
 * that live are spread over all slots there ever were. Where a table has had more free slots for a while
 * than it needs, it is cut: rows from a certain slot on move down into free ones, the index forgets
 * those slots, and once no epoch of the window knows of them `slots` is lowered and the pages go back.
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  SL1. A slot below `slots` is a row's that lives, or one that died in the open epoch, or its name is in
 *       the ring once, or it lies above the cut (from PST_CUT_TURN on). A name that leaves the ring other
 *       than by being taken leaves the row's header as it is, which bears no stamp of the window, so that
 *       undoing passes it over.
 *  SL2. Moving a row is making another one of its key and letting the first one die, in the open epoch and
 *       under its undo, after its changes were gathered: neither enters a delta. A key's bytes are copied;
 *       all else that a row names goes over to the new one, and nothing of it is freed in that epoch. So
 *       an epoch that has moved rows is sealed, or undone.
 *  SL3. From PST_CUT_MOVE on the ring names no slot from the cut on, so none is taken again. From
 *       PST_CUT_PURGE on no row lives there. Who finds no name then gives the cut up: names go back to
 *       the ring (PST_CUT_RELIST), and those of rows that died before the window can be taken at once.
 *       So a cut that is given up never makes a table longer, as long as the ring can grow: where it
 *       cannot, fresh slots are taken for the rest of the epoch, for undoing relies on their coming
 *       last (U4).
 *  SL4. `slots` is lowered when the oldest epoch of the window has neither entries nor rows there. So whatever
 *       epoch is returned to, no entry names a slot that was made anew. Pages go once no epoch of the window
 *       has as many slots, and no reader lags.
 *  SL5. The cut is in the meta, so undoing an epoch undoes it. Work per seal is bounded by a constant;
 *       purging is the work of writes, see pst_index_tidy.
 *  SL6. The timers of a row move with it, so that a tree never names a row that has gone. Where a key
 *       group has too many to look through (PST_TIMERS_MOST), or a row, they stay: no cut goes below
 *       such a row as long as that is so. What a tree is refused poisons the epoch; it is not tried again
 *       soon.
 *  SL7. While rows are to be kept where they are (pst_table_keep_rows) none moves, and a cut waits.
 */
#ifndef PST_SLOTS_H
#define PST_SLOTS_H

#include "memory/handle.h"

/* A reusable slot if the window allows one, else a fresh one, for which there is room. */
void pst_slot_take(pst_table *t, uint32_t *slot);
/* Of a row that died in the open epoch. Part of sealing. */
pst_status pst_slot_free(pst_table *t, uint32_t slot);

/* Part of sealing, after gathering and before anything dies: moves some rows. 0 where it moved none. */
int pst_slots_move(pst_table *t);
/* Part of sealing, when nothing can fail any more. */
void pst_slots_tidy(pst_table *t);

#endif
