/* single.c: one current key, and records in and out of a table. */
#include <string.h>

#include "batch.h"
#include "collections.h"
#include "elements.h"
#include "hash.h"
#include "mem.h"
#include "schema.h"
#include "ttl.h"

/* ---- the current key ------------------------------------------------------------------------- */

static void set_current(pst_table *t, const pst_key *key, uint32_t slot) {
    t->current =
        (pst_current_key){t->generation, key->hash, key->word, key->bytes, slot, key->null};
}

static pst_status check_group(pst_table *t, uint64_t hash) {
    int32_t group = pst_group_of(t, hash);
    if (group >= t->first_key_group && group <= t->last_key_group)
        return PST_OK;
    t->current.generation = 0;
    t->detail.row = -1;
    t->detail.key_group = group;
    return PST_WRONG_KEY_GROUP;
}

pst_status pst_key_set_row(pst_table *t, pst_batch *b, int64_t i) {
    pst_status s = pst_batch_usable(b);
    if (s)
        return s;
    if (b->t != t || i < 0 || i >= b->length)
        return PST_INVALID;
    if (i % PST_GROUP == 0)
        pst_batch_bring_rows(b, i);
    pst_batch_resolve(b, i + 1);
    pst_key key;
    pst_batch_key(b, i, &key);
    if (b->slots[i] == PST_NONE)
        b->slots[i] = pst_index_find(t, &key);
    if (key.bytes.size) {
        /* The batch may go before the key does. */
        t->current_bytes.size = 0;
        if (t->current_bytes.capacity < key.bytes.size) {
            uint8_t *grown = pst_realloc(t->current_bytes.data, key.bytes.size);
            if (!grown)
                return PST_NO_MEMORY;
            t->current_bytes.data = grown;
            t->current_bytes.capacity = key.bytes.size;
        }
        memcpy(t->current_bytes.data, key.bytes.data, key.bytes.size);
        key.bytes.data = t->current_bytes.data;
    }
    set_current(t, &key, b->slots[i]);
    return PST_OK;
}

/* The key of these cells as the table's index has it. */
static pst_status key_of(pst_table *t, const pst_cell *cells, uint32_t nulls,
                         pst_key_buffer *buffer, pst_key *key) {
    if (!t->attached)
        return PST_INVALID;
    pst_status s = pst_key_encode(&t->schema, cells, nulls, buffer, key);
    if (!s)
        s = check_group(t, key->hash);
    if (!s && pst_key_has_namespace(&t->schema))
        key->hash = pst_key_spread(key->hash, key->bytes, t->max_parallelism);
    return s;
}

pst_status pst_key_set(pst_table *t, const pst_cell *cells, uint32_t nulls) {
    pst_key key;
    pst_cell own = cells[0];
    /* From here on the buffer is no longer the key's that was current. */
    t->current.generation = 0;
    pst_status s = key_of(t, cells, nulls, &t->current_bytes, &key);
    if (s)
        return s;
    /* A plain bytes key still points at the caller's memory. */
    if (key.bytes.size && key.bytes.data == own.bytes.data) {
        if (t->current_bytes.capacity < key.bytes.size) {
            uint8_t *grown = pst_realloc(t->current_bytes.data, key.bytes.size);
            if (!grown)
                return PST_NO_MEMORY;
            t->current_bytes.data = grown;
            t->current_bytes.capacity = key.bytes.size;
        }
        memcpy(t->current_bytes.data, key.bytes.data, key.bytes.size);
        key.bytes.data = t->current_bytes.data;
    }
    set_current(t, &key, pst_index_find(t, &key));
    return PST_OK;
}

pst_status pst_key_set_word(pst_table *t, uint64_t word) {
    if (t->lay.key_kind != PST_KEY_WORD || !t->attached)
        return PST_INVALID;
    pst_key key = {.word = pst_canonical_word(t->schema.keys[0].type, word)};
    key.hash = pst_hash_word(t->schema.keys[0].type, key.word, PST_HASH_SEED);
    pst_status s = check_group(t, key.hash);
    if (s)
        return s;
    set_current(t, &key, pst_index_find(t, &key));
    return PST_OK;
}

static pst_status check_current(const pst_table *t, int32_t column, int32_t least) {
    if (t->poisoned)
        return PST_POISONED;
    if (!t->current.generation || t->current.generation != t->generation)
        return PST_INVALID;
    return column < least || column >= t->lay.n_states ? PST_INVALID : PST_OK;
}

