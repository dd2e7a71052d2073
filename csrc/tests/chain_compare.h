/* chain_compare.h: whether two tables of a world hold the same, and what was there to compare.
 *
 * They are looked at below the public face, since reading may move times, and times are compared
 * too. What has expired may be gone from one and not yet from the other.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_CHAIN_COMPARE_H
#define PST_TEST_CHAIN_COMPARE_H

#include "access/current_key.h"
#include "chain_world.h"
#include "fetch/entries.h"
#include "fetch/items.h"

/* What comparisons found in all, for the claim that there was something to find. */
static struct {
    uint64_t values;
    uint64_t items;
    uint64_t entries;
    uint64_t null_entries;
    uint64_t value_times;
    uint64_t item_times;
    uint64_t entry_times;
    uint64_t expired;
    uint64_t null_keys;
    uint64_t timers;
    uint64_t below;
    uint64_t maps_below;
} compared;

/* What a key's column holds, element by element; of a value there is one. */
typedef struct side {
    pst_table *t;
    const uint64_t *row;
    int32_t column;
    pst_items *items;
    uint32_t slot;
    pst_entries *looked;
    int below; /* some elements lie in files */
    pst_tree_cursor entries;
    uint64_t promised; /* elements that the root says there are */
    uint64_t passed;   /* elements so far */
    pst_cell key;
    pst_cell value;
    int is_null;
    int64_t time; /* 0: the column has none */
} side;

static inline void side_start(side *s, int32_t column) {
    pst_table *t = s->t;
    const pst_collection *c = &t->collections[column];
    s->column = column;
    s->passed = 0;
    s->below = 0;
    if (t->lay.fields[column].kind == PST_LIST) {
        pst_list l = pst_row_list(t, s->row, column);
        uint64_t end;
        s->promised = pst_list_count(t->heap, pst_heap_bytes(t), &l);
        s->below = l.first && pst_list_is_below(t, &l, &end);
        compared.below += (uint64_t)s->below;
        if (l.first)
            REQUIRE(pst_items_open(t, s->slot, column, &s->items) == PST_OK);
        else
            s->promised = 0;
    } else if (t->lay.fields[column].kind == PST_MAP) {
        pst_tree_root root = pst_row_map(t, s->row, column);
        s->promised = root.count;
        s->below = s->slot != PST_NONE && pst_entries_are_below(t, s->slot, column);
        compared.maps_below += (uint64_t)s->below;
        if (s->below)
            REQUIRE(pst_entries_open(t, s->slot, column, &s->looked) == PST_OK);
        pst_tree_seek(&s->entries, t->heap, pst_heap_bytes(t), &c->map, root, NULL);
    } else {
        s->promised = (uint64_t)pst_row_has(&t->lay, s->row, column);
    }
}

static inline pst_status side_read(side *s) {
    pst_table *t = s->t;
    pst_tree_entry entry;
    pst_item item;
    pst_status st;
    s->key = s->value = (pst_cell){{0, 0}, {NULL, 0}};
    s->time = 0;
    s->is_null = 0;
    switch (t->lay.fields[s->column].kind) {
    case PST_LIST:
        if (!s->promised)
            return PST_NOT_FOUND;
        st = pst_items_next(s->items, &item);
        if (st)
            pst_items_close(s->items);
        if (!st) {
            pst_item_cell(t, s->column, &item, &s->value);
            s->time = item.time;
        }
        return st;
    case PST_MAP:
        st = s->below ? pst_entries_next(s->looked, &entry) : pst_tree_next(&s->entries, &entry);
        if (st && s->below)
            pst_entries_close(s->looked);
        if (!st) {
            pst_entry_key_cell(t, s->column, &entry, &s->key);
            pst_entry_value_cell(t, s->column, &entry, &s->value);
            s->is_null = entry.is_null;
            compared.null_entries += (uint64_t)entry.is_null;
            s->time = t->collections[s->column].map.timed ? entry.time : 0;
        }
        return st;
    default:
        if (s->passed == s->promised)
            return PST_NOT_FOUND;
        pst_field_cell(&t->lay.fields[s->column], s->row, t->heap, &s->value);
        if (t->lay.fields[s->column].time >= 0)
            s->time = pst_row_time(t, s->row, s->column);
        return PST_OK;
    }
}

