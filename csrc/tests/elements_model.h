/* elements_model.h: lists, maps and timers of a table beside plain arrays.
 *
 * A key has a value, a list of longs, a list of strings, a map of longs, a map of strings, and
 * timers. All elements bear the time at which they were written; `ttl_ms` says from when on they
 * are not seen, 0 never.
 */
#ifndef PST_ELEMENTS_MODEL_H
#define PST_ELEMENTS_MODEL_H

#include <string.h>

#include "check.h"
#include "key/hash.h"
#include "memory/handle.h"
#include "ownership.h"
#include "table/epoch.h"

enum {
    EM_KEYS = 20,
    EM_ITEMS = 300,
    EM_TEXTS = 40,
    EM_ENTRIES = 120, /* more than a leaf holds */
    EM_NAMES = 12,
    EM_TIMERS = 10,
    EM_EPOCHS = 4
};

enum {
    EM_N,
    EM_N_TIME,
    EM_LONGS,
    EM_LONGS_TIME,
    EM_STRINGS,
    EM_STRINGS_TIME,
    EM_MAP,
    EM_MAP_TIME,
    EM_BOOK,
    EM_BOOK_TIME,
    EM_COUNT,
    EM_ONE,
    EM_COLUMNS
};

typedef struct em_stamped {
    uint64_t value;
    int64_t time;
    uint8_t present; /* of map entries */
    uint8_t is_null; /* likewise: without a value */
} em_stamped;

typedef struct em_key {
    em_stamped n;
    int longs, texts;
    em_stamped l[EM_ITEMS];
    em_stamped s[EM_TEXTS];
    em_stamped m[EM_ENTRIES];
    em_stamped b[EM_NAMES];
    uint8_t timers[2][EM_TIMERS];
} em_key;

typedef struct em_state {
    em_key keys[EM_KEYS];
} em_state;

typedef struct elements_model {
    pst_schema schema;
    pst_column states[EM_COLUMNS];
    int column[EM_COLUMNS]; /* EM_x -> column of the schema, -1: not there */
    int64_t ttl_ms;
    int64_t now_ms;
    uint64_t seals;
    em_state now;
    em_state sealed[EM_EPOCHS];
} elements_model;

static const pst_column EM_LONG_KEY[] = {{.name = "k", .type = PST_INT64}};
static const pst_column EM_SPACE_KEYS[] = {{.name = "k", .type = PST_STRING},
                                           {.name = "space", .type = PST_INT64}};

/* `ttl_ms` 0: no column bears a time. */
static inline void em_init(elements_model *m, int spaces, int64_t ttl_ms) {
    static const pst_column all[] = {
        [EM_N] = {.name = "n", .type = PST_INT64, .has_default = 1},
        [EM_N_TIME] = {.name = "n#time", .type = PST_INT64, .kind = PST_TIME},
        [EM_LONGS] = {.name = "l", .type = PST_INT64, .kind = PST_LIST},
        [EM_LONGS_TIME] = {.name = "l#time", .type = PST_INT64, .kind = PST_TIME},
        [EM_STRINGS] = {.name = "s", .type = PST_STRING, .kind = PST_LIST},
        [EM_STRINGS_TIME] = {.name = "s#time", .type = PST_INT64, .kind = PST_TIME},
        [EM_MAP] = {.name = "m", .type = PST_INT32, .kind = PST_MAP, .map_key = PST_INT64},
        [EM_MAP_TIME] = {.name = "m#time", .type = PST_INT64, .kind = PST_TIME},
        [EM_BOOK] = {.name = "b", .type = PST_STRING, .kind = PST_MAP, .map_key = PST_STRING},
        [EM_BOOK_TIME] = {.name = "b#time", .type = PST_INT64, .kind = PST_TIME},
        [EM_COUNT] = {.name = "#timers", .type = PST_INT32, .kind = PST_TIMERS},
        [EM_ONE] = {.name = "#timer", .type = PST_INT64, .kind = PST_TIMER}};
    memset(m, 0, sizeof *m);
    m->ttl_ms = ttl_ms;
    m->now_ms = 1000;
    for (int c = 0; c < EM_COLUMNS; c++) {
        m->column[c] = -1;
        if (all[c].kind == PST_TIME && !ttl_ms)
            continue;
        int32_t i = m->schema.n_states++;
        m->column[c] = i;
        m->states[i] = all[c];
    }
    m->schema.states = m->states;
    m->schema.keys = spaces ? EM_SPACE_KEYS : EM_LONG_KEY;
    m->schema.n_keys = spaces ? 2 : 1;
    m->schema.n_hashed = 1;
}

