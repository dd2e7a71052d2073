#include <string.h>

#include "key/hash.h"
#include "stack/search.h"
#include "stack/walk.h"

/* Invariants
 *  GT1. A column has the value of the newest file that says something of it, up to the newest delete.
 *       Its bytes are copied, as the block goes when another file is asked. */
typedef struct getter {
    pst_stack *st;
    const pst_cell *key;
    uint32_t nulls;
    uint64_t values;           /* the columns that it takes */
    size_t at[PST_MAX_STATES]; /* where bytes are in st->kept */
    pst_record *record;
    int any;
    int deleted;
    int is_long; /* files have much of it, of which the row's own records are wanted */
} getter;

static void key_of(void *ctx, uint32_t key, pst_cell *cells, uint32_t *nulls) {
    const getter *g = ctx;
    (void)key;
    memcpy(cells, g->key, (size_t)g->st->n_keys * sizeof *cells);
    *nulls = g->nulls;
}

static pst_status keep(getter *g, int column, const pst_cell *from) {
    pst_buffer *b = &g->st->kept;
    pst_cell *to = &g->record->cells[column];
    *to = *from;
    if (g->st->schema.states[column].type < PST_STRING)
        return PST_OK;
    size_t before = b->capacity;
    pst_status s = pst_buffer_reserve(b, b->size + from->bytes.size + 1);
    if (!s)
        s = pst_allowance_take(&g->st->room, b->capacity - before);
    if (s)
        return s;
    g->at[column] = b->size;
    if (from->bytes.size)
        memcpy(b->data + b->size, from->bytes.data, from->bytes.size);
    b->size += from->bytes.size;
    return PST_OK;
}

static pst_status take_record(getter *g, const pst_record *r) {
    if (g->deleted ||
        (g->st->n_keys < g->st->schema.n_keys && !(r->key_nulls >> g->st->n_keys & 1)))
        return PST_OK;
    if (r->op == PST_DELETE) {
        g->deleted = 1;
        return PST_OK;
    }
    uint64_t news = r->changed & g->values & ~g->record->changed;
    g->any = 1;
    g->record->changed |= news;
    for (uint64_t left = news & r->present; left; left &= left - 1) {
        int column = __builtin_ctzll(left);
        pst_status s = keep(g, column, &r->cells[column]);
        if (s)
            return s;
        g->record->present |= left & -left;
    }
    return PST_OK;
}

static pst_status take(void *ctx, const pst_found *f) {
    return take_record(ctx, f->record);
}

static int leave_long(void *ctx, uint32_t key) {
    getter *g = ctx;
    (void)key;
    g->is_long = 1;
    return 1;
}

/* The row's record of each file, newest first, without its elements. */
static pst_status get_long(getter *g, const pst_place *p) {
    pst_stack *st = g->st;
    pst_record r;
    pst_status s = PST_OK;
    g->any = g->deleted = 0;
    g->record->changed = g->record->present = 0;
    st->kept.size = 0;
    for (int32_t f = st->n - 1; !s && f >= 0 && !g->deleted; f--) {
        pst_walk w;
        s = pst_walk_open(&w, st, f, p->key_group, p->hash, g->key, g->nulls);
        if (s == PST_NOT_FOUND) {
            s = PST_OK;
            continue;
        }
        if (s)
            break;
        s = pst_walk_seek(&w, NULL);
        if (!s)
            s = pst_walk_next(&w, &r);
        if (!s)
            s = take_record(g, &r);
        pst_walk_close(&w);
        s = s == PST_NOT_FOUND ? PST_OK : s;
        if (!st->files[f]->filtered)
            break; /* a base is whole */
    }
    return s;
}

static pst_status done(void *ctx, uint32_t key, int any) {
    (void)ctx;
    (void)key;
    (void)any;
    return PST_OK;
}

/* The bytes lie together only once all are there. */
static void point_to_bytes(const getter *g) {
    pst_record *r = g->record;
    for (uint64_t left = r->present; left; left &= left - 1) {
        int column = __builtin_ctzll(left);
        if (g->st->schema.states[column].type >= PST_STRING)
            r->cells[column].bytes.data = g->st->kept.data + g->at[column];
    }
}

pst_status pst_stack_get(pst_stack *st, const pst_cell *key, uint32_t nulls, pst_record *record) {
    const pst_schema *schema = &st->schema;
    getter g = {.st = st, .key = key, .nulls = nulls, .record = record};
    pst_seeker seeker = {&g, key_of, NULL, take, done, leave_long};
    int has_element = st->n_keys < schema->n_keys;
    uint64_t bytes = 0;
    for (int32_t i = 0; i < st->n_keys; i++)
        if (schema->keys[i].type >= PST_STRING && !(nulls >> i & 1))
            bytes += key[i].bytes.size;
    if (bytes > PST_MAX_BYTES)
        return PST_TOO_LARGE;
    for (int32_t i = 0; i < schema->n_states; i++)
        if (st->all >> i & 1 && schema->states[i].kind != PST_LIST &&
            schema->states[i].kind != PST_MAP && schema->states[i].kind != PST_TIMERS)
            g.values |= UINT64_C(1) << i;
    pst_place place = {pst_hash_key(schema->keys, pst_schema_hashed(schema), key, nulls), 0, 0};
    place.key_group = pst_key_group(place.hash, st->max_parallelism);
    record->hash = place.hash;
    record->key_group = place.key_group;
    record->op = PST_PUT;
    record->changed = record->present = 0;
    record->key_nulls = nulls | (has_element ? UINT32_C(1) << st->n_keys : 0);
    memcpy(record->key, key, (size_t)st->n_keys * sizeof *key);
    st->kept.size = 0;
    pst_status s = pst_stack_search(st, &place, 1, &seeker);
    if (!s && g.is_long)
        s = get_long(&g, &place);
    if (s)
        return s;
    point_to_bytes(&g);
    return g.any && (record->present || has_element || !schema->n_states) ? PST_OK : PST_NOT_FOUND;
}
