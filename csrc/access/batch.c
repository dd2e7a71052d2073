#include "access/batch.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/schema.h"
#include "base/scratch.h"

void pst_array_cell(const pst_array *a, int64_t i, pst_cell *cell) {
    int64_t at = a->offset + i;
    cell->word[0] = cell->word[1] = 0;
    switch (a->type) {
    case PST_BOOL:
        cell->word[0] = ((const uint8_t *)a->values)[at >> 3] >> (at & 7) & 1;
        break;
    case PST_INT8:
        cell->word[0] = (uint64_t)(int64_t)((const int8_t *)a->values)[at];
        break;
    case PST_INT16:
        cell->word[0] = (uint64_t)(int64_t)((const int16_t *)a->values)[at];
        break;
    case PST_INT32:
    case PST_DATE32:
        cell->word[0] = (uint64_t)(int64_t)((const int32_t *)a->values)[at];
        break;
    case PST_FLOAT32:
        cell->word[0] = ((const uint32_t *)a->values)[at];
        break;
    case PST_INT64:
    case PST_FLOAT64:
    case PST_TIMESTAMP:
        cell->word[0] = ((const uint64_t *)a->values)[at];
        break;
    case PST_DECIMAL:
        memcpy(cell->word, (const uint8_t *)a->values + at * 16, 16);
        break;
    case PST_STRING:
    case PST_BINARY:
    case PST_OBJECT:
    case PST_NESTED:
        cell->bytes = pst_array_bytes(a, at);
        break;
    case PST_FIXED:
        cell->bytes = (pst_bytes){(const uint8_t *)a->values + at * a->width, a->width};
    }
}

static int has_nulls(const pst_array *a) {
    if (!a->validity)
        return 0;
    for (int64_t i = 0; i < a->length; i++)
        if (pst_array_is_null(a, i))
            return 1;
    return 0;
}

/* Word keys: the caller's array itself, where its bits are canonical already. */
static pst_status take_words(pst_batch *b, const pst_array *keys) {
    pst_type type = keys->type;
    if ((type == PST_INT64 || type == PST_TIMESTAMP) && !b->nulls) {
        b->words = (const uint64_t *)keys->values + keys->offset;
        return PST_OK;
    }
    b->own_words = pst_scratch_take((size_t)b->length * sizeof *b->own_words);
    if (!b->own_words)
        return PST_NO_MEMORY;
    for (int64_t i = 0; i < b->length; i++) {
        pst_cell cell;
        pst_array_cell(keys, i, &cell);
        b->own_words[i] = b->nulls && b->nulls[i] ? 0 : pst_canonical_word(type, cell.word[0]);
    }
    b->words = b->own_words;
    return PST_OK;
}

/* A single string or binary column: its bytes are the canonical form, where the caller has them. */
static pst_status take_plain(pst_batch *b, const pst_array *keys) {
    const int32_t *offsets = keys->offsets + keys->offset;
    const uint8_t *values = keys->values;
    for (int64_t i = 0; i < b->length; i++) {
        int null = b->nulls && b->nulls[i];
        uint32_t size = null ? 0 : (uint32_t)(offsets[i + 1] - offsets[i]);
        if (size > PST_MAX_BYTES)
            return PST_TOO_LARGE;
        b->bytes[i] = (pst_bytes){size ? values + offsets[i] : NULL, size};
    }
    return PST_OK;
}

/* Charges for the arrays of n keys, and `more` bytes. */
static pst_status charge(pst_batch *b, size_t n, uint64_t more) {
    uint64_t key = b->t->lay.key_kind == PST_KEY_WORD ? sizeof *b->own_words : sizeof *b->bytes;
    uint64_t row = sizeof *b->hash + sizeof *b->slots + sizeof *b->nulls + key;
    pst_status s = pst_charge_raise(&b->charge, n * row + more);
    if (s)
        b->t->arena.refused = 0;
    return s;
}

