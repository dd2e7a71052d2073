/* wanted.h: keys that are looked up in files without a table, in the order of files.
 *
 * Thread safety: plain memory of one thread.
 *
 * Invariants
 *  LW1. Wanted keys ascend as the rows of files do, each once, and a run is those of one place.
 *
 * Complexity: O(n log n) comparisons.
 */
#ifndef PST_WANTED_H
#define PST_WANTED_H

#include "base/budget.h"
#include "pystate.h"

typedef struct pst_wanted_key {
    uint64_t hash;
    int32_t key_group;
    uint32_t at;  /* in the caller's arrays */
    uint32_t end; /* of the first one of a run: where the run ends */
} pst_wanted_key;

typedef struct pst_wanted_list {
    const pst_schema *schema; /* as files have it */
    const pst_array *columns;
    int32_t n_columns;
    int every; /* namespace of a key */
    pst_wanted_key *keys;
    uint32_t n;
    pst_charge charge;
} pst_wanted_list;

/* Of keys in files with that schema, which must outlive the list, as must what `wanted` names. With
 * `numbers`, which has room for one of each key that is asked for, these are what it is in the list.
 * Statuses are those of pst_stack_lookup about keys and memory. The list is to be freed in any case. */
pst_status pst_wanted_make(pst_wanted_list *w, const pst_schema *schema, int32_t max_parallelism,
                           const pst_wanted_keys *wanted, pst_budget *budget, uint32_t *numbers);
void pst_wanted_free(pst_wanted_list *w);

/* The cells of a key, in their canonical form. */
void pst_wanted_cells(const pst_wanted_list *w, uint32_t i, pst_cell *cells, uint32_t *nulls);
/* Is the record's key this one? */
int pst_wanted_is(const pst_wanted_list *w, uint32_t i, const pst_record *r);
/* Is the record's key among those of the run that begins at `first`, whose place is the record's? */
int pst_wanted_has(const pst_wanted_list *w, uint32_t first, const pst_record *r);

#endif
