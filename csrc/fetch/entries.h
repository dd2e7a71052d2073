/* entries.h: the entries of a row's map, wherever they lie.
 *
 * Purpose: of a large map a row has what was put and removed since it came (long.h). An entry that is
 * not there is looked up in the files below the table, newest first, and a pass through the map goes
 * through all of them and the row at once.
 *
 * Thread safety: as the table.
 *
 * Invariants
 *  EN1. An entry is what the row's tree says of its key, and where that says nothing what the newest
 *       file says that has a record of it, as far as no file that is as new has made the map void.
 *  EN2. A pass gives each entry once, in the order of trees, and none that is gone.
 *  EN3. Memory is that of a walk through each file (WK2), and of the record at which it stands.
 *
 * Complexity: a read in each file that may have the key to open it; a look-up reads O(log blocks of the
 * key) blocks in each file, none where the one that is open has it; a pass its blocks.
 */
#ifndef PST_FETCH_ENTRIES_H
#define PST_FETCH_ENTRIES_H

#include "table/resident.h"
#include "table/roots.h"

typedef struct pst_entries pst_entries;

/* Stands before the first entry of a present map. The map, and the key's bytes, must stay as they are
 * until it is closed. PST_NO_STACK: no stack counts for the sealed epoch; PST_NO_MEMORY; and what walks
 * say (walk.h). */
pst_status pst_entries_open(pst_table *t, uint32_t slot, int32_t column, pst_entries **entries);
/* Takes NULL. */
void pst_entries_close(pst_entries *x);
/* The next entry; bytes are valid until the next call. PST_NOT_FOUND at the end; what walks say;
 * PST_CORRUPT. */
pst_status pst_entries_next(pst_entries *x, pst_tree_entry *e);
/* Stands behind that key, which must not be of the map. */
pst_status pst_entries_seek(pst_entries *x, const pst_tree_entry *from);

/* As pst_row_map_get, in files, too, and bytes are valid only until the next one. Reads count as no
 * use. Statuses as those of opening. */
pst_status pst_entries_get(pst_table *t, uint32_t slot, int32_t column, pst_tree_entry *e);
/* What the files alone say of an entry, also of one that had expired. PST_NOT_FOUND; as those of opening. */
pst_status pst_entries_find(pst_table *t, uint32_t slot, int32_t column, pst_tree_entry *e);
/* As pst_row_count of a map, of which all entries are read where some lie in files. */
pst_status pst_entries_count(pst_table *t, uint32_t slot, int32_t column, uint64_t *count);
/* Lets go of what a look-up keeps for the next one. */
void pst_entries_forget(pst_table *t);

/* Does the row have a map there of which some entries lie in files? */
static inline int pst_entries_are_below(const pst_table *t, uint32_t slot, int32_t column) {
    return t->lay.fields[column].kind == PST_MAP && !pst_is_whole(t) &&
           pst_row_map_is_below(t, pst_row(t, slot), column);
}

#endif