/* Two of them are beyond 63 bits, and two others are what is left of these as one word. */
static inline int64_t em_time(int timer) {
    if (timer == 0 || timer == EM_TIMERS - 1)
        return timer ? INT64_MAX : INT64_MIN;
    return timer < 3 ? timer - 2 : timer * 100;
}

static inline int em_timer(int64_t time) {
    int timer = 0;
    while (timer < EM_TIMERS && em_time(timer) != time)
        timer++;
    return timer;
}

static inline void em_clock(elements_model *m, pst_table *t) {
    pst_clock clock = {m->now_ms, PST_NO_TIME, PST_NO_TIME};
    pst_table_set_clock(t, &clock);
}

static inline pst_table *em_open(elements_model *m, int32_t first, int32_t last) {
    pst_table_options o = {.max_parallelism = 4,
                           .first_key_group = first,
                           .last_key_group = last,
                           .limit_bytes = (uint64_t)1 << 26};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&m->schema, &o, &t, NULL, NULL) == PST_OK);
    static const int timed[] = {EM_N, EM_LONGS, EM_STRINGS, EM_MAP, EM_BOOK};
    pst_ttl ttl = {.duration_ms = m->ttl_ms};
    for (size_t i = 0; m->ttl_ms && i < sizeof timed / sizeof *timed; i++)
        REQUIRE(pst_table_set_ttl(t, m->column[timed[i]], &ttl) == PST_OK);
    em_clock(m, t);
    return t;
}

static inline int em_seen(const elements_model *m, const em_stamped *e) {
    return !m->ttl_ms || m->now_ms - e->time < m->ttl_ms;
}

static inline em_stamped em_stamp(const elements_model *m, uint64_t value) {
    return (em_stamped){value, m->now_ms, 1, 0};
}

/* A text from a number; now and then one too long for a reference. */
static inline pst_cell em_text(uint64_t seed, uint8_t room[200]) {
    int n = snprintf((char *)room, 200, "t%d%.*s", (int)(seed % 1000), (int)(seed % 5 ? 0 : 120),
                     "a text that does not fit into a reference and therefore lies in a block of "
                     "its own, which is freed when it goes");
    return (pst_cell){{0, 0}, {room, (uint32_t)n}};
}

static inline void em_key_cells(const elements_model *m, int k, pst_cell key[2],
                                uint8_t room[200]) {
    memset(key, 0, 2 * sizeof *key);
    if (m->schema.n_keys == 1) {
        key[0].word[0] = (uint64_t)k;
        return;
    }
    key[0] =
        em_text((uint64_t)(k % 4) * 5, room); /* a few keys with long names, many spaces each */
    key[1].word[0] = (uint64_t)k;
}

static inline void em_set_key(const elements_model *m, pst_table *t, int k) {
    pst_cell key[2];
    uint8_t room[200];
    em_key_cells(m, k, key, room);
    REQUIRE(pst_key_set(t, key, 0) == PST_OK);
}

/* ---- comparing ------------------------------------------------------------------------------ */

/* Is the walk's next item the one of that index, or with -1 its end? */
static inline int em_compare_next(pst_elements *walk, int c, const em_stamped *items, int i) {
    pst_cell key, cell;
    uint8_t room[200];
    pst_status s = pst_elements_next(walk, &key, &cell);
    if (i < 0 || s)
        return CHECK_EQ(s, i < 0 ? PST_NOT_FOUND : PST_OK);
    if (c == EM_LONGS)
        return CHECK_EQ(cell.word[0], items[i].value);
    pst_cell want = em_text(items[i].value, room);
    return CHECK(cell.bytes.size == want.bytes.size &&
                 !memcmp(cell.bytes.data, room, want.bytes.size));
}

