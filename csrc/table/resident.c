#include "table/resident.h"

#include "memory/size_class.h"
#include "memory/span.h"

pst_status pst_admit_begin(pst_table *t, const pst_key *key, uint32_t *slot, int *here) {
    uint64_t made = t->reused + t->m->slots;
    pst_status s = pst_row_make(t, key, slot);
    *here = !s && t->reused + t->m->slots == made;
    if (s || *here)
        return s;
    t->admitted++;
    t->filling++;
    if (t->heat_wanted < t->row_capacity)
        (void)pst_heat_reserve(t); /* a hint */
    return PST_OK;
}

int pst_admit_end(pst_table *t, uint32_t slot) {
    uint64_t *row = pst_row(t, slot);
    t->filling--;
    if (!pst_is_live(row[0])) {
        t->deaths = 1;
        t->vain++;
        return 0;
    }
    PST_FENCE(__ATOMIC_RELEASE);
    pst_put64(row, pst_make_header((uint32_t)row[0], 0, (uint32_t)t->h->active));
    pst_heat_set(t, slot, 1);
    return 1;
}

void pst_admit_drop(pst_table *t, uint32_t slot) {
    uint64_t *row = pst_row(t, slot);
    uint32_t birth = t->birth;
    t->filling--;
    t->birth = pst_admitted_birth(t); /* so that freeing needs no room */
    (void)pst_row_delete(t, row);
    t->birth = birth;
    pst_put64(row, pst_make_header((uint32_t)row[0], 0, (uint32_t)t->h->active));
    t->deaths = 1;
}

pst_status pst_expel(pst_table *t, uint32_t slot) {
    uint64_t *row = pst_row(t, slot);
    pst_touch(t, slot, row);
    return pst_poison(t, pst_row_delete(t, row));
}

pst_status pst_heat_reserve(pst_table *t) {
    uint64_t slots = t->row_capacity;
    if (pst_is_whole(t) || t->heat_wanted >= slots)
        return PST_OK;
    t->heat_wanted = slots;
    pst_status s = pst_arena_commit(&t->arena, PST_SPACE_HEAT, slots / PST_HEAT_SLOTS + 1);
    uint64_t have = t->h->committed[PST_SPACE_HEAT] * PST_HEAT_SLOTS;
    t->heat = pst_space(&t->arena, PST_SPACE_HEAT);
    t->heat_slots = have < UINT32_MAX ? (uint32_t)have : UINT32_MAX;
    return s;
}

/* ---- what lies below ------------------------------------------------------------------------- */

/* That rows may lie below is said of all epochs that can be returned to or read: it is never
 * wrong. That none do is true from the open epoch on. */
void pst_table_set_whole(pst_table *t, int whole) {
    if (whole) {
        pst_put32(&t->m->whole, 1);
        return;
    }
    for (uint64_t e = t->h->active;; e--) {
        pst_meta *m = pst_meta_of(t, e);
        /* Of the timers of rows below nothing is known yet. */
        for (int d = 0; d < 2 && m->whole; d++)
            pst_horizon_store(&m->horizon[d], pst_horizon_at(INT64_MIN));
        pst_put32(&m->whole, 0);
        if (e == t->h->floor)
            break;
    }
    (void)pst_heat_reserve(t); /* a hint */
}

void pst_table_set_steps(pst_table *t, int steps) {
    t->steps = steps;
}

int pst_table_passed(const pst_table *t) {
    return t->arena.passed != 0;
}

void pst_table_spoil(pst_table *t) {
    (void)pst_poison(t, PST_LIMIT);
}

int pst_table_is_whole(const pst_table *t) {
    return pst_is_whole(t);
}

void pst_table_get_resident(const pst_table *t, pst_resident *resident) {
    const pst_meta *m = t->m;
    const pst_ring *slots = &m->rings[PST_RING_SLOTS];
    uint64_t taken = pst_span_taken_bytes(t), listed = 0;
    uint64_t index = m->index_granules * PST_GRANULE;
    for (uint32_t c = 0; c < PST_CLASSES; c++) {
        uint32_t names = m->rings[c].tail - m->rings[c].head;
        listed += (names > m->stale[c] ? names - m->stale[c] : 0) * pst_class_size(c);
    }
    *resident = (pst_resident){
        .rows = m->live,
        .row_bytes = m->live * t->lay.row_size,
        .index_bytes = index,
        .block_bytes = taken > listed + index ? taken - listed - index : 0,
        .free_rows = slots->sealed_tail[2] - slots->head + (t->row_capacity - m->slots),
        .free_block_bytes = listed,
    };
}
