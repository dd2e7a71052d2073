#include "snapshot/gather.h"

#include <string.h>

#include "base/coding.h"
#include "base/mem.h"
#include "key/hash.h"
#include "key/schema.h"
#include "sst/sst_shape.h"

/* ---- columns --------------------------------------------------------------------------------- */

static void init_growing(pst_sst_growing *c, pst_type type) {
    *c = (pst_sst_growing){.shape = pst_sst_shape_of(type)};
}

static void init_collection(pst_gathered *c, const pst_column *column) {
    pst_type type = (pst_type)column->map_key;
    uint32_t width = type == PST_FIXED ? column->width : pst_type_width(type);
    uint8_t id[PST_ELEMENT_ID];
    pst_put_big(id, pst_collection_id(column->name), PST_ELEMENT_ID);
    c->id = pst_get_u32(id);
    c->key_type = type;
    c->items = (pst_list_shape){(uint16_t)width, 0};
    if (c->kind == PST_MAP)
        init_growing(&c->keys, type);
    else
        init_growing(&c->values, type);
}

pst_status pst_gatherer_init(pst_gatherer *g, const pst_schema *schema, const pst_expiry *expiry,
                             const pst_io *io) {
    memset(g, 0, sizeof *g);
    g->schema = schema;
    g->io = io;
    g->charge = (pst_charge){pst_budget_retain(io->budget), 0, PST_SMALL_BUFFER};
    g->n_keys = schema->n_keys - pst_schema_has_element(schema);
    pst_status s = io->block ? pst_expirer_init(&g->expirer, schema, expiry) : PST_INVALID;
    if (s)
        return s;
    for (int32_t i = 0; i < g->n_keys; i++)
        init_growing(&g->keys[i], schema->keys[i].type);
    for (int32_t i = 0; i < schema->n_states; i++) {
        const pst_column *column = &schema->states[i];
        g->states[i].kind = (pst_kind)column->kind;
        if (column->kind > PST_MAP)
            continue;
        init_growing(&g->states[i].values, column->type);
        if (column->kind == PST_VALUE) {
            g->value_columns |= UINT64_C(1) << i;
        } else {
            g->collections |= UINT64_C(1) << i;
            init_collection(&g->states[i], column);
        }
    }
    return PST_OK;
}

void pst_gatherer_free(pst_gatherer *g) {
    for (int32_t i = 0; i < g->n_keys; i++)
        pst_sst_growing_free(&g->keys[i]);
    for (int32_t i = 0; i < g->schema->n_states; i++) {
        pst_free(g->states[i].ends.data);
        pst_sst_growing_free(&g->states[i].keys);
        pst_sst_growing_free(&g->states[i].values);
    }
    pst_expirer_free(&g->expirer);
    pst_charge_drop(&g->charge);
    pst_budget_release(g->charge.budget);
}

static pst_status reserve(pst_sst_growing *c, uint64_t n, uint64_t bytes) {
    if (c->count + n > INT32_MAX || c->bytes + bytes > INT32_MAX)
        return PST_TOO_LARGE;
    pst_status s = PST_OK;
    while (!s && c->count + n > c->room)
        s = pst_sst_grow_column(c);
    return !s && bytes ? pst_buffer_reserve(&c->values, c->bytes + bytes) : s;
}

/* Makes room in a column for that many values, which together have that many bytes. */
static pst_status room_for(pst_gatherer *g, pst_sst_growing *c, uint64_t n, uint64_t bytes) {
    pst_status s = pst_gather_room(g, n * pst_sst_values_size(c->shape, 1, 4) + bytes);
    return s ? s : reserve(c, n, c->shape == PST_SHAPE_BYTES ? bytes : 0);
}

static uint64_t view_bytes(const pst_sst_values *v, uint32_t at, uint32_t n) {
    return v->shape == PST_SHAPE_BYTES ? (uint64_t)(v->offsets[at + n] - v->offsets[at]) : 0;
}

static pst_status add_view(pst_gatherer *g, pst_sst_growing *c, const pst_sst_values *v,
                           uint32_t at, uint32_t n) {
    pst_status s = room_for(g, c, n, view_bytes(v, at, n));
    return s ? s : pst_sst_append_view(c, v, at, n);
}