/* Walks that pass some items. */
static inline int em_compare_skips(const elements_model *m, pst_elements *walk, int c,
                                   const em_stamped *items, int n, uint64_t seen) {
    const uint64_t skips[] = {0, 1, seen / 2, seen ? seen - 1 : 0, seen, seen + 3, UINT64_MAX};
    for (size_t k = 0; k < sizeof skips / sizeof *skips; k++) {
        uint64_t left = skips[k];
        int i = 0;
        while (i < n && (!em_seen(m, &items[i]) || left--))
            i++;
        REQUIRE(pst_elements_start(walk, m->column[c]) == PST_OK);
        if (!CHECK_EQ(pst_elements_skip(walk, skips[k]), PST_OK) ||
            !em_compare_next(walk, c, items, i < n ? i : -1))
            return 0;
    }
    return 1;
}

static inline int em_compare_list(const elements_model *m, pst_table *t, pst_elements *walk, int c,
                                  const em_stamped *items, int n) {
    uint64_t count, seen = 0;
    REQUIRE(pst_elements_start(walk, m->column[c]) == PST_OK);
    for (int i = 0; i < n; i++) {
        if (!em_seen(m, &items[i]))
            continue;
        seen++;
        if (!em_compare_next(walk, c, items, i))
            return 0;
    }
    return em_compare_next(walk, c, items, -1) &&
           CHECK_EQ(pst_elements_count(t, m->column[c], &count), PST_OK) && CHECK_EQ(count, seen) &&
           em_compare_skips(m, walk, c, items, n, seen);
}

static inline int em_compare_map(const elements_model *m, pst_table *t, pst_elements *walk, int c,
                                 const em_stamped *entries, int n) {
    pst_cell key, cell;
    uint8_t room[200];
    uint64_t count, seen = 0, walked = 0;
    int is_null;
    for (int i = 0; i < n; i++) {
        int there = entries[i].present && em_seen(m, &entries[i]);
        key = (pst_cell){{(uint64_t)(int64_t)(i - 3), 0}, {NULL, 0}};
        if (c == EM_BOOK)
            key = em_text((uint64_t)i, room);
        seen += (uint64_t)there;
        if (!CHECK_EQ(pst_map_get(t, m->column[c], &key, &cell, &is_null),
                      there ? PST_OK : PST_NOT_FOUND) ||
            (there && !CHECK_EQ(is_null, entries[i].is_null)))
            return 0;
        there &= !entries[i].is_null;
        if (there && c == EM_MAP && !CHECK_EQ((int32_t)cell.word[0], (int32_t)entries[i].value))
            return 0;
        if (there && c == EM_BOOK) {
            pst_cell want = em_text(entries[i].value, room);
            if (!CHECK(cell.bytes.size == want.bytes.size &&
                       !memcmp(cell.bytes.data, room, want.bytes.size)))
                return 0;
        }
    }
    REQUIRE(pst_elements_start(walk, m->column[c]) == PST_OK);
    while (pst_elements_next(walk, &key, &cell) == PST_OK)
        walked++;
    return CHECK_EQ(pst_elements_count(t, m->column[c], &count), PST_OK) && CHECK_EQ(count, seen) &&
           CHECK_EQ(walked, seen);
}

