#include "fetch/horizon.h"

#include <stdlib.h>

#include "base/mem.h"
#include "elements/timers.h"
#include "fetch/below.h"
#include "fetch/fetch.h"
#include "fetch/room.h"
#include "key/schema.h"
#include "key/siphash.h"
#include "stack/due.h"
#include "stack/search.h"

/* Hints whose rows are fetched together, and the most keys that may be found for them. */
#ifndef PST_HORIZON_HINTS
#define PST_HORIZON_HINTS 16384u /* tests have less */
#endif
enum { HINTS = PST_HORIZON_HINTS, KEYS = 4 * HINTS, FEWEST = HINTS / 64 + 1 };

/* A key that was found under the hash of a hint, in the table's form. */
typedef struct found_key {
    size_t at;      /* of its bytes */
    uint64_t inner; /* its place among keys of one hash; see own_place */
    pst_key key;
} found_key;

typedef struct finder {
    pst_table *t;
    pst_domain domain;
    pst_timer_hint *hints; /* HINTS of them */
    uint32_t n_hints;
    uint32_t n_places; /* of so many of the first hints: */
    pst_place *places;
    int64_t first; /* the times of these */
    int64_t last;
    int alone;     /* they are of one place: keys are taken in the order of `inner`, */
    uint64_t from; /* from this one on, */
    uint64_t cut;  /* and from this one on none was kept, */
    int is_cut;    /* if there are any */
    found_key *keys;
    uint32_t *slots;
    uint32_t n;
    uint32_t keys_room;
    pst_buffer bytes;
    pst_record record;
    pst_charge charge;
} finder;

static pst_status fail(pst_table *t, pst_status s) {
    if (s == PST_IO || s == PST_CORRUPT)
        t->detail = *pst_stack_detail(t->stack);
    return s;
}

/* The cursor over the hints, before the first one from the horizon on. */
static pst_status seek(pst_table *t, pst_domain domain) {
    const pst_horizon *h = &t->m->horizon[domain];
    pst_timer_hint from = {h->time, h->hash, (int32_t)h->key_group, (int32_t)domain};
    if (!pst_has_current_stack(t))
        return PST_NO_STACK;
    pst_status s = t->due[domain] ? PST_OK : pst_due_open(t->stack, &t->due[domain]);
    if (!s)
        pst_due_seek(t->due[domain], &from);
    return fail(t, s);
}

static pst_horizon behind(int64_t time_ms) {
    if (time_ms == INT64_MAX)
        return pst_horizon_at(INT64_MAX);
    return (pst_horizon){time_ms + 1, 0, 0, 0};
}

static pst_horizon before(const pst_timer_hint *hint) {
    return (pst_horizon){hint->time, (uint64_t)hint->key_group, hint->hash, 0};
}

/* ---- hints ----------------------------------------------------------------------------------- */

/* Takes the hints up to that time, or as many as `most` of them. *end: the horizon when their rows are
 * here. */
static pst_status take_hints(finder *x, int64_t until_ms, uint32_t most, pst_horizon *end) {
    pst_timer_hint hint;
    pst_status s = seek(x->t, x->domain);
    *end = behind(until_ms);
    while (!s) {
        s = pst_due_peek(x->t->due[x->domain], &hint);
        if (s || hint.time > until_ms)
            break;
        if (x->n_hints == most) {
            *end = before(&hint);
            break;
        }
        s = pst_due_next(x->t->due[x->domain], &x->hints[x->n_hints]);
        if (!s)
            x->n_hints++;
    }
    return s == PST_NOT_FOUND ? PST_OK : fail(x->t, s);
}

static int by_place(const void *x, const void *y) {
    const pst_place *a = x, *b = y;
    return pst_place_compare(a->key_group, a->hash, b->key_group, b->hash);
}

/* The places of the first k hints, each once. */
static void make_places(finder *x, uint32_t k) {
    const pst_table *t = x->t;
    uint32_t n = 0;
    x->n_places = 0;
    x->first = x->hints[0].time;
    x->last = x->hints[k - 1].time;
    for (uint32_t i = 0; i < k; i++) {
        const pst_timer_hint *h = &x->hints[i];
        if (h->key_group >= t->first_key_group && h->key_group <= t->last_key_group)
            x->places[x->n_places++] = (pst_place){h->hash, h->key_group, 0};
    }
    if (x->n_places)
        qsort(x->places, x->n_places, sizeof *x->places, by_place);
    for (uint32_t i = 0; i < x->n_places; i++)
        if (!n || by_place(&x->places[n - 1], &x->places[i]))
            x->places[n++] = x->places[i];
    x->n_places = n;
}

