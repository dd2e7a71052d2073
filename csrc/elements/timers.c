#include "elements/timers.h"

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
