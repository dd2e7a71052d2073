#include <string.h>

#include "base/coding.h"
#include "base/mem.h"
#include "base/xxh64.h"
#include "sst/sst_block.h"
#include "sst/sst_build.h"
#include "sst/sst_shape.h"

enum { FIRST_CAPACITY = 1024 };

pst_status pst_sst_grow(pst_sst_buffer *b, size_t size) {
    size_t capacity = b->capacity < FIRST_CAPACITY ? FIRST_CAPACITY : b->capacity + b->capacity / 2;
    if (capacity < size)
        capacity = size;
    uint8_t *data = pst_realloc(b->data, capacity);
    if (!data)
        return PST_NO_MEMORY;
    b->data = data;
    b->capacity = capacity;
    return PST_OK;
}

static void buffer_free(pst_sst_buffer *b) {
    pst_free(b->data);
    *b = (pst_sst_buffer){NULL, 0};
}

void pst_sst_builder_init(pst_sst_builder *b, const pst_schema *schema) {
    memset(b, 0, sizeof *b);
    b->n_keys = schema->n_keys;
    b->n_states = schema->n_states;
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
    buffer_free(&c->validity);
    buffer_free(&c->offsets);
    buffer_free(&c->values);
}

void pst_sst_builder_free(pst_sst_builder *b) {
    for (int32_t i = 0; i < b->n_keys + b->n_states; i++)
        pst_sst_growing_free(&b->columns[i]);
    buffer_free(&b->row_kinds);
    buffer_free(&b->raw);
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

uint32_t pst_sst_kind_of(pst_sst_builder *b, pst_record_op op, uint64_t changed) {
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
    uint32_t kind = pst_sst_kind_of(b, record->op, changed);
    *fits = 0;
    if (kind == PST_SST_BLOCK_KINDS)
        return PST_OK;
    b->kind = kind;
    b->row_size = size + b->kind_width[kind];
    *fits = b->rows == 0 ||
            (b->rows < PST_SST_BLOCK_ROWS && b->payload + b->row_size <= PST_SST_BLOCK_TARGET);
    return PST_OK;
}

pst_status pst_sst_append_validity(pst_sst_growing *c, int valid) {
    if (valid && c->nulls == 0)
        return PST_OK;
    size_t size = c->count / 8 + 1u;
    pst_status s = pst_sst_reserve(&c->validity, size);
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
    pst_status s = bytes ? pst_sst_reserve(&c->offsets, pst_sst_offsets_size(c->shape, room))
                         : pst_sst_reserve(&c->values, pst_sst_values_size(c->shape, room, 0));
    if (!s)
        c->room = room;
    return s;
}

static pst_status append_bytes(pst_sst_growing *c, pst_bytes v) {
    pst_status s = pst_sst_reserve(&c->values, c->bytes + v.size);
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
        s = pst_sst_append_validity(c, valid);
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
    pst_status s = pst_sst_reserve(&b->row_kinds, (size_t)b->rows + 1);
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
    pst_status s = pst_sst_reserve(&b->raw, total);
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