/* All timers of a domain, in order per key. */
static inline int em_compare_timers(const elements_model *m, const em_state *want, pst_table *t,
                                    int domain, int only_groups_from, int only_groups_to) {
    int64_t times[EM_KEYS * EM_TIMERS + 1];
    uint8_t found[EM_KEYS][EM_TIMERS] = {{0}};
    int last[EM_KEYS];
    pst_batch *b = NULL;
    pst_status s =
        pst_timers_due(t, (pst_domain)domain, INT64_MAX, EM_KEYS * EM_TIMERS + 1, times, &b);
    for (int k = 0; k < EM_KEYS; k++)
        last[k] = -1;
    if (!s) {
        int64_t keys[EM_KEYS * EM_TIMERS + 1];
        uint8_t valid[EM_KEYS * EM_TIMERS + 1];
        int32_t column = m->schema.n_keys - 1;
        REQUIRE(pst_batch_get_key(b, column, keys, valid) == PST_OK);
        for (int64_t i = 0; i < pst_batch_length(b); i++) {
            int timer = em_timer(times[i]);
            REQUIRE(keys[i] >= 0 && keys[i] < EM_KEYS && timer < EM_TIMERS);
            found[keys[i]][timer]++;
            CHECK(last[keys[i]] < timer);
            last[keys[i]] = timer;
        }
    } else if (!CHECK_EQ(s, PST_NOT_FOUND)) {
        return 0;
    }
    pst_batch_destroy(b);
    for (int k = 0; k < EM_KEYS; k++) {
        pst_cell key[2];
        uint8_t room[200];
        em_key_cells(m, k, key, room);
        int32_t group = pst_key_group(pst_hash_key(m->schema.keys, 1, key, 0), 4);
        int here = group >= only_groups_from && group <= only_groups_to;
        for (int i = 0; i < EM_TIMERS; i++)
            if (!CHECK_EQ(found[k][i], here ? want->keys[k].timers[domain][i] : 0))
                return 0;
    }
    return 1;
}

static inline int em_compare_range(const elements_model *m, const em_state *want, pst_table *t,
                                   int32_t first, int32_t last) {
    pst_elements *walk = NULL;
    REQUIRE(pst_elements_create(t, &walk) == PST_OK);
    int ok = 1;
    for (int k = 0; ok && k < EM_KEYS; k++) {
        const em_key *w = &want->keys[k];
        pst_cell key[2], cell;
        uint8_t room[200];
        em_key_cells(m, k, key, room);
        int32_t group = pst_key_group(pst_hash_key(m->schema.keys, 1, key, 0), 4);
        if (group < first || group > last)
            continue;
        em_set_key(m, t, k);
        int there = w->n.present && em_seen(m, &w->n);
        ok = CHECK_EQ(pst_value_get(t, m->column[EM_N], &cell), there ? PST_OK : PST_NOT_FOUND) &&
             (!there || CHECK_EQ(cell.word[0], w->n.value)) &&
             em_compare_list(m, t, walk, EM_LONGS, w->l, w->longs) &&
             em_compare_list(m, t, walk, EM_STRINGS, w->s, w->texts) &&
             em_compare_map(m, t, walk, EM_MAP, w->m, EM_ENTRIES) &&
             em_compare_map(m, t, walk, EM_BOOK, w->b, EM_NAMES);
        if (!ok)
            fprintf(stderr, "    key %d\n", k);
    }
    pst_elements_destroy(walk);
    return ok && em_compare_timers(m, want, t, 0, first, last) &&
           em_compare_timers(m, want, t, 1, first, last);
}

static inline int em_compare(const elements_model *m, const em_state *want, pst_table *t) {
    return em_compare_range(m, want, t, 0, 3);
}

/* Rows of the table: keys with anything at all, seen or not. */
static inline uint64_t em_alive(const em_state *s) {
    uint64_t alive = 0;
    for (int k = 0; k < EM_KEYS; k++) {
        const em_key *w = &s->keys[k];
        int any = w->n.present || w->longs || w->texts;
        for (int i = 0; i < EM_ENTRIES; i++)
            any |= w->m[i].present;
        for (int i = 0; i < EM_NAMES; i++)
            any |= w->b[i].present;
        for (int i = 0; i < EM_TIMERS; i++)
            any |= w->timers[0][i] | w->timers[1][i];
        alive += (uint64_t)any;
    }
    return alive;
}

/* ---- one random operation on both ------------------------------------------------------------ */

static inline void em_append_long(elements_model *m, em_key *w, uint64_t value) {
    if (w->longs == EM_ITEMS) /* never seen: the callers clear before */
        exit(1);
    w->l[w->longs++] = em_stamp(m, value);
}

