#include "elements/timers.h"

#include "table/undo.h"

const pst_tree_shape pst_timer_shape = {.key_words = 2};

static int32_t group_of_row(const pst_table *t, const uint64_t *row) {
    return pst_group_of(t, pst_row_hash(t, row));
}

/* Adds `by` to the row's count of timers. */
static void count(pst_table *t, uint32_t slot, int32_t by) {
    uint64_t *row = pst_row(t, slot);
    int32_t i = t->lay.timers;
    pst_touch(t, slot, row);
    void *field = pst_field_at(&t->lay, row, i);
    uint32_t now = pst_row_has(&t->lay, row, i) ? pst_get32(field) : 0;
    now += (uint32_t)by;
    pst_put32(field, now);
    if (now)
        pst_row_mark(t, row, i);
    else
        pst_row_set_presence(t, row, pst_presence(&t->lay, row) & ~(UINT64_C(1) << i));
}

pst_status pst_timer_add(pst_table *t, uint32_t slot, pst_domain domain, int64_t time_ms) {
    pst_tree_root *at = pst_timer_root(t, t->m, group_of_row(t, pst_row(t, slot)), domain);
    pst_tree_root root = *at;
    pst_tree_entry e = {.key = {pst_timer_word(time_ms), slot}};
    pst_status s = pst_tree_put(t, &pst_timer_shape, &root, &e);
    if (s || root.count == at->count)
        return s;
    pst_timer_store_root(at, root);
    count(t, slot, 1);
    if (time_ms <= t->due_until[domain])
        t->timers_missed++;
    return PST_OK;
}

pst_status pst_timer_remove(pst_table *t, uint32_t slot, pst_domain domain, int64_t time_ms) {
    pst_tree_root *at = pst_timer_root(t, t->m, group_of_row(t, pst_row(t, slot)), domain);
    pst_tree_root root = *at;
    pst_tree_entry e = {.key = {pst_timer_word(time_ms), slot}};
    pst_status s = pst_tree_remove(t, &pst_timer_shape, &root, &e);
    if (s)
        return s;
    pst_timer_store_root(at, root);
    count(t, slot, -1);
    return PST_OK;
}

/* ---- many ------------------------------------------------------------------------------------ */

/* Brings the rows of a run into cache, and reserves for their touches. */
static pst_status prepare_run(pst_table *t, const uint64_t (*timers)[2], uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        pst_prefetch_row(t, (uint32_t)timers[i][1]);
    return pst_undo_reserve(t, n);
}

pst_status pst_timers_add(pst_table *t, int32_t key_group, pst_domain domain,
                          const uint64_t (*timers)[2], uint32_t n) {
    pst_tree_root *at = pst_timer_root(t, t->m, key_group, domain);
    for (uint32_t from = 0, done; from < n; from += done) {
        uint32_t most = n - from < PST_TREE_RUN ? n - from : PST_TREE_RUN;
        pst_tree_root root = *at;
        uint64_t fresh;
        pst_status s = prepare_run(t, timers + from, most);
        if (!s)
            s = pst_tree_put_run(t, &pst_timer_shape, &root, timers + from, most, &done, &fresh);
        if (s)
            return s;
        if (!fresh)
            continue;
        pst_timer_store_root(at, root);
        for (uint32_t i = 0; i < done; i++) {
            if (!(fresh >> i & 1))
                continue;
            count(t, (uint32_t)timers[from + i][1], 1);
            if (pst_timer_time(timers[from + i][0]) <= t->due_until[domain])
                t->timers_missed++;
        }
    }
    return PST_OK;
}

pst_status pst_timers_remove(pst_table *t, int32_t key_group, pst_domain domain,
                             const uint64_t (*timers)[2], uint32_t n) {
    pst_tree_root *at = pst_timer_root(t, t->m, key_group, domain);
    for (uint32_t from = 0, done; from < n; from += done) {
        uint32_t most = n - from < PST_TREE_RUN ? n - from : PST_TREE_RUN;
        pst_tree_root root = *at;
        pst_status s = prepare_run(t, timers + from, most);
        if (!s)
            s = pst_tree_remove_run(t, &pst_timer_shape, &root, timers + from, most, &done);
        if (s == PST_NOT_FOUND) {
            done = 1;
            continue;
        }
        if (s)
            return s;
        pst_timer_store_root(at, root);
        for (uint32_t i = 0; i < done; i++)
            count(t, (uint32_t)timers[from + i][1], -1);
    }
    return PST_OK;
}
