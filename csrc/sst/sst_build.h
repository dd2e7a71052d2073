/* sst_build.h: the columns of a block under construction, for those who add rows to it, and of rows
 * that go to no file.
 *
 * Thread safety: as the builder.
 */
#ifndef PST_SST_BUILD_H
#define PST_SST_BUILD_H

#include "sst/sst_block.h"

/* Finds or makes the kind; PST_SST_BLOCK_KINDS where there is no room for another. */
uint32_t pst_sst_kind_of(pst_sst_builder *b, pst_record_op op, uint64_t changed);
/* Makes room for one more value; of BYTES, for its offset. PST_NO_MEMORY. */
pst_status pst_sst_grow_column(pst_sst_growing *c);
/* Bit `count` of the validity bitmap, which begins with the column's first null. PST_NO_MEMORY. */
pst_status pst_sst_append_validity(pst_sst_growing *c, int valid);
/* Appends a value, or a null. PST_NO_MEMORY. */
pst_status pst_sst_append(pst_sst_growing *c, const pst_cell *cell, int valid);
pst_status pst_sst_append_nulls(pst_sst_growing *c, uint32_t n);
/* Appends n values of a view's column of the same shape. PST_NO_MEMORY. */
pst_status pst_sst_append_view(pst_sst_growing *c, const pst_sst_values *v, uint32_t from,
                               uint32_t n);
void pst_sst_growing_free(pst_sst_growing *c);

#endif
