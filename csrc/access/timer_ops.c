/* timer_ops.c: registering, deleting and firing timers, of one key and of many.
 *
 * Timers of one time lie beside each other, in the order of their rows. So those that a batch
 * registers or fires are taken by key group and in order: one descent serves each leaf that they
 * lie in.
 */
#include <stdlib.h>

#include "access/batch.h"
#include "access/current_key.h"
#include "base/scratch.h"
#include "elements/timers.h"
#include "fetch/horizon.h"

/* Timers that are sorted together, and the fewest of a batch for which that is worth it. */
#ifndef PST_TIMERS_SORTED
#define PST_TIMERS_SORTED (1u << 14) /* tests make it small */
#define PST_TIMERS_LEAST 64
#endif
enum { SORTED = PST_TIMERS_SORTED, LEAST = PST_TIMERS_LEAST };

/* PST_INVALID, PST_POISONED. */
static pst_status check_timers(const pst_table *t, pst_domain domain) {
    if (t->poisoned)
        return PST_POISONED;
    return t->attached && t->lay.timers >= 0 && (domain == PST_EVENT || domain == PST_PROCESSING)
               ? PST_OK
               : PST_INVALID;
}

/* Whether these are the times of the batch's keys, also PST_STALE and PST_WRONG_TYPE. */
static pst_status check_times(pst_batch *b, pst_domain domain, const pst_array *times) {
    pst_status s = pst_batch_ready(b);
    if (!s)
        s = check_timers(b->t, domain);
    if (s)
        return s;
    if (times->type != PST_INT64)
        return PST_WRONG_TYPE;
    return times->length == b->length || times->length == 1 ? PST_OK : PST_INVALID;
}

/* ---- one key --------------------------------------------------------------------------------- */

pst_status pst_timer_register(pst_table *t, pst_domain domain, int64_t time_ms) {
    uint32_t slot;
    pst_status s = check_timers(t, domain);
    if (!s)
        s = pst_current_row(t, 1, &slot);
    return s ? s : pst_refused(t, 0, pst_timer_add(t, slot, domain, time_ms));
}

static pst_status remove_if_there(pst_table *t, uint32_t slot, pst_domain domain, int64_t time_ms) {
    if (slot == PST_NONE || !pst_row_has(&t->lay, pst_row(t, slot), t->lay.timers))
        return PST_OK;
    pst_status s = pst_undo_reserve(t, 1);
    if (!s)
        s = pst_timer_remove(t, slot, domain, time_ms);
    return s == PST_NOT_FOUND ? PST_OK : pst_poison(t, s);
}

static pst_status delete_timer(pst_table *t, pst_domain domain, int64_t time_ms) {
    uint32_t slot;
    pst_status s = check_timers(t, domain);
    if (!s)
        s = pst_current_row(t, 0, &slot);
    return s ? s : remove_if_there(t, slot, domain, time_ms);
}

pst_status pst_timer_delete(pst_table *t, pst_domain domain, int64_t time_ms) {
    pst_clearing(t);
    return pst_cleared(t, delete_timer(t, domain, time_ms));
}

/* ---- registering one by one ------------------------------------------------------------------ */

