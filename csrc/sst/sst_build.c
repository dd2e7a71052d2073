#include "sst/sst_build.h"

#include <string.h>

#include "base/coding.h"
#include "key/xxh64.h"
#include "sst/sst_shape.h"

void pst_sst_builder_init(pst_sst_builder *b, const pst_schema *schema) {
    memset(b, 0, sizeof *b);
    b->n_keys = schema->n_keys;
    b->n_states = schema->n_states;
    b->target = PST_SST_BLOCK_TARGET;
    b->most_rows = PST_SST_BLOCK_ROWS;
    for (int32_t i = 0; i < schema->n_keys + schema->n_states; i++) {
        pst_sst_shape shape = pst_sst_shape_of(pst_sst_column_at(schema, i)->type);
        b->columns[i].shape = shape;
        if (i < schema->n_keys) {
            b->key_width += pst_sst_values_size(shape, 1, 4);
            if (shape == PST_SHAPE_BYTES)
                b->key_bytes_mask |= 1u << i;
        } else if (shape == PST_SHAPE_BYTES) {
            b->state_bytes_mask |= UINT64_C(1) << (i - schema->n_keys);
        }
    }
}

void pst_sst_growing_free(pst_sst_growing *c) {
    pst_buffer_free(&c->validity);
    pst_buffer_free(&c->offsets);
    pst_buffer_free(&c->values);
}

void pst_sst_builder_free(pst_sst_builder *b) {
    for (int32_t i = 0; i < b->n_keys + b->n_states; i++)
        pst_sst_growing_free(&b->columns[i]);
    pst_buffer_free(&b->row_kinds);
    pst_buffer_free(&b->raw);
}

/* The slot of a kind, or the free one where it belongs. */
static uint16_t *kind_slot(pst_sst_builder *b, pst_record_op op, uint64_t changed) {
    const uint32_t mask = 2 * PST_SST_BLOCK_KINDS - 1;
    uint32_t at = (uint32_t)(((changed ^ (uint64_t)op << 60) * PST_XXH_P1) >> 52) & mask;
    for (;; at = (at + 1) & mask) {
        uint16_t kind = b->kind_slots[at];
        if (kind == 0 || (b->kinds[kind - 1].changed == changed && b->kinds[kind - 1].op == op))
            return &b->kind_slots[at];
    }
}

static uint32_t kind_of(pst_sst_builder *b, pst_record_op op, uint64_t changed) {
    if (b->n_kinds > 0 && b->kinds[b->kind].changed == changed && b->kinds[b->kind].op == op)
        return b->kind;
    uint16_t *slot = kind_slot(b, op, changed);
    if (*slot > 0)
        return *slot - 1u;
    if (b->n_kinds == PST_SST_BLOCK_KINDS)
        return PST_SST_BLOCK_KINDS;
    uint32_t kind = b->n_kinds++;
    *slot = (uint16_t)b->n_kinds;
    b->kinds[kind] = (pst_sst_kind){changed, 0, op};
    b->kind_width[kind] = 0;
    for (uint64_t m = changed; m; m &= m - 1) {
        pst_sst_shape shape = b->columns[b->n_keys + __builtin_ctzll(m)].shape;
        b->kind_width[kind] += pst_sst_values_size(shape, 1, 4);
    }
    return kind;
}

pst_status pst_sst_builder_measure(pst_sst_builder *b, const pst_record *record, uint64_t changed,
                                   int *fits) {
    uint64_t size = b->key_width;
    for (uint32_t m = b->key_bytes_mask & ~record->key_nulls; m; m &= m - 1) {
        uint32_t bytes = record->key[__builtin_ctz(m)].bytes.size;
        if (bytes > PST_MAX_BYTES)
            return PST_TOO_LARGE;
        size += bytes;
    }
    for (uint64_t m = b->state_bytes_mask & record->present & changed; m; m &= m - 1) {
        uint32_t bytes = record->cells[__builtin_ctzll(m)].bytes.size;
        if (bytes > PST_MAX_BYTES)
            return PST_TOO_LARGE;
        size += bytes;
    }
    uint32_t kind = kind_of(b, record->op, changed);
    *fits = 0;
    if (kind == PST_SST_BLOCK_KINDS)
        return PST_OK;
    b->kind = kind;
    b->row_size = size + b->kind_width[kind];
    *fits = b->rows == 0 || (b->rows < b->most_rows && b->payload + b->row_size <= b->target);
    return PST_OK;
}

