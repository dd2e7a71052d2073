/* load_entries.h: the entries of a map that lie behind one another in a file's block.
 *
 * Purpose: most of what it costs to read a record, and to apply it, finds out whose it is. Entries
 * of one map are put together, from the block as they lie.
 *
 * Thread safety: as the table and the reader.
 */
#ifndef PST_LOAD_ENTRIES_H
#define PST_LOAD_ENTRIES_H

#include "pystate.h"

/* The record was read from `r` and applied to the row in `slot`, and is an entry of the table's map
 * `column`. Puts those behind it, of `more` that are of the same row and state, up to the first that
 * a record of its own is needed for, and moves the reader behind them. *taken counts them, also
 * where it is 0. What writing to a map says; PST_OK otherwise. */
pst_status pst_load_entries(pst_table *t, pst_sst_reader *r, const pst_record *record,
                            int32_t column, uint32_t slot, uint32_t more, uint32_t *taken);

#endif