/* The items of one key's lists go to another's, with their times. */
static inline void em_take(elements_model *m, pst_table *t, int to, int from) {
    em_key *w = &m->now.keys[to], *other = &m->now.keys[from];
    pst_cell key[2];
    uint8_t room[200];
    if (w->longs + other->longs > EM_ITEMS || w->texts + other->texts > EM_TEXTS)
        return;
    em_key_cells(m, from, key, room);
    CHECK_EQ(pst_list_take(t, m->column[EM_LONGS], key, 0), PST_OK);
    CHECK_EQ(pst_list_take(t, m->column[EM_STRINGS], key, 0), PST_OK);
    if (to == from)
        return;
    memcpy(w->l + w->longs, other->l, (size_t)other->longs * sizeof *w->l);
    memcpy(w->s + w->texts, other->s, (size_t)other->texts * sizeof *w->s);
    w->longs += other->longs;
    w->texts += other->texts;
    other->longs = other->texts = 0;
}

static inline void em_one(elements_model *m, pst_table *t, uint64_t *random) {
    int k = (int)(check_random(random) % EM_KEYS);
    em_key *w = &m->now.keys[k];
    uint64_t r = check_random(random);
    uint8_t room[200], other[200];
    pst_cell key = {{0, 0}, {NULL, 0}}, cell = {{r >> 32, 0}, {NULL, 0}};
    em_set_key(m, t, k);
    switch (r % 17) {
    case 0:
        CHECK_EQ(pst_value_put(t, m->column[EM_N], &cell), PST_OK);
        w->n = em_stamp(m, r >> 32);
        break;
    case 1:
        CHECK_EQ(pst_value_clear(t, m->column[EM_N]), PST_OK);
        w->n.present = 0;
        break;
    case 2:
    case 3:
        for (int i = 0; i < 1 + (int)((r >> 8) % 20) && w->longs < EM_ITEMS; i++) {
            cell.word[0] = r + (uint64_t)i;
            CHECK_EQ(pst_list_add(t, m->column[EM_LONGS], &cell), PST_OK);
            em_append_long(m, w, r + (uint64_t)i);
        }
        break;
    case 4:
        if (w->texts == EM_TEXTS)
            break;
        cell = em_text(r >> 8, room);
        CHECK_EQ(pst_list_add(t, m->column[EM_STRINGS], &cell), PST_OK);
        w->s[w->texts++] = em_stamp(m, r >> 8);
        break;
    case 5:
        if (w->longs < 200 && (r >> 8) % 4)
            break;
        CHECK_EQ(pst_value_clear(t, m->column[EM_LONGS]), PST_OK);
        w->longs = 0;
        if ((r >> 16) % 2) { /* replaced in the same epoch */
            CHECK_EQ(pst_list_add(t, m->column[EM_LONGS], &cell), PST_OK);
            em_append_long(m, w, cell.word[0]);
        }
        break;
    case 6:
        CHECK_EQ(pst_value_clear(t, m->column[EM_STRINGS]), PST_OK);
        w->texts = 0;
        break;
    case 7:
    case 8:
        for (int i = 0; i < 1 + (int)((r >> 8) % 10); i++) {
            int at = (int)(check_random(random) % EM_ENTRIES);
            key.word[0] = (uint64_t)(int64_t)(at - 3);
            int is_null = (cell.word[0] + (uint64_t)at) % 6 == 0;
            CHECK_EQ(pst_map_put(t, m->column[EM_MAP], &key, is_null ? NULL : &cell), PST_OK);
            w->m[at] = em_stamp(m, cell.word[0]);
            w->m[at].is_null = (uint8_t)is_null;
        }
        break;
    case 9:
        for (int i = 0; i < 1 + (int)((r >> 8) % 20); i++) {
            int at = (int)(check_random(random) % EM_ENTRIES);
            int there = w->m[at].present && em_seen(m, &w->m[at]);
            key.word[0] = (uint64_t)(int64_t)(at - 3);
            CHECK_EQ(pst_map_remove(t, m->column[EM_MAP], &key), there ? PST_OK : PST_NOT_FOUND);
            w->m[at].present = 0;
        }
        break;
    case 10:
        if ((r >> 8) % 3 == 0) {
            CHECK_EQ(pst_value_clear(t, m->column[EM_MAP]), PST_OK);
            memset(w->m, 0, sizeof w->m);
        }
        break;
    case 11:
    case 12: {
        int at = (int)((r >> 8) % EM_NAMES);
        key = em_text((uint64_t)at, room);
        if ((r >> 16) % 4 == 0) {
            int there = w->b[at].present && em_seen(m, &w->b[at]);
            CHECK_EQ(pst_map_remove(t, m->column[EM_BOOK], &key), there ? PST_OK : PST_NOT_FOUND);
            w->b[at].present = 0;
            break;
        }
        cell = em_text(r >> 24, other);
        w->b[at] = em_stamp(m, r >> 24);
        w->b[at].is_null = r >> 20 & 1;
        CHECK_EQ(pst_map_put(t, m->column[EM_BOOK], &key, w->b[at].is_null ? NULL : &cell), PST_OK);
        break;
    }
    case 13:
    case 14: {
        int at = (int)((r >> 8) % EM_TIMERS), domain = (int)((r >> 16) % 2);
        if ((r >> 20) % 3)
            CHECK_EQ(pst_timer_register(t, (pst_domain)domain, em_time(at)), PST_OK);
        else
            CHECK_EQ(pst_timer_delete(t, (pst_domain)domain, em_time(at)), PST_OK);
        w->timers[domain][at] = (r >> 20) % 3 != 0;
        break;
    }
    case 15:
        em_take(m, t, k, (int)((r >> 8) % EM_KEYS));
        break;
    default:
        if ((r >> 8) % 3)
            break;
        CHECK_EQ(pst_value_clear(t, -1), PST_OK);
        {
            uint8_t timers[2][EM_TIMERS];
            memcpy(timers, w->timers, sizeof timers);
            memset(w, 0, sizeof *w);
            memcpy(w->timers, timers, sizeof timers);
        }
    }
}

