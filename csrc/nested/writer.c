#include "nested/writer.h"

#include "base/mem.h"
#include "nested/scalar.h"

#include <stdlib.h>

/* ---- bytes that grow ------------------------------------------------------------------------- */

int pst_growing_reserve(pst_growing *b, size_t more) {
    if (b->size > b->limit || b->limit - b->size < more) {
        b->limit = 0;
        return 0;
    }
    size_t least = b->size + more, capacity = 2 * b->capacity;
    if (capacity < least)
        capacity = least;
    if (capacity < 64)
        capacity = 64;
    uint8_t *grown = pst_realloc(b->heap, capacity);
    if (!grown)
        return 0;
    if (!b->heap && b->size)
        memcpy(grown, b->data, b->size);
    b->heap = grown;
    b->data = grown;
    b->capacity = capacity;
    return 1;
}

void pst_growing_free(pst_growing *b) {
    pst_free(b->heap);
    b->heap = NULL;
}

int pst_growing_head(pst_growing *b, uint64_t n, int nulls, size_t *bits) {
    size_t size = nulls ? (n + 7) >> 3 : 0;
    uint8_t *to = pst_growing_room(b, PST_VARINT_MAX + size);
    if (!to)
        return 0;
    size_t head = pst_put_varint(to, n << 1 | (nulls != 0));
    b->size -= PST_VARINT_MAX - head;
    *bits = b->size - size;
    memset(b->data + *bits, 0, size);
    return 1;
}

/* ---- one value ------------------------------------------------------------------------------- */

void pst_nested_writer_open(pst_nested_writer *w, const pst_nested *nested, void *room,
                            size_t capacity) {
    w->out.data = room;
    w->out.size = 0;
    w->out.capacity = capacity;
    w->out.limit = SIZE_MAX;
    w->out.heap = NULL;
    w->nested = nested;
    w->keys = NULL;
    w->n_keys = w->capacity = 0;
}

void pst_nested_writer_free(pst_nested_writer *w) {
    pst_growing_free(&w->out);
    pst_free(w->keys);
    w->keys = NULL;
}

pst_status pst_writer_key(pst_nested_writer *w, const pst_shape *s, size_t start) {
    if (w->n_keys == w->capacity) {
        size_t capacity = w->capacity ? 2 * w->capacity : 16;
        pst_nested_key *grown = pst_realloc(w->keys, capacity * sizeof *grown);
        if (!grown)
            return PST_NO_MEMORY;
        w->keys = grown;
        w->capacity = capacity;
    }
    pst_cursor c = pst_cursor_over(w->out.data + start, w->out.size - start);
    uint64_t size = s->width ? 0 : pst_cursor_varint(&c);
    pst_key_rank(s, c.p, (uint32_t)size, &w->keys[w->n_keys++]);
    return PST_OK;
}

/* Child `at` of what is begun is not null; 0: it has no such child. */
static inline int put_valid(pst_nested_writer *w, const pst_shape *s, const pst_nested_open *in,
                            uint64_t at) {
    if (!in)
        return s->parent < 0 && w->out.size == 0;
    if (at >= in->n)
        return 0;
    if (w->nested->width)
        pst_set_bit(w->out.data, (uint64_t)s->bit);
    else if (in->has_bits && !s->is_key)
        pst_set_bit(w->out.data + in->bits, at);
    return 1;
}

/* Each word is loaded by itself, as it was just stored by itself. */
static inline void store_cell(const pst_shape *s, uint8_t *to, const pst_cell *cell) {
    uint64_t word = cell->word[0];
    switch (s->op) {
    case PST_OP_BOOL:
    case PST_OP_INT8:
        *to = (uint8_t)word;
        break;
    case PST_OP_INT16:
        pst_put_u16(to, (uint16_t)word);
        break;
    case PST_OP_INT32:
        pst_put_u32(to, (uint32_t)word);
        break;
    case PST_OP_FLOAT32:
        pst_put_u32(to, pst_canonical_f32((uint32_t)word, s->is_key));
        break;
    case PST_OP_FLOAT64:
        pst_put_u64(to, pst_canonical_f64(word, s->is_key));
        break;
    case PST_OP_DECIMAL:
        pst_put_u64(to, word);
        pst_put_u64(to + 8, cell->word[1]);
        break;
    default:
        pst_put_u64(to, word);
        break;
    }
}

