#include "fetch/horizon.h"

#include "base/mem.h"
#include "base/schema.h"
#include "fetch/below.h"
#include "fetch/fetch.h"
#include "stack/due.h"
#include "stack/search.h"

/* Hints whose rows are fetched together. */
#ifndef PST_HORIZON_HINTS
#define PST_HORIZON_HINTS 16384u /* tests have less */
#endif

/* Keys that were found under the hashes of hints, in the table's form. */
typedef struct found_key {
    size_t at; /* of its bytes */
    pst_key key;
} found_key;

typedef struct finder {
    pst_table *t;
    pst_place *places;
    uint32_t n_places;
    uint32_t room;
    found_key *keys;
    uint32_t *slots;
    uint32_t n;
    uint32_t keys_room;
    pst_buffer bytes;
    pst_record record;
} finder;

static pst_status fail(pst_table *t, pst_status s) {
    if (s == PST_IO || s == PST_CORRUPT)
        t->detail = *pst_stack_detail(t->stack);
    return s;
}

/* The cursor over the hints, before the first one from the horizon on. */
static pst_status seek(pst_table *t, pst_domain domain) {
    if (!pst_has_current_stack(t))
        return PST_NO_STACK;
    pst_status s = t->due ? PST_OK : pst_due_open(t->stack, &t->due);
    if (!s)
        pst_due_seek(t->due, (int32_t)domain, t->m->horizon[domain]);
    return fail(t, s);
}

/* ---- hints ----------------------------------------------------------------------------------- */

static pst_status note_hint(finder *x, const pst_timer_hint *hint) {
    if (hint->key_group < x->t->first_key_group || hint->key_group > x->t->last_key_group)
        return PST_OK;
    if (x->n_places == x->room) {
        uint32_t room = x->room ? 2 * x->room : 64;
        pst_place *grown = pst_realloc(x->places, room * sizeof *grown);
        if (!grown)
            return PST_NO_MEMORY;
        x->places = grown;
        x->room = room;
    }
    x->places[x->n_places++] = (pst_place){hint->hash, hint->key_group, 0};
    return PST_OK;
}

/* Takes the hints up to that time; of more than `most`, as many as have no later time. *end: the
 * horizon when their rows are here. */
static pst_status take_hints(finder *x, pst_domain domain, int64_t until_ms, uint32_t most,
                             int64_t *end) {
    pst_timer_hint hint;
    int64_t last = until_ms;
    pst_status s = seek(x->t, domain);
    while (!s && (s = pst_due_peek(x->t->due, &hint)) == PST_OK && hint.time <= until_ms) {
        if (x->n_places >= most && hint.time > last)
            break;
        last = hint.time;
        s = note_hint(x, &hint);
        if (!s)
            s = pst_due_next(x->t->due, &hint);
    }
    int all = s == PST_NOT_FOUND || (!s && hint.time > until_ms);
    if (all)
        last = until_ms;
    *end = last == INT64_MAX ? last : last + 1;
    return s == PST_NOT_FOUND ? PST_OK : fail(x->t, s);
}

static int by_place(const void *x, const void *y) {
    const pst_place *a = x, *b = y;
    return pst_place_compare(a->key_group, a->hash, b->key_group, b->hash);
}

static void sort_places(finder *x) {
    uint32_t n = 0;
    if (x->n_places)
        qsort(x->places, x->n_places, sizeof *x->places, by_place);
    for (uint32_t i = 0; i < x->n_places; i++)
        if (!n || by_place(&x->places[n - 1], &x->places[i]))
            x->places[n++] = x->places[i];
    x->n_places = n;
}

/* ---- their keys ------------------------------------------------------------------------------ */

