/* elements.h: entries, items and timers as records of files.
 *
 * Purpose: the element column of a record's key, there and back; FORMAT.md describes its bytes:
 * an id of the state (a hash of its name, so that it means the same whatever else is declared),
 * then the map's key, the number of the first item of a run, or a timer's domain and time, such
 * that elements of a state sort as they are kept.
 *
 * Thread safety: as what they work on.
 *
 * Invariants
 *  N1. Applying a record twice changes nothing the second time.
 *  N2. A record of a state that the table does not have is skipped. A delete of an element that the
 *      state cannot have changes nothing.
 *  N3. Of a record's cells an element takes only those of its state's column and of that column's
 *      time.
 */
#ifndef PST_ELEMENTS_H
#define PST_ELEMENTS_H

#include "elements/collections.h"
#include "key/key.h"
#include "key/schema.h"

enum { PST_RUN_BYTES = 32 * 1024 };

/* Applies a record whose element is not null to the key's row. `columns` as in pst_table_apply.
 * *slot is where the record before found its row, or PST_NONE, and is set likewise. `more`: as many
 * records of the same row and state follow, or at least for that many there is to be room. Room for
 * a touch was reserved. PST_CORRUPT, and what writing to a list or map says. */
pst_status pst_element_apply(pst_table *t, const pst_key *key, const pst_record *r,
                             const int32_t *columns, int32_t n_columns, uint32_t more,
                             uint32_t *slot);

#endif
