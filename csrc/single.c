/* single.c: one current key, and records in and out of a table. */
#include <string.h>

#include "batch.h"
#include "hash.h"
#include "mem.h"

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

pst_status pst_key_set(pst_table *t, const pst_cell *cells, uint32_t nulls) {
    if (!t->attached)
        return PST_INVALID;
    pst_key key;
    pst_cell own = cells[0];
    pst_status s = pst_key_encode(&t->schema, cells, nulls, &t->current_bytes, &key);
    if (!s)
        s = check_group(t, key.hash);
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
    if (s)
        return s;
    uint32_t slot = current_slot(t);
    if (slot == PST_NONE)
        return PST_NOT_FOUND;
    const uint64_t *row = pst_row(t, slot);
    if (!pst_row_has(&t->lay, row, column))
        return PST_NOT_FOUND;
    pst_field_cell(&t->lay.fields[column], row, t->heap, cell);
    return PST_OK;
}

static pst_status write_cell(pst_table *t, uint64_t *row, int32_t column, const pst_cell *cell) {
    const pst_field *f = &t->lay.fields[column];
    if (f->is_bytes)
        return pst_row_put_bytes(t, row, column, cell->bytes);
    pst_field_store(f, row, cell->word);
    pst_row_mark(t, row, column);
    return PST_OK;
}

static pst_status put_current(pst_table *t, int32_t column, const pst_cell *cell) {
    pst_status s = pst_undo_reserve(t, 1);
    if (s)
        return s;
    uint32_t slot = current_slot(t);
    if (slot == PST_NONE) {
        pst_key key = {t->current.hash, t->current.word, t->current.bytes, t->current.null};
        s = pst_row_insert(t, &key, &slot);
        if (s)
            return s;
        t->current.slot = slot;
    }
    uint64_t *row = pst_row(t, slot);
    pst_touch(t, slot, row);
    return write_cell(t, row, column, cell);
}

pst_status pst_value_put(pst_table *t, int32_t column, const pst_cell *cell) {
    pst_status s = check_current(t, column, 0);
    if (s)
        return s;
    if (t->lay.fields[column].is_bytes && cell->bytes.size > PST_MAX_BYTES)
        return PST_TOO_LARGE;
    return pst_poison(t, put_current(t, column, cell));
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

/* ---- records --------------------------------------------------------------------------------- */

static pst_status read_row(const pst_table *t, const uint64_t *row, pst_record *r) {
    const uint64_t *k = row + t->lay.key_offset / 8;
    pst_bytes bytes = {NULL, 0};
    int null = (row[0] & PST_FLAG_NULL_KEY) != 0;
    uint64_t word = k[0];
    if (t->lay.key_kind == PST_KEY_BYTES) {
        r->hash = k[0];
        bytes = (pst_bytes){pst_ref_data(t->heap, k + 1), pst_ref_size(k + 1)};
    } else {
        r->hash = null ? PST_HASH_SEED : pst_hash_word(t->schema.keys[0].type, word, PST_HASH_SEED);
    }
    r->key_group = pst_group_of(t, r->hash);
    r->op = PST_PUT;
    r->changed = r->present = pst_presence(&t->lay, row);
    for (uint64_t left = r->present; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
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

static pst_status apply_put(pst_table *t, const pst_key *key, const pst_record *r,
                            const int32_t *columns, int32_t n_columns) {
    uint32_t slot = pst_index_find(t, key);
    pst_status s;
    uint64_t changed = n_columns >= 64 ? r->changed : r->changed & ((UINT64_C(1) << n_columns) - 1);
    for (uint64_t left = changed; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        int32_t column = columns ? columns[i] : i;
        if (column < 0)
            continue;
        int present = (int)(r->present >> i & 1);
        if (slot == PST_NONE) {
            if (!present)
                continue;
            s = pst_row_insert(t, key, &slot);
            if (s)
                return s;
        }
        uint64_t *row = pst_row(t, slot);
        pst_touch(t, slot, row);
        s = present ? write_cell(t, row, column, &r->cells[i]) : pst_row_clear(t, row, column);
        if (s)
            return s;
    }
    return PST_OK;
}

pst_status pst_table_apply(pst_table *t, const pst_record *r, const int32_t *columns,
                           int32_t n_columns) {
    if (t->poisoned)
        return PST_POISONED;
    if (!t->attached)
        return PST_INVALID;
    pst_key key = {.hash = r->hash};
    t->current.generation = 0; /* its buffer serves as scratch */
    t->current_bytes.size = 0;
    pst_status s = pst_key_form(&t->schema, r->key, r->key_nulls, &t->current_bytes, &key);
    if (!s)
        s = check_group(t, key.hash);
    if (!s)
        s = pst_undo_reserve(t, 1);
    if (s)
        return s;
    if (r->op == PST_PUT)
        return pst_poison(t, apply_put(t, &key, r, columns, n_columns));
    uint32_t slot = pst_index_find(t, &key);
    if (slot == PST_NONE)
        return PST_OK;
    uint64_t *row = pst_row(t, slot);
    pst_touch(t, slot, row);
    return pst_poison(t, pst_row_delete(t, row));
}

pst_status pst_table_load(pst_table *t, pst_sst_reader *r, const int32_t *columns,
                          int32_t n_columns, uint64_t *rows) {
    pst_record *record = pst_malloc(sizeof *record);
    if (!record)
        return PST_NO_MEMORY;
    uint64_t n = 0;
    pst_status s;
    while ((s = pst_sst_reader_next(r, record)) == PST_OK) {
        s = pst_table_apply(t, record, columns, n_columns);
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
