/* timer_batch.c: the timers of a batch, registered and fired by key group and in order.
 *
 * Timers of one time lie beside each other, in the order of their rows. So those of a key group,
 * sorted, need one descent for each leaf that they lie in.
 */
#include "access/timer_batch.h"

#include <stdlib.h>

#include "base/scratch.h"

/* Timers that are sorted together, and the fewest of a batch for which that is worth it. */
#ifndef PST_TIMERS_SORTED
#define PST_TIMERS_SORTED (1u << 14) /* tests make it small */
#define PST_TIMERS_LEAST 64
#endif
enum { SORTED = PST_TIMERS_SORTED, LEAST = PST_TIMERS_LEAST };

pst_status pst_check_times(const pst_batch *b, pst_domain domain, const pst_array *times) {
    pst_status s = pst_batch_usable(b);
    if (!s)
        s = pst_check_timers(b->t, domain);
    if (s)
        return s;
    if (times->type != PST_INT64)
        return PST_WRONG_TYPE;
    return times->length == b->length || times->length == 1 ? PST_OK : PST_INVALID;
}

/* ---- one by one ------------------------------------------------------------------------------ */

static pst_status register_each(pst_batch *b, pst_domain domain, const pst_array *times) {
    const int64_t *ms = (const int64_t *)times->values + times->offset;
    pst_status s = PST_OK;
    for (int64_t i = 0; !s && i < b->length; i++) {
        int64_t at = times->length == 1 ? 0 : i;
        uint32_t slot;
        if (i % PST_GROUP == 0) {
            pst_batch_bring(b, i);
            s = pst_undo_reserve(b->t, PST_GROUP);
        }
        if (s || pst_array_is_null(times, at))
            continue;
        s = pst_batch_row(b, i, &slot);
        if (!s)
            s = pst_timer_add(b->t, slot, domain, ms[at]);
    }
    return s;
}

/* ---- sorted ---------------------------------------------------------------------------------- */

typedef struct found {
    uint64_t word;
    uint32_t slot;
    uint32_t group; /* from the table's first one on */
} found;

typedef struct sorter {
    pst_batch *b;
    pst_domain domain;
    const pst_array *times;
    uint32_t groups;
    int64_t next;          /* key of the batch */
    uint32_t n;            /* timers, at most SORTED: */
    found *found;          /* in the order of keys */
    uint64_t (*timers)[2]; /* and of key groups */
    uint32_t *ends;        /* by key group: where its timers begin, then where they end */
} sorter;

static int by_time(const void *x, const void *y) {
    const uint64_t *a = x, *b = y;
    if (a[0] != b[0])
        return a[0] < b[0] ? -1 : 1;
    return (a[1] > b[1]) - (a[1] < b[1]);
}

/* Few are mostly in order already, or nearly. */
static void sort_timers(uint64_t (*timers)[2], uint32_t n) {
    enum { FEW = 32 };
    uint32_t i = 1;
    while (i < n && by_time(timers[i - 1], timers[i]) <= 0)
        i++;
    if (i < n && n > FEW) {
        qsort(timers, n, sizeof *timers, by_time);
        return;
    }
    for (; i < n; i++) {
        uint64_t word = timers[i][0], slot = timers[i][1];
        uint32_t at = i;
        for (; at && by_time(timers[at - 1], (uint64_t[2]){word, slot}) > 0; at--) {
            timers[at][0] = timers[at - 1][0];
            timers[at][1] = timers[at - 1][1];
        }
        timers[at][0] = word;
        timers[at][1] = slot;
    }
}

/* A bit for each key of the group from .. to - 1 that has a timer. */
static uint64_t timed_keys(const pst_array *times, int64_t from, int64_t to) {
    _Static_assert(PST_GROUP + 7 < 64, "a group's bits lie in a word, wherever they begin");
    uint64_t all = (UINT64_C(1) << (to - from)) - 1, bits = 0;
    if (!times->validity)
        return all;
    if (times->length == 1)
        return pst_array_is_null(times, 0) ? 0 : all;
    int64_t first = times->offset + from, last = times->offset + to - 1;
    for (int64_t at = last >> 3; at >= first >> 3; at--)
        bits = bits << 8 | times->validity[at];
    return bits >> (first & 7) & all;
}

/* Takes the timers of these of the keys from .. to - 1, and makes their rows. Rows that are there
 * are not looked at. */
