/* timer_ops.c: registering, deleting and firing timers, of one key and of many. */
#include "access/single.h"
#include "access/timer_batch.h"

pst_status pst_check_timers(const pst_table *t, pst_domain domain) {
    if (t->poisoned)
        return PST_POISONED;
    return t->attached && t->lay.timers >= 0 && (domain == PST_EVENT || domain == PST_PROCESSING)
               ? PST_OK
               : PST_INVALID;
}

/* ---- one key -------------------------------------------------------------------------------- */

pst_status pst_timer_register(pst_table *t, pst_domain domain, int64_t time_ms) {
    uint32_t slot;
    pst_status s = pst_check_timers(t, domain);
    if (!s)
        s = pst_current_row(t, 1, &slot);
    return s ? s : pst_poison(t, pst_timer_add(t, slot, domain, time_ms));
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
    pst_status s = pst_check_timers(t, domain);
    if (!s)
        s = pst_current_row(t, 0, &slot);
    return s ? s : remove_if_there(t, slot, domain, time_ms);
}

pst_status pst_timer_delete(pst_table *t, pst_domain domain, int64_t time_ms) {
    pst_clearing(t);
    return pst_cleared(t, delete_timer(t, domain, time_ms));
}

/* ---- many ----------------------------------------------------------------------------------- */

static pst_status delete_timers(pst_batch *b, pst_domain domain, const pst_array *times) {
    pst_status s = pst_check_times(b, domain, times);
    if (s)
        return s;
    const int64_t *ms = (const int64_t *)times->values + times->offset;
    for (int64_t i = 0; !s && i < b->length; i++) {
        int64_t at = times->length == 1 ? 0 : i;
        if (i % PST_GROUP == 0)
            pst_batch_bring(b, i);
        if (!pst_array_is_null(times, at))
            s = remove_if_there(b->t, pst_batch_slot(b, i), domain, ms[at]);
    }
    return s;
}

pst_status pst_batch_timer_delete(pst_batch *b, pst_domain domain, const pst_array *times) {
    pst_clearing(b->t);
    return pst_cleared(b->t, delete_timers(b, domain, times));
}

/* ---- firing --------------------------------------------------------------------------------- */

pst_status pst_timer_next(const pst_table *t, pst_domain domain, int64_t *time_ms) {
    pst_status found = pst_check_timers(t, domain);
    if (found)
        return found;
    found = PST_NOT_FOUND;
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
        if (found || pst_timer_time(e.key[0]) < *time_ms)
            *time_ms = pst_timer_time(e.key[0]);
        found = PST_OK;
    }
    return found;
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
    pst_status s = pst_check_timers(t, domain);
    pst_batch *b = NULL;
    if (!s)
        s = pst_batch_of_rows(t, most, &b);
    if (!s)
        s = collect(b, domain, until_ms, most, times_ms);
    if (s) {
        pst_batch_destroy(b);
        return s;
    }
    b->lined = b->guessed = b->resolved = b->length;
    t->due_until[domain] = until_ms;
    *batch = b;
    return PST_OK;
}

uint64_t pst_timers_missed(const pst_table *t) {
    return t->timers_missed;
}

static pst_status fire_timer(pst_batch *b, int64_t i, pst_domain domain, int64_t time_ms) {
    pst_status s = pst_batch_usable(b);
    if (!s)
        s = pst_check_timers(b->t, domain);
    if (s || !b->of_rows || i < 0 || i >= b->length)
        return s ? s : PST_INVALID;
    if (i % PST_GROUP == 0)
        pst_batch_bring_rows(b, i);
    s = pst_undo_reserve(b->t, 1);
    if (!s)
        s = pst_timer_remove(b->t, b->slots[i], domain, time_ms);
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
