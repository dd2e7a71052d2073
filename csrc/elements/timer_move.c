/* timer_move.c: timers that go with their rows into other slots. */
#include <stdlib.h>

#include "elements/timers.h"

static int by_slot(const void *a, const void *b) {
    const pst_timer *x = a, *y = b;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

static const pst_domain domains[] = {PST_EVENT, PST_PROCESSING};

int pst_timers_are_many(const pst_table *t, int32_t key_group) {
    uint64_t all = 0;
    for (int d = 0; d < 2; d++)
        all += pst_timer_root(t, t->m, key_group, domains[d])->count;
    return all > PST_TIMERS_MOST;
}

int pst_timers_of_rows(const pst_table *t, int32_t key_group, uint32_t first, uint32_t last,
                       pst_timer *timers, int most) {
    int n = 0;
    if (pst_timers_are_many(t, key_group))
        return -1;
    for (int d = 0; d < 2 && n < most; d++) {
        pst_tree_root root = *pst_timer_root(t, t->m, key_group, domains[d]);
        pst_tree_cursor c;
        pst_tree_entry e;
        if (!root.count)
            continue;
        pst_tree_seek(&c, t->heap, pst_heap_bytes(t), &pst_timer_shape, root, NULL);
        while (n < most && pst_tree_next(&c, &e) == PST_OK) {
            uint32_t slot = (uint32_t)e.key[1];
            if (slot >= first && slot < last)
                timers[n++] = (pst_timer){e.key[0], slot, domains[d]};
        }
    }
    qsort(timers, (size_t)n, sizeof *timers, by_slot);
    return n;
}

uint32_t pst_timer_count(const pst_table *t, uint32_t slot) {
    const pst_row_layout *lay = &t->lay;
    uint64_t *row = pst_row(t, slot);
    if (lay->timers < 0 || !pst_row_has(lay, row, lay->timers))
        return 0;
    return pst_get32(pst_field_at(lay, row, lay->timers)) / 2;
}

pst_status pst_timers_move(pst_table *t, int32_t key_group, const pst_timer *timers, int n,
                           uint32_t to) {
    pst_status s = PST_OK;
    for (int i = 0; i < n && !s; i++) {
        pst_tree_root *at = pst_timer_root(t, t->m, key_group, timers[i].domain), root = *at;
        pst_tree_entry e = {.key = {timers[i].word, timers[i].slot}};
        s = pst_tree_remove(t, &pst_timer_shape, &root, &e);
        e.key[1] = to;
        if (!s)
            s = pst_tree_put(t, &pst_timer_shape, &root, &e);
        if (!s)
            pst_timer_store_root(at, root);
    }
    return s;
}
