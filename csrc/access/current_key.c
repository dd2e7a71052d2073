/* current_key.c: one current key, and rows as records. */
#include "access/current_key.h"

#include <string.h>

#include "access/batch_elements.h"
#include "base/mem.h"
#include "elements/collections.h"
#include "elements/elements.h"
#include "fetch/fetch.h"
#include "fetch/items.h"
#include "key/hash.h"
#include "key/schema.h"
#include "table/resident.h"
#include "table/ttl.h"

/* ---- the current key ------------------------------------------------------------------------- */

static void set_current(pst_table *t, const pst_key *key, uint32_t slot) {
    pst_heat(t, slot);
    t->current =
        (pst_current_key){t->generation, key->hash, key->word, key->bytes, slot, key->null};
}

/* Copies a key's bytes into the table, which outlive the caller's. PST_NO_MEMORY. */
static pst_status own_bytes(pst_table *t, pst_key *key) {
    pst_buffer *own = &t->current_bytes;
    pst_status s = pst_buffer_reserve(own, key->bytes.size);
    if (s)
        return s;
    memcpy(own->data, key->bytes.data, key->bytes.size);
    key->bytes.data = own->data;
    return PST_OK;
}

pst_status pst_key_set_row(pst_table *t, pst_batch *b, int64_t i) {
    pst_status s = pst_batch_ready(b);
    if (s)
        return s;
    if (b->t != t || i < 0 || i >= b->length)
        return PST_INVALID;
    if (i % PST_GROUP == 0)
        pst_batch_prepare_rows(b, i);
    pst_batch_resolve(b, i + 1);
    if (i >= b->prepared)
        pst_batch_prepare_roots(b, i);
    pst_key key;
    pst_batch_key(b, i, &key);
    if (b->slots[i] == PST_NONE)
        b->slots[i] = pst_index_find(t, &key);
    if (key.bytes.size) {
        /* The batch may be destroyed before the key is replaced. */
        t->current_bytes.size = 0;
        s = own_bytes(t, &key);
        if (s)
            return s;
    }
    set_current(t, &key, b->slots[i]);
    return PST_OK;
}

/* The key's row, fetched where it is not here; PST_NONE: there is none anywhere. What pst_fetch
 * says. */
static pst_status find_row(pst_table *t, const pst_key *key, uint32_t *slot) {
    *slot = pst_index_find(t, key);
    if (pst_is_whole(t))
        return PST_OK;
    t->fetched.asked++;
    return *slot == PST_NONE ? pst_fetch_key(t, key, slot) : PST_OK;
}

/* The key of these cells as the table's index has it. */
static pst_status key_of(pst_table *t, const pst_cell *cells, uint32_t nulls, pst_buffer *buffer,
                         pst_key *key) {
    if (!t->attached)
        return PST_INVALID;
    pst_status s = pst_key_encode(&t->schema, cells, nulls, buffer, key);
    if (!s)
        s = pst_check_group(t, key->hash);
    if (!s && pst_key_has_namespace(&t->schema))
        key->hash = pst_key_spread(key->hash, key->bytes, t->max_parallelism);
    return s;
}

pst_status pst_key_set(pst_table *t, const pst_cell *cells, uint32_t nulls) {
    pst_key key;
    pst_cell own = cells[0];
    /* From here on the buffer no longer holds the current key's bytes. */
    t->current.generation = 0;
    pst_status s = key_of(t, cells, nulls, &t->current_bytes, &key);
    if (s)
        return s;
    /* A plain bytes key still points at the caller's memory. */
    if (key.bytes.size && key.bytes.data == own.bytes.data) {
        s = own_bytes(t, &key);
        if (s)
            return s;
    }
    uint32_t slot;
    s = find_row(t, &key, &slot);
    if (!s)
        set_current(t, &key, slot);
    return s;
}

pst_status pst_key_set_word(pst_table *t, uint64_t word) {
    if (t->lay.key_kind != PST_KEY_WORD || !t->attached)
        return PST_INVALID;
    pst_key key = {.word = pst_canonical_word(t->schema.keys[0].type, word)};
    key.hash = pst_hash_word(t->schema.keys[0].type, key.word, PST_HASH_SEED);
    uint32_t slot;
    pst_status s = pst_check_group(t, key.hash);
    if (s)
        return s;
    t->current.generation = 0;
    s = find_row(t, &key, &slot);
    if (!s)
        set_current(t, &key, slot);
    return s;
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
        return pst_refused(t, 0, s);
    pst_key key = {t->current.hash, t->current.word, t->current.bytes, t->current.null};
    s = pst_row_make(t, &key, slot);
    if (!s)
        t->current.slot = *slot;
    return pst_refused(t, 0, s);
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
    return s ? s : pst_refused(t, 0, pst_state_put(t, slot, column, cell));
}

static pst_status clear_value(pst_table *t, int32_t column) {
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

pst_status pst_value_clear(pst_table *t, int32_t column) {
    pst_clearing(t);
    return pst_cleared(t, clear_value(t, column));
}

static pst_status append_items(pst_table *t, int32_t column, pst_items *x, pst_list *to) {
    pst_item item;
    pst_status s;
    while ((s = pst_items_next(x, &item)) == PST_OK) {
        if (item.time == PST_NO_TIME)
            item.time = pst_ttl_stamp(t, column); /* as from a sweep */
        s = pst_list_append(t, &t->collections[column].list, to, &item);
        if (s)
            return s;
    }
    return s == PST_NOT_FOUND ? PST_OK : s;
}

/* As pst_row_list_take, of a list of which some items lie in files. */
static pst_status take_below(pst_table *t, uint32_t to, uint32_t from, int32_t column) {
    pst_items *x;
    pst_list list = pst_row_list(t, pst_row(t, to), column);
    pst_status s = pst_items_open(t, from, column, &x);
    if (s)
        return s; /* nothing has changed */
    s = append_items(t, column, x, &list);
    pst_items_close(x);
    if (s)
        return pst_poison(t, s);
    pst_row_list_store(t, to, column, &list);
    pst_touch(t, from, pst_row(t, from));
    return pst_poison(t, pst_row_clear(t, pst_row(t, from), column));
}

pst_status pst_list_take(pst_table *t, int32_t column, const pst_cell *from, uint32_t nulls) {
    pst_buffer encoded = {NULL, 0, 0};
    pst_key key;
    uint32_t slot, source = PST_NONE;
    pst_status s = check_current(t, column, 0);
    if (!s)
        s = pst_check_kind(t, column, PST_LIST);
    if (!s)
        s = key_of(t, from, nulls, &encoded, &key);
    if (!s)
        s = find_row(t, &key, &source);
    pst_free(encoded.data);
    if (s || source == PST_NONE || source == current_slot(t) ||
        !pst_row_has(&t->lay, pst_row(t, source), column))
        return s;
    s = pst_current_row(t, 1, &slot);
    if (!s)
        s = pst_undo_reserve(t, 2);
    if (s)
        return s;
    if (pst_items_are_below(t, source, column))
        return take_below(t, slot, source, column);
    return pst_poison(t, pst_row_list_take(t, slot, source, column));
}

/* ---- rows --------------------------------------------------------------------------------- */

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