/* The vectorised forms, over keys that repeat. */
static inline void em_many(elements_model *m, pst_table *t, uint64_t *random) {
    enum { MOST = 40 };
    int64_t keys[MOST], values[MOST], spaces[MOST];
    int32_t offsets[MOST + 1] = {0};
    uint8_t text[MOST * 200];
    int64_t n = 1 + (int64_t)(check_random(random) % MOST);
    uint64_t what = check_random(random) % 4;
    for (int64_t i = 0; i < n; i++) {
        pst_cell key[2];
        uint8_t room[200];
        spaces[i] = (int64_t)(check_random(random) % EM_KEYS);
        em_key_cells(m, (int)spaces[i], key, room);
        if (m->schema.n_keys > 1) {
            memcpy(text + offsets[i], key[0].bytes.data, key[0].bytes.size);
            offsets[i + 1] = offsets[i] + (int32_t)key[0].bytes.size;
        }
        keys[i] = (int64_t)(check_random(random) % EM_ENTRIES) - 3;
        values[i] = (int64_t)(check_random(random) % 1000);
    }
    pst_array k[2] = {{PST_INT64, n, 0, NULL, spaces, NULL}, {PST_INT64, n, 0, NULL, spaces, NULL}};
    if (m->schema.n_keys > 1)
        k[0] = (pst_array){PST_STRING, n, 0, NULL, text, offsets, .values_bytes = offsets[n]};
    pst_array map_keys = {PST_INT64, n, 0, NULL, keys, NULL};
    int32_t narrow[MOST];
    for (int64_t i = 0; i < n; i++)
        narrow[i] = (int32_t)values[i];
    pst_array longs = {PST_INT64, n, 0, NULL, values, NULL};
    pst_array ints = {PST_INT32, n, 0, NULL, narrow, NULL};
    pst_batch *b = NULL;
    REQUIRE(pst_batch_create(t, k, &b) == PST_OK);
    for (int64_t i = 0; i < n; i++)
        if (what == 0 && m->now.keys[spaces[i]].longs > EM_ITEMS - MOST)
            what = 1;
    if (what == 0)
        CHECK_EQ(pst_batch_list_append(b, m->column[EM_LONGS], &longs), PST_OK);
    else if (what == 1)
        CHECK_EQ(pst_batch_map_put(b, m->column[EM_MAP], &map_keys, &ints), PST_OK);
    else if (what == 2)
        CHECK_EQ(pst_batch_map_remove(b, m->column[EM_MAP], &map_keys), PST_OK);
    for (int64_t i = 0; i < n; i++) {
        em_key *w = &m->now.keys[spaces[i]];
        if (what == 0)
            em_append_long(m, w, (uint64_t)values[i]);
        else if (what == 1)
            w->m[keys[i] + 3] = em_stamp(m, (uint64_t)values[i]);
        else if (what == 2)
            w->m[keys[i] + 3].present = 0;
    }
    /* Read back what the batch's keys have. */
    int32_t got[MOST];
    uint8_t valid[MOST];
    CHECK_EQ(pst_batch_map_get(b, m->column[EM_MAP], &map_keys, got, valid), PST_OK);
    for (int64_t i = 0; i < n; i++) {
        const em_stamped *e = &m->now.keys[spaces[i]].m[keys[i] + 3];
        int there = e->present && em_seen(m, e) && !e->is_null;
        CHECK_EQ(valid[i], there);
        CHECK(!there || got[i] == (int32_t)e->value);
    }
    int64_t starts[MOST + 1];
    CHECK_EQ(pst_batch_element_offsets(b, m->column[EM_LONGS], starts), PST_OK);
    int64_t *all = malloc((size_t)(starts[n] + 1) * sizeof *all);
    REQUIRE(all);
    CHECK_EQ(pst_batch_list_copy(b, m->column[EM_LONGS], starts, all, (uint64_t)starts[n] * 8),
             PST_OK);
    for (int64_t i = 0; i < n; i++) {
        const em_key *w = &m->now.keys[spaces[i]];
        int64_t at = starts[i];
        for (int x = 0; x < w->longs; x++)
            if (em_seen(m, &w->l[x]))
                CHECK(at < starts[i + 1] && all[at++] == (int64_t)w->l[x].value);
        CHECK_EQ(at, starts[i + 1]);
    }
    free(all);
    pst_batch_destroy(b);
}

