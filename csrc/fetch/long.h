/* long.h: rows of keys of which files have very much.
 *
 * Purpose: a list may be larger than memory. Of such a one a row has the numbers alone, and room for
 * what is appended from now on (Q7); its items stay in the files, where items.h reads them. A map may be,
 * too: of such a one a row has nothing but the mark that says so (MP1), and entries.h reads what is asked
 * for. So of a key's records in a file the row's own are read, its timers, short lists and small maps,
 * of a long list the first and the last run, and of a large map the first entry.
 *
 * Thread safety: as the table.
 *
 * Invariants
 *  LG1. The row is as AD1 says, but that a long list's items are named and not there, and a large map's
 *       entries are not there; of which some may be gone, or all. All that the table's own epochs do to
 *       such a list or map is what a delta says, as if they were.
 *  LG2. What reading changes in a list (pst_ttl.on_read, pst_ttl.lenient) is no reason to bring it: used.h
 *       looks at its items when it is read. A map to whose entries reading writes comes whole, and so does
 *       one whose entries a late write leaves the time that they had (pst_ttl_rewritten).
 *  LG3. Room is asked for before each block's records are applied, so that what does not fit is
 *       PST_LIMIT and no poisoned epoch.
 *
 * Complexity: O(log blocks) reads for each file and list or map, and those of what comes.
 */
#ifndef PST_FETCH_LONG_H
#define PST_FETCH_LONG_H

#include "key/key.h"
#include "memory/handle.h"

/* Whether rows of the table may have less than files. */
int pst_long_may_be(const pst_table *t);

/* Makes the row of a key that has none here, with its hash in files. PST_OK: *slot is its row, also
 * where it has none anywhere, as pst_admission_end says. What admissions and walks say; *damaged is
 * then the file whose record no row can be made of, or as it was. */
pst_status pst_long_admit(pst_table *t, const pst_key *key, uint64_t hash, uint32_t *slot,
                          int32_t *damaged);

#endif