static pst_status find_timers(sorter *x, int64_t from, int64_t to, uint64_t keys) {
    pst_batch *b = x->b;
    pst_table *t = b->t;
    const int64_t *ms = (const int64_t *)x->times->values + x->times->offset;
    pst_batch_resolve(b, to);
    pst_status s = pst_undo_reserve(t, PST_GROUP);
    for (; !s && keys; keys &= keys - 1) {
        int64_t i = from + __builtin_ctzll(keys);
        found *f = &x->found[x->n++];
        s = pst_batch_row(b, i, &f->slot);
        f->word = pst_timer_word(ms[x->times->length == 1 ? 0 : i]);
        f->group = (uint32_t)(pst_group_of(t, b->hash[i]) - t->first_key_group);
    }
    return s;
}

static void by_groups(sorter *x) {
    memset(x->ends, 0, (x->groups + 1) * sizeof *x->ends);
    for (uint32_t i = 0; i < x->n; i++)
        x->ends[x->found[i].group + 1]++;
    for (uint32_t g = 0; g < x->groups; g++)
        x->ends[g + 1] += x->ends[g];
    for (uint32_t i = 0; i < x->n; i++) {
        uint64_t *to = x->timers[x->ends[x->found[i].group]++];
        to[0] = x->found[i].word;
        to[1] = x->found[i].slot;
    }
}

/* As many of the next keys' timers as there is room for. */
static pst_status register_some(sorter *x) {
    pst_table *t = x->b->t;
    int64_t length = x->b->length;
    pst_status s = PST_OK;
    for (x->n = 0; !s && x->next < length && x->n + PST_GROUP <= SORTED; x->next += PST_GROUP) {
        int64_t to = x->next + PST_GROUP < length ? x->next + PST_GROUP : length;
        uint64_t keys = timed_keys(x->times, x->next, to);
        if (keys)
            s = find_timers(x, x->next, to, keys);
    }
    if (s)
        return s;
    by_groups(x);
    for (uint32_t g = 0, from = 0; !s && g < x->groups; from = x->ends[g++]) {
        uint32_t n = x->ends[g] - from;
        if (!n)
            continue;
        sort_timers(x->timers + from, n);
        s = pst_timers_add(t, t->first_key_group + (int32_t)g, x->domain,
                           (const uint64_t (*)[2])x->timers + from, n);
    }
    return s;
}

static pst_status register_sorted(pst_batch *b, pst_domain domain, const pst_array *times) {
    const pst_table *t = b->t;
    sorter x = {.b = b, .domain = domain, .times = times};
    x.groups = (uint32_t)(t->last_key_group - t->first_key_group) + 1;
    size_t room = b->length < SORTED ? (size_t)b->length : SORTED;
    pst_status s = PST_OK;
    x.found = pst_scratch_take(room * (sizeof *x.found + sizeof *x.timers) +
                               (x.groups + 1) * sizeof *x.ends);
    if (!x.found)
        return PST_NO_MEMORY;
    x.timers = (uint64_t (*)[2])(void *)(x.found + room);
    x.ends = (uint32_t *)(void *)(x.timers + room);
    while (!s && x.next < b->length)
        s = register_some(&x);
    pst_scratch_drop(x.found);
    return s;
}

pst_status pst_batch_timer_register(pst_batch *b, pst_domain domain, const pst_array *times) {
    pst_status s = pst_check_times(b, domain, times);
    if (s)
        return s;
    int64_t groups = b->t->last_key_group - b->t->first_key_group + 1;
    int few = b->length < LEAST || b->length < groups / 4;
    return pst_poison(b->t,
                      few ? register_each(b, domain, times) : register_sorted(b, domain, times));
}

/* ---- firing ---------------------------------------------------------------------------------- */

/* Fires the timers from i on that lie in one key group, at most PST_TREE_RUN. */
static pst_status fire_run(pst_batch *b, pst_domain domain, const int64_t *times_ms, int64_t *i) {
    uint64_t timers[PST_TREE_RUN][2];
    uint32_t n = 0;
    int32_t group = pst_group_of(b->t, b->hash[*i]);
    while (n < PST_TREE_RUN && *i < b->length && pst_group_of(b->t, b->hash[*i]) == group) {
        timers[n][0] = pst_timer_word(times_ms[*i]);
        timers[n++][1] = b->slots[(*i)++];
    }
    return pst_timers_remove(b->t, group, domain, (const uint64_t (*)[2])timers, n);
}

static pst_status fire_all(pst_batch *b, pst_domain domain, const int64_t *times_ms) {
    pst_status s = pst_batch_usable(b);
    if (!s)
        s = pst_check_timers(b->t, domain);
    if (s || !b->of_rows)
        return s ? s : PST_INVALID;
    for (int64_t i = 0; !s && i < b->length;)
        s = fire_run(b, domain, times_ms, &i);
    return pst_poison(b->t, s);
}

pst_status pst_timers_fire_all(pst_batch *b, pst_domain domain, const int64_t *times_ms) {
    pst_clearing(b->t);
    return pst_cleared(b->t, fire_all(b, domain, times_ms));
}
