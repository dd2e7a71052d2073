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

#include "list/list.h"
#include "memory/handle.h"
#include "tree/tree.h"

enum { PST_MOVE_MOST = 1 << 15 };

/* Part of sealing, after gathering and before anything else. */
void pst_evacuate(pst_table *t);
/* Part of sealing, when nothing can fail any more. */
void pst_evacuate_keys(pst_table *t);

/* ---- what moves one thing: PST_OK also where it need not move ----------------------------------- */

/* The value of a present column of bytes: value.c. REQUIRES: room for a touch was reserved. */
pst_status pst_row_move_bytes(pst_table *t, uint32_t slot, int32_t i);
/* The bytes of a row's key: value.c. REQUIRES: the row lives. */
pst_status pst_row_move_key(pst_table *t, uint32_t slot);
/* A list's whole chain, if a chunk of it must: list.c. `l` is the caller's private copy. */
pst_status pst_list_move(pst_table *t, pst_list *l, uint64_t *looked);
/* A tree's nodes and the bytes of its entries: tree_move.c. *root is the caller's private copy, which he
 * stores also where this fails: the tree is whole after every step. */
pst_status pst_tree_move(pst_table *t, const pst_tree_shape *s, pst_tree_root *root,
                         uint64_t *looked);

#endif