/* The row of the current key; another handle may have made it since it was set. */
static uint32_t current_slot(pst_table *t) {
    if (t->current.slot == PST_NONE) {
        pst_key key = {t->current.hash, t->current.word, t->current.bytes, t->current.null};
        t->current.slot = pst_index_find(t, &key);
    }
    return t->current.slot;
}

pst_status pst_value_get(pst_table *t, int32_t column, pst_cell *cell) {
    pst_status s = check_current(t, column, 0);
    if (!s)
        s = pst_check_kind(t, column, PST_VALUE);
    if (s)
        return s;
    uint32_t slot = current_slot(t);
    if (slot == PST_NONE)
        return PST_NOT_FOUND;
    const pst_field *f = &t->lay.fields[column];
    const uint64_t *row = pst_row(t, slot);
    if (!pst_row_has(&t->lay, row, column) || pst_row_hides(t, row, column))
        return PST_NOT_FOUND;
    if (f->time >= 0) {
        s = pst_poison(t, pst_row_refresh(t, slot, column));
        if (s)
            return s;
    }
    pst_field_cell(f, row, t->heap, cell);
    return PST_OK;
}

pst_status pst_current_row(pst_table *t, int make, uint32_t *slot) {
    if (t->poisoned)
        return PST_POISONED;
    if (!t->current.generation || t->current.generation != t->generation)
        return PST_INVALID;
    *slot = current_slot(t);
    if (!make)
        return PST_OK;
    pst_status s = pst_undo_reserve(t, 1);
    if (s || *slot != PST_NONE)
        return pst_poison(t, s);
    pst_key key = {t->current.hash, t->current.word, t->current.bytes, t->current.null};
    s = pst_row_insert(t, &key, slot);
    t->current.slot = *slot;
    return pst_poison(t, s);
}

pst_status pst_value_put(pst_table *t, int32_t column, const pst_cell *cell) {
    pst_status s = check_current(t, column, 0);
    if (!s)
        s = pst_check_kind(t, column, PST_VALUE);
    if (s)
        return s;
    if (t->lay.fields[column].is_bytes && cell->bytes.size > PST_MAX_BYTES)
        return PST_TOO_LARGE;
    uint32_t slot;
    s = pst_current_row(t, 1, &slot);
    return s ? s : pst_poison(t, pst_state_put(t, slot, column, cell));
}

pst_status pst_value_clear(pst_table *t, int32_t column) {
    pst_status s = check_current(t, column, -1);
    if (s)
        return s;
    uint32_t slot = current_slot(t);
    if (slot == PST_NONE || !pst_is_live(pst_row(t, slot)[0]))
        return PST_OK;
    s = pst_undo_reserve(t, 1);
    if (s)
        return s;
    uint64_t *row = pst_row(t, slot);
    pst_touch(t, slot, row);
    return pst_poison(t, column < 0 ? pst_row_delete(t, row) : pst_row_clear(t, row, column));
}

pst_status pst_list_take(pst_table *t, int32_t column, const pst_cell *from, uint32_t nulls) {
    pst_key_buffer encoded = {NULL, 0, 0};
    pst_key key;
    uint32_t slot, source = PST_NONE;
    pst_status s = check_current(t, column, 0);
    if (!s)
        s = pst_check_kind(t, column, PST_LIST);
    if (!s)
        s = key_of(t, from, nulls, &encoded, &key);
    if (!s)
        source = pst_index_find(t, &key);
    pst_free(encoded.data);
    if (s || source == PST_NONE || source == current_slot(t) ||
        !pst_row_has(&t->lay, pst_row(t, source), column))
        return s;
    s = pst_current_row(t, 1, &slot);
    if (!s)
        s = pst_undo_reserve(t, 2);
    return s ? s : pst_poison(t, pst_row_list_take(t, slot, source, column));
}

/* ---- records --------------------------------------------------------------------------------- */

