/* sweep.c: what has expired is taken away, some at a time. */
#include "elements/collections.h"

enum { LOOKS = 4 }; /* for a row or an entry that was made */

static pst_status expire_value(pst_table *t, uint32_t slot, int32_t i, uint64_t *removed) {
    uint64_t *row = pst_row(t, slot);
    if (!pst_row_has(&t->lay, row, i))
        return PST_OK;
    int64_t written = pst_row_time(t, row, i);
    if (written == PST_NO_TIME) {
        pst_touch(t, slot, row);
        pst_row_stamp(t, row, i);
        return PST_OK;
    }
    if (!pst_ttl_expired(t, i, written))
        return PST_OK;
    pst_touch(t, slot, row);
    ++*removed;
    return pst_row_clear(t, row, i);
}

/* Sweeps the row at the place, from the map in which it was left, if any. REQUIRES: room for a
 * touch. */
static pst_status expire_row(pst_table *t, const int32_t *columns, int32_t n, pst_sweep *s) {
    uint32_t slot = (uint32_t)s->at.slot;
    int32_t k = 0, left_in = (int32_t)s->at.column - 1;
    pst_status st = PST_OK;
    while (k < n && columns[k] < left_in)
        k++;
    if (k == n || columns[k] != left_in)
        s->at.column = 0;
    for (; !st && k < n; k++) {
        st = t->lay.fields[columns[k]].kind == PST_VALUE
                 ? expire_value(t, slot, columns[k], &s->removed)
                 : pst_row_expire_elements(t, slot, columns[k], s);
        if (s->at.column)
            break;
    }
    return st;
}

/* Rows of the open epoch that were not there before it, nor below, and entries. */
static uint64_t made(const pst_table *t) {
    return pst_made_rows(t) + t->entries_made;
}

static void load_place(const pst_table *t, pst_sweep_place *at) {
    uint64_t slots = t->m->slots;
    pst_get_words((uint64_t *)at, (const uint64_t *)&t->h->sweep, sizeof *at / 8);
    if (at->column > (uint32_t)t->lay.n_states || at->size > PST_SWEEP_KEY ||
        (at->column && t->lay.fields[at->column - 1].kind != PST_MAP))
        at->column = 0;
    /* Where each epoch has a table of its own, restored from files, sweeps begin at different
     * places. */
    if (at->slot == PST_NONE && slots)
        at->slot =
            pst_meta_of(t, t->h->sealed)->lineage.epoch * UINT64_C(0x9E3779B97F4A7C15) % slots;
}

static void store_place(pst_table *t, const pst_sweep_place *at) {
    size_t words = offsetof(pst_sweep_place, key) / 8 + (at->column ? (at->size + 7) / 8 : 0);
    if (memcmp(at, &t->h->sweep, words * 8) != 0)
        pst_put_words((uint64_t *)&t->h->sweep, (const uint64_t *)at, words);
}

static pst_status expire(pst_table *t, uint64_t budget, uint64_t *removed) {
    int32_t columns[PST_MAX_STATES], n = 0;
    uint64_t slots = t->m->slots;
    pst_sweep s = {.removed = 0};
    pst_status st = t->poisoned ? PST_POISONED : t->attached ? PST_OK : PST_INVALID;
    if (st)
        return st;
    load_place(t, &s.at);
    if (__builtin_add_overflow(budget, LOOKS * made(t), &s.left))
        s.left = UINT64_MAX;
    t->entries_made = 0;
    for (int32_t i = 0; i < t->lay.n_states; i++)
        if (pst_ttl_horizon(t, i) != PST_NO_TIME)
            columns[n++] = i;
    /* Between rows a sweep may end without harm. */
    for (uint64_t rows = 0; n && rows < slots && s.left; rows++) {
        if (s.at.slot >= slots)
            s.at.slot = 0;
        st = pst_undo_reserve(t, 1);
        if (st) {
            t->detail.sys_errno = t->arena.last_errno;
            break;
        }
        pst_sweep_look(&s, 1);
        if (pst_is_live(pst_row(t, (uint32_t)s.at.slot)[0]))
            st = pst_poison(t, expire_row(t, columns, n, &s));
        else
            s.at.column = 0;
        if (st || s.at.column)
            break;
        s.at.slot++;
    }
    store_place(t, &s.at);
    if (removed)
        *removed = s.removed;
    return st;
}

pst_status pst_table_expire(pst_table *t, uint64_t budget, uint64_t *removed) {
    pst_clearing(t);
    return pst_cleared(t, expire(t, budget, removed));
}