static pst_status append_validity(pst_sst_growing *c, int valid) {
    if (valid && c->nulls == 0)
        return PST_OK;
    size_t size = c->count / 8 + 1u;
    pst_status s = pst_buffer_reserve(&c->validity, size);
    if (s)
        return s;
    uint8_t *bits = c->validity.data;
    uint8_t bit = (uint8_t)(1u << (c->count & 7));
    if (c->nulls == 0) {
        memset(bits, 0xff, size - 1);
        bits[size - 1] = (uint8_t)(bit - 1);
    } else if (bit == 1) {
        bits[size - 1] = 0;
    }
    if (valid)
        bits[size - 1] |= bit;
    else
        c->nulls++;
    return PST_OK;
}

pst_status pst_sst_grow_column(pst_sst_growing *c) {
    int bytes = c->shape == PST_SHAPE_BYTES;
    uint32_t room = c->room < 64 ? 128 : c->room * 2;
    pst_status s = bytes ? pst_buffer_reserve(&c->offsets, pst_sst_offsets_size(c->shape, room))
                         : pst_buffer_reserve(&c->values, pst_sst_values_size(c->shape, room, 0));
    if (!s)
        c->room = room;
    return s;
}

static pst_status append_bytes(pst_sst_growing *c, pst_bytes v) {
    pst_status s = pst_buffer_reserve(&c->values, c->bytes + v.size);
    if (s)
        return s;
    if (c->count == 0)
        pst_put_u32(c->offsets.data, 0);
    if (v.size)
        memcpy(c->values.data + c->bytes, v.data, v.size);
    c->bytes += v.size;
    pst_put_u32(c->offsets.data + ((size_t)c->count + 1) * 4, (uint32_t)c->bytes);
    return PST_OK;
}

pst_status pst_sst_append(pst_sst_growing *c, const pst_cell *cell, int valid) {
    static const pst_cell zero;
    pst_status s;
    if (__builtin_expect(c->count >= c->room, 0)) {
        s = pst_sst_grow_column(c);
        if (s)
            return s;
    }
    if (__builtin_expect(!valid || c->nulls > 0, 0)) {
        s = append_validity(c, valid);
        if (s)
            return s;
        cell = valid ? cell : &zero;
    }
    uint32_t i = c->count;
    uint8_t *p = c->values.data;
    switch (c->shape) {
    case PST_SHAPE_BIT:
        if ((i & 7) == 0)
            p[i >> 3] = 0;
        p[i >> 3] |= (uint8_t)((cell->word[0] & 1) << (i & 7));
        break;
    case PST_SHAPE_INT8:
        p[i] = (uint8_t)cell->word[0];
        break;
    case PST_SHAPE_INT16:
        pst_put_u16(p + (size_t)i * 2, (uint16_t)cell->word[0]);
        break;
    case PST_SHAPE_INT32:
    case PST_SHAPE_WORD32:
        pst_put_u32(p + (size_t)i * 4, (uint32_t)cell->word[0]);
        break;
    case PST_SHAPE_WORD64:
        pst_put_u64(p + (size_t)i * 8, cell->word[0]);
        break;
    case PST_SHAPE_WORD128:
        pst_put_u64(p + (size_t)i * 16, cell->word[0]);
        pst_put_u64(p + (size_t)i * 16 + 8, cell->word[1]);
        break;
    case PST_SHAPE_BYTES:
        s = append_bytes(c, cell->bytes);
        if (s)
            return s;
        break;
    }
    c->count = i + 1;
    return PST_OK;
}

