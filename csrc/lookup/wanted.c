#include "lookup/wanted.h"

#include <string.h>

#include "access/batch.h"
#include "base/mem.h"
#include "key/hash.h"
#include "key/schema.h"

void pst_wanted_cells(const pst_wanted_list *w, uint32_t i, pst_cell *cells, uint32_t *nulls) {
    *nulls = 0;
    for (int32_t k = 0; k < w->n_columns; k++) {
        const pst_array *a = &w->columns[k];
        if (pst_array_is_null(a, w->keys[i].at)) {
            *nulls |= UINT32_C(1) << k;
            cells[k] = (pst_cell){{0, 0}, {NULL, 0}};
            continue;
        }
        pst_array_cell(a, w->keys[i].at, &cells[k]);
        if (a->type != PST_DECIMAL && a->type < PST_STRING)
            cells[k].word[0] = pst_canonical_word(a->type, cells[k].word[0]);
    }
}

static int compare_place(const pst_wanted_key *a, const pst_wanted_key *b) {
    if (a->key_group != b->key_group)
        return a->key_group < b->key_group ? -1 : 1;
    return (a->hash > b->hash) - (a->hash < b->hash);
}

/* How a key stands to one in cells, of the same place. */
static int compare_to(const pst_wanted_list *w, uint32_t i, const pst_cell *key, uint32_t nulls) {
    pst_cell own[PST_MAX_KEYS];
    uint32_t null_columns;
    pst_wanted_cells(w, i, own, &null_columns);
    return pst_key_compare(w->schema->keys, w->n_columns, own, null_columns, key, nulls);
}

static int compare(const pst_wanted_list *w, uint32_t a, uint32_t b) {
    pst_cell key[PST_MAX_KEYS];
    uint32_t nulls;
    int order = compare_place(&w->keys[a], &w->keys[b]);
    if (order)
        return order;
    pst_wanted_cells(w, b, key, &nulls);
    return compare_to(w, a, key, nulls);
}

/* Lets a key down to where none below it comes behind it. */
static void sift(pst_wanted_list *w, uint32_t at, uint32_t n) {
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && compare(w, child, child + 1) < 0)
            child++;
        if (compare(w, at, child) >= 0)
            return;
        pst_wanted_key moved = w->keys[at];
        w->keys[at] = w->keys[child];
        w->keys[child] = moved;
    }
}

/* In place, and O(n log n) for whatever keys somebody has chosen. */
static void sort(pst_wanted_list *w) {
    for (uint32_t i = w->n / 2; i-- > 0;)
        sift(w, i, w->n);
    for (uint32_t left = w->n; left-- > 1;) {
        pst_wanted_key largest = w->keys[0];
        w->keys[0] = w->keys[left];
        w->keys[left] = largest;
        sift(w, 0, left);
    }
}

static void drop_repeated(pst_wanted_list *w, uint32_t *numbers) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t at = w->keys[i].at;
        w->keys[kept] = w->keys[i];
        kept += !kept || compare(w, kept - 1, kept) != 0;
        if (numbers)
            numbers[at] = kept - 1;
    }
    w->n = kept;
    for (uint32_t first = 0, i = 1; first < w->n; i++)
        if (i == w->n || compare_place(&w->keys[first], &w->keys[i])) {
            w->keys[first].end = i;
            first = i;
        }
}

static uint32_t own_nulls(const pst_wanted_list *w, const pst_record *r) {
    return r->key_nulls & ((UINT32_C(1) << w->n_columns) - 1);
}

int pst_wanted_is(const pst_wanted_list *w, uint32_t i, const pst_record *r) {
    return w->keys[i].hash == r->hash && w->keys[i].key_group == r->key_group &&
           compare_to(w, i, r->key, own_nulls(w, r)) == 0;
}

int pst_wanted_has(const pst_wanted_list *w, uint32_t first, const pst_record *r) {
    uint32_t low = first, high = w->keys[first].end;
    uint32_t nulls = own_nulls(w, r);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = compare_to(w, middle, r->key, nulls);
        if (!order)
            return 1;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

static pst_status check_columns(pst_wanted_list *w) {
    int32_t n_keys = w->schema->n_keys - pst_schema_has_element(w->schema);
    int32_t hashed = pst_schema_hashed(w->schema);
    if (w->n_columns != hashed && w->n_columns != n_keys)
        return PST_INVALID;
    w->every = w->n_columns < n_keys;
    for (int32_t k = 0; k < w->n_columns; k++) {
        if (w->columns[k].type != w->schema->keys[k].type)
            return PST_WRONG_TYPE;
        if (w->columns[k].length != w->columns[0].length || w->columns[k].length < 0 ||
            w->columns[k].length >= UINT32_MAX)
            return PST_INVALID;
    }
    w->n = (uint32_t)w->columns[0].length;
    return PST_OK;
}

static pst_status place_keys(pst_wanted_list *w, int32_t max_parallelism) {
    pst_cell cells[PST_MAX_KEYS];
    uint32_t nulls;
    int32_t hashed = pst_schema_hashed(w->schema);
    for (uint32_t i = 0; i < w->n; i++) {
        pst_wanted_key *key = &w->keys[i];
        uint64_t bytes = 0;
        key->at = i;
        pst_wanted_cells(w, i, cells, &nulls);
        for (int32_t k = 0; k < w->n_columns; k++)
            if (!(nulls >> k & 1) && w->columns[k].type >= PST_STRING)
                bytes += cells[k].bytes.size;
        if (bytes > PST_MAX_BYTES)
            return PST_TOO_LARGE;
        key->hash = pst_hash_key(w->schema->keys, hashed, cells, nulls);
        key->key_group = pst_key_group(key->hash, max_parallelism);
    }
    return PST_OK;
}

pst_status pst_wanted_make(pst_wanted_list *w, const pst_schema *schema, int32_t max_parallelism,
                           const pst_wanted_keys *wanted, pst_budget *budget, uint32_t *numbers) {
    *w = (pst_wanted_list){.schema = schema,
                           .columns = wanted->columns,
                           .n_columns = wanted->n_columns,
                           .charge = {pst_budget_retain(budget), 0, PST_SMALL_BUFFER}};
    pst_status s = check_columns(w);
    if (s || !w->n)
        return s;
    s = pst_charge_raise(&w->charge, w->n * sizeof *w->keys);
    if (s)
        return s;
    w->keys = pst_malloc(w->n * sizeof *w->keys);
    if (!w->keys)
        return PST_NO_MEMORY;
    s = place_keys(w, max_parallelism);
    if (s)
        return s;
    sort(w);
    drop_repeated(w, numbers);
    return PST_OK;
}

void pst_wanted_free(pst_wanted_list *w) {
    pst_free(w->keys);
    pst_charge_drop(&w->charge);
    pst_budget_release(w->charge.budget);
}

pst_status pst_wanted_order(const pst_schema *schema, int32_t max_parallelism,
                            const pst_wanted_keys *wanted, uint32_t *order, uint32_t *n) {
    pst_wanted_list w;
    if (max_parallelism < 1)
        return PST_INVALID;
    pst_status s = pst_wanted_make(&w, schema, max_parallelism, wanted, NULL, NULL);
    for (uint32_t i = 0; !s && i < w.n; i++)
        order[i] = w.keys[i].at;
    if (!s)
        *n = w.n;
    pst_wanted_free(&w);
    return s;
}
