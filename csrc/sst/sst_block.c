#include "sst/sst_block.h"

#include <string.h>

#include "base/coding.h"
#include "key/hash.h"
#include "key/schema.h"
#include "sst/sst_shape.h"

/* Rows of a kind that does not exist, or counts that contradict the rows, would let a column's
 * cursor run past its values. */
static pst_status check_kinds(const pst_sst_view *v) {
    uint32_t rows[PST_SST_BLOCK_KINDS] = {0};
    if (v->row_kinds) {
        for (uint32_t i = 0; i < v->rows; i++)
            rows[v->row_kinds[i]]++;
    } else {
        rows[0] = v->rows;
    }
    uint64_t total = 0, deletes = 0;
    for (uint32_t i = 0; i < v->n_kinds; i++) {
        if (rows[i] == 0 || rows[i] != v->kinds[i].rows)
            return PST_CORRUPT;
        total += rows[i];
        deletes += v->kinds[i].op == PST_DELETE ? rows[i] : 0;
    }
    return total == v->rows && deletes == v->deletes ? PST_OK : PST_CORRUPT;
}

static pst_status read_kinds(pst_sst_view *v, const uint8_t *p) {
    int32_t n = v->schema->n_states;
    uint64_t beyond = n < 64 ? ~UINT64_C(0) << n : 0;
    for (uint32_t i = 0; i < v->n_kinds; i++, p += PST_SST_B_KIND) {
        pst_sst_kind *k = &v->kinds[i];
        k->changed = pst_get_u64(p);
        k->rows = pst_get_u32(p + 8);
        k->op = (pst_record_op)pst_get_u32(p + 12);
        if ((k->changed & beyond) || (k->op != PST_PUT && k->op != PST_DELETE) ||
            (k->op == PST_DELETE && k->changed))
            return PST_CORRUPT;
    }
    return PST_OK;
}

/* As many values as rows that carry the column; keys are carried by all. */
static uint64_t carried(const pst_sst_view *v, int32_t column) {
    if (column < v->schema->n_keys)
        return v->rows;
    uint64_t bit = UINT64_C(1) << (column - v->schema->n_keys), n = 0;
    for (uint32_t i = 0; i < v->n_kinds; i++)
        n += v->kinds[i].changed & bit ? v->kinds[i].rows : 0;
    return n;
}

void pst_sst_value(const pst_sst_values *c, uint32_t i, pst_cell *cell) {
    pst_sst_load(c->shape, c->values, c->offsets, i, cell);
}

static pst_status check_offsets(const pst_sst_values *c) {
    int descending = 0;
    for (uint32_t i = 0; i < c->count; i++)
        descending |= c->offsets[i + 1] < c->offsets[i];
    if (descending || c->offsets[0] != 0 || (uint64_t)c->offsets[c->count] != c->bytes)
        return PST_CORRUPT;
    for (uint32_t i = 0; c->bytes > PST_MAX_BYTES && i < c->count; i++)
        if (c->offsets[i + 1] - c->offsets[i] > PST_MAX_BYTES)
            return PST_CORRUPT;
    return PST_OK;
}

/* Of the column of a list the bytes are runs of structs, not structs. */
static pst_status check_widths(const pst_sst_values *c, const pst_column *column) {
    int wrong = 0;
    for (uint32_t i = 0; column->type == PST_FIXED && i < c->count; i++)
        wrong |= c->offsets[i + 1] - c->offsets[i] != column->width && pst_sst_has_value(c, i);
    return wrong ? PST_CORRUPT : PST_OK;
}

/* If one key had two forms, a table would keep one row and a merge two. */
static pst_status check_key(const pst_sst_values *c, pst_type type) {
    pst_cell cell = {{0, 0}, {NULL, 0}};
    if (type != PST_FLOAT32 && type != PST_FLOAT64)
        return PST_OK;
    for (uint32_t i = 0; i < c->count; i++) {
        pst_sst_load(c->shape, c->values, c->offsets, i, &cell);
        if (pst_canonical_word(type, cell.word[0]) != cell.word[0] && pst_sst_has_value(c, i))
            return PST_CORRUPT;
    }
    return PST_OK;
}

