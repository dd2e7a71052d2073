/* room.h: how many rows may come, and how many have to leave for them.
 *
 * Purpose: an epoch keeps what it has changed until it is sealed, so a batch whose rows do not fit
 * beside that is to be cut, or comes after a step. It is better to know that before anything has
 * changed.
 *
 * Thread safety: as the table.
 *
 * Invariants
 *  RM1. A row is reckoned with its place in the index, its before-image, as an operation may change
 *       all that it fetches, and the blocks that rows have in the mean. Blocks of single rows may
 *       differ, so growing may still be refused.
 *
 * Complexity: O(size classes + log rows).
 */
#ifndef PST_FETCH_ROOM_H
#define PST_FETCH_ROOM_H

#include "memory/handle.h"

enum { PST_ROOM_ALL = 1024 };

/* How much can come and be touched now, in parts of PST_ROOM_ALL: of rows that are not here, and
 * of touches of some that are. */
uint32_t pst_room_share(pst_table *t, uint64_t rows, uint64_t touches);
/* May blocks of so many bytes in all be taken now? PST_LIMIT. Which sizes are free is not looked at. */
pst_status pst_room_for_blocks(pst_table *t, uint64_t bytes);

#endif