pst_status pst_sst_builder_add(pst_sst_builder *b, const pst_record *record) {
    pst_status s = pst_buffer_reserve(&b->row_kinds, (size_t)b->rows + 1);
    if (s)
        return s;
    b->row_kinds.data[b->rows] = (uint8_t)b->kind;
    for (int32_t k = 0; k < b->n_keys; k++) {
        s = pst_sst_append(&b->columns[k], &record->key[k], !((record->key_nulls >> k) & 1));
        if (s)
            return s;
    }
    for (uint64_t m = b->kinds[b->kind].changed; m; m &= m - 1) {
        int k = __builtin_ctzll(m);
        s = pst_sst_append(&b->columns[b->n_keys + k], &record->cells[k],
                           (record->present >> k) & 1);
        if (s)
            return s;
    }
    b->kinds[b->kind].rows++;
    b->rows++;
    b->deletes += record->op == PST_DELETE;
    b->payload += b->row_size;
    return PST_OK;
}

/* ---- finishing ------------------------------------------------------------------------------- */

void pst_sst_builder_last_key(const pst_sst_builder *b, pst_cell *key, uint32_t *nulls) {
    *nulls = 0;
    for (int32_t k = 0; k < b->n_keys; k++) {
        const pst_sst_growing *c = &b->columns[k];
        if (c->nulls && !pst_sst_bit_at(c->validity.data, b->rows - 1))
            *nulls |= 1u << k;
        pst_sst_load(c->shape, c->values.data, (const int32_t *)(const void *)c->offsets.data,
                     b->rows - 1, &key[k]);
    }
}

static void lay_out(uint8_t *raw, size_t *end, size_t at, const void *data, size_t size) {
    memset(raw + *end, 0, at - *end);
    if (size)
        memcpy(raw + at, data, size);
    *end = at + size;
}

/* The block's own header. */
static void put_directory(const pst_sst_builder *b, uint32_t n_kinds, uint8_t *p) {
    pst_put_u32(p, b->rows);
    pst_put_u16(p + 4, (uint16_t)n_kinds);
    pst_put_u16(p + 6, (uint16_t)(b->n_keys + b->n_states));
    pst_put_u32(p + 8, b->deletes);
    pst_put_u32(p + 12, 0);
    p += PST_SST_B_HEADER;
    for (uint32_t i = 0; i < n_kinds; i++, p += PST_SST_B_KIND) {
        pst_put_u64(p, b->kinds[i].changed);
        pst_put_u32(p + 8, b->kinds[i].rows);
        pst_put_u32(p + 12, (uint32_t)b->kinds[i].op);
    }
    for (int32_t i = 0; i < b->n_keys + b->n_states; i++, p += PST_SST_B_COLUMN) {
        pst_put_u32(p, b->columns[i].count);
        pst_put_u32(p + 4, b->columns[i].nulls);
        pst_put_u64(p + 8, b->columns[i].bytes);
    }
}

/* Drops the rows. */
static void clear_rows(pst_sst_builder *b) {
    for (int32_t i = 0; i < b->n_keys + b->n_states; i++) {
        b->columns[i].count = b->columns[i].nulls = 0;
        b->columns[i].bytes = 0;
    }
    b->rows = b->deletes = b->n_kinds = b->kind = 0;
    b->payload = 0;
    memset(b->kind_slots, 0, sizeof b->kind_slots);
}