static pst_status read_columns(pst_sst_view *v, const uint8_t *directory, const uint8_t *raw,
                               size_t size, size_t end) {
    for (int32_t i = 0; i < v->schema->n_keys + v->schema->n_states; i++) {
        const uint8_t *p = directory + (size_t)i * PST_SST_B_COLUMN;
        pst_sst_values *c = &v->columns[i];
        const pst_column *column = pst_sst_column_at(v->schema, i);
        uint32_t nulls = pst_get_u32(p + 4);
        c->shape = pst_sst_shape_of(column->type);
        c->count = pst_get_u32(p);
        c->bytes = pst_get_u64(p + 8);
        c->next = 0;
        if (c->count != carried(v, i) || nulls > c->count ||
            c->bytes > (c->shape == PST_SHAPE_BYTES && c->count ? INT32_MAX : 0))
            return PST_CORRUPT;
        pst_sst_placement at = pst_sst_place(c->shape, c->count, nulls, c->bytes, &end);
        if (end > size)
            return PST_CORRUPT;
        c->validity = nulls ? raw + at.validity : NULL;
        c->offsets = (const int32_t *)(const void *)(raw + at.offsets);
        c->values = raw + at.values;
        if (pst_sst_offsets_size(c->shape, c->count) &&
            (check_offsets(c) || check_widths(c, column)))
            return PST_CORRUPT;
        if (i < v->schema->n_keys && check_key(c, column->type))
            return PST_CORRUPT;
    }
    return end == size ? PST_OK : PST_CORRUPT;
}

pst_status pst_sst_view_open(pst_sst_view *v, const pst_schema *schema, const uint8_t *raw,
                             size_t size) {
    size_t n = (size_t)(schema->n_keys + schema->n_states);
    if (size < PST_SST_B_HEADER)
        return PST_CORRUPT;
    v->schema = schema;
    v->row = 0;
    v->rows = pst_get_u32(raw);
    v->n_kinds = pst_get_u16(raw + 4);
    v->deletes = pst_get_u32(raw + 8);
    if (v->rows == 0 || v->rows > PST_SST_BLOCK_ROWS || v->n_kinds == 0 ||
        v->n_kinds > PST_SST_BLOCK_KINDS || pst_get_u16(raw + 6) != n)
        return PST_CORRUPT;
    size_t head = PST_SST_B_HEADER + (size_t)v->n_kinds * PST_SST_B_KIND + n * PST_SST_B_COLUMN;
    size_t kinds_at = pst_sst_align(head);
    size_t columns_at = pst_sst_align(kinds_at + (v->n_kinds > 1 ? v->rows : 0));
    if (columns_at > size)
        return PST_CORRUPT;
    v->row_kinds = v->n_kinds > 1 ? raw + kinds_at : NULL;
    if (read_kinds(v, raw + PST_SST_B_HEADER) || check_kinds(v))
        return PST_CORRUPT;
    return read_columns(v, raw + PST_SST_B_HEADER + (size_t)v->n_kinds * PST_SST_B_KIND, raw, size,
                        columns_at);
}

pst_status pst_sst_view_hash(const pst_sst_view *v, uint64_t *hash) {
    pst_array arrays[PST_MAX_KEYS];
    uint8_t precision[PST_MAX_KEYS];
    for (int32_t i = 0; i < v->schema->n_keys; i++) {
        const pst_sst_values *c = &v->columns[i];
        arrays[i] = (pst_array){.type = v->schema->keys[i].type,
                                .length = v->rows,
                                .validity = c->validity,
                                .values = c->values,
                                .offsets = c->offsets,
                                .values_bytes = (int64_t)c->bytes};
        precision[i] = v->schema->keys[i].precision;
    }
    return pst_hash(arrays, precision, pst_schema_hashed(v->schema), hash);
}

void pst_sst_view_key(const pst_sst_view *v, uint32_t row, pst_cell *key, uint32_t *nulls) {
    *nulls = 0;
    for (int32_t i = 0; i < v->schema->n_keys; i++) {
        const pst_sst_values *c = &v->columns[i];
        if (pst_sst_has_value(c, row))
            pst_sst_load(c->shape, c->values, c->offsets, row, &key[i]);
        else
            *nulls |= 1u << i;
    }
}

int pst_sst_view_compare(const pst_sst_view *v, uint32_t a, uint32_t b) {
    pst_cell x[PST_MAX_KEYS], y[PST_MAX_KEYS];
    uint32_t x_nulls, y_nulls;
    pst_sst_view_key(v, a, x, &x_nulls);
    pst_sst_view_key(v, b, y, &y_nulls);
    return pst_key_compare(v->schema->keys, v->schema->n_keys, x, x_nulls, y, y_nulls);
}