/* Whether all columns are words. */
static int are_words(const pst_schema *schema) {
    for (int32_t k = 0; k < schema->n_keys; k++)
        if (schema->keys[k].type > PST_TIMESTAMP)
            return 0;
    return 1;
}

/* A column's words, not canonical yet, into every `n_keys`th one. */
static void gather_words(const pst_array *a, int64_t n, size_t n_keys, uint64_t *out) {
    const uint64_t *words = a->values;
    int whole = a->type == PST_INT64 || a->type == PST_TIMESTAMP;
    for (int64_t i = 0; i < n; i++, out += n_keys) {
        pst_cell cell;
        if (whole) {
            *out = words[a->offset + i];
            continue;
        }
        pst_array_cell(a, i, &cell);
        *out = pst_canonical_word(a->type, cell.word[0]);
    }
}

/* Such keys in the form that `pst_key_form` gives them one by one. */
static pst_status take_word_tuples(pst_batch *b, const pst_schema *schema, const pst_array *keys) {
    size_t n = (size_t)b->length, n_keys = (size_t)schema->n_keys;
    size_t capacity = n * n_keys * PST_KEY_WORD_BYTES + 1;
    uint64_t words[PST_GROUP * PST_MAX_KEYS];
    pst_status s = charge(b, n, capacity);
    if (s)
        return s;
    b->encoded.data = pst_malloc(capacity);
    if (!b->encoded.data)
        return PST_NO_MEMORY;
    uint8_t *at = b->encoded.data;
    for (size_t from = 0; from < n; from += PST_GROUP) {
        size_t count = n - from < PST_GROUP ? n - from : PST_GROUP;
        for (size_t k = 0; k < n_keys; k++) {
            pst_array part = keys[k];
            part.offset += (int64_t)from;
            gather_words(&part, (int64_t)count, n_keys, words + k);
        }
        for (size_t i = 0; i < count; i++) {
            uint8_t *start = at;
            for (size_t k = 0; k < n_keys; k++)
                if (pst_array_is_null(&keys[k], (int64_t)(from + i)))
                    *at++ = 0;
                else
                    at += pst_key_put_word(at, words[i * n_keys + k]);
            b->bytes[from + i] = (pst_bytes){start, (uint32_t)(at - start)};
        }
    }
    b->encoded.capacity = capacity;
    b->encoded.size = (size_t)(at - b->encoded.data);
    return PST_OK;
}

static pst_status take_bytes(pst_batch *b, const pst_schema *schema, const pst_array *keys) {
    b->bytes = pst_scratch_take((size_t)b->length * sizeof *b->bytes);
    if (!b->bytes)
        return PST_NO_MEMORY;
    if (pst_key_is_plain(schema))
        return take_plain(b, keys);
    if (are_words(schema))
        return take_word_tuples(b, schema, keys);
    pst_cell cells[PST_MAX_KEYS];
    for (int64_t i = 0; i < b->length; i++) {
        uint32_t nulls = 0;
        for (int32_t k = 0; k < schema->n_keys; k++)
            if (pst_array_is_null(&keys[k], i))
                nulls |= UINT32_C(1) << k;
            else
                pst_array_cell(&keys[k], i, &cells[k]);
        pst_key key;
        pst_status s = pst_key_form(schema, cells, nulls, &b->encoded, &key);
        if (s)
            return s;
        b->bytes[i] = key.bytes;
        s = charge(b, (size_t)b->length, b->encoded.size);
        if (s)
            return s;
    }
    /* Encoding may have moved the buffer, so pointers into it are made only now, from offsets. */
    size_t at = 0;
    for (int64_t i = 0; i < b->length; i++) {
        if (!b->bytes[i].size)
            continue;
        b->bytes[i].data = b->encoded.data + at;
        at += b->bytes[i].size;
    }
    return PST_OK;
}