static inline pst_status put_fixed(pst_nested_writer *w, const pst_shape *s, const pst_cell *cell) {
    uint8_t *to;
    if (s->op == PST_OP_DECIMAL && !pst_in_limit(s, cell->word))
        return PST_INVALID;
    if (w->nested->width)
        to = w->out.data + s->at;
    else
        to = pst_growing_room(&w->out, s->width);
    if (!to)
        return PST_NO_MEMORY;
    store_cell(s, to, cell);
    return PST_OK;
}

static inline pst_status put_scalar(pst_nested_writer *w, const pst_shape *s,
                                    const pst_nested_open *in, uint64_t at, const pst_cell *cell) {
    if (!put_valid(w, s, in, at))
        return PST_INVALID;
    size_t start = w->out.size;
    if (s->op < PST_OP_STRING) {
        pst_status status = put_fixed(w, s, cell);
        if (status)
            return status;
    } else if (!pst_growing_bytes(&w->out, cell->bytes.data, cell->bytes.size)) {
        return PST_NO_MEMORY;
    }
    return s->is_key ? pst_writer_key(w, s, start) : PST_OK;
}

/* Elements side by side, none of which has a bit. */
static pst_status put_run(pst_nested_writer *w, const pst_shape *s, uint64_t n,
                          const pst_cell *cells) {
    uint8_t *to = pst_growing_room(&w->out, n * s->width);
    if (!to)
        return PST_NO_MEMORY;
    for (uint64_t k = 0; k < n && s->op == PST_OP_INT64; k++)
        pst_put_u64(to + 8 * k, cells[k].word[0]);
    for (uint64_t k = 0; k < n && s->op != PST_OP_INT64; k++)
        store_cell(s, to + k * s->width, &cells[k]);
    return PST_OK;
}

pst_status pst_nested_put_scalars(pst_nested_writer *w, int32_t i, const pst_nested_open *in,
                                  uint64_t at, uint64_t n, const pst_cell *cells) {
    const pst_shape *s = pst_shape_at(w->nested, i);
    if (!s || s->op >= PST_OP_STRUCT || !in)
        return PST_INVALID;
    if (s->op < PST_OP_DECIMAL && !s->is_key && !w->nested->width && !in->has_bits && n <= in->n &&
        at <= in->n - n)
        return put_run(w, s, n, cells);
    for (uint64_t k = 0; k < n; k++) {
        pst_status status = put_scalar(w, s, in, at + k, &cells[k]);
        if (status)
            return status;
    }
    return PST_OK;
}

pst_status pst_nested_put_scalar(pst_nested_writer *w, int32_t i, const pst_nested_open *in,
                                 uint64_t at, const pst_cell *cell) {
    const pst_shape *s = pst_shape_at(w->nested, i);
    return s && s->op < PST_OP_STRUCT && in ? put_scalar(w, s, in, at, cell) : PST_INVALID;
}

pst_status pst_nested_put_struct(pst_nested_writer *w, int32_t i, const pst_nested_open *in,
                                 uint64_t at, pst_nested_open *open) {
    const pst_shape *s = pst_shape_at(w->nested, i);
    if (!s || s->op != PST_OP_STRUCT || !put_valid(w, s, in, at))
        return PST_INVALID;
    open->bits = w->out.size;
    open->n = s->count;
    open->has_bits = 1;
    size_t size = (s->count + 7) >> 3;
    if (w->nested->width)
        size = in ? 0 : w->nested->width;
    uint8_t *to = pst_growing_room(&w->out, size);
    if (!to)
        return PST_NO_MEMORY;
    if (size == 1)
        *to = 0; /* most structs: without a call */
    else
        memset(to, 0, size);
    return PST_OK;
}

static pst_status put_head(pst_nested_writer *w, const pst_shape *s, const pst_nested_open *in,
                           uint64_t at, uint64_t n, int nulls, pst_nested_open *open) {
    if (n > UINT32_MAX || !put_valid(w, s, in, at))
        return PST_INVALID;
    open->first = w->n_keys;
    open->n = n;
    open->has_bits = nulls != 0;
    if (!pst_growing_head(&w->out, n, nulls, &open->bits))
        return PST_NO_MEMORY;
    open->end = w->out.size;
    return PST_OK;
}