/* ---- their keys ------------------------------------------------------------------------------ */

/* Does the record bear a timer of the hints' times? Others of their hash are nobody's concern yet. */
static int bears_timer(const finder *x, const pst_record *r) {
    const pst_table *t = x->t;
    int32_t element = t->schema.n_keys;
    pst_domain domain;
    int64_t time_ms;
    if (r->op != PST_PUT)
        return 0;
    if (r->key_nulls >> element & 1) {
        if (t->lay.timer < 0 || !(r->present >> t->lay.timer & 1))
            return 0;
        domain = pst_timer_packed_domain(r->cells[t->lay.timer].word[0]);
        time_ms = pst_timer_packed_time(r->cells[t->lay.timer].word[0]);
    } else {
        pst_bytes e = r->key[element].bytes;
        if (e.size != PST_ELEMENT_TIMER || pst_get_big(e.data, PST_ELEMENT_ID) != PST_TIMERS_ID)
            return 0;
        domain = (pst_domain)e.data[PST_ELEMENT_ID];
        time_ms = pst_timer_time(pst_get_big(e.data + PST_ELEMENT_ID + 1, 8));
    }
    return domain == x->domain && time_ms >= x->first && time_ms <= x->last;
}

static uint64_t own_place(const pst_table *t, const pst_key *key) {
    return key->bytes.size ? pst_siphash(key->bytes.data, key->bytes.size, t->h->salt + 3)
                           : key->word;
}

static int by_inner(const void *x, const void *y) {
    const found_key *a = x, *b = y;
    return (a->inner > b->inner) - (a->inner < b->inner);
}

/* Keeps the first half of the keys of a place, and their bytes. */
static pst_status keep_half(finder *x) {
    pst_buffer kept = {0};
    uint32_t n = x->n / 2;
    qsort(x->keys, x->n, sizeof *x->keys, by_inner);
    while (n < x->n && x->keys[n].inner == x->keys[n - 1].inner)
        n++;
    if (n == x->n)
        return PST_NO_ROOM;
    x->cut = x->keys[n].inner;
    x->is_cut = 1;
    pst_status s = pst_buffer_reserve(&kept, x->bytes.size);
    for (uint32_t i = 0; !s && i < n; i++) {
        found_key *k = &x->keys[i];
        if (k->key.bytes.size)
            memcpy(kept.data + kept.size, x->bytes.data + k->at, k->key.bytes.size);
        k->at = kept.size;
        kept.size += k->key.bytes.size;
    }
    if (s)
        return s;
    pst_buffer_free(&x->bytes);
    x->bytes = kept;
    x->n = n;
    return PST_OK;
}

/* Room for one more key. */
static pst_status grow_keys(finder *x) {
    if (x->n == KEYS)
        return x->alone ? keep_half(x) : PST_NO_ROOM;
    if (x->n < x->keys_room)
        return PST_OK;
    uint32_t room = x->keys_room ? 2 * x->keys_room : 64;
    room = room < KEYS ? room : KEYS;
    uint64_t bytes = (room - x->keys_room) * (sizeof *x->keys + sizeof *x->slots);
    if (pst_charge_raise(&x->charge, x->charge.bytes + bytes))
        return PST_NO_ROOM;
    found_key *keys = pst_realloc(x->keys, room * sizeof *keys);
    if (!keys)
        return PST_NO_MEMORY;
    x->keys = keys;
    uint32_t *slots = pst_realloc(x->slots, room * sizeof *slots);
    if (!slots)
        return PST_NO_MEMORY;
    x->slots = slots;
    x->keys_room = room;
    return PST_OK;
}

/* The bytes are charged twice: some are copied where only a half of them is kept. */
static pst_status charge_bytes(finder *x, size_t capacity) {
    if (x->bytes.capacity == capacity)
        return PST_OK;
    uint64_t bytes = 2 * (x->bytes.capacity - capacity);
    return pst_charge_raise(&x->charge, x->charge.bytes + bytes) ? PST_NO_ROOM : PST_OK;
}