/* The next that has not expired. Columns without a time have no time to live. */
static inline int side_next(side *s) {
    pst_status st;
    while ((st = side_read(s)) == PST_OK) {
        s->passed++;
        if (!pst_ttl_expired(s->t, s->column, s->time))
            return 1;
        compared.expired++;
    }
    CHECK_EQ(st, PST_NOT_FOUND);
    /* Merges leave out items of files that have expired. */
    if (!s->below)
        CHECK_EQ(s->passed, s->promised);
    return 0;
}

static inline int same_column(const world *w, side *a, side *b, int32_t column) {
    const pst_column *c = &w->columns[column];
    pst_column key = {.type = c->kind == PST_MAP ? (pst_type)c->map_key : PST_INT64};
    int timed = column + 1 < w->schema.n_states && c[1].kind == PST_TIME, more;
    uint64_t *seen = c->kind == PST_LIST  ? &compared.items
                     : c->kind == PST_MAP ? &compared.entries
                                          : &compared.values;
    uint64_t *times = c->kind == PST_LIST  ? &compared.item_times
                      : c->kind == PST_MAP ? &compared.entry_times
                                           : &compared.value_times;
    side_start(a, column);
    side_start(b, column);
    do {
        more = side_next(a);
        if (!CHECK_EQ(side_next(b), more))
            return 0;
        if (more &&
            !(CHECK(same_cell(&key, &a->key, &b->key)) && CHECK_EQ(a->is_null, b->is_null) &&
              CHECK(same_cell(c, &a->value, &b->value)) && CHECK_EQ(a->time, b->time)))
            return 0;
        *seen += (uint64_t)more;
        *times += (uint64_t)(more && timed && a->time != PST_NO_TIME);
    } while (more);
    return 1;
}

/* ---- timers ---------------------------------------------------------------------------------- */

typedef struct timer {
    int64_t key;
    int64_t domain;
    int64_t time;
} timer;

enum { TIMERS = 12 * 2 * WORLD_KEYS + 64 };

typedef struct timers {
    timer all[TIMERS];
    int n;
} timers;

static inline int compare_timers(const void *x, const void *y) {
    const int64_t *a = x, *b = y;
    for (int i = 0; i < 3; i++)
        if (a[i] != b[i])
            return a[i] < b[i] ? -1 : 1;
    return 0;
}

/* All timers of a table by key; those of each are as many as its row counts. */
static inline int timers_of(const world *w, pst_table *t, const uint32_t *slots, timers *out) {
    uint32_t counted[WORLD_KEYS] = {0};
    out->n = 0;
    for (int32_t g = t->first_key_group; g <= t->last_key_group; g++)
        for (int domain = 0; domain < 2; domain++) {
            pst_tree_root root = *pst_timer_root(t, t->m, g, (pst_domain)domain);
            pst_tree_cursor c;
            pst_tree_entry e;
            pst_tree_seek(&c, t->heap, pst_heap_bytes(t), &pst_timer_shape, root, NULL);
            while (root.count && pst_tree_next(&c, &e) == PST_OK) {
                int k = 0;
                while (k < WORLD_KEYS && slots[k] != (uint32_t)e.key[1])
                    k++;
                if (!CHECK(k < WORLD_KEYS && out->n < TIMERS) || !CHECK_EQ(w->groups[k], g))
                    return 0;
                counted[k]++;
                out->all[out->n++] = (timer){k, domain, pst_timer_time(e.key[0])};
            }
        }
    uint32_t apart = 0;
    for (int k = 0; k < WORLD_KEYS; k++) {
        uint64_t *row = slots[k] == PST_NONE ? NULL : pst_row(t, slots[k]);
        int there = row && pst_row_has(&t->lay, row, t->lay.timers);
        uint32_t count = slots[k] == PST_NONE ? 0 : pst_timer_count(t, slots[k]);
        if (!CHECK_EQ(counted[k], count) || !CHECK_EQ(there, count > 0))
            return 0;
        int alone = there && t->lay.timer >= 0 && pst_row_has(&t->lay, row, t->lay.timer);
        apart += there && !alone;
        if (!alone)
            continue;
        uint64_t word = pst_get64(pst_field_at(&t->lay, row, t->lay.timer));
        for (int i = 0; i < out->n; i++)
            if (out->all[i].key == k)
                CHECK_EQ(pst_timer_pack((pst_domain)out->all[i].domain, out->all[i].time), word);
        if (!CHECK_EQ(count, 1))
            return 0;
    }
    if (!CHECK_EQ(t->m->timed_apart, apart))
        return 0;
    qsort(out->all, (size_t)out->n, sizeof *out->all, compare_timers);
    return 1;
}

