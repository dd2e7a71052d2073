/* value.h: rows and their cells.
 *
 * Purpose: making a row, setting and clearing a state in it. Reading one out is in row.h.
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  V1. A row is written completely, key and header, before the index names it.
 *  V3. A block that the before-image refers to is never written or freed at once, only pushed to
 *      its ring; a block born in the open epoch may be overwritten in place.
 *  V4. The caller has reserved room with pst_undo_reserve and has touched the row.
 */
#ifndef PST_VALUE_H
#define PST_VALUE_H

#include "table/index.h"
#include "table/row.h"
#include "table/undo.h"

/* The key's row. Where it has none, makes one without a present state, in a slot that it takes.
 * REQUIRES: room in the undo log and for a row was reserved. Room in the index is taken here. */
pst_status pst_row_make(pst_table *t, const pst_key *key, uint32_t *slot);

/* Stores a value (PST_VALUE, PST_TIME) and marks it present. PST_TOO_LARGE; PST_WRONG_TYPE for a
 * struct of another width. */
pst_status pst_row_put(pst_table *t, uint64_t *row, int32_t i, const pst_cell *cell);
/* The same, with touch and time. An equal value that is young enough leaves the row as it is.
 * REQUIRES: room for a touch was reserved. */
pst_status pst_state_put(pst_table *t, uint32_t slot, int32_t i, const pst_cell *cell);
/* Clears a state, with its time and elements. */
pst_status pst_row_clear(pst_table *t, uint64_t *row, int32_t i);
/* Clears every state: the key ceases to exist, unless it has timers. */
pst_status pst_row_delete(pst_table *t, uint64_t *row);

/* Frees the block of a dead row's key. */
pst_status pst_row_free_key(pst_table *t, const uint64_t *row);

/* ---- moving, see evacuate.h: PST_OK also where nothing need move ----------------------------- */

/* The value of a present column of bytes. REQUIRES: room for a touch was reserved. */
pst_status pst_row_move_bytes(pst_table *t, uint32_t slot, int32_t i);
/* The bytes of a row's key. REQUIRES: the row lives. */
pst_status pst_row_move_key(pst_table *t, uint32_t slot);

#endif