void pst_sst_view_skip(pst_sst_view *v, uint32_t row) {
    uint32_t rows[PST_SST_BLOCK_KINDS] = {0};
    if (v->row_kinds) {
        for (uint32_t i = v->row; i < row; i++)
            rows[v->row_kinds[i]]++;
    } else {
        rows[0] = row - v->row;
    }
    for (uint32_t i = 0; i < v->n_kinds; i++)
        for (uint64_t m = rows[i] ? v->kinds[i].changed : 0; m; m &= m - 1)
            v->columns[v->schema->n_keys + __builtin_ctzll(m)].next += rows[i];
    v->row = row;
}

void pst_sst_view_next(pst_sst_view *v, pst_record *record) {
    int32_t n_keys = v->schema->n_keys;
    uint32_t row = v->row++;
    const pst_sst_kind *kind = &v->kinds[v->row_kinds ? v->row_kinds[row] : 0];
    record->op = kind->op;
    pst_sst_view_key(v, row, record->key, &record->key_nulls);
    uint64_t present = kind->changed;
    for (uint64_t m = kind->changed; m; m &= m - 1) {
        int i = __builtin_ctzll(m);
        pst_sst_values *c = &v->columns[n_keys + i];
        uint32_t at = c->next++;
        if (c->validity && !pst_sst_bit_at(c->validity, at))
            present &= ~(m & -m);
        else
            pst_sst_load(c->shape, c->values, c->offsets, at, &record->cells[i]);
    }
    record->changed = kind->changed;
    record->present = present;
}

/* ---- order ------------------------------------------------------------------------------------ */

static int compare_words(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

static int compare_bytes(const pst_sst_values *c, uint32_t a, uint32_t b) {
    const uint8_t *x = c->values + c->offsets[a], *y = c->values + c->offsets[b];
    uint32_t x_size = (uint32_t)(c->offsets[a + 1] - c->offsets[a]);
    uint32_t y_size = (uint32_t)(c->offsets[b + 1] - c->offsets[b]);
    uint32_t shared = x_size < y_size ? x_size : y_size;
    /* Most elements have twelve bytes, the first of which are the same ones. */
    if (shared == PST_ELEMENT_RUN) {
        int d = compare_words(pst_get_big64(x), pst_get_big64(y));
        d = d ? d : compare_words(pst_get_big64(x + 4), pst_get_big64(y + 4));
        return d ? d : compare_words(x_size, y_size);
    }
    int d = shared ? memcmp(x, y, shared) : 0;
    return d ? d : compare_words(x_size, y_size);
}

/* As pst_key_compare does with one column of two rows. */
static int compare_values(const pst_sst_values *c, uint32_t a, uint32_t b) {
    if (c->validity) {
        int x = pst_sst_bit_at(c->validity, a), y = pst_sst_bit_at(c->validity, b);
        if (!x || !y)
            return x - y;
    }
    if (c->shape == PST_SHAPE_BYTES)
        return compare_bytes(c, a, b);
    if (c->shape == PST_SHAPE_WORD64)
        return compare_words(pst_sst_words(c)[a], pst_sst_words(c)[b]);
    pst_cell x = {{0, 0}, {NULL, 0}}, y = x;
    pst_sst_value(c, a, &x);
    pst_sst_value(c, b, &y);
    int d = compare_words(x.word[1], y.word[1]);
    return d ? d : compare_words(x.word[0], y.word[0]);
}

/* Does row i come after the one before it, which has its hash? *column is the first key column in
 * which they differ. */
static int ascends(const pst_sst_view *v, uint32_t i, int32_t *column) {
    int d = 0;
    for (*column = 0; *column < v->schema->n_keys; ++*column)
        if ((d = compare_values(&v->columns[*column], i - 1, i)) != 0)
            break;
    return d < 0;
}

int pst_sst_rows_ascend(const pst_sst_view *v, const uint64_t *hash, int32_t max_parallelism,
                        int32_t *key_group, uint8_t *same) {
    int32_t last = v->schema->n_keys - 1, column;
    int ordered = 1;
    key_group[0] = pst_key_group(hash[0], max_parallelism);
    for (uint32_t i = 1; i < v->rows; i++) {
        if (hash[i] == hash[i - 1]) {
            key_group[i] = key_group[i - 1];
            ordered &= ascends(v, i, &column);
            if (same)
                same[i] = column == last;
            continue;
        }
        key_group[i] = pst_key_group(hash[i], max_parallelism);
        ordered &= key_group[i] > key_group[i - 1] ||
                   (key_group[i] == key_group[i - 1] && hash[i] > hash[i - 1]);
        if (same)
            same[i] = 0;
    }
    return ordered;
}

uint32_t pst_sst_first_row(const int32_t *key_group, uint32_t rows, int32_t first) {
    uint32_t low = 0, high = rows;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (key_group[middle] < first)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
