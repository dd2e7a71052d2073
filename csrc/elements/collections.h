/* collections.h: the lists and maps of a row.
 *
 * Purpose: reading the list or tree whose root lies in the row, and writing to it under the row's
 * undo.
 *
 * Thread safety: as the table.
 *
 * Invariants
 *  CE1. An empty list or map is an absent state: its presence bit is cleared with its last element.
 *       Not of a map with entries in files, as it is not known which is the last one (MP1).
 *  CE2. A row is touched before its root is stored, and only if the root changes. A put of what is
 *       there already, or a remove of what is not, leaves the row untouched.
 *  CE3. What the root names is complete before the root is stored (release fence in between).
 *  CE4. Elements that have expired are not seen, and go when their list or map is written to or
 *      swept; their time is their own (ttl.h).
 */
#ifndef PST_COLLECTIONS_H
#define PST_COLLECTIONS_H

#include "key/schema.h"
#include "table/roots.h"
#include "table/ttl.h"
#include "table/value.h"

/* Column i of that kind? PST_INVALID. */
pst_status pst_check_kind(const pst_table *t, int32_t i, pst_kind kind);

/* An element as a list item, whose data lie in the cell. */
pst_status pst_item_of(const pst_table *t, int32_t i, const pst_cell *cell, pst_item *item);
void pst_item_cell(const pst_table *t, int32_t i, const pst_item *item, pst_cell *cell);
/* A map's key and value as an entry, whose value lies in the cell, or if it is a struct in `room`;
 * NULL: an entry without a value. The cell of such an entry is not filled.
 * PST_WRONG_TYPE for a struct of another width. */
void pst_entry_key(const pst_table *t, int32_t i, const pst_cell *key, pst_tree_entry *e);
pst_status pst_entry_value(const pst_table *t, int32_t i, const pst_cell *value,
                           uint64_t room[PST_TREE_MAX_VALUE_WORDS], pst_tree_entry *e);
void pst_entry_key_cell(const pst_table *t, int32_t i, const pst_tree_entry *e, pst_cell *key);
void pst_entry_value_cell(const pst_table *t, int32_t i, const pst_tree_entry *e, pst_cell *value);

/* All that write here REQUIRE that room for a touch was reserved. */
pst_status pst_row_list_append(pst_table *t, uint32_t slot, int32_t i, const pst_item *item);
/* Gives the row that list in place of its old one, which the caller has dealt with. */
void pst_row_list_store(pst_table *t, uint32_t slot, int32_t i, const pst_list *l);
/* The same for a map whose root was `before`; nothing is written where they are equal. */
void pst_row_map_replace(pst_table *t, uint32_t slot, int32_t i, pst_tree_root before,
                         pst_tree_root root);
/* Gives a row that is being admitted a map of which all entries lie in files. */
void pst_row_map_begin_below(pst_table *t, uint32_t slot, int32_t i);
pst_status pst_row_map_put(pst_table *t, uint32_t slot, int32_t i, const pst_tree_entry *e);
/* The same, whatever the age of the entry that is there: entries of files bring their own time. They
 * come in order: see pst_tree_append. */
pst_status pst_row_map_append(pst_table *t, uint32_t slot, int32_t i, const pst_tree_entry *e,
                              uint32_t more);
/* The same for n entries that ascend, as far as they lie behind all that the map has: *done of them.
 * `more` are about to follow. REQUIRES: the map is not timed. */
pst_status pst_row_map_append_run(pst_table *t, uint32_t slot, int32_t i, const pst_tree_entry *e,
                                  uint32_t n, uint32_t more, uint32_t *done);
/* PST_NOT_FOUND, also for an entry that had expired. Of a map with entries in files it is written down
 * that there is none; PST_OK then also where there was none. */
pst_status pst_row_map_remove(pst_table *t, uint32_t slot, int32_t i, const pst_tree_entry *e);
/* PST_NOT_FOUND, also for an entry that is hidden by its age. PST_NOT_HERE: files may have it. */
pst_status pst_row_map_get(pst_table *t, uint32_t slot, int32_t i, pst_tree_entry *e);
/* Elements that a reader sees. PST_NOT_HERE: some lie in files. */
pst_status pst_row_count(pst_table *t, uint32_t slot, int32_t i, uint64_t *count);
/* ---- times: ttl_elements.c ------------------------------------------------------------------- */

/* As pst_row_map_get; where reading counts as use, that is noted. Reserves room by itself. */
pst_status pst_row_map_use(pst_table *t, uint32_t slot, int32_t i, pst_tree_entry *e);
/* Notes that all elements were read, where that counts as use. Reserves room by itself. REQUIRES, as the
 * next one: no item of the list lies in files alone. */
pst_status pst_row_use_elements(pst_table *t, uint32_t slot, int32_t i);
/* Removes all elements that have expired and were visible, once they were read. Reserves room by
 * itself. */
pst_status pst_row_drop_shown(pst_table *t, uint32_t slot, int32_t i);
/* Moves the items of one row's list to the end of another's, with their times. Items without a time
 * get one, as from a sweep. REQUIRES: room for two touches. */
pst_status pst_row_list_take(pst_table *t, uint32_t to, uint32_t from, int32_t i);
/* Takes expired elements away. Begins at the place's key if the place is in this map. If the sweep
 * must end in the middle of a map, the place is set there. */
pst_status pst_row_expire_elements(pst_table *t, uint32_t slot, int32_t i, pst_sweep *s);

#endif
