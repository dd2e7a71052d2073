/* sst_order.h: the order of a block's rows, and which of them belong together.
 *
 * Thread safety: pure functions over their arguments.
 */
#ifndef PST_SST_ORDER_H
#define PST_SST_ORDER_H

#include "sst/sst_block.h"

/* Whether the rows of a block ascend by key group, hash and key; fills the key groups. `same`, which
 * is NULL in a file without elements, says of each row but the first whether only the last key
 * column tells it from the row before: both are of one row of the table. */
int pst_sst_rows_ascend(const pst_sst_view *v, const uint64_t *hash, int32_t max_parallelism,
                        int32_t *key_group, uint8_t *same);

/* The first row whose key group is at least `first`. */
uint32_t pst_sst_first_row(const int32_t *key_group, uint32_t rows, int32_t first);

#endif
