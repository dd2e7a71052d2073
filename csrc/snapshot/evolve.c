/* evolve.c: states of a file as a later program declares them.
 *
 * The values of a block's column are laid one after the other, without the nulls between them and
 * without what a list's runs of items say besides, and converted at once. Then they are put where
 * their sources were.
 */
#include <string.h>

#include "base/mem.h"
#include "file/sst_reader.h"
#include "key/schema.h"
#include "list/list.h"
#include "nested/reshape.h"
#include "nested/writer.h"
#include "sst/sst_shape.h"

typedef struct conversion {
    pst_reshape *reshape; /* NULL: the bytes stay */
    int32_t column;
    int is_list;
    int has_element;
    pst_value_shape takes;
    pst_value_shape gives;
    pst_growing values; /* those of the source, together */
    pst_growing ends;   /* their offsets, where they vary in size */
    pst_growing times;  /* of a list's items */
    pst_growing data;   /* the new column's values */
    pst_growing offsets;
} conversion;

static void destroy(void *ctx) {
    conversion *c = ctx;
    pst_reshape_destroy(c->reshape);
    pst_growing_free(&c->values);
    pst_growing_free(&c->ends);
    pst_growing_free(&c->times);
    pst_growing_free(&c->data);
    pst_growing_free(&c->offsets);
    pst_free(c);
}

static void empty(pst_growing *b) {
    b->size = 0;
    b->limit = SIZE_MAX;
}

static int add_u32(pst_growing *b, uint64_t v) {
    uint8_t *to = pst_growing_room(b, 4);
    if (to)
        pst_put_u32(to, (uint32_t)v);
    return to != NULL;
}

/* ---- the source ------------------------------------------------------------------------------ */

static pst_status begin(conversion *c) {
    empty(&c->values);
    empty(&c->ends);
    empty(&c->times);
    empty(&c->data);
    empty(&c->offsets);
    return c->takes.width || add_u32(&c->ends, 0) ? PST_OK : PST_NO_MEMORY;
}

static pst_status take(conversion *c, const uint8_t *data, uint32_t size) {
    if (c->values.size + size > INT32_MAX)
        return PST_TOO_LARGE;
    uint8_t *to = pst_growing_room(&c->values, size);
    if (!to)
        return PST_NO_MEMORY;
    if (size)
        memcpy(to, data, size);
    return c->takes.width || add_u32(&c->ends, c->values.size) ? PST_OK : PST_NO_MEMORY;
}

/* A cell of the list's column. */
static pst_bytes cell_of(const pst_sst_values *v, uint32_t i) {
    return (pst_bytes){v->values + v->offsets[i], (uint32_t)(v->offsets[i + 1] - v->offsets[i])};
}

static pst_status open_run(const conversion *c, const pst_sst_values *v, uint32_t i,
                           pst_packed *run) {
    pst_list_shape shape = {(uint16_t)c->takes.width, 0};
    return pst_packed_open(run, &shape, cell_of(v, i));
}

static pst_status take_items(conversion *c, const pst_sst_values *v, uint32_t i) {
    pst_packed run;
    pst_item item;
    pst_status s = open_run(c, v, i, &run);
    while (!s && (s = pst_packed_next(&run, &item)) == PST_OK)
        s = take(c, item.data, item.size);
    return s == PST_NOT_FOUND ? PST_OK : s;
}

/* Calls that walk a list's cells: those of a row's own record are no items. */
typedef struct walk {
    const pst_sst_view *view;
    uint32_t row;
    uint64_t bit;
} walk;

/* Moves to the next row that carries the column; whether that is an element. */
static int next_is_element(const conversion *c, walk *w) {
    const pst_sst_view *v = w->view;
    while (!(v->kinds[v->row_kinds ? v->row_kinds[w->row] : 0].changed & w->bit))
        w->row++;
    return c->has_element && pst_sst_has_value(&v->columns[v->schema->n_keys - 1], w->row++);
}

static walk walk_of(const conversion *c, const pst_sst_view *view) {
    return (walk){view, 0, UINT64_C(1) << c->column};
}

/* ---- values ---------------------------------------------------------------------------------- */

static pst_status take_values(conversion *c, const pst_sst_values *v, int64_t *n) {
    pst_status s = PST_OK;
    *n = 0;
    for (uint32_t i = 0; i < v->count && !s; i++) {
        if (!pst_sst_has_value(v, i))
            continue;
        pst_bytes cell = cell_of(v, i);
        s = take(c, cell.data, cell.size);
        ++*n;
    }
    return s;
}

