/* used.h: lists that reading changes, wherever their items lie.
 *
 * Purpose: reading may count as use of all items of a list (pst_ttl.on_read), and takes away those that
 * had expired and were visible (pst_ttl.lenient). What is in the row alone is ttl_elements.c's; of a long
 * list (long.h) the items are looked at where they lie.
 *
 * Thread safety: as the table.
 *
 * Invariants
 *  US1. Readers then see of a long list what they would if all of its items were in the row.
 *  US2. A list that did not change, or of which its first items went, has its items in files as before, and
 *       memory is that of items.h. Only one of which items move to another time, or go from between
 *       others, comes into the row, with those that can still be seen.
 *  US3. A list that does not fit into the row is PST_LIMIT, and as it was: the epoch goes on.
 *
 * Complexity: all items of a long list are read.
 */
#ifndef PST_FETCH_USED_H
#define PST_FETCH_USED_H

#include "memory/handle.h"

/* As pst_row_use_elements; also PST_LIMIT, and what pst_items_open and pst_items_next say. */
pst_status pst_items_use(pst_table *t, uint32_t slot, int32_t column);
/* As pst_row_drop_shown; the same. */
pst_status pst_items_drop_shown(pst_table *t, uint32_t slot, int32_t column);

#endif
