/* cut.h: how a table comes to have fewer slots.
 *
 * Purpose: after most rows have gone, those that live are spread over all slots there ever were.
 * Where a table has had more free slots for a while than it needs, it is cut: rows above a certain
 * slot move down into free ones, and the index forgets the slots above. Once no epoch of the window
 * knows of them, `slots` is lowered and the pages go back.
 *
 * Thread safety: the writer's alone.
 *
 * Invariants, after SL1 in slots.h
 *  SL2. Moving a row is making another one of its key and letting the first one die, in the open
 *       epoch and under its undo, after the epoch's changes were gathered. So neither enters a
 *       delta. A key's bytes are copied. All else that a row names is handed over to the new one,
 *       and nothing of it is freed in that epoch. So an epoch that has moved rows must be sealed or
 *       undone.
 *  SL3. From PST_CUT_MOVE on the ring names no slot above the cut, so none is taken again. From
 *       PST_CUT_PURGE on no row lives there. A writer that then finds no name gives the cut up:
 *       names go back to the ring (PST_CUT_RELIST), and those of rows that died before the window
 *       can be taken at once. So giving a cut up makes no table longer, as long as the ring can
 *       grow. Where it cannot, fresh slots are taken for the rest of the epoch, for undoing relies
 *       on their coming last (U4).
 *  SL4. `slots` is lowered when the oldest epoch of the window has neither entries nor rows there.
 *       So whatever epoch is returned to, no entry names a slot that was made anew. Pages go back
 *       once no epoch of the window has as many slots, and no reader of a gone epoch is left.
 *  SL5. The cut is in the meta, so undoing an epoch undoes it. Work per seal is bounded by a
 *       constant; purging is done by writes, see pst_index_tidy.
 *  SL6. The timers of a row move with it, so that a tree never names a row that has gone. Where its
 *       key group, or the row, has too many to look through (PST_TIMERS_MOST), the row stays, and
 *       no cut goes below it as long as that is so. If a tree is refused memory the epoch is
 *       poisoned, and the move is not tried again soon.
 *  SL7. While rows are to stay in their slots (pst_table_keep_rows) none moves, and a cut waits.
 */
#ifndef PST_CUT_H
#define PST_CUT_H

#include "memory/handle.h"

/* Part of sealing, after gathering and before anything dies: moves some rows. Returns 0 where it
 * moved none. */
int pst_cut_move(pst_table *t);
/* Part of sealing, when nothing can fail any more. */
void pst_cut_tidy(pst_table *t);

#endif
