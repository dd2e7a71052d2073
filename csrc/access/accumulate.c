/* accumulate.c: accumulators in columns: of one key, and of many. */
#include <string.h>

#include "access/batch.h"
#include "access/current_key.h"
#include "aggregate/aggregate.h"
#include "base/mem.h"
#include "table/ttl.h"

enum { ON_STACK = 2048 };

pst_status pst_aggregate_width(const pst_agg_shape *shape, uint32_t *width) {
    pst_status s = pst_agg_check(shape);
    if (!s)
        *width = pst_agg_width(shape);
    return s;
}

static pst_status check_column(const pst_table *t, int32_t column, const pst_agg_shape *shape,
                               uint32_t *width) {
    pst_status s = pst_aggregate_width(shape, width);
    if (s || column < 0 || column >= t->lay.n_states || t->lay.fields[column].kind != PST_VALUE)
        return s ? s : PST_INVALID;
    const pst_field *f = &t->lay.fields[column];
    int fits = *width ? f->type == PST_FIXED && f->width == *width : f->type == PST_BINARY;
    return fits ? PST_OK : PST_WRONG_TYPE;
}

/* What the row has, as a reader sees it. */
static pst_bytes accumulator(const pst_table *t, uint32_t slot, int32_t column) {
    const uint64_t *row = pst_row(t, slot);
    pst_cell cell = {{0, 0}, {NULL, 0}};
    if (pst_row_has(&t->lay, row, column) &&
        !(t->lay.fields[column].time >= 0 &&
          pst_ttl_hides(t, column, pst_row_time(t, row, column))))
        pst_field_cell(&t->lay.fields[column], row, t->heap, &cell);
    return cell.bytes;
}

/* An operand: a value, or another accumulator. */
typedef struct operand {
    const pst_cell *value;
    pst_bytes from;
} operand;

static pst_status run_fixed(pst_table *t, uint32_t slot, int32_t column, const pst_agg_shape *shape,
                            uint32_t width, const operand *o) {
    uint64_t state[PST_AGG_MAX_WIDTH / 8], other[PST_AGG_MAX_WIDTH / 8];
    pst_bytes have = accumulator(t, slot, column);
    pst_status s = PST_OK;
    if (have.size)
        memcpy(state, have.data, width);
    else
        pst_agg_init(shape, state);
    if (o->value) {
        s = pst_agg_add(shape, state, o->value);
    } else if (o->from.size != width) {
        s = PST_CORRUPT;
    } else {
        memcpy(other, o->from.data, width);
        s = pst_agg_merge(shape, state, other);
    }
    pst_cell cell = {{0, 0}, {(const uint8_t *)state, width}};
    return s ? s : pst_state_put(t, slot, column, &cell);
}

static pst_status run_bytes(pst_table *t, uint32_t slot, int32_t column, const pst_agg_shape *shape,
                            const operand *o) {
    uint8_t small[ON_STACK];
    pst_bytes have = accumulator(t, slot, column);
    if (o->value && have.size && t->lay.fields[column].time < 0 &&
        pst_agg_absorbs(shape, have, o->value))
        return PST_OK;
    size_t input = o->value ? o->value->bytes.size : o->from.size;
    if (o->value && shape->type <= PST_DECIMAL)
        input = 16;
    size_t room = pst_agg_room(shape, have.size, input);
    pst_agg_buffer b = {room <= sizeof small ? small : pst_malloc(room), have.size, room};
    if (!b.data)
        return PST_NO_MEMORY;
    if (have.size)
        memcpy(b.data, have.data, have.size);
    pst_status s =
        o->value ? pst_agg_add_bytes(shape, &b, o->value) : pst_agg_merge_bytes(shape, &b, o->from);
    pst_cell cell = {{0, 0}, {b.data, (uint32_t)b.size}};
    if (!s && b.size)
        s = pst_state_put(t, slot, column, &cell);
    if (b.data != small)
        pst_free(b.data);
    return s;
}

static pst_status run(pst_table *t, uint32_t slot, int32_t column, const pst_agg_shape *shape,
                      uint32_t width, const operand *o) {
    return width ? run_fixed(t, slot, column, shape, width, o)
                 : run_bytes(t, slot, column, shape, o);
}

/* Which operand a batch has: values to add, or accumulators to merge. */
static int operand_fits(const pst_agg_shape *shape, uint32_t width, const pst_array *operands,
                        int merges) {
    if (!merges)
        return (uint8_t)operands->type == shape->type;
    return width ? operands->type == PST_FIXED && operands->width == width
                 : operands->type == PST_BINARY;
}

static pst_status run_batch(pst_batch *b, int32_t column, const pst_agg_shape *shape,
                            const pst_array *operands, int merges) {
    pst_table *t = b->t;
    uint32_t width, slot;
    pst_status s = pst_batch_ready(b);
    if (!s)
        s = check_column(t, column, shape, &width);
    if (s)
        return s;
    pst_no_detail(&t->detail);
    t->detail.column = column;
    if (!operand_fits(shape, width, operands, merges))
        return PST_WRONG_TYPE;
    if (operands->length != b->length && operands->length != 1)
        return PST_INVALID;
    int64_t i = 0;
    for (; i < b->length; i++) {
        int64_t at = operands->length == 1 ? 0 : i;
        pst_cell cell;
        if (i % PST_GROUP == 0) {
            pst_batch_prepare(b, i);
            s = pst_undo_reserve(t, PST_GROUP);
        }
        if (s)
            break;
        if (pst_array_is_null(operands, at))
            continue;
        pst_array_cell(operands, at, &cell);
        if (merges && !cell.bytes.size)
            continue;
        s = pst_batch_row(b, i, &slot);
        if (!s)
            s = run(t, slot, column, shape, width,
                    merges ? &(operand){NULL, cell.bytes} : &(operand){&cell, {NULL, 0}});
        if (s) {
            t->detail.row = i;
            break;
        }
    }
    return pst_refused(t, i, s);
}

pst_status pst_batch_aggregate(pst_batch *b, int32_t column, const pst_agg_shape *shape,
                               const pst_array *values) {
    return run_batch(b, column, shape, values, 0);
}

pst_status pst_batch_merge(pst_batch *b, int32_t column, const pst_agg_shape *shape,
                           const pst_array *accumulators) {
    return run_batch(b, column, shape, accumulators, 1);
}

static pst_status run_current(pst_table *t, int32_t column, const pst_agg_shape *shape,
                              const operand *o) {
    uint32_t width, slot;
    pst_status s = check_column(t, column, shape, &width);
    if (!s)
        s = pst_current_row(t, 1, &slot);
    return s ? s : pst_refused(t, 0, run(t, slot, column, shape, width, o));
}

pst_status pst_aggregate_add(pst_table *t, int32_t column, const pst_agg_shape *shape,
                             const pst_cell *value) {
    return run_current(t, column, shape, &(operand){value, {NULL, 0}});
}

pst_status pst_aggregate_merge(pst_table *t, int32_t column, const pst_agg_shape *shape,
                               pst_bytes from) {
    return from.size ? run_current(t, column, shape, &(operand){NULL, from}) : PST_OK;
}