pst_status pst_sst_builder_finish(pst_sst_builder *b, const uint8_t **raw, size_t *size) {
    /* The last kind may be that of a record that was measured and did not fit. */
    uint32_t n_kinds = b->n_kinds;
    while (b->kinds[n_kinds - 1].rows == 0)
        n_kinds--;
    int32_t n = b->n_keys + b->n_states;
    size_t head =
        PST_SST_B_HEADER + (size_t)n_kinds * PST_SST_B_KIND + (size_t)n * PST_SST_B_COLUMN;
    pst_sst_placement at[PST_SST_MAX_COLUMNS];
    size_t kinds_at = pst_sst_align(head);
    size_t total = pst_sst_align(kinds_at + (n_kinds > 1 ? b->rows : 0));
    for (int32_t i = 0; i < n; i++) {
        const pst_sst_growing *c = &b->columns[i];
        at[i] = pst_sst_place(c->shape, c->count, c->nulls, c->bytes, &total);
    }
    pst_status s = pst_buffer_reserve(&b->raw, total);
    if (s)
        return s;
    uint8_t *out = b->raw.data;
    put_directory(b, n_kinds, out);
    size_t end = head;
    lay_out(out, &end, kinds_at, b->row_kinds.data, n_kinds > 1 ? b->rows : 0);
    for (int32_t i = 0; i < n; i++) {
        const pst_sst_growing *c = &b->columns[i];
        lay_out(out, &end, at[i].validity, c->validity.data,
                pst_sst_validity_size(c->count, c->nulls));
        lay_out(out, &end, at[i].offsets, c->offsets.data,
                pst_sst_offsets_size(c->shape, c->count));
        lay_out(out, &end, at[i].values, c->values.data,
                pst_sst_values_size(c->shape, c->count, c->bytes));
    }
    memset(out + end, 0, total - end);
    clear_rows(b);
    *raw = out;
    *size = total;
    return PST_OK;
}

/* ---- rows in words, a column at a time ------------------------------------------------------- */

/* Adds the sizes of a column's bytes to those of the rows; 0 where one is too large. */
static int add_sizes(const pst_rows *rows, uint32_t from, uint32_t n, uint32_t at,
                     uint64_t *sizes) {
    uint64_t largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t size = rows->words[from + i][at + 1];
        largest = size > largest ? size : largest;
        sizes[i] += size;
    }
    return largest <= PST_MAX_BYTES;
}

/* Of an element's words. */
static inline uint64_t element_size(const uint64_t *words) {
    return words[2] ? words[2] - 1 : 0;
}

/* How many rows of such sizes fit behind what is there. */
static uint32_t count_fitting(const pst_sst_builder *b, const uint64_t *sizes, uint32_t n,
                              uint64_t *payload) {
    uint32_t i = 0;
    for (; i < n && (b->rows + i == 0 || *payload + sizes[i] <= b->target); i++)
        *payload += sizes[i];
    return i;
}

pst_status pst_sst_builder_measure_rows(pst_sst_builder *b, const pst_rows *rows, uint32_t from,
                                        uint64_t changed, uint32_t *fit) {
    enum { CHUNK = 128 };
    uint64_t sizes[CHUNK];
    uint32_t n = rows->n - from, room = b->most_rows - b->rows;
    uint32_t kind = kind_of(b, rows->op, changed);
    *fit = 0;
    if (kind == PST_SST_BLOCK_KINDS)
        return PST_OK;
    n = n < room ? n : room;
    n = n < CHUNK ? n : CHUNK;
    for (uint32_t i = 0; i < n; i++)
        sizes[i] = b->key_width + b->kind_width[kind];
    if (b->key_bytes_mask && rows->keys)
        for (uint32_t i = 0; i < n; i++)
            sizes[i] += element_size(rows->keys[from + i] + b->n_keys - 1);
    else if (b->key_bytes_mask && !add_sizes(rows, from, n, rows->key_at, sizes))
        return PST_TOO_LARGE;
    for (uint64_t m = b->state_bytes_mask & rows->present & changed; m; m &= m - 1)
        if (!add_sizes(rows, from, n, rows->at[__builtin_ctzll(m)], sizes))
            return PST_TOO_LARGE;
    uint64_t payload = b->payload;
    b->kind = kind;
    *fit = count_fitting(b, sizes, n, &payload);
    b->row_size = payload - b->payload;
    return PST_OK;
}

