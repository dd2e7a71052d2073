/* evacuate.h: blocks that live moved out of spans that are mostly free.
 *
 * Purpose: reuse spreads live blocks over all spans of a class, so few spans are ever wholly free.
 * Where a class has more free blocks than it needs, some of its spans are marked to be left
 * (PST_SPAN_LEAVING). Nothing new is put there, and a sweep over the rows, a part of it at each
 * seal, moves what is still there. Then the spans are freed like any others (span.h).
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  EV1. Moving is an ordinary write of the open epoch, under its undo, after its changes were
 *       gathered, so it never enters a delta. Only the bytes of keys move later, when sealing
 *       cannot fail any more: the row stays where it is, untouched, and the place of its key has
 *       undo of its own (U5).
 *  EV2. A step that is refused memory leaves everything as it was, and the sweep waits.
 *  EV3. The rows, nodes and chunks that a sweep looks at in a seal are bounded by a constant and by
 *       what the epoch changed. Lists and maps above PST_MOVE_MOST elements stay where they are,
 *       and so do the nodes of timers' trees.
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