static pst_status check_arrays(const pst_table *t, const pst_array *keys, pst_detail *detail) {
    for (int32_t k = 0; k < t->schema.n_keys; k++) {
        detail->column = k;
        if (keys[k].type != t->schema.keys[k].type)
            return PST_WRONG_TYPE;
        if (keys[k].length != keys[0].length || keys[k].length < 0)
            return PST_INVALID;
    }
    detail->column = -1;
    return PST_OK;
}

static pst_status check_groups(pst_batch *b) {
    pst_table *t = b->t;
    if (t->first_key_group == 0 && t->last_key_group == t->max_parallelism - 1)
        return PST_OK;
    for (int64_t i = 0; i < b->length; i++) {
        int32_t group = pst_group_of(t, b->hash[i]);
        if (group >= t->first_key_group && group <= t->last_key_group)
            continue;
        t->detail.row = i;
        t->detail.key_group = group;
        return PST_WRONG_KEY_GROUP;
    }
    return PST_OK;
}

pst_status pst_batch_allocate(pst_batch *b, size_t n) {
    b->charge = (pst_charge){b->t->budget, 0, PST_SMALL_BUFFER};
    pst_status s = charge(b, n, 0);
    if (s)
        return s;
    b->hash = pst_scratch_take(n * (sizeof *b->hash + sizeof *b->slots));
    if (!b->hash)
        return PST_NO_MEMORY;
    b->slots = (uint32_t *)(void *)(b->hash + n);
    return PST_OK;
}

static pst_status fill(pst_batch *b, const pst_array *keys) {
    pst_table *t = b->t;
    size_t n = (size_t)b->length;
    uint8_t precision[PST_MAX_KEYS];
    for (int32_t k = 0; k < t->schema.n_keys; k++)
        precision[k] = t->schema.keys[k].precision;
    pst_status s = pst_batch_allocate(b, n);
    if (s)
        return s;
    s = pst_hash(keys, precision, pst_schema_hashed(&t->schema), b->hash);
    if (!s)
        s = check_groups(b);
    if (s)
        return s;
    if (t->schema.n_keys == 1 && has_nulls(keys)) {
        b->nulls = pst_malloc(n);
        if (!b->nulls)
            return PST_NO_MEMORY;
        for (size_t i = 0; i < n; i++)
            b->nulls[i] = (uint8_t)pst_array_is_null(keys, (int64_t)i);
    }
    if (t->lay.key_kind == PST_KEY_WORD)
        return take_words(b, keys);
    s = take_bytes(b, &t->schema, keys);
    if (!s && pst_key_has_namespace(&t->schema))
        for (size_t i = 0; i < n; i++)
            b->hash[i] = pst_key_spread(b->hash[i], b->bytes[i], t->max_parallelism);
    return s;
}

pst_status pst_batch_create(pst_table *t, const pst_array *keys, pst_batch **batch) {
    if (!t->attached)
        return PST_INVALID;
    pst_no_detail(&t->detail);
    pst_status s = check_arrays(t, keys, &t->detail);
    if (s)
        return s;
    pst_batch *b = pst_calloc(1, sizeof *b);
    if (!b)
        return PST_NO_MEMORY;
    b->t = t;
    b->generation = t->generation;
    b->length = keys[0].length;
    s = fill(b, keys);
    if (s) {
        pst_batch_destroy(b);
        return s;
    }
    *batch = b;
    return PST_OK;
}

void pst_batch_destroy(pst_batch *b) {
    if (!b)
        return;
    pst_scratch_drop(b->hash);
    pst_scratch_drop(b->own_words);
    pst_scratch_drop(b->bytes);
    pst_free(b->nulls);
    pst_free(b->encoded.data);
    pst_charge_drop(&b->charge);
    pst_free(b);
}

int64_t pst_batch_length(const pst_batch *b) {
    return b->length;
}

pst_status pst_batch_usable(const pst_batch *b) {
    if (b->generation != b->t->generation)
        return PST_STALE;
    return b->t->poisoned ? PST_POISONED : PST_OK;
}