/* Copies up to PST_BYTES_SLACK bytes, without a branch that would depend on how many. Of sixteen and
 * more it reads nothing behind them: that would often be a line which nobody fetched. */
static inline void copy_short(uint8_t *to, const uint8_t *from, size_t size) {
    size_t last = size > 16 ? size - 16 : 0, middle = last < 16 ? last : 16;
    memcpy(to, from, 16);
    memcpy(to + middle, from + middle, 16);
    memcpy(to + last, from + last, 16);
}

static pst_status append_bytes_of(pst_sst_growing *c, const pst_rows *rows, uint32_t from,
                                  uint32_t n, uint32_t at) {
    uint64_t total = PST_BYTES_SLACK, end = c->bytes;
    for (uint32_t i = 0; i < n; i++)
        total += rows->words[from + i][at + 1];
    pst_status s = pst_buffer_reserve(&c->values, end + total);
    if (s)
        return s;
    uint8_t *offsets = c->offsets.data + (size_t)c->count * 4, *values = c->values.data;
    if (c->count == 0)
        pst_put_u32(offsets, 0);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t *ref = rows->words[from + i] + at;
        const uint8_t *bytes = rows->bytes + ref[0];
        if (ref[1] <= PST_BYTES_SLACK)
            copy_short(values + end, bytes, ref[1]);
        else
            memcpy(values + end, bytes, ref[1]);
        end += ref[1];
        pst_put_u32(offsets + ((size_t)i + 1) * 4, (uint32_t)end);
    }
    c->bytes = end;
    c->count += n;
    return PST_OK;
}

static pst_status append_one_by_one(pst_sst_growing *c, const pst_rows *rows, uint32_t from,
                                    uint32_t n, uint32_t at, int valid) {
    pst_cell cell = {{0, 0}, {NULL, 0}};
    pst_status s = PST_OK;
    for (uint32_t i = 0; !s && i < n; i++) {
        const uint64_t *word = rows->words[from + i] + at;
        if (valid && c->shape == PST_SHAPE_BYTES)
            cell.bytes = (pst_bytes){rows->bytes + word[0], (uint32_t)word[1]};
        else if (valid)
            cell.word[0] = word[0];
        if (valid && c->shape == PST_SHAPE_WORD128)
            cell.word[1] = word[1];
        s = pst_sst_append(c, &cell, valid);
    }
    return s;
}

#define APPEND_WORDS(width, put)                                                                   \
    do {                                                                                           \
        uint8_t *to = c->values.data + (size_t)c->count * (width);                                 \
        for (uint32_t i = 0; i < n; i++)                                                           \
            put(to + (size_t)i * (width), words[i][at]);                                           \
        c->count += n;                                                                             \
    } while (0)
#define PUT_8(p, word) (*(p) = (uint8_t)(word))
#define PUT_16(p, word) pst_put_u16(p, (uint16_t)(word))
#define PUT_32(p, word) pst_put_u32(p, (uint32_t)(word))

static pst_status append_column(pst_sst_growing *c, const pst_rows *rows, uint32_t from, uint32_t n,
                                uint32_t at, int valid) {
    const uint64_t *const *words = rows->words + from;
    while (c->count + n > c->room) {
        pst_status s = pst_sst_grow_column(c);
        if (s)
            return s;
    }
    if (!valid || c->nulls > 0)
        return append_one_by_one(c, rows, from, n, at, valid);
    switch (c->shape) {
    case PST_SHAPE_INT8:
        APPEND_WORDS(1, PUT_8);
        return PST_OK;
    case PST_SHAPE_INT16:
        APPEND_WORDS(2, PUT_16);
        return PST_OK;
    case PST_SHAPE_INT32:
    case PST_SHAPE_WORD32:
        APPEND_WORDS(4, PUT_32);
        return PST_OK;
    case PST_SHAPE_WORD64:
        APPEND_WORDS(8, pst_put_u64);
        return PST_OK;
    case PST_SHAPE_BYTES:
        return append_bytes_of(c, rows, from, n, at);
    case PST_SHAPE_BIT:
    case PST_SHAPE_WORD128:
        break;
    }
    return append_one_by_one(c, rows, from, n, at, valid);
}

