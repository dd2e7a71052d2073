/* fetch_batches.h: operations on batches of a world's keys, and what they read.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_FETCH_BATCHES_H
#define PST_TEST_FETCH_BATCHES_H

#include "access/batch.h"
#include "fetch_world.h"
#include "key/schema.h"

enum { DRAW_ROWS = 40, DRAW_CELL_BYTES = 1 << 17 };

/* An array that owns what it has. */
typedef struct draw_array {
    pst_array a;
    uint8_t validity[DRAW_ROWS / 8 + 1];
    int32_t offsets[DRAW_ROWS + 1];
    uint8_t *values;
} draw_array;

static inline void draw_free(draw_array *d) {
    free(d->values);
    d->values = NULL;
}

static inline void draw_begin(draw_array *d, pst_type type, uint32_t width, int64_t n) {
    uint32_t bytes = type == PST_FIXED ? width : pst_type_width(type);
    memset(d, 0, sizeof *d);
    d->values = calloc(1, (size_t)n * 32 + (size_t)n * bytes + 1);
    REQUIRE(d->values);
    d->a = (pst_array){.type = type, .length = n, .values = d->values, .width = width};
    if (type >= PST_STRING && type != PST_FIXED)
        d->a.offsets = d->offsets;
}

/* Sets element i, in order. */
static inline void draw_set(draw_array *d, int64_t i, const pst_cell *cell, int null) {
    pst_type type = d->a.type;
    if (null)
        d->a.validity = d->validity;
    else
        d->validity[i >> 3] |= (uint8_t)(1 << (i & 7));
    if (d->a.offsets) {
        uint32_t size = null ? 0 : cell->bytes.size, at = (uint32_t)d->offsets[i];
        d->values = realloc(d->values, at + size + 1u);
        REQUIRE(d->values);
        if (size)
            memcpy(d->values + at, cell->bytes.data, size);
        d->offsets[i + 1] = (int32_t)(at + size);
        d->a.values = d->values;
        d->a.values_bytes = d->offsets[i + 1];
    } else if (null) {
        return;
    } else if (type == PST_BOOL) {
        d->values[i >> 3] |= (uint8_t)((cell->word[0] & 1) << (i & 7));
    } else if (type == PST_FIXED) {
        memcpy(d->values + (size_t)i * d->a.width, cell->bytes.data, d->a.width);
    } else {
        uint32_t width = pst_type_width(type);
        memcpy(d->values + (size_t)i * width, cell->word, width);
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* What is drawn once and done to both tables. */
typedef struct draw {
    int64_t n;
    int which[DRAW_ROWS]; /* keys, which may be there more than once */
    draw_array keys[WORLD_KEY_COLUMNS];
    draw_array values;
    draw_array entries; /* keys of maps */
    draw_array times;
    int32_t column;
    uint64_t what;
} draw;

static inline int draw_key(world *w) {
    uint64_t k = world_below(w, WORLD_KEYS);
    while (w->groups[k] < w->first || w->groups[k] > w->last)
        k = (k + 1) % WORLD_KEYS;
    return (int)k;
}

static inline void draw_keys(world *w, draw *d) {
    for (int32_t c = 0; c < w->schema.n_keys; c++)
        draw_begin(&d->keys[c], w->key_columns[c].type, 0, d->n);
    for (int64_t i = 0; i < d->n; i++) {
        int k = d->which[i] = draw_key(w);
        for (int32_t c = 0; c < w->schema.n_keys; c++)
            draw_set(&d->keys[c], i, &w->keys[k][c], (int)(w->nulls[k] >> c & 1));
    }
}

static inline void draw_values(world *w, draw *d) {
    const pst_column *c = &w->columns[d->column];
    int nulls = c->kind == PST_VALUE || c->kind == PST_MAP;
    pst_column key = {.type = (pst_type)c->map_key, .precision = c->map_precision};
    draw_begin(&d->values, c->type, c->width, d->n);
    draw_begin(&d->entries, c->kind == PST_MAP ? key.type : PST_INT64, 0, d->n);
    draw_begin(&d->times, PST_INT64, 0, d->n);
    for (int64_t i = 0; i < d->n; i++) {
        pst_cell v = world_value(w, d->column, world_seed(w));
        draw_set(&d->values, i, &v, nulls && world_one_in(w, 5));
        v = (pst_cell){{0, 0}, {NULL, 0}};
        if (c->kind == PST_MAP)
            v = world_map_key(w, d->column, world_below(w, w->domain));
        draw_set(&d->entries, i, &v, 0);
        v = (pst_cell){{world_below(w, 12) * 1000, 0}, {NULL, 0}};
        draw_set(&d->times, i, &v, world_one_in(w, 5));
    }
}

static inline void draw_batch(world *w, draw *d) {
    memset(d, 0, sizeof *d);
    d->n = 1 + (int64_t)world_below(w, world_one_in(w, 3) ? DRAW_ROWS : 5);
    d->what = world_below(w, 12);
    do
        d->column = (int32_t)world_below(w, (uint64_t)w->schema.n_states);
    while (!w->state_of[d->column]);
    draw_keys(w, d);
    draw_values(w, d);
}

static inline void draw_end(draw *d) {
    for (int c = 0; c < WORLD_KEY_COLUMNS; c++)
        draw_free(&d->keys[c]);
    draw_free(&d->values);
    draw_free(&d->entries);
    draw_free(&d->times);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* What was read. */
typedef struct draw_read {
    uint8_t valid[DRAW_ROWS];
    int32_t offsets[DRAW_ROWS + 1];
    int64_t counts[DRAW_ROWS + 1];
    uint8_t *data;
    size_t size;
} draw_read;

static inline void draw_room(draw_read *r, size_t size) {
    free(r->data);
    r->size = size;
    r->data = calloc(1, size + 1);
    REQUIRE(r->data);
}

static inline pst_status draw_get(pst_batch *b, const draw *d, int is_map, draw_read *r) {
    const pst_column *c = &b->t->schema.states[d->column];
    pst_bytes_out out = {r->offsets, r->valid, NULL, 0};
    pst_status s;
    if (c->type < PST_STRING || c->type == PST_FIXED) {
        draw_room(r, (size_t)d->n * (c->type == PST_FIXED ? c->width : pst_type_width(c->type)));
        return is_map ? pst_batch_map_get(b, d->column, &d->entries.a, r->data, r->valid)
                      : pst_batch_get(b, d->column, r->data, r->valid);
    }
    for (int pass = 0; pass < 2; pass++) {
        s = is_map ? pst_batch_map_get_bytes(b, d->column, &d->entries.a, &out)
                   : pst_batch_get_bytes(b, d->column, &out);
        if (s)
            return s;
        if (!pass)
            draw_room(r, (size_t)r->offsets[d->n]);
        out.data = r->data;
        out.capacity = r->size;
    }
    return s;
}

static inline pst_status draw_count(pst_batch *b, const draw *d, draw_read *r) {
    pst_status s = pst_batch_element_offsets(b, d->column, r->counts);
    const pst_column *c = &b->t->schema.states[d->column];
    if (s || c->kind != PST_LIST || (c->type >= PST_STRING && c->type != PST_FIXED))
        return s;
    uint32_t width = c->type == PST_FIXED ? c->width : pst_type_width(c->type);
    draw_room(r, (size_t)r->counts[d->n] * width);
    return pst_batch_list_copy(b, d->column, r->counts, r->data, r->size);
}

/* Makes each row's key current in turn, and writes to some. */
static inline pst_status draw_rows(pst_batch *b, const draw *d) {
    pst_status s = PST_OK;
    for (int64_t i = 0; !s && i < d->n; i++) {
        s = pst_key_set_row(b->t, b, i);
        if (!s && (d->what + (uint64_t)i) % 3 == 0)
            s = pst_value_clear(b->t, d->column);
    }
    return s;
}

static inline pst_status draw_state(pst_batch *b, const draw *d, draw_read *r) {
    const pst_column *c = &b->t->schema.states[d->column];
    int sums = c->type <= PST_DECIMAL && c->type != PST_BOOL;
    switch (c->kind) {
    case PST_VALUE:
        if (d->what < 4 && sums)
            return pst_batch_apply(b, d->column, d->what & 1 ? PST_MIN : PST_MAX, &d->values.a);
        return d->what < 8 ? pst_batch_put(b, d->column, &d->values.a) : draw_get(b, d, 0, r);
    case PST_LIST:
        return d->what < 8 ? pst_batch_list_append(b, d->column, &d->values.a)
                           : draw_count(b, d, r);
    default:
        if (d->what < 5)
            return pst_batch_map_put(b, d->column, &d->entries.a, &d->values.a);
        if (d->what < 7)
            return pst_batch_map_remove(b, d->column, &d->entries.a);
        return d->what < 9 ? draw_get(b, d, 1, r) : draw_count(b, d, r);
    }
}

/* One or two operations on a batch of the table. */
static inline pst_status draw_run(pst_table *t, const draw *d, draw_read *r) {
    pst_array keys[WORLD_KEY_COLUMNS];
    pst_batch *b = NULL;
    for (int c = 0; c < WORLD_KEY_COLUMNS; c++)
        keys[c] = d->keys[c].a;
    pst_status s = pst_batch_create(t, keys, &b);
    if (s)
        return s;
    if (d->what == 9)
        s = draw_rows(b, d);
    else if (d->what == 10)
        s = pst_batch_clear(b, d->n & 1 ? d->column : -1);
    else if (d->what == 11 && t->lay.timers >= 0)
        s = d->n & 1 ? pst_batch_timer_register(b, PST_EVENT, &d->times.a)
                     : pst_batch_timer_delete(b, PST_EVENT, &d->times.a);
    else
        s = draw_state(b, d, r);
    if (!s && d->n % 3 == 0)
        s = draw_state(b, d, r);
    pst_batch_destroy(b);
    return s;
}

static inline void draw_compare(const draw *d, draw_read *a, draw_read *b) {
    CHECK(!memcmp(a->valid, b->valid, sizeof a->valid));
    CHECK(!memcmp(a->offsets, b->offsets, sizeof a->offsets));
    CHECK(!memcmp(a->counts, b->counts, sizeof a->counts));
    CHECK(a->size == b->size && (!a->size || !memcmp(a->data, b->data, a->size)));
    (void)d;
    free(a->data);
    free(b->data);
}

/* The same batch on both tables. */
static inline void draw_both(pair *p) {
    static draw d;
    static draw_read r[2];
    memset(r, 0, sizeof r);
    draw_batch(p->w, &d);
    /* Entries that are visible once may be gone when they are copied. */
    pst_status s = draw_run(p->whole, &d, &r[0]);
    CHECK_EQ(draw_run(p->cached, &d, &r[1]), s);
    pair_must(p, s == PST_CHANGED ? PST_OK : s, "a batch");
    draw_compare(&d, &r[0], &r[1]);
    draw_end(&d);
    paired.batches++;
}

#endif