static pst_status register_each(pst_batch *b, pst_domain domain, const pst_array *times) {
    const int64_t *ms = (const int64_t *)times->values + times->offset;
    pst_status s = PST_OK;
    for (int64_t i = 0; !s && i < b->length; i++) {
        int64_t at = times->length == 1 ? 0 : i;
        uint32_t slot;
        if (i % PST_GROUP == 0) {
            pst_batch_prepare(b, i);
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

/* ---- registering sorted ---------------------------------------------------------------------- */

typedef struct timer {
    uint64_t word;
    uint32_t slot;
    uint32_t group; /* from the table's first one on */
} timer;

typedef struct sorter {
    pst_batch *b;
    pst_domain domain;
    const pst_array *times;
    uint32_t groups;
    int64_t next;          /* key of the batch */
    uint32_t n;            /* timers, at most SORTED: */
    timer *timers;         /* in the order of keys */
    uint64_t (*sorted)[2]; /* by key group, then by time */
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
static pst_status take_timers(sorter *x, int64_t from, int64_t to, uint64_t keys) {
    pst_batch *b = x->b;
    pst_table *t = b->t;
    const int64_t *ms = (const int64_t *)x->times->values + x->times->offset;
    pst_batch_resolve(b, to);
    pst_status s = pst_undo_reserve(t, PST_GROUP);
    for (; !s && keys; keys &= keys - 1) {
        int64_t i = from + __builtin_ctzll(keys);
        timer *f = &x->timers[x->n++];
        s = pst_batch_row(b, i, &f->slot);
        f->word = pst_timer_word(ms[x->times->length == 1 ? 0 : i]);
        f->group = (uint32_t)(pst_group_of(t, b->hash[i]) - t->first_key_group);
    }
    return s;
}

static void by_groups(sorter *x) {
    memset(x->ends, 0, (x->groups + 1) * sizeof *x->ends);
    for (uint32_t i = 0; i < x->n; i++)
        x->ends[x->timers[i].group + 1]++;
    for (uint32_t g = 0; g < x->groups; g++)
        x->ends[g + 1] += x->ends[g];
    for (uint32_t i = 0; i < x->n; i++) {
        uint64_t *to = x->sorted[x->ends[x->timers[i].group]++];
        to[0] = x->timers[i].word;
        to[1] = x->timers[i].slot;
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
            s = take_timers(x, x->next, to, keys);
    }
    if (s)
        return s;
    by_groups(x);
    for (uint32_t g = 0, from = 0; !s && g < x->groups; from = x->ends[g++]) {
        uint32_t n = x->ends[g] - from;
        if (!n)
            continue;
        sort_timers(x->sorted + from, n);
        s = pst_timers_add(t, t->first_key_group + (int32_t)g, x->domain,
                           (const uint64_t (*)[2])x->sorted + from, n);
    }
    return s;
}

static pst_status register_sorted(pst_batch *b, pst_domain domain, const pst_array *times) {
    const pst_table *t = b->t;
    sorter x = {.b = b, .domain = domain, .times = times};
    x.groups = (uint32_t)(t->last_key_group - t->first_key_group) + 1;
    size_t room = b->length < SORTED ? (size_t)b->length : SORTED;
    pst_status s = PST_OK;
    x.timers = pst_scratch_take(room * (sizeof *x.timers + sizeof *x.sorted) +
                                (x.groups + 1) * sizeof *x.ends);
    if (!x.timers)
        return PST_NO_MEMORY;
    x.sorted = (uint64_t (*)[2])(void *)(x.timers + room);
    x.ends = (uint32_t *)(void *)(x.sorted + room);
    while (!s && x.next < b->length)
        s = register_some(&x);
    pst_scratch_drop(x.timers);
    return s;
}

pst_status pst_batch_timer_register(pst_batch *b, pst_domain domain, const pst_array *times) {
    pst_status s = check_times(b, domain, times);
    if (s)
        return s;
    int64_t groups = b->t->last_key_group - b->t->first_key_group + 1;
    int few = b->length < LEAST || b->length < groups / 4;
    /* Registering again what is registered changes nothing, so all of it is done again. */
    return pst_refused(b->t, 0,
                       few ? register_each(b, domain, times) : register_sorted(b, domain, times));
}

/* ---- deleting -------------------------------------------------------------------------------- */

static pst_status delete_timers(pst_batch *b, pst_domain domain, const pst_array *times) {
    pst_status s = check_times(b, domain, times);
    if (s)
        return s;
    const int64_t *ms = (const int64_t *)times->values + times->offset;
    for (int64_t i = 0; !s && i < b->length; i++) {
        int64_t at = times->length == 1 ? 0 : i;
        if (i % PST_GROUP == 0) {
            s = pst_pause(b->t, i);
            pst_batch_prepare(b, i);
        }
        if (!s && !pst_array_is_null(times, at))
            s = remove_if_there(b->t, pst_batch_slot(b, i), domain, ms[at]);
    }
    return s;
}

pst_status pst_batch_timer_delete(pst_batch *b, pst_domain domain, const pst_array *times) {
    pst_clearing(b->t);
    return pst_cleared(b->t, delete_timers(b, domain, times));
}

/* ---- what is due ----------------------------------------------------------------------------- */

/* The earliest one that is here. PST_NOT_FOUND, PST_CORRUPT. */
static pst_status earliest_here(const pst_table *t, pst_domain domain, int64_t *time_ms) {
    pst_status status = PST_NOT_FOUND;
    for (int32_t g = t->first_key_group; g <= t->last_key_group; g++) {
        pst_tree_root root = *pst_timer_root(t, t->m, g, domain);
        pst_tree_cursor c;
        pst_tree_entry e;
        if (!root.count)
            continue;
        pst_tree_seek(&c, t->heap, pst_heap_bytes(t), &pst_timer_shape, root, NULL);
        pst_status s = pst_tree_next(&c, &e);
        if (s)
            return PST_CORRUPT;
        if (status || pst_timer_time(e.key[0]) < *time_ms)
            *time_ms = pst_timer_time(e.key[0]);
        status = PST_OK;
    }
    return status;
}

pst_status pst_timer_next(pst_table *t, pst_domain domain, int64_t *time_ms) {
    int64_t here, below;
    pst_status status = check_timers(t, domain), s = PST_NOT_FOUND;
    if (!status && !pst_horizon_is_beyond(t, domain, INT64_MAX))
        s = pst_horizon_peek(t, domain, &below);
    if (status || (s && s != PST_NOT_FOUND))
        return status ? status : s;
    status = earliest_here(t, domain, &here);
    if (status && status != PST_NOT_FOUND)
        return status;
    if (!status || !s)
        *time_ms = status || (!s && below < here) ? below : here;
    return status ? s : PST_OK;
}

int64_t pst_timers_from(const pst_table *t, pst_domain domain) {
    int64_t from = INT64_MIN, here;
    if (check_timers(t, domain))
        return from;
    from = pst_horizon_is_beyond(t, domain, INT64_MAX) ? INT64_MAX - 1 : t->m->horizon[domain].time;
    pst_status s = earliest_here(t, domain, &here);
    if (s && s != PST_NOT_FOUND)
        return INT64_MIN;
    from = !s && here < from ? here : from;
    return from < INT64_MAX ? from : INT64_MAX - 1;
}

pst_status pst_timers_passed(const pst_table *t, pst_domain domain, pst_timers_place *place) {
    pst_status s = check_timers(t, domain);
    if (s)
        return s;
    const pst_horizon *h = &t->m->horizon[domain];
    *place = (pst_timers_place){pst_timers_from(t, domain), 0, 0};
    int64_t here;
    s = earliest_here(t, domain, &here);
    /* A timer of the horizon's time that is here may come before it. */
    if (!pst_horizon_is_beyond(t, domain, INT64_MAX) && place->time_ms == h->time &&
        (s == PST_NOT_FOUND || (!s && here > h->time))) {
        place->key_group = h->key_group;
        place->hash = h->hash;
    }
    return PST_OK;
}

/* Finds them first and fetches their rows together: a row alone would be waited for. */
static pst_status collect(pst_batch *b, pst_domain domain, int64_t until_ms, int64_t most,
                          int64_t *times_ms) {
    pst_table *t = b->t;
    int64_t n = 0;
    for (int32_t g = t->first_key_group; g <= t->last_key_group && n < most; g++) {
        pst_tree_root root = *pst_timer_root(t, t->m, g, domain);
        pst_tree_cursor c;
        pst_tree_entry e;
        pst_status s = PST_OK;
        if (!root.count)
            continue;
        pst_tree_seek(&c, t->heap, pst_heap_bytes(t), &pst_timer_shape, root, NULL);
        while (n < most && (s = pst_tree_next(&c, &e)) == PST_OK) {
            int64_t time = pst_timer_time(e.key[0]);
            uint32_t slot = (uint32_t)e.key[1];
            if (time > until_ms)
                break;
            if (slot >= t->m->slots)
                return PST_CORRUPT;
            times_ms[n] = time;
            b->slots[n++] = slot;
        }
        if (s == PST_CORRUPT)
            return s;
    }
    for (int64_t i = 0; i < n; i++) {
        if (i + 2 * PST_GROUP < n)
            pst_prefetch_row(t, b->slots[i + 2 * PST_GROUP]);
        pst_batch_take_row(b, b->slots[i]);
    }
    return n ? PST_OK : PST_NOT_FOUND;
}

pst_status pst_timers_due(pst_table *t, pst_domain domain, int64_t until_ms, int64_t most,
                          int64_t *times_ms, pst_batch **batch) {
    pst_status s = check_timers(t, domain);
    pst_batch *b = NULL;
    if (!s)
        s = pst_batch_of_rows(t, most, &b);
    /* What is up to the horizon's time comes first, and then it moves on by some timers. Rows that are
     * here with timers of that very time may come before those that are not yet. */
    int64_t near_ms = until_ms;
    for (int again = 1; !s && again;) {
        again = !pst_horizon_is_beyond(t, domain, until_ms);
        near_ms = again ? t->m->horizon[domain].time : until_ms;
        s = collect(b, domain, near_ms, most, times_ms);
        again = again && s == PST_NOT_FOUND;
        if (again)
            s = pst_horizon_move(t, domain, until_ms);
    }
    until_ms = near_ms;
    if (s) {
        pst_batch_destroy(b);
        return s;
    }
    b->lined = b->guessed = b->resolved = b->length;
    t->due_until[domain] = until_ms;
    t->due_generation[domain] = t->generation;
    *batch = b;
    return PST_OK;
}

uint64_t pst_timers_missed(const pst_table *t) {
    return t->timers_missed;
}

/* ---- firing ---------------------------------------------------------------------------------- */

/* The row of timer i: the one that was found due, or what the key has where rows left since. */
static uint32_t slot_of_timer(pst_batch *b, int64_t i) {
    if (i % PST_GROUP == 0)
        pst_batch_prepare_rows(b, i);
    if (b->resolved <= i)
        pst_batch_resolve(b, i + 1);
    return pst_batch_slot(b, i);
}

static pst_status fire_timer(pst_batch *b, int64_t i, pst_domain domain, int64_t time_ms) {
    pst_status s = b->of_rows ? pst_batch_usable(b) : pst_batch_ready(b);
    if (!s)
        s = check_timers(b->t, domain);
    if (s || i < 0 || i >= b->length)
        return s ? s : PST_INVALID;
    uint32_t slot = slot_of_timer(b, i);
    if (slot == PST_NONE || !pst_row_has(&b->t->lay, pst_row(b->t, slot), b->t->lay.timers))
        return PST_NOT_FOUND;
    s = pst_undo_reserve(b->t, 1);
    if (!s)
        s = pst_timer_remove(b->t, slot, domain, time_ms);
    if (s == PST_NOT_FOUND)
        return s;
    if (s)
        return pst_poison(b->t, s);
    return pst_key_set_row(b->t, b, i);
}

pst_status pst_timer_fire(pst_batch *b, int64_t i, pst_domain domain, int64_t time_ms) {
    pst_clearing(b->t);
    return pst_cleared(b->t, fire_timer(b, i, domain, time_ms));
}

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

/* Fires those from i on up to the end of its group, of a batch whose rows left since. */
static pst_status fire_group(pst_batch *b, pst_domain domain, const int64_t *times_ms, int64_t *i) {
    pst_status s = PST_OK;
    do
        s = remove_if_there(b->t, slot_of_timer(b, *i), domain, times_ms[*i]);
    while (!s && ++*i < b->length && *i % PST_GROUP);
    return s;
}

static pst_status fire_all(pst_batch *b, pst_domain domain, const int64_t *times_ms) {
    pst_status s = b->of_rows ? pst_batch_usable(b) : pst_batch_ready(b);
    if (!s)
        s = check_timers(b->t, domain);
    if (s)
        return s;
    for (int64_t i = 0; !s && i < b->length;) {
        if (pst_pause(b->t, i))
            return PST_NO_ROOM;
        s = b->of_rows ? fire_run(b, domain, times_ms, &i) : fire_group(b, domain, times_ms, &i);
    }
    return pst_poison(b->t, s);
}

pst_status pst_timers_fire_all(pst_batch *b, pst_domain domain, const int64_t *times_ms) {
    pst_clearing(b->t);
    return pst_cleared(b->t, fire_all(b, domain, times_ms));
}