/* Appends elements, which are `at` words behind the keys' beginning. */
static pst_status append_elements(pst_sst_growing *c, const pst_rows *rows, uint32_t from,
                                  uint32_t n, uint32_t at) {
    enum { MOST = 16 };
    pst_status s = pst_buffer_reserve(&c->values, c->bytes + ((size_t)n + 1) * MOST);
    while (!s && c->count + n > c->room)
        s = pst_sst_grow_column(c);
    if (s)
        return s;
    uint8_t *values = c->values.data, *offsets = c->offsets.data;
    if (!c->count)
        pst_put_u32(offsets, 0);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t *words = rows->keys[from + i] + at;
        s = append_validity(c, words[2] != 0);
        if (s)
            return s;
        /* All of the room is written, and what is not of the element overwritten next. */
        pst_put_big64(values + c->bytes, words[0]);
        pst_put_big64(values + c->bytes + 8, words[1]);
        c->bytes += element_size(words);
        pst_put_u32(offsets + (size_t)++c->count * 4, (uint32_t)c->bytes);
    }
    return PST_OK;
}

static pst_status append_keys(pst_sst_builder *b, const pst_rows *rows, uint32_t from, uint32_t n) {
    if (!rows->keys)
        return append_column(&b->columns[0], rows, from, n, rows->key_at, 1);
    pst_rows keys = *rows;
    keys.words = rows->keys;
    pst_status s = PST_OK;
    for (int32_t k = 0; !s && k < b->n_keys; k++)
        s = b->columns[k].shape == PST_SHAPE_BYTES
                ? append_elements(&b->columns[k], rows, from, n, (uint32_t)k)
                : append_column(&b->columns[k], &keys, from, n, (uint32_t)k, 1);
    return s;
}

pst_status pst_sst_builder_add_rows(pst_sst_builder *b, const pst_rows *rows, uint32_t from,
                                    uint32_t n) {
    pst_status s = pst_buffer_reserve(&b->row_kinds, (size_t)b->rows + n);
    if (s)
        return s;
    memset(b->row_kinds.data + b->rows, (int)b->kind, n);
    s = append_keys(b, rows, from, n);
    for (uint64_t m = b->kinds[b->kind].changed; !s && m; m &= m - 1) {
        int k = __builtin_ctzll(m);
        s = append_column(&b->columns[b->n_keys + k], rows, from, n, rows->at[k],
                          (rows->present >> k) & 1);
    }
    if (s)
        return s;
    b->kinds[b->kind].rows += n;
    b->rows += n;
    b->deletes += rows->op == PST_DELETE ? n : 0;
    b->payload += b->row_size;
    return PST_OK;
}

/* ---- rows of another block ------------------------------------------------------------------- */

/* Bytes of n rows of a view: of the keys, and of the values that the columns in `changed` take. */
static uint64_t size_of(const pst_sst_builder *b, const pst_sst_view *v, uint32_t from, uint32_t n,
                        const int32_t *at, uint64_t changed) {
    uint64_t size = n * (b->key_width + b->kind_width[b->kind]);
    for (uint32_t m = b->key_bytes_mask; m; m &= m - 1) {
        const int32_t *offsets = v->columns[__builtin_ctz(m)].offsets;
        size += (uint64_t)(offsets[from + n] - offsets[from]);
    }
    for (uint64_t m = b->state_bytes_mask & changed; m; m &= m - 1) {
        const int32_t *offsets = v->columns[b->n_keys + at[__builtin_ctzll(m)]].offsets;
        size += (uint64_t)(offsets[from + n] - offsets[from]);
    }
    return size;
}

