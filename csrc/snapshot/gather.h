/* gather.h: columns in Arrow's layout that rows with their elements are gathered in.
 *
 * Purpose: what a merge gives as records, or as stretches of blocks, becomes batches: of each row
 * the key, a value or null per state, and of each list or map its elements behind those of the rows
 * before.
 *
 * Thread safety: a gatherer belongs to one thread.
 *
 * Invariants
 *  GA1. A row is in the batch once it has a value or an element that is seen, and never before: keys
 *       that have neither are no rows.
 *  GA2. Only the last row of a batch is open: it may get more. All others have an end in each list
 *       and map, and a value or null in each other column.
 *  GA3. Offsets are of 32 bits, so no column of a batch has more than INT32_MAX values or bytes. A
 *       batch ends with the row that makes it large, so only one row alone can be too large.
 */
#ifndef PST_GATHER_H
#define PST_GATHER_H

#include "base/budget.h"
#include "list/list.h"
#include "snapshot/expiry.h"
#include "sst/sst_build.h"

#ifndef PST_GATHER_ROWS
#define PST_GATHER_ROWS ((uint32_t)1 << 16) /* tests make both small */
#define PST_GATHER_BYTES ((uint64_t)4 << 20)
#endif

/* A state's column. */
typedef struct pst_gathered {
    pst_kind kind;
    pst_type key_type; /* of a map's keys, or a list's items */
    pst_list_shape items;
    uint32_t id;     /* by which elements name it, as it lies in them */
    int begun;       /* the open row's list has an item, or the number `next` was given */
    uint64_t next;   /* the number after its last item */
    pst_buffer ends; /* of the lists or maps of all rows, after a zero */
    pst_sst_growing keys;
    pst_sst_growing values;
} pst_gathered;

typedef struct pst_gatherer {
    const pst_schema *schema; /* as files have it */
    const pst_io *io;
    pst_charge charge;
    pst_expirer expirer;
    int32_t n_keys; /* without the element */
    uint64_t value_columns;
    uint64_t collections;
    uint32_t rows;
    uint64_t bytes;
    int open;        /* of the last row, missing values and ends are still to be added */
    uint64_t filled; /* a bit per value that it has */
    uint64_t hash;   /* its */
    uint64_t begun;  /* rows that were begun by themselves, of all batches */
    pst_sst_growing keys[PST_MAX_KEYS];
    pst_gathered states[PST_MAX_STATES];
} pst_gatherer;

/* Times and timers are in no batch. `expiry` may be NULL. PST_INVALID: it is none of the schema, or
 * no `block`. The schema, `io` and what `expiry` names must outlive it. */
pst_status pst_gatherer_init(pst_gatherer *g, const pst_schema *schema, const pst_expiry *expiry,
                             const pst_io *io);
void pst_gatherer_free(pst_gatherer *g);

/* Notes that so many bytes more will be in the batch. PST_LIMIT, PST_NO_MEMORY. */
static inline pst_status pst_gather_room(pst_gatherer *g, uint64_t bytes) {
    g->bytes += bytes;
    return pst_charge_raise(&g->charge, 3 * g->bytes);
}

/* Is it the key of the last row? */
int pst_gather_is_last(const pst_gatherer *g, uint64_t hash, const pst_cell *key, uint32_t nulls);

/* Begins a row, in a new batch where this one is large enough. Statuses of these: memory, limit,
 * PST_CALLBACK, PST_TOO_LARGE. */
pst_status pst_gather_row(pst_gatherer *g, uint64_t hash, const pst_cell *key, uint32_t nulls);
/* The same with the key of a view's row. */
pst_status pst_gather_view_row(pst_gatherer *g, uint64_t hash, const pst_sst_view *v, uint32_t row);
/* Adds n rows of a view all of whose rows put the same columns: value k is that of the view's state
 * at[k], or null where that is -1. They get no more. REQUIRES: each row has a value. */
pst_status pst_gather_view_rows(pst_gatherer *g, const pst_sst_view *v, uint32_t from, uint32_t n,
                                const int32_t *at);

/* What the open row has. */
pst_status pst_gather_value(pst_gatherer *g, int32_t column, const pst_cell *cell);
pst_status pst_gather_view_value(pst_gatherer *g, int32_t column, const pst_sst_values *v,
                                 uint32_t at);
/* The items of a run that begins with the number `seq`, but for those below `start`. PST_CORRUPT,
 * also where it does not follow the run before. */
pst_status pst_gather_items(pst_gatherer *g, int32_t column, uint64_t seq, uint64_t start,
                            pst_bytes run);
/* A value of NULL: the entry has none. */
pst_status pst_gather_entry(pst_gatherer *g, int32_t column, pst_bytes key, const pst_cell *value);
/* n entries: their keys are elements from `row` on, their values those from `at` on. */
pst_status pst_gather_view_entries(pst_gatherer *g, int32_t column, const pst_sst_values *elements,
                                   uint32_t row, const pst_sst_values *v, uint32_t at, uint32_t n);

/* A record of a merge: a row, or an element of the row that is open or begins with it. Of a list's items
 * those below `start` are gone. `begun` tells whether it began one. PST_CORRUPT, too. */
pst_status pst_gather_record(pst_gatherer *g, const pst_record *r, uint64_t start);

/* Passes the batch on, if there is one. */
pst_status pst_gather_flush(pst_gatherer *g);

#endif