static pst_status read_row(const pst_table *t, const uint64_t *row, pst_record *r) {
    const uint64_t *k = row + t->lay.key_offset / 8;
    pst_bytes bytes = {NULL, 0};
    int null = (row[0] & PST_FLAG_NULL_KEY) != 0;
    uint64_t word = k[0];
    if (t->lay.key_kind == PST_KEY_BYTES)
        bytes = (pst_bytes){pst_ref_data(t->heap, k + 1), pst_ref_size(k + 1)};
    r->hash = pst_key_row_hash(&t->schema, word, bytes, null, t->m->ties != 0);
    r->key_group = pst_group_of(t, r->hash);
    r->op = PST_PUT;
    r->changed = r->present = pst_presence(&t->lay, row) & t->lay.values;
    for (uint64_t left = r->present; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        if (t->lay.fields[i].kind == PST_VALUE && pst_row_hides(t, row, i)) {
            r->changed = r->present &= ~(UINT64_C(1) << i);
            continue;
        }
        pst_field_cell(&t->lay.fields[i], row, t->heap, &r->cells[i]);
    }
    return pst_key_decode(&t->schema, word, bytes, null, r->key, &r->key_nulls);
}

pst_status pst_table_next(pst_table *t, uint64_t *cursor, pst_record *record) {
    while (*cursor < t->m->slots) {
        const uint64_t *row = pst_row(t, (uint32_t)(*cursor)++);
        if (pst_is_live(row[0]))
            return read_row(t, row, record);
    }
    return PST_NOT_FOUND;
}

/* What a row's record says of a list or map: void, or a list that begins later. */
static pst_status apply_marker(pst_table *t, uint32_t slot, int32_t column, const pst_cell *cell,
                               int present) {
    uint64_t *row = pst_row(t, slot), start;
    if (!present || t->lay.fields[column].kind != PST_LIST)
        return pst_row_clear(t, row, column);
    if (cell->bytes.size != sizeof start)
        return PST_CORRUPT;
    memcpy(&start, cell->bytes.data, sizeof start);
    pst_list l = pst_row_list(t, row, column);
    pst_status s = pst_list_trim_to(t, &l, start);
    if (!s)
        pst_row_list_store(t, slot, column, &l);
    return s;
}

/* Which of the table's columns records have, and where. */
typedef struct pst_mapping {
    const int32_t *columns; /* NULL: as the table */
    int32_t n;
    uint64_t here; /* the table's columns among them */
    pst_dropped dropped;
} pst_mapping;

/* 0: some column is not the table's, or is there twice. */
static int make_mapping(const pst_table *t, const int32_t *columns, int32_t n, pst_mapping *m) {
    *m = (pst_mapping){.columns = columns, .n = n};
    if (n < 0 || n > PST_MAX_STATES)
        return 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t column = columns ? columns[i] : i;
        if (column < 0)
            continue;
        if (column >= t->lay.n_states || m->here >> column & 1)
            return 0;
        m->here |= UINT64_C(1) << column;
    }
    return 1;
}

static pst_status apply_column(pst_table *t, uint32_t slot, int32_t column, const pst_cell *cell,
                               int present, uint64_t here) {
    uint64_t *row = pst_row(t, slot);
    pst_kind kind = (pst_kind)t->lay.fields[column].kind;
    /* A time alone would keep a row whose values are all gone. */
    if (kind == PST_TIME && present && !pst_row_has(&t->lay, row, column - 1))
        return PST_OK;
    pst_touch(t, slot, row);
    if (kind == PST_LIST || kind == PST_MAP)
        return apply_marker(t, slot, column, cell, present);
    if (kind == PST_TIMERS || !t->lay.fields[column].width)
        return PST_OK;
    if (!present)
        return pst_row_clear(t, row, column);
    pst_status s = pst_row_put(t, row, column, cell);
    /* From before the state had a time to live: this is the time. Else it follows, or stays. */
    int32_t time = t->lay.fields[column].time;
    if (!s && time >= 0 && !(here >> time & 1))
        pst_row_stamp(t, row, column);
    return s;
}

static pst_status apply_put(pst_table *t, const pst_key *key, const pst_record *r,
                            const pst_mapping *m) {
    uint32_t slot = pst_index_find(t, key);
    pst_status s = PST_OK;
    uint64_t changed = m->n >= 64 ? r->changed : r->changed & ((UINT64_C(1) << m->n) - 1);
    for (uint64_t left = changed; !s && left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        int32_t column = m->columns ? m->columns[i] : i;
        if (column < 0)
            continue;
        int present = (int)(r->present >> i & 1);
        if (slot == PST_NONE) {
            if (!present || t->lay.fields[column].kind != PST_VALUE)
                continue;
            s = pst_row_insert(t, key, &slot);
        }
        if (!s)
            s = apply_column(t, slot, column, &r->cells[i], present, m->here);
    }
    return s;
}