static pst_status add_cell(pst_gatherer *g, pst_sst_growing *c, const pst_cell *cell, int valid) {
    uint64_t bytes = valid && c->shape == PST_SHAPE_BYTES ? cell->bytes.size : 0;
    pst_status s = room_for(g, c, 1, bytes);
    return s ? s : pst_sst_append(c, cell, valid);
}

/* ---- rows ------------------------------------------------------------------------------------ */

int pst_gather_is_last(const pst_gatherer *g, uint64_t hash, const pst_cell *key, uint32_t nulls) {
    pst_cell last[PST_MAX_KEYS];
    uint32_t last_nulls = 0, own = (UINT32_C(1) << g->n_keys) - 1;
    if (!g->open || hash != g->hash)
        return 0;
    for (int32_t k = 0; k < g->n_keys; k++) {
        const pst_sst_growing *c = &g->keys[k];
        if (c->nulls && !pst_sst_bit_at(c->validity.data, g->rows - 1))
            last_nulls |= UINT32_C(1) << k;
        pst_sst_load(c->shape, c->values.data, (const int32_t *)(const void *)c->offsets.data,
                     g->rows - 1, &last[k]);
    }
    return !pst_key_compare(g->schema->keys, g->n_keys, last, last_nulls, key, nulls & own);
}

/* The ends of the last n rows, which have no elements but perhaps the last one. */
static pst_status add_ends(pst_gatherer *g, uint32_t n) {
    for (uint64_t left = g->collections; left; left &= left - 1) {
        pst_gathered *c = &g->states[__builtin_ctzll(left)];
        pst_status s = pst_gather_room(g, 4 * (uint64_t)n);
        if (!s)
            s = pst_buffer_reserve(&c->ends, ((size_t)g->rows + 1) * 4);
        if (s)
            return s;
        uint8_t *ends = c->ends.data;
        uint32_t first = g->rows - n;
        if (!first)
            pst_put_u32(ends, 0);
        uint32_t before = pst_get_u32(ends + (size_t)first * 4);
        for (uint32_t i = first + 1; i < g->rows; i++)
            pst_put_u32(ends + (size_t)i * 4, before);
        pst_put_u32(ends + (size_t)g->rows * 4, c->values.count);
        c->begun = 0;
    }
    return PST_OK;
}

static pst_status close_row(pst_gatherer *g) {
    if (!g->open)
        return PST_OK;
    g->open = 0;
    for (uint64_t left = g->value_columns & ~g->filled; left; left &= left - 1) {
        pst_sst_growing *c = &g->states[__builtin_ctzll(left)].values;
        pst_status s = room_for(g, c, 1, 0);
        if (!s)
            s = pst_sst_append_nulls(c, 1);
        if (s)
            return s;
    }
    return g->collections ? add_ends(g, 1) : PST_OK;
}

/* Ends the row before, and the batch if it is large. */
static pst_status make_way(pst_gatherer *g) {
    pst_status s = close_row(g);
    if (!s && (g->rows >= PST_GATHER_ROWS || g->bytes >= PST_GATHER_BYTES))
        s = pst_gather_flush(g);
    return s;
}

static void open_row(pst_gatherer *g, uint64_t hash) {
    g->rows++;
    g->begun++;
    g->open = 1;
    g->filled = 0;
    g->hash = hash;
}

pst_status pst_gather_row(pst_gatherer *g, uint64_t hash, const pst_cell *key, uint32_t nulls) {
    pst_status s = make_way(g);
    for (int32_t k = 0; !s && k < g->n_keys; k++)
        s = add_cell(g, &g->keys[k], &key[k], !(nulls >> k & 1));
    if (!s)
        open_row(g, hash);
    return s;
}

pst_status pst_gather_view_row(pst_gatherer *g, uint64_t hash, const pst_sst_view *v,
                               uint32_t row) {
    pst_status s = make_way(g);
    for (int32_t k = 0; !s && k < g->n_keys; k++)
        s = add_view(g, &g->keys[k], &v->columns[k], row, 1);
    if (!s)
        open_row(g, hash);
    return s;
}