static pst_status convert_bytes(conversion *c, pst_sst_values *v) {
    int64_t n;
    pst_nested_rows rows;
    pst_status s = take_values(c, v, &n);
    if (!s)
        s = pst_reshape_run(c->reshape, c->values.data, c->values.size,
                            (const int32_t *)(const void *)c->ends.data, n, &rows);
    if (s)
        return s;
    uint8_t *data = pst_growing_room(&c->data, rows.data_bytes);
    int made = data && add_u32(&c->offsets, 0);
    if (made && rows.data_bytes)
        memcpy(data, rows.data, rows.data_bytes);
    uint64_t done = 0;
    for (uint32_t i = 0; i < v->count && made; i++) {
        if (pst_sst_has_value(v, i))
            done++;
        made = add_u32(&c->offsets,
                       rows.offsets ? (uint64_t)rows.offsets[done] : done * c->gives.width);
    }
    s = made ? PST_OK : PST_NO_MEMORY;
    if (rows.data_bytes > INT32_MAX)
        s = PST_TOO_LARGE;
    v->bytes = rows.data_bytes;
    pst_free(rows.offsets);
    pst_free(rows.data);
    v->offsets = (const int32_t *)(const void *)c->offsets.data;
    v->values = c->data.data;
    return s;
}

static pst_status convert_scalars(conversion *c, pst_sst_values *v) {
    pst_nested_rows rows;
    pst_status s = pst_reshape_run(c->reshape, v->values, (uint64_t)v->count * c->takes.width, NULL,
                                   v->count, &rows);
    if (s)
        return s;
    uint8_t *data = pst_growing_room(&c->data, rows.data_bytes);
    if (data)
        memcpy(data, rows.data, rows.data_bytes);
    pst_free(rows.data);
    v->shape = pst_sst_shape_of(c->gives.type);
    v->values = data;
    return data ? PST_OK : PST_NO_MEMORY;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static pst_status take_runs(conversion *c, const pst_sst_view *view, const pst_sst_values *v) {
    walk w = walk_of(c, view);
    pst_status s = PST_OK;
    for (uint32_t i = 0; i < v->count && !s; i++)
        if (next_is_element(c, &w) && pst_sst_has_value(v, i))
            s = take_items(c, v, i);
    return s;
}

/* The items from *done on in place of those of the cell's run. */
static pst_status put_run(conversion *c, const pst_sst_values *v, uint32_t i,
                          const pst_nested_rows *rows, uint64_t *done) {
    pst_packed run;
    pst_item item;
    uint64_t time = 0;
    pst_status s = open_run(c, v, i, &run);
    if (s)
        return s;
    uint8_t head = pst_packed_head(run.timed, c->gives.width);
    uint8_t *to = pst_growing_room(&c->data, 1);
    if (!to)
        return PST_NO_MEMORY;
    *to = head;
    while ((s = pst_packed_next(&run, &item)) == PST_OK) {
        uint64_t at = rows->offsets ? (uint64_t)rows->offsets[*done] : *done * c->gives.width;
        item.size =
            rows->offsets ? (uint32_t)rows->offsets[*done + 1] - (uint32_t)at : c->gives.width;
        item.data = rows->data + at;
        size_t room = item.size + 2 * PST_VARINT_MAX;
        to = pst_growing_room(&c->data, room);
        if (!to)
            return PST_NO_MEMORY;
        c->data.size -= room - pst_packed_add(to, head, &time, &item);
        ++*done;
    }
    return s == PST_NOT_FOUND ? PST_OK : s;
}

static pst_status put_runs(conversion *c, const pst_sst_view *view, const pst_sst_values *v,
                           const pst_nested_rows *rows) {
    walk w = walk_of(c, view);
    uint64_t done = 0;
    if (!pst_growing_reserve(&c->data, 1) || !add_u32(&c->offsets, 0))
        return PST_NO_MEMORY;
    for (uint32_t i = 0; i < v->count; i++) {
        pst_status s = PST_OK;
        size_t before = c->data.size;
        if (!next_is_element(c, &w) || !pst_sst_has_value(v, i)) {
            pst_bytes cell = cell_of(v, i);
            uint8_t *to = pst_growing_room(&c->data, cell.size);
            if (to && cell.size)
                memcpy(to, cell.data, cell.size);
            s = to ? PST_OK : PST_NO_MEMORY;
        } else {
            s = put_run(c, v, i, rows, &done);
        }
        if (!s && (c->data.size > INT32_MAX || c->data.size - before > PST_MAX_BYTES))
            s = PST_TOO_LARGE;
        if (!s && !add_u32(&c->offsets, c->data.size))
            s = PST_NO_MEMORY;
        if (s)
            return s;
    }
    return PST_OK;
}

static pst_status convert_list(conversion *c, const pst_sst_view *view, pst_sst_values *v) {
    pst_nested_rows rows;
    pst_status s = take_runs(c, view, v);
    if (s)
        return s;
    int64_t n = (int64_t)(c->takes.width ? c->values.size / c->takes.width : c->ends.size / 4 - 1);
    s = pst_reshape_run(c->reshape, c->values.data, c->values.size,
                        (const int32_t *)(const void *)c->ends.data, n, &rows);
    if (s)
        return s;
    s = put_runs(c, view, v, &rows);
    pst_free(rows.offsets);
    pst_free(rows.data);
    v->offsets = (const int32_t *)(const void *)c->offsets.data;
    v->values = c->data.data;
    v->bytes = c->data.size;
    return s;
}

static pst_status run(void *ctx, const pst_sst_view *view, pst_sst_values *values) {
    conversion *c = ctx;
    if (!c->reshape)
        return PST_OK;
    pst_status s = begin(c);
    if (s)
        return s;
    if (c->is_list)
        return convert_list(c, view, values);
    return c->takes.type < PST_FIXED ? convert_scalars(c, values) : convert_bytes(c, values);
}

/* ---- what a reader is told ------------------------------------------------------------------- */

/* Of a list's column in a file, the type of its items. */
static pst_type value_type(const pst_column *c) {
    return c->kind == PST_LIST ? (pst_type)c->map_key : c->type;
}

/* A map's keys keep their bytes as integers, and as decimals of one scale. */
static int same_key_bytes(const pst_column *a, const pst_column *b) {
    if (a->kind != PST_MAP || a->map_key == b->map_key)
        return a->kind != PST_MAP || a->map_key != PST_DECIMAL ||
               (a->map_scale == b->map_scale && a->map_precision <= b->map_precision);
    return a->map_key >= PST_INT8 && a->map_key < b->map_key && b->map_key <= PST_INT64;
}

static int fits(const pst_value_shape *shape, const pst_column *c) {
    return value_type(c) == shape->type && (shape->type != PST_FIXED || c->width == shape->width);
}

static pst_status make(const pst_schema *from, const pst_evolution *e, pst_sst_conversion *out) {
    if (e->column < 0 || e->column >= from->n_states)
        return PST_INVALID;
    const pst_column *old = &from->states[e->column], *to = e->to;
    if (old->kind > PST_MAP || to->kind != old->kind || !same_key_bytes(old, to))
        return PST_SCHEMA;
    conversion *c = pst_calloc(1, sizeof *c);
    if (!c)
        return PST_NO_MEMORY;
    c->column = e->column;
    c->is_list = old->kind == PST_LIST;
    c->has_element = pst_schema_has_element(from);
    pst_status s = PST_OK;
    if (e->n_to > 0) {
        s = pst_reshape_create(e->from_types, e->n_from, e->to_types, e->n_to, e->from,
                               &c->reshape);
        if (!s && e->fill)
            s = pst_reshape_fill(c->reshape, e->fill, e->fill_bytes);
        if (!s) {
            c->takes = pst_reshape_takes(c->reshape);
            c->gives = pst_reshape_gives(c->reshape);
            s = fits(&c->takes, old) && fits(&c->gives, to) ? PST_OK : PST_SCHEMA;
        }
    } else if (value_type(old) != value_type(to) || old->width != to->width) {
        s = PST_SCHEMA;
    }
    if (s) {
        destroy(c);
        return s;
    }
    *out = (pst_sst_conversion){e->column, *to, run, destroy, c};
    return PST_OK;
}

pst_status pst_sst_reader_evolve(pst_sst_reader *r, const pst_evolution *evolutions, int32_t n) {
    const pst_schema *from = pst_sst_reader_schema(r);
    pst_sst_conversion all[PST_MAX_STATES];
    int32_t made = 0;
    if (n < 1 || n > from->n_states)
        return PST_INVALID;
    for (; made < n; made++) {
        pst_status s = make(from, &evolutions[made], &all[made]);
        if (s) {
            for (int32_t i = 0; i < made; i++)
                all[i].destroy(all[i].ctx);
            return s;
        }
    }
    return pst_sst_reader_convert(r, all, n);
}