static pst_status note_key(finder *x, const pst_record *r) {
    pst_table *t = x->t;
    uint32_t nulls = r->key_nulls & ((UINT32_C(1) << t->schema.n_keys) - 1);
    size_t before = x->bytes.size;
    pst_key key = {.hash = r->hash};
    pst_status s = pst_key_form(&t->schema, r->key, nulls, &x->bytes, &key);
    if (s)
        return s;
    if (pst_key_has_namespace(&t->schema))
        key.hash = pst_key_spread(key.hash, key.bytes, t->max_parallelism);
    if (pst_index_find(t, &key) != PST_NONE) {
        x->bytes.size = before;
        return PST_OK;
    }
    if (x->n == x->keys_room) {
        uint32_t room = x->keys_room ? 2 * x->keys_room : 64;
        found_key *grown = pst_realloc(x->keys, room * sizeof *grown);
        if (!grown)
            return PST_NO_MEMORY;
        x->keys = grown;
        x->keys_room = room;
    }
    /* A single column of bytes lies in the block, which goes. */
    if (key.bytes.size && x->bytes.size == before) {
        s = pst_buffer_reserve(&x->bytes, before + key.bytes.size);
        if (s)
            return s;
        memcpy(x->bytes.data + before, key.bytes.data, key.bytes.size);
        x->bytes.size += key.bytes.size;
    }
    x->keys[x->n++] = (found_key){before, key};
    return PST_OK;
}

static pst_status on_found(void *ctx, const pst_found *f) {
    finder *x = ctx;
    pst_status s = note_key(x, f->record);
    for (uint32_t i = 1; !s && i < f->rows; i++) {
        s = pst_found_record(f, i, &x->record);
        if (!s)
            s = note_key(x, &x->record);
    }
    return s;
}

static pst_status on_done(void *ctx, uint32_t key, int any) {
    (void)ctx;
    (void)key;
    (void)any;
    return PST_OK;
}

static void get_key(void *ctx, int64_t i, pst_key *key) {
    const finder *x = ctx;
    *key = x->keys[i].key;
    if (key->bytes.size)
        key->bytes.data = x->bytes.data + x->keys[i].at;
}

static pst_status fetch_hints(finder *x) {
    pst_seeker seeker = {.ctx = x, .found = on_found, .done = on_done};
    sort_places(x);
    pst_status s = pst_stack_search(x->t->stack, x->places, x->n_places, &seeker);
    if (s || !x->n)
        return fail(x->t, s);
    x->slots = pst_malloc(x->n * sizeof *x->slots);
    if (!x->slots)
        return PST_NO_MEMORY;
    for (uint32_t i = 0; i < x->n; i++)
        x->slots[i] = PST_NONE;
    pst_keys keys = {x, get_key, x->slots, x->n};
    return pst_fetch(x->t, &keys);
}

static pst_status move_by(pst_table *t, pst_domain domain, int64_t until_ms, uint32_t most) {
    finder *x = pst_calloc(1, sizeof *x);
    int64_t end = 0;
    if (!x)
        return PST_NO_MEMORY;
    x->t = t;
    pst_status s = take_hints(x, domain, until_ms, most, &end);
    if (!s)
        s = fetch_hints(x);
    if (!s)
        pst_put64(&t->m->horizon[domain], (uint64_t)end);
    pst_free(x->places);
    pst_free(x->keys);
    pst_free(x->slots);
    pst_free(x->bytes.data);
    pst_free(x);
    return s;
}

pst_status pst_horizon_move(pst_table *t, pst_domain domain, int64_t until_ms) {
    uint32_t most = PST_HORIZON_HINTS;
    pst_status s = move_by(t, domain, until_ms, most);
    while (s == PST_NO_ROOM && most > 1) {
        most /= 8;
        s = move_by(t, domain, until_ms, most ? most : 1);
    }
    return s;
}

pst_status pst_horizon_peek(pst_table *t, pst_domain domain, int64_t *time_ms) {
    pst_timer_hint hint;
    pst_status s = seek(t, domain);
    if (!s)
        s = fail(t, pst_due_peek(t->due, &hint));
    if (!s)
        *time_ms = hint.time;
    return s;
}