uint32_t pst_sst_builder_measure_view(pst_sst_builder *b, const pst_sst_view *v, uint32_t from,
                                      uint32_t n, const int32_t *at, uint64_t changed) {
    uint32_t kind = kind_of(b, PST_PUT, changed), room = b->most_rows - b->rows;
    if (kind == PST_SST_BLOCK_KINDS)
        return 0;
    b->kind = kind;
    n = n < room ? n : room;
    for (; n; n /= 2) {
        b->row_size = size_of(b, v, from, n, at, changed);
        if (b->payload + b->row_size <= b->target || (b->rows == 0 && n == 1))
            return n;
    }
    return 0;
}

static pst_status append_view_bytes(pst_sst_growing *c, const pst_sst_values *v, uint32_t from,
                                    uint32_t n) {
    int32_t first = v->offsets[from];
    size_t size = (size_t)(v->offsets[from + n] - first);
    pst_status s = pst_buffer_reserve(&c->values, c->bytes + size);
    if (s)
        return s;
    if (size)
        memcpy(c->values.data + c->bytes, v->values + first, size);
    int32_t *to = (int32_t *)(void *)c->offsets.data + c->count;
    int32_t base = (int32_t)c->bytes - first;
    *to = (int32_t)c->bytes;
    for (uint32_t i = 1; i <= n; i++)
        to[i] = base + v->offsets[from + i];
    c->bytes += size;
    return PST_OK;
}

static void append_view_bits(pst_sst_growing *c, const pst_sst_values *v, uint32_t from,
                             uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t to = c->count + i;
        uint8_t bit = (uint8_t)(1u << (to & 7));
        if (bit == 1)
            c->values.data[to >> 3] = 0;
        if (pst_sst_bit_at(v->values, from + i))
            c->values.data[to >> 3] |= bit;
    }
}

pst_status pst_sst_append_view(pst_sst_growing *c, const pst_sst_values *v, uint32_t from,
                               uint32_t n) {
    pst_status s = PST_OK;
    uint32_t before = c->count;
    while (!s && c->count + n > c->room)
        s = pst_sst_grow_column(c);
    /* The bitmap goes by the count. */
    for (uint32_t i = 0; !s && (v->validity || c->nulls) && i < n; i++) {
        s = append_validity(c, pst_sst_has_value(v, from + i));
        c->count++;
    }
    c->count = before;
    if (s)
        return s;
    size_t width = pst_sst_values_size(c->shape, 1, 0);
    if (c->shape == PST_SHAPE_BYTES)
        s = append_view_bytes(c, v, from, n);
    else if (c->shape == PST_SHAPE_BIT)
        append_view_bits(c, v, from, n);
    else
        memcpy(c->values.data + before * width, v->values + from * width, n * width);
    c->count += n;
    return s;
}

pst_status pst_sst_append_nulls(pst_sst_growing *c, uint32_t n) {
    static const pst_cell none;
    pst_status s = PST_OK;
    for (uint32_t i = 0; !s && i < n; i++)
        s = pst_sst_append(c, &none, 0);
    return s;
}

pst_status pst_sst_builder_add_view(pst_sst_builder *b, const pst_sst_view *v, uint32_t from,
                                    uint32_t n, const int32_t *at) {
    pst_status s = pst_buffer_reserve(&b->row_kinds, (size_t)b->rows + n);
    if (s)
        return s;
    memset(b->row_kinds.data + b->rows, (int)b->kind, n);
    for (int32_t k = 0; !s && k < b->n_keys; k++)
        s = pst_sst_append_view(&b->columns[k], &v->columns[k], from, n);
    for (uint64_t m = b->kinds[b->kind].changed; !s && m; m &= m - 1) {
        int32_t k = __builtin_ctzll(m);
        s = pst_sst_append_view(&b->columns[b->n_keys + k], &v->columns[b->n_keys + at[k]], from,
                                n);
    }
    if (s)
        return s;
    b->kinds[b->kind].rows += n;
    b->rows += n;
    b->payload += b->row_size;
    return PST_OK;
}