static pst_status add_view_rows(pst_gatherer *g, const pst_sst_view *v, uint32_t from, uint32_t n,
                                const int32_t *at) {
    pst_status s = PST_OK;
    for (int32_t k = 0; !s && k < g->n_keys; k++)
        s = add_view(g, &g->keys[k], &v->columns[k], from, n);
    for (uint64_t left = g->value_columns; !s && left; left &= left - 1) {
        int32_t i = __builtin_ctzll(left);
        pst_sst_growing *c = &g->states[i].values;
        if (at[i] >= 0) {
            s = add_view(g, c, &v->columns[v->schema->n_keys + at[i]], from, n);
            continue;
        }
        s = room_for(g, c, n, 0);
        if (!s)
            s = pst_sst_append_nulls(c, n);
    }
    g->rows += n;
    return s || !g->collections ? s : add_ends(g, n);
}

pst_status pst_gather_view_rows(pst_gatherer *g, const pst_sst_view *v, uint32_t from, uint32_t n,
                                const int32_t *at) {
    pst_status s = PST_OK;
    for (uint32_t i = 0, part; !s && i < n; i += part) {
        s = make_way(g);
        part = n - i < PST_GATHER_ROWS - g->rows ? n - i : PST_GATHER_ROWS - g->rows;
        if (!s)
            s = add_view_rows(g, v, from + i, part, at);
    }
    return s;
}

/* ---- what a row has -------------------------------------------------------------------------- */

pst_status pst_gather_value(pst_gatherer *g, int32_t column, const pst_cell *cell) {
    g->filled |= UINT64_C(1) << column;
    return add_cell(g, &g->states[column].values, cell, 1);
}

pst_status pst_gather_view_value(pst_gatherer *g, int32_t column, const pst_sst_values *v,
                                 uint32_t at) {
    g->filled |= UINT64_C(1) << column;
    return add_view(g, &g->states[column].values, v, at, 1);
}

/* Items of fixed width that lie side by side, the first of which has the number `seq`. */
static pst_status add_packed(pst_gatherer *g, pst_gathered *c, const pst_packed *p, uint64_t seq) {
    size_t width = p->width, size = (size_t)(p->end - p->p);
    uint64_t n = size / width, skip = c->next - seq;
    if (size % width)
        return PST_CORRUPT;
    if (n <= skip)
        return PST_OK;
    pst_status s = room_for(g, &c->values, n - skip, 0);
    if (s)
        return s;
    memcpy(c->values.values.data + c->values.count * width, p->p + skip * width,
           (n - skip) * width);
    c->values.count += (uint32_t)(n - skip);
    c->next = seq + n;
    return PST_OK;
}

/* Short items without times, as far as they go; most runs have no others. */
static pst_status add_short(pst_gatherer *g, pst_gathered *c, pst_packed *p, uint64_t *seq) {
    pst_sst_growing *v = &c->values;
    size_t left = (size_t)(p->end - p->p);
    uint64_t first = *seq;
    pst_status s = room_for(g, v, 1, left);
    if (!s && !v->count)
        pst_put_u32(v->offsets.data, 0);
    while (!s && p->p < p->end && *p->p < 0x80 && *p->p < p->end - p->p) {
        size_t size = *p->p;
        if (v->count >= v->room) {
            s = reserve(v, 1, 0);
            continue;
        }
        pst_copy_short(v->values.data + v->bytes, p->p + 1, size);
        v->bytes += size;
        v->count++;
        pst_put_u32(v->offsets.data + (size_t)v->count * 4, (uint32_t)v->bytes);
        p->p += 1 + size;
        ++*seq;
    }
    c->next = *seq;
    /* An offset takes three bytes more than such a length. */
    return s ? s : pst_gather_room(g, 3 * (*seq - first));
}

static pst_status add_item(pst_gatherer *g, pst_gathered *c, const pst_item *item) {
    pst_cell cell = {{0, 0}, {NULL, 0}};
    if (c->values.shape == PST_SHAPE_BYTES)
        cell.bytes = (pst_bytes){item->data, item->size};
    else
        memcpy(cell.word, item->data, item->size);
    return add_cell(g, &c->values, &cell, 1);
}

