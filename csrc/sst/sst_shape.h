/* sst_shape.h: how columns lie in a block, for whoever builds one and whoever reads one.
 *
 * Thread safety: pure functions over their arguments.
 */
#ifndef PST_SST_SHAPE_H
#define PST_SST_SHAPE_H

#include <string.h>

#include "base/coding.h"
#include "sst/sst_format.h"

/* The block's own header: rows u32, kinds u16, columns u16, deletes u32, 0 u32; then a kind each:
 * changed u64, rows u32, op u8, 0; then a column each: values u32, nulls u32, bytes u64. */
enum { PST_SST_B_HEADER = 16, PST_SST_B_KIND = 16, PST_SST_B_COLUMN = 16 };

static inline pst_sst_shape pst_sst_shape_of(pst_type type) {
    switch (type) {
    case PST_BOOL:
        return PST_SHAPE_BIT;
    case PST_INT8:
        return PST_SHAPE_INT8;
    case PST_INT16:
        return PST_SHAPE_INT16;
    case PST_INT32:
    case PST_DATE32:
        return PST_SHAPE_INT32;
    case PST_FLOAT32:
        return PST_SHAPE_WORD32;
    case PST_INT64:
    case PST_FLOAT64:
    case PST_TIMESTAMP:
        return PST_SHAPE_WORD64;
    case PST_DECIMAL:
        return PST_SHAPE_WORD128;
    case PST_STRING:
    case PST_BINARY:
    case PST_OBJECT:
    case PST_FIXED:
    case PST_NESTED:
        break;
    }
    return PST_SHAPE_BYTES;
}

static inline size_t pst_sst_values_size(pst_sst_shape shape, uint64_t count, uint64_t bytes) {
    switch (shape) {
    case PST_SHAPE_BIT:
        return (count + 7) / 8;
    case PST_SHAPE_INT8:
        return count;
    case PST_SHAPE_INT16:
        return count * 2;
    case PST_SHAPE_INT32:
    case PST_SHAPE_WORD32:
        return count * 4;
    case PST_SHAPE_WORD64:
        return count * 8;
    case PST_SHAPE_WORD128:
        return count * 16;
    case PST_SHAPE_BYTES:
        break;
    }
    return bytes;
}

static inline const pst_column *pst_sst_column_at(const pst_schema *schema, int32_t i) {
    return i < schema->n_keys ? &schema->keys[i] : &schema->states[i - schema->n_keys];
}

static inline int pst_sst_bit_at(const uint8_t *bitmap, uint32_t i) {
    return (bitmap[i >> 3] >> (i & 7)) & 1;
}

static inline size_t pst_sst_validity_size(uint32_t count, uint32_t nulls) {
    return nulls ? ((size_t)count + 7) / 8 : 0;
}

/* A column without values has no buffers at all. */
static inline size_t pst_sst_offsets_size(pst_sst_shape shape, uint32_t count) {
    return shape == PST_SHAPE_BYTES && count > 0 ? ((size_t)count + 1) * 4 : 0;
}

/* Where a column's buffers lie. */
typedef struct pst_sst_placement {
    size_t validity;
    size_t offsets;
    size_t values;
} pst_sst_placement;

/* Places a column at *end and moves *end behind it. Cannot overflow: count is at most
 * PST_SST_BLOCK_ROWS, bytes at most INT32_MAX, and there are at most PST_SST_MAX_COLUMNS. */
static inline pst_sst_placement pst_sst_place(pst_sst_shape shape, uint32_t count, uint32_t nulls,
                                              uint64_t bytes, size_t *end) {
    pst_sst_placement p;
    p.validity = *end;
    *end = pst_sst_align(*end + pst_sst_validity_size(count, nulls));
    p.offsets = *end;
    *end = pst_sst_align(*end + pst_sst_offsets_size(shape, count));
    p.values = *end;
    *end = pst_sst_align(*end + pst_sst_values_size(shape, count, bytes));
    return p;
}

static inline void pst_sst_load(pst_sst_shape shape, const uint8_t *values, const int32_t *offsets,
                                uint32_t i, pst_cell *cell) {
    switch (shape) {
    case PST_SHAPE_BIT:
        cell->word[0] = (uint64_t)pst_sst_bit_at(values, i);
        return;
    case PST_SHAPE_INT8:
        cell->word[0] = (uint64_t)(int8_t)values[i];
        return;
    case PST_SHAPE_INT16:
        cell->word[0] = (uint64_t)(int16_t)pst_get_u16(values + (size_t)i * 2);
        return;
    case PST_SHAPE_INT32:
        cell->word[0] = (uint64_t)(int32_t)pst_get_u32(values + (size_t)i * 4);
        return;
    case PST_SHAPE_WORD32:
        cell->word[0] = pst_get_u32(values + (size_t)i * 4);
        return;
    case PST_SHAPE_WORD64:
        cell->word[0] = pst_get_u64(values + (size_t)i * 8);
        return;
    case PST_SHAPE_WORD128:
        cell->word[0] = pst_get_u64(values + (size_t)i * 16);
        cell->word[1] = pst_get_u64(values + (size_t)i * 16 + 8);
        return;
    case PST_SHAPE_BYTES:
        cell->bytes.data = values + offsets[i];
        cell->bytes.size = (uint32_t)(offsets[i + 1] - offsets[i]);
        return;
    }
}

#endif