pst_status pst_nested_put_array(pst_nested_writer *w, int32_t i, const pst_nested_open *in,
                                uint64_t at, uint64_t n, int nulls, pst_nested_open *open) {
    const pst_shape *s = pst_shape_at(w->nested, i);
    return s && s->op == PST_OP_ARRAY ? put_head(w, s, in, at, n, nulls, open) : PST_INVALID;
}

pst_status pst_nested_put_map(pst_nested_writer *w, int32_t i, const pst_nested_open *in,
                              uint64_t at, uint64_t n, int nulls, pst_nested_open *open) {
    const pst_shape *s = pst_shape_at(w->nested, i);
    return s && s->op == PST_OP_MAP ? put_head(w, s, in, at, n, nulls, open) : PST_INVALID;
}

/* ---- maps ------------------------------------------------------------------------------------ */

static int compare_keys(const void *a, const void *b) {
    return pst_key_order(a, b);
}

static void sort_keys(pst_nested_key *keys, uint64_t n) {
    enum { SHORT = 12 };
    if (n > SHORT) {
        qsort(keys, n, sizeof *keys, compare_keys);
        return;
    }
    for (uint64_t i = 1; i < n; i++) {
        pst_nested_key key = keys[i];
        uint64_t at = i;
        for (; at > 0 && pst_key_order(&keys[at - 1], &key) > 0; at--)
            keys[at] = keys[at - 1];
        keys[at] = key;
    }
}

/* Where a key's own bytes begin, and how many it takes with its length. */
static size_t encoded_size(const pst_shape *s, const pst_nested_key *key) {
    return s->width ? s->width : pst_varint_size(key->size) + key->size;
}

/* Writes the keys again, in the order that they have now. */
static pst_status rewrite_keys(pst_nested_writer *w, const pst_shape *s, size_t start,
                               const pst_nested_key *keys, uint64_t n) {
    size_t size = w->out.size - start;
    uint8_t *old = pst_malloc(size);
    if (!old)
        return PST_NO_MEMORY;
    memcpy(old, w->out.data + start, size);
    uint8_t *to = w->out.data + start;
    for (uint64_t i = 0; i < n; i++) {
        size_t bytes = encoded_size(s, &keys[i]);
        size_t end =
            (size_t)(keys[i].bytes - (w->out.data + start)) + (s->width ? bytes : keys[i].size);
        memcpy(to, old + end - bytes, bytes);
        to += bytes;
    }
    pst_free(old);
    return PST_OK;
}

pst_status pst_nested_put_keys(pst_nested_writer *w, int32_t i, const pst_nested_open *open,
                               uint64_t *same) {
    const pst_shape *s = pst_shape_at(w->nested, i);
    if (!s || s->op != PST_OP_MAP || w->n_keys - open->first != open->n)
        return PST_INVALID;
    if (open->n == 0)
        return PST_OK;
    const pst_shape *key = s + 1;
    pst_nested_key *keys = w->keys + open->first;
    size_t at = open->end;
    int sorted = 1;
    for (uint64_t k = 0; k < open->n; k++) {
        size_t bytes = encoded_size(key, &keys[k]);
        keys[k].index = (uint32_t)k;
        keys[k].bytes = w->out.data + at + (key->width ? 0 : bytes - keys[k].size);
        at += bytes;
        sorted = sorted && (k == 0 || pst_key_order(&keys[k - 1], &keys[k]) < 0);
    }
    if (sorted)
        return PST_OK;
    sort_keys(keys, open->n);
    for (uint64_t k = 1; k < open->n; k++)
        if (pst_key_order(&keys[k - 1], &keys[k]) == 0) {
            uint32_t a = keys[k - 1].index, b = keys[k].index;
            *same = a > b ? a : b;
            return PST_WRONG_TYPE;
        }
    return rewrite_keys(w, key, open->end, keys, open->n);
}

uint64_t pst_nested_entry_at(const pst_nested_writer *w, const pst_nested_open *open, uint64_t at) {
    return w->keys[open->first + at].index;
}

void pst_nested_end_map(pst_nested_writer *w, const pst_nested_open *open) {
    w->n_keys = open->first;
}