pst_status pst_gather_items(pst_gatherer *g, int32_t column, uint64_t seq, uint64_t start,
                            pst_bytes run) {
    pst_gathered *c = &g->states[column];
    pst_packed p;
    pst_item item;
    pst_status s = pst_packed_open(&p, &c->items, run);
    if (s)
        return s;
    if (!c->begun)
        c->next = seq > start ? seq : start;
    c->begun = 1;
    if (seq > c->next)
        return PST_CORRUPT;
    if (!p.timed && p.width && c->values.shape != PST_SHAPE_BYTES &&
        c->values.shape != PST_SHAPE_BIT)
        return add_packed(g, c, &p, seq);
    if (!p.timed && !p.width && seq == c->next)
        s = add_short(g, c, &p, &seq);
    if (s)
        return s;
    int expires = (int)(g->expirer.columns >> column & 1);
    for (; (s = pst_packed_next(&p, &item)) == PST_OK; seq++) {
        if (seq < c->next)
            continue;
        if (!expires || !pst_expirer_hides(&g->expirer, column, item.time))
            s = add_item(g, c, &item);
        if (s)
            return s;
        c->next = seq + 1;
    }
    return s == PST_NOT_FOUND ? PST_OK : s;
}

/* ---- entries --------------------------------------------------------------------------------- */

/* A map's key as a cell, from an element behind the state's id. */
static pst_cell key_cell(pst_type type, pst_bytes key) {
    pst_cell cell = {{0, 0}, key};
    if (type == PST_DECIMAL) {
        cell.word[0] = pst_get_big64(key.data + 8);
        cell.word[1] = pst_get_big64(key.data);
    } else if (pst_type_width(type)) {
        cell.word[0] = pst_get_big64(key.data);
    }
    return cell;
}

pst_status pst_gather_entry(pst_gatherer *g, int32_t column, pst_bytes key, const pst_cell *value) {
    pst_gathered *c = &g->states[column];
    pst_cell cell = key_cell(c->key_type, key);
    pst_status s = add_cell(g, &c->keys, &cell, 1);
    return s ? s : add_cell(g, &c->values, value, value != NULL);
}

static pst_bytes entry_key(const pst_sst_values *elements, uint32_t row) {
    const int32_t *at = &elements->offsets[row];
    return (pst_bytes){elements->values + at[0] + PST_ELEMENT_ID,
                       (uint32_t)(at[1] - at[0]) - PST_ELEMENT_ID};
}

static void add_word_keys(pst_sst_growing *c, const pst_sst_values *elements, uint32_t row,
                          uint32_t n) {
    const uint8_t *from = elements->values + elements->offsets[row] + PST_ELEMENT_ID;
    uint8_t *to = c->values.data + (size_t)c->count * 8;
    for (uint32_t i = 0; i < n; i++)
        pst_put_u64(to + (size_t)i * 8, pst_get_big64(from + (size_t)i * PST_ELEMENT_RUN));
    c->count += n;
}

static void add_bytes_keys(pst_sst_growing *c, const pst_sst_values *elements, uint32_t row,
                           uint32_t n) {
    uint8_t *offsets = c->offsets.data + (size_t)c->count * 4, *to = c->values.data + c->bytes;
    pst_put_u32(offsets, (uint32_t)c->bytes);
    for (uint32_t i = 0; i < n; i++) {
        pst_bytes key = entry_key(elements, row + i);
        pst_copy_short(to, key.data, key.size);
        to += key.size;
        c->bytes += key.size;
        pst_put_u32(offsets + ((size_t)i + 1) * 4, (uint32_t)c->bytes);
    }
    c->count += n;
}

pst_status pst_gather_view_entries(pst_gatherer *g, int32_t column, const pst_sst_values *elements,
                                   uint32_t row, const pst_sst_values *v, uint32_t at, uint32_t n) {
    pst_gathered *c = &g->states[column];
    pst_status s = room_for(g, &c->keys, n,
                            c->keys.shape == PST_SHAPE_BYTES ? view_bytes(elements, row, n) : 0);
    if (s)
        return s;
    if (c->keys.shape == PST_SHAPE_WORD64) {
        add_word_keys(&c->keys, elements, row, n);
    } else if (c->keys.shape == PST_SHAPE_BYTES) {
        add_bytes_keys(&c->keys, elements, row, n);
    } else {
        for (uint32_t i = 0; !s && i < n; i++) {
            pst_cell cell = key_cell(c->key_type, entry_key(elements, row + i));
            s = pst_sst_append(&c->keys, &cell, 1);
        }
    }
    return s ? s : add_view(g, &c->values, v, at, n);
}

/* ---- records --------------------------------------------------------------------------------- */