static pst_status note_key(finder *x, const pst_record *r) {
    pst_table *t = x->t;
    uint32_t nulls = r->key_nulls & ((UINT32_C(1) << t->schema.n_keys) - 1);
    pst_key key = {.hash = r->hash};
    if (!bears_timer(x, r))
        return PST_OK;
    pst_status s = grow_keys(x);
    size_t before = x->bytes.size, capacity = x->bytes.capacity;
    if (!s)
        s = pst_key_form(&t->schema, r->key, nulls, &x->bytes, &key);
    if (s)
        return s;
    if (pst_key_has_namespace(&t->schema))
        key.hash = pst_key_spread(key.hash, key.bytes, t->max_parallelism);
    uint64_t inner = x->alone ? own_place(t, &key) : 0;
    if (pst_index_find(t, &key) != PST_NONE ||
        (x->alone && (inner < x->from || (x->is_cut && inner >= x->cut)))) {
        x->bytes.size = before;
        return charge_bytes(x, capacity);
    }
    /* A single column of bytes lies in the block, which goes. */
    if (key.bytes.size && x->bytes.size == before) {
        s = pst_buffer_reserve(&x->bytes, before + key.bytes.size);
        if (s)
            return s;
        memcpy(x->bytes.data + before, key.bytes.data, key.bytes.size);
        x->bytes.size += key.bytes.size;
    }
    x->keys[x->n++] = (found_key){before, inner, key};
    return charge_bytes(x, capacity);
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

/* ---- their rows ------------------------------------------------------------------------------ */

/* How many of n to try when so many did not fit; the table's detail says about how many would. */
static uint32_t fewer(const pst_table *t, uint32_t n, uint32_t of) {
    int64_t fits = t->detail.row;
    uint32_t some = n / 8;
    if (fits > 0 && fits < (int64_t)of)
        some = (uint32_t)((uint64_t)n * (uint64_t)fits / of);
    return some ? some < n ? some : n - 1 : 1;
}

static pst_status fetch_keys(finder *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        x->slots[i] = PST_NONE;
    pst_keys keys = {x, get_key, x->slots, n, 0};
    x->t->fetched.asked += (uint64_t)n;
    return n ? pst_fetch(x->t, &keys) : PST_OK;
}

/* Looks up the keys of the first k hints, and fetches their rows. */
static pst_status fetch_hints(finder *x, uint32_t k) {
    pst_seeker seeker = {.ctx = x, .found = on_found, .done = on_done};
    make_places(x, k);
    x->n = 0;
    x->bytes.size = 0;
    x->is_cut = 0;
    pst_no_detail(&x->t->detail);
    pst_status s = pst_stack_search(x->t->stack, x->places, x->n_places, &seeker);
    return s || x->alone ? fail(x->t, s) : fetch_keys(x, x->n);
}

/* Does the horizon stand among the keys of the first hint? */
static int is_inside(const finder *x) {
    const pst_horizon *h = &x->t->m->horizon[x->domain];
    const pst_timer_hint *first = &x->hints[0];
    return h->inner && h->time == first->time && h->hash == first->hash &&
           h->key_group == (uint64_t)first->key_group;
}

/* Of the keys of one place and time as many as fit. *end as it is when that is all of them. */
static pst_status fetch_place(finder *x, pst_horizon *end) {
    x->alone = 1;
    x->from = is_inside(x) ? x->t->m->horizon[x->domain].inner : 0;
    pst_status s = fetch_hints(x, 1);
    if (s)
        return s;
    if (x->n)
        qsort(x->keys, x->n, sizeof *x->keys, by_inner);
    uint32_t n = x->n;
    s = fetch_keys(x, n);
    while (s == PST_NO_ROOM) {
        uint32_t some = fewer(x->t, n, n);
        while (some < x->n && x->keys[some].inner == x->keys[some - 1].inner)
            some++;
        if (some >= n)
            return s;
        n = some;
        s = fetch_keys(x, n);
    }
    if (s || (n == x->n && !x->is_cut))
        return s;
    *end = before(&x->hints[0]);
    end->inner = n < x->n ? x->keys[n].inner : x->cut;
    return PST_OK;
}

/* Hints of which the rows may fit, but not so few that those that are stale are gone through one by one. Where
 * not all would fit it is half of what is reckoned: rows that came for a time that is not reached would stay in
 * the way of those of the next times. */
static uint32_t most_hints(pst_table *t) {
    uint64_t share = pst_room_share(t, HINTS, 0);
    uint64_t fits = (uint64_t)HINTS * share / PST_ROOM_ALL / (share < PST_ROOM_ALL ? 2 : 1);
    return fits > FEWEST ? (uint32_t)fits : FEWEST;
}

/* How many hints are tried at first. Rows come in the order of their places. Where not all fit those of one
 * time that did are the next ones, and those of several would be in the way of these. */
static uint32_t tried_first(const finder *x, int tight) {
    uint32_t n = 1;
    while (n < x->n_hints && x->hints[n].time == x->hints[0].time)
        n++;
    return tight && n > x->n_hints / 8 ? n : x->n_hints;
}

/* Of the hints as many as fit; k: how many that is. Hints that do not come once more are passed over. */
static pst_status fetch_some(finder *x, pst_horizon *end, uint32_t *k) {
    int tight = most_hints(x->t) < HINTS, one = is_inside(x);
    /* Rows may be larger than was reckoned and fill the table before that of the first hint has come. */
    pst_status s = tight && !one && x->n_hints > 1 ? fetch_hints(x, 1) : PST_OK;
    if (s && s != PST_NO_ROOM)
        return s;
    one |= s == PST_NO_ROOM;
    s = PST_NO_ROOM;
    for (*k = tried_first(x, tight); *k > 1 && !one; *k = fewer(x->t, *k, x->n ? x->n : 1)) {
        s = fetch_hints(x, *k);
        if (s != PST_NO_ROOM)
            break;
    }
    if (s == PST_NO_ROOM) {
        *k = 1;
        if (x->n_hints > 1)
            *end = before(&x->hints[1]);
        s = fetch_place(x, end);
        *k = end->time == x->hints[0].time && end->inner ? 0 : 1;
    } else if (!s && *k < x->n_hints) {
        *end = before(&x->hints[*k]);
    }
    return s;
}

static pst_status move(finder *x, int64_t until_ms) {
    pst_table *t = x->t;
    pst_horizon end;
    uint32_t k = 0;
    x->charge = (pst_charge){t->budget, 0, PST_SMALL_BUFFER};
    pst_status s = pst_charge_raise(&x->charge, HINTS * (sizeof *x->hints + sizeof *x->places));
    if (s)
        return s;
    x->hints = pst_malloc(HINTS * sizeof *x->hints);
    x->places = pst_malloc(HINTS * sizeof *x->places);
    if (!x->hints || !x->places)
        return PST_NO_MEMORY;
    s = take_hints(x, until_ms, most_hints(t), &end);
    if (!s && x->n_hints)
        s = fetch_some(x, &end, &k);
    if (!s)
        pst_horizon_store(&t->m->horizon[x->domain], end);
    if (s == PST_NO_ROOM) {
        pst_no_detail(&t->detail);
        t->detail.row = 0;
    }
    if (t->due[x->domain])
        pst_due_return(t->due[x->domain], x->hints + (s ? 0 : k), x->n_hints - (s ? 0 : k));
    return s;
}

pst_status pst_horizon_move(pst_table *t, pst_domain domain, int64_t until_ms) {
    finder *x = pst_calloc(1, sizeof *x);
    if (!x)
        return PST_NO_MEMORY;
    x->t = t;
    x->domain = domain;
    pst_status s = move(x, until_ms);
    pst_charge_drop(&x->charge);
    pst_free(x->hints);
    pst_free(x->places);
    pst_free(x->keys);
    pst_free(x->slots);
    pst_buffer_free(&x->bytes);
    pst_free(x);
    return s;
}

pst_status pst_horizon_peek(pst_table *t, pst_domain domain, int64_t *time_ms) {
    pst_timer_hint hint;
    pst_status s = seek(t, domain);
    if (!s)
        s = fail(t, pst_due_peek(t->due[domain], &hint));
    if (!s)
        *time_ms = hint.time;
    return s;
}