static inline int same_timers(const world *w, pst_table *a, pst_table *b,
                              uint32_t slots[2][WORLD_KEYS], int32_t first, int32_t last) {
    static timers all[2];
    int at = 0;
    if (!timers_of(w, a, slots[0], &all[0]) || !timers_of(w, b, slots[1], &all[1]))
        return 0;
    for (int i = 0; i < all[0].n; i++) {
        const timer *want = &all[0].all[i];
        if (w->groups[want->key] < first || w->groups[want->key] > last)
            continue;
        if (!CHECK(at < all[1].n && !compare_timers(want, &all[1].all[at++])))
            return 0;
        compared.timers++;
    }
    return CHECK_EQ(at, all[1].n);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* A live row has something, and a time only with its value. */
static inline int is_sound(const world *w, pst_table *t, const uint64_t *row) {
    uint64_t presence = pst_presence(&t->lay, row), times = 0;
    for (int32_t c = 1; c < w->schema.n_states; c++)
        if (w->columns[c].kind == PST_TIME)
            times |= UINT64_C(1) << c;
    return CHECK(presence & ~times) && CHECK(!(presence & times & ~(presence << 1)));
}

/* The rows of all keys, PST_NONE where there is none; there are no others. */
static inline int rows_of(const world *w, pst_table *t, uint32_t slots[WORLD_KEYS]) {
    pst_table_stats stats;
    uint64_t live = 0;
    for (int k = 0; k < WORLD_KEYS; k++) {
        slots[k] = PST_NONE;
        if (w->groups[k] < t->first_key_group || w->groups[k] > t->last_key_group)
            continue;
        REQUIRE(pst_key_set(t, w->keys[k], w->nulls[k]) == PST_OK);
        REQUIRE(pst_current_row(t, 0, &slots[k]) == PST_OK);
        if (slots[k] == PST_NONE)
            continue;
        if (!pst_is_live(*pst_row(t, slots[k])))
            slots[k] = PST_NONE;
        else if (!is_sound(w, t, pst_row(t, slots[k])))
            return 0;
        live += slots[k] != PST_NONE;
    }
    pst_table_get_stats(t, &stats);
    return CHECK_EQ(stats.keys, live);
}

/* A key without a row has nothing in any column. */
static inline int same_key(const world *w, side *a, side *b, int k) {
    static const uint64_t nothing[512];
    int same = 1;
    if (!a->row && !b->row)
        return 1;
    compared.null_keys += w->nulls[k] != 0;
    a->row = a->row ? a->row : nothing;
    b->row = b->row ? b->row : nothing;
    for (int32_t c = 0; same && c < w->schema.n_states; c++)
        if (w->state_of[c])
            same = same_column(w, a, b, c);
    if (!same)
        fprintf(stderr, "    key %d\n", k);
    return same;
}

/* Whether `got`, a table of these key groups, holds what `want` holds of them. */
static inline int same_tables(const world *w, pst_table *want, pst_table *got, int32_t first,
                              int32_t last) {
    uint32_t slots[2][WORLD_KEYS];
    pst_clock before[2] = {want->clock, got->clock};
    pst_table_set_clock(want, &w->now);
    pst_table_set_clock(got, &w->now);
    int same = rows_of(w, want, slots[0]) && rows_of(w, got, slots[1]);
    for (int k = 0; same && k < WORLD_KEYS; k++) {
        side a = {.t = want, .slot = slots[0][k]}, b = {.t = got, .slot = slots[1][k]};
        if (w->groups[k] < first || w->groups[k] > last)
            continue;
        a.row = slots[0][k] == PST_NONE ? NULL : pst_row(want, slots[0][k]);
        b.row = slots[1][k] == PST_NONE ? NULL : pst_row(got, slots[1][k]);
        same = same_key(w, &a, &b, k);
    }
    if (same && w->has_timers)
        same = same_timers(w, want, got, slots, first, last);
    pst_table_set_clock(want, &before[0]);
    pst_table_set_clock(got, &before[1]);
    return same;
}

#endif