static pst_status apply_row(pst_table *t, const pst_record *r, const pst_mapping *m,
                            int has_element) {
    if (t->poisoned)
        return PST_POISONED;
    if (!t->attached)
        return PST_INVALID;
    int32_t n_keys = t->schema.n_keys;
    pst_key key = {.hash = r->hash};
    t->current.generation = 0; /* its buffer serves as scratch */
    t->current_bytes.size = 0;
    pst_status s = pst_key_form(&t->schema, r->key, r->key_nulls & ((UINT32_C(1) << n_keys) - 1),
                                &t->current_bytes, &key);
    if (!s)
        s = check_group(t, key.hash);
    if (!s)
        s = pst_undo_reserve(t, 1);
    if (s)
        return s;
    if (pst_key_has_namespace(&t->schema))
        key.hash = pst_key_spread(key.hash, key.bytes, t->max_parallelism);
    if (has_element && !(r->key_nulls >> n_keys & 1))
        return t->lay.has_elements && !pst_dropped_has(&m->dropped, r->key[n_keys].bytes)
                   ? pst_poison(t, pst_element_apply(t, &key, r, m->columns, m->n))
                   : PST_OK;
    if (r->op == PST_PUT)
        return pst_poison(t, apply_put(t, &key, r, m));
    uint32_t slot = pst_index_find(t, &key);
    if (slot == PST_NONE)
        return PST_OK;
    uint64_t *row = pst_row(t, slot);
    pst_touch(t, slot, row);
    return pst_poison(t, pst_row_delete(t, row));
}

pst_status pst_table_apply(pst_table *t, const pst_record *r, const int32_t *columns,
                           int32_t n_columns) {
    pst_mapping m;
    if (!make_mapping(t, columns, n_columns, &m))
        return PST_INVALID;
    return apply_row(t, r, &m, t->lay.has_elements);
}

/* Are the file's cells what the table takes them for? */
static pst_status check_schema(const pst_table *t, const pst_schema *from, const pst_mapping *m) {
    pst_schema *own = NULL;
    pst_status s = pst_file_schema_create(&t->schema, &own);
    if (s)
        return s;
    int32_t n_keys = t->schema.n_keys;
    int fits = from->n_keys - pst_schema_has_element(from) == n_keys &&
               pst_schema_hashed(from) == pst_schema_hashed(&t->schema) && m->n <= from->n_states &&
               (m->columns || from->n_states == m->n);
    for (int32_t i = 0; fits && i < n_keys; i++)
        fits = pst_column_same_type(&from->keys[i], &own->keys[i]);
    for (int32_t i = 0; fits && i < m->n; i++) {
        int32_t column = m->columns ? m->columns[i] : i;
        if (column < 0)
            continue;
        fits = pst_column_same_type(&from->states[i], &own->states[column]) &&
               (from->states[i].kind != PST_TIME || pst_time_follows(m->columns, i));
    }
    pst_file_schema_destroy(own);
    return fits ? PST_OK : PST_SCHEMA;
}

pst_status pst_table_load(pst_table *t, pst_sst_reader *r, const int32_t *columns,
                          int32_t n_columns, uint64_t *rows) {
    const pst_schema *from = pst_sst_reader_schema(r);
    pst_mapping m;
    if (!make_mapping(t, columns, n_columns, &m))
        return PST_INVALID;
    pst_status s = check_schema(t, from, &m);
    if (s)
        return s;
    pst_record *record = pst_malloc(sizeof *record);
    if (!record)
        return PST_NO_MEMORY;
    uint64_t n = 0;
    int has_element = pst_schema_has_element(from);
    pst_dropped_note(&m.dropped, from, columns, n_columns);
    while ((s = pst_sst_reader_next(r, record)) == PST_OK) {
        s = apply_row(t, record, &m, has_element);
        if (s)
            break;
        n++;
    }
    pst_free(record);
    /* A file that ends in an error has been applied in part. */
    if (s != PST_NOT_FOUND)
        return n ? pst_poison(t, s) : s;
    if (rows)
        *rows = n;
    return PST_OK;
}
