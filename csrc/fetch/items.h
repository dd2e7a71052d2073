/* items.h: the items of a row's list, wherever they lie.
 *
 * Purpose: of a long list the row has what was appended since it came (long.h). What is before that
 * is read from the files below the table, a few blocks at a time.
 *
 * Thread safety: as the table.
 *
 * Invariants
 *  IT1. Items come in the order of their numbers, each once: those that the row does not have from
 *       files, run by run and oldest file first, as far as their numbers are before the row's own.
 *       Of a list that is timed some may be missing there, which merges left out (XP2); of another
 *       that is PST_CORRUPT.
 *  IT2. Memory is that of a walk (WK2) and of one run of items.
 *
 * Complexity: a read in each file that may have the key to open it, O(log blocks) reads in each whose
 * items come for the first of them, and those of its blocks.
 */
#ifndef PST_FETCH_ITEMS_H
#define PST_FETCH_ITEMS_H

#include "list/list.h"
#include "table/resident.h"
#include "table/roots.h"

typedef struct pst_items pst_items;

/* Stands before the first item; what lies in files is not read yet, but for what they say of the row.
 * The list, and the key's bytes, must stay as they are until it is closed. PST_NO_STACK: no stack
 * counts for the sealed epoch; PST_NO_MEMORY; and what walks say (walk.h). */
pst_status pst_items_open(pst_table *t, uint32_t slot, int32_t column, pst_items **items);
/* Takes NULL. */
void pst_items_close(pst_items *x);
/* Numbers that it has not passed. */
uint64_t pst_items_left(const pst_items *x);

/* Bytes are valid until the next call. PST_NOT_FOUND at the end. Statuses of all that read: those of
 * walks; PST_CORRUPT also where the list's chunks, or the runs of files, contradict themselves. */
pst_status pst_items_next(pst_items *x, pst_item *item);
/* Items side by side, as pst_list_next_run; `times` is NULL. REQUIRES: the list's width is not 0. */
pst_status pst_items_next_run(pst_items *x, pst_list_run *run);
/* Passes so many items, by their numbers. Reads nothing. */
pst_status pst_items_skip(pst_items *x, uint64_t items);
/* Items of a present list that a reader sees; with TTL all of them are read. */
pst_status pst_items_count(pst_table *t, uint32_t slot, int32_t column, uint64_t *count);

/* Does the row have a list there of which some items lie in files? */
static inline int pst_items_are_below(const pst_table *t, uint32_t slot, int32_t column) {
    uint64_t end;
    if (t->lay.fields[column].kind != PST_LIST || pst_is_whole(t))
        return 0;
    pst_list l = pst_row_list(t, pst_row(t, slot), column);
    return pst_list_is_below(t, &l, &end);
}

#endif