/* Is nothing of an element seen, as it has expired? */
static pst_status element_hides(const pst_gatherer *g, const pst_record *r, int32_t column,
                                uint64_t start, int *hidden) {
    *hidden = 0;
    if (!(g->expirer.columns >> column & 1))
        return PST_OK;
    if (g->states[column].kind == PST_LIST) {
        uint64_t seq = pst_get_big64(r->key[g->n_keys].bytes.data + PST_ELEMENT_ID);
        return pst_expirer_run(&g->expirer, column, r->cells[column].bytes,
                               start > seq ? start - seq : 0, hidden);
    }
    *hidden = pst_expirer_hides(&g->expirer, column, pst_expirer_time(r, column));
    return PST_OK;
}

static pst_status add_element(pst_gatherer *g, const pst_record *r, uint64_t start) {
    uint64_t carried = r->changed & g->collections;
    pst_bytes element = r->key[g->n_keys].bytes;
    if (!carried)
        return PST_OK;
    int32_t column = __builtin_ctzll(carried);
    pst_bytes rest = {element.data + PST_ELEMENT_ID, element.size - PST_ELEMENT_ID};
    const pst_cell *cell = r->present >> column & 1 ? &r->cells[column] : NULL;
    int is_list = g->states[column].kind == PST_LIST, hidden;
    if (is_list && (!cell || cell->bytes.size <= 1))
        return PST_OK; /* a run without items makes no row */
    pst_status s = element_hides(g, r, column, start, &hidden);
    int open = pst_gather_is_last(g, r->hash, r->key, r->key_nulls);
    /* The numbers of a list's items go on over those that are not seen. */
    if (s || (hidden && !(open && is_list)))
        return s;
    if (!open)
        s = pst_gather_row(g, r->hash, r->key, r->key_nulls);
    if (s)
        return s;
    return is_list ? pst_gather_items(g, column, pst_get_big64(rest.data), start, cell->bytes)
                   : pst_gather_entry(g, column, rest, cell);
}

pst_status pst_gather_record(pst_gatherer *g, const pst_record *r, uint64_t start) {
    if (g->n_keys < g->schema->n_keys && !(r->key_nulls >> g->n_keys & 1))
        return add_element(g, r, start);
    uint64_t present = r->changed & r->present & g->value_columns;
    if (g->expirer.columns)
        present &= ~pst_expirer_row(&g->expirer, r);
    pst_status s = present ? pst_gather_row(g, r->hash, r->key, r->key_nulls) : PST_OK;
    for (; !s && present; present &= present - 1) {
        int32_t i = __builtin_ctzll(present);
        s = pst_gather_value(g, i, &r->cells[i]);
    }
    return s;
}

/* ---- batches --------------------------------------------------------------------------------- */

static pst_block_column column_of(const pst_sst_growing *c) {
    int bytes = c->shape == PST_SHAPE_BYTES;
    return (pst_block_column){
        .count = c->count,
        .validity = c->nulls ? c->validity.data : NULL,
        .offsets = bytes && c->count ? (const int32_t *)(const void *)c->offsets.data : NULL,
        .values = c->values.data,
        .values_bytes = pst_sst_values_size(c->shape, c->count, c->bytes),
        .nulls = c->nulls};
}

static void clear(pst_sst_growing *c) {
    c->count = c->nulls = 0;
    c->bytes = 0;
}

pst_status pst_gather_flush(pst_gatherer *g) {
    pst_block_column columns[PST_MAX_KEYS + 3 * PST_MAX_STATES];
    int32_t n = 0;
    pst_status s = close_row(g);
    if (s || !g->rows)
        return s;
    for (int32_t i = 0; i < g->n_keys; i++)
        columns[n++] = column_of(&g->keys[i]);
    for (int32_t i = 0; i < g->schema->n_states; i++) {
        const pst_gathered *c = &g->states[i];
        if (c->kind > PST_MAP)
            continue;
        if (c->kind != PST_VALUE)
            columns[n++] = (pst_block_column){
                .count = g->rows, .offsets = (const int32_t *)(const void *)c->ends.data};
        if (c->kind == PST_MAP)
            columns[n++] = column_of(&c->keys);
        columns[n++] = column_of(&c->values);
    }
    if (g->io->block(g->io->ctx, g->rows, columns, n) != 0)
        return PST_CALLBACK;
    for (int32_t i = 0; i < g->n_keys; i++)
        clear(&g->keys[i]);
    for (int32_t i = 0; i < g->schema->n_states; i++) {
        clear(&g->states[i].keys);
        clear(&g->states[i].values);
    }
    g->rows = 0;
    g->bytes = 0;
    return PST_OK;
}
