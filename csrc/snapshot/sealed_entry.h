/* sealed_entry.h: entries of a sealed epoch that have elements beside them.
 *
 * Purpose: files with elements have one key column more (elements.h), so every entry has a bytes
 * key: the row's key in the form of several columns, then the element or its absence.
 *
 * Thread safety: as the sealed epoch's.
 */
#ifndef PST_SEALED_ENTRY_H
#define PST_SEALED_ENTRY_H

#include "snapshot/sealed.h"

/* Begins the entry of a row, or of one of its elements (data not NULL), with room for so many words
 * of cells. *w is where it begins: three words of the key, then what pst_entry_info puts. */
pst_status pst_entry_begin(pst_sealed *s, const pst_table *t, const uint64_t *row,
                           pst_bytes element, size_t cells, uint64_t **w);
/* Returns where the cells go. */
uint64_t *pst_entry_info(const pst_sealed *s, uint64_t *w, pst_record_op op, uint64_t changed,
                         uint64_t present);
/* `w`: behind the last cell. */
void pst_entry_end(pst_sealed *s, const uint64_t *w);

#endif
