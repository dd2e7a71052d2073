#include "sst/sst_order.h"

#include <string.h>

#include "base/coding.h"
#include "base/element.h"
#include "sst/sst_shape.h"

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
