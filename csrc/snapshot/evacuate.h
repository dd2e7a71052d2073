/* evacuate.h: blocks that live moved out of spans that are mostly free.
 *
 * Purpose: reuse spreads what lives over all spans of its class, so few of them are ever wholly free.
 * Where a class has more free blocks than it needs, some of its spans are marked to be left
 * (PST_SPAN_LEAVING): nothing new is put there, and a sweep over the rows, some at each seal, moves what
 * is still there. Then they are freed like any others (span.h).
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  EV1. Moving is an ordinary write of the open epoch, under its undo, after its changes were gathered:
 *       it never enters a delta. Only the bytes of keys move once sealing cannot fail any more: a row
 *       stays where it is, untouched, and its key's place has undo of its own (U5).
 *  EV2. A step that is refused memory leaves everything as it was, and the sweep waits.
 *  EV3. A sweep looks at a number of rows, nodes and chunks that is bounded by a constant and what the
 *       epoch changed. Lists and maps above PST_MOVE_MOST elements stay where they are, as does what
 *       timers need.
 */
#ifndef PST_EVACUATE_H
#define PST_EVACUATE_H

#include "memory/handle.h"

enum { PST_MOVE_MOST = 1 << 15 };

/* Part of sealing, after gathering and before anything else. */
void pst_evacuate(pst_table *t);
/* Part of sealing, when nothing can fail any more. */
void pst_evacuate_keys(pst_table *t);

#endif
