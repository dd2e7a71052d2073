/* fetch.h: rows that an operation needs, out of the files below a table.
 *
 * Purpose: a table that is not whole does not know whether a key that it lacks exists. Before keys
 * are used, those that are not here are looked up in the table's stack, all at once, and what is
 * found is admitted. After that, for these keys, "not here" is "absent".
 *
 * Thread safety: as the table; the stack is searched meanwhile.
 *
 * Invariants
 *  FE1. A stack is asked only while it is as the last sealed epoch left the table: it was set under
 *       that epoch's lineage. Otherwise a row that died since would come back.
 *  FE2. Fetching changes no state: it makes no record, and an epoch that has only fetched is not
 *       dirty. Where it fails some rows may have come, each whole, and the epoch goes on: a row that is
 *       refused memory is dropped, as is one that a file says what cannot be of.
 *  FE3. A row is what its records make of it, oldest file first, as loading those files would; of a
 *       long list it has the numbers alone (LG1).
 *  FE4. Whether the rows fit is reckoned before the first of them comes (room.h); not of a single
 *       key, which is tried, nor of keys that are only read, of which most may be absent: of these the
 *       rest is reckoned when some are known. What a table that is full refuses is PST_NO_ROOM, for
 *       which a step helps; what the search is refused is PST_LIMIT, for which it does not.
 *  FE5. What is kept of keys while they wait for other files is bounded, but for that of one key.
 *
 * Complexity: O(keys), and a search of the stack for those that are not here.
 */
#ifndef PST_FETCH_H
#define PST_FETCH_H

#include "fetch/wants.h"
#include "table/resident.h"

/* Keys that are searched for at a time, so that what is kept of them stays small. */
#ifndef PST_FETCH_SLICE
#define PST_FETCH_SLICE 65536u /* tests have less */
#endif

/* Fetches those of the keys whose slot is PST_NONE; a slot that is PST_NONE afterwards is of a key
 * that does not exist. REQUIRES: the table has none of these keys. PST_NO_STACK: there is no stack
 * to ask (FE1). PST_NO_ROOM: the rows do not fit, and nothing has changed; the detail's row is about how many of
 * the first keys would, 0 where none do beside the rows that are here. PST_LIMIT: the search itself
 * was refused memory. PST_IO, PST_CORRUPT: the detail's row is the number of the file in the stack;
 * PST_TOO_LARGE; PST_NO_MEMORY. */
pst_status pst_fetch(pst_table *t, const pst_keys *keys);
/* The same of a single key. */
pst_status pst_fetch_key(pst_table *t, const pst_key *key, uint32_t *slot);

#endif
