/* sst_build.h: the columns of a block under construction, for those who add rows to it.
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

#endif