/* Fires what is due at a random time. */
static inline void em_fire(elements_model *m, pst_table *t, uint64_t *random) {
    int64_t times[7];
    int domain = (int)(check_random(random) % 2);
    int64_t until = em_time((int)(check_random(random) % EM_TIMERS));
    for (;;) {
        pst_batch *b = NULL;
        pst_status s = pst_timers_due(t, (pst_domain)domain, until, 7, times, &b);
        if (s == PST_NOT_FOUND)
            break;
        REQUIRE(s == PST_OK);
        for (int64_t i = 0; i < pst_batch_length(b); i++) {
            CHECK(times[i] <= until);
            CHECK_EQ(pst_timer_fire(b, i, (pst_domain)domain, times[i]), PST_OK);
            CHECK_EQ(pst_timer_fire(b, i, (pst_domain)domain, times[i]), PST_NOT_FOUND);
        }
        pst_batch_destroy(b);
    }
    for (int k = 0; k < EM_KEYS; k++)
        for (int i = 0; i < EM_TIMERS; i++)
            if (em_time(i) <= until)
                m->now.keys[k].timers[domain][i] = 0;
}

static inline pst_lineage em_lineage(uint64_t seal) {
    pst_lineage l = {.epoch = seal, .query = 5};
    uint64_t parent = seal - 1;
    memcpy(l.id, &seal, sizeof seal);
    memcpy(l.parent, &parent, sizeof parent);
    return l;
}

static inline void em_seal(elements_model *m, pst_table *t, pst_sealed **sealed) {
    pst_lineage l = em_lineage(m->seals + 1);
    m->sealed[(m->seals + 1) % EM_EPOCHS] = m->now;
    REQUIRE(pst_table_seal(t, &l, sealed) == PST_OK);
    m->seals++;
    check_ownership(t);
}

static inline void em_step(elements_model *m, pst_table *t, uint64_t *random) {
    uint64_t what = check_random(random) % 100;
    if (what < 80)
        em_one(m, t, random);
    else if (what < 95)
        em_many(m, t, random);
    else
        em_fire(m, t, random);
}

/* Time passes, and what has expired goes: from the model at once, since nobody sees it. */
static inline void em_pass(elements_model *m, pst_table *t, int64_t ms, uint64_t budget) {
    m->now_ms += ms;
    em_clock(m, t);
    CHECK_EQ(pst_table_expire(t, budget, NULL), PST_OK);
}

#endif
