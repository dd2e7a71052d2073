#include "ttl.h"

#include "collections.h"

pst_status pst_table_set_ttl(pst_table *t, int32_t column, const pst_ttl *ttl) {
    if (column < 0 || column >= t->lay.n_states || t->lay.fields[column].time < 0 ||
        ttl->duration_ms < 0 || ttl->granularity_ms < 0)
        return PST_INVALID;
    t->ttl[column] = *ttl;
    return PST_OK;
}

void pst_table_set_clock(pst_table *t, const pst_clock *clock) {
    t->clock = *clock;
}

void pst_row_stamp(pst_table *t, uint64_t *row, int32_t i) {
    int32_t time = t->lay.fields[i].time;
    uint64_t *field = pst_field_at(&t->lay, row, time);
    uint64_t stamp = (uint64_t)pst_ttl_stamp(t, i);
    if (!pst_row_has(&t->lay, row, time) || pst_get64(field) != stamp)
        pst_put64(field, stamp);
    pst_row_mark(t, row, time);
}

pst_status pst_row_refresh(pst_table *t, uint32_t slot, int32_t i) {
    uint64_t *row = pst_row(t, slot);
    if (!t->ttl[i].on_read || !pst_ttl_is_stale(t, i, pst_row_time(t, row, i)))
        return PST_OK;
    pst_status s = pst_undo_reserve(t, 1);
    if (s)
        return s;
    row = pst_row(t, slot);
    pst_touch(t, slot, row);
    pst_row_stamp(t, row, i);
    return PST_OK;
}

/* ---- the sweep ------------------------------------------------------------------------------ */

static pst_status expire_state(pst_table *t, uint32_t slot, int32_t i, uint64_t *looked_at,
                               uint64_t *removed) {
    uint64_t *row = pst_row(t, slot);
    if (t->lay.fields[i].kind != PST_VALUE)
        return pst_row_expire_elements(t, slot, i, looked_at, removed);
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

pst_status pst_table_expire(pst_table *t, uint64_t budget, uint64_t *removed) {
    int32_t columns[PST_MAX_STATES], n = 0;
    uint64_t looked_at = 0, gone = 0, at = t->m->ttl_sweep, slots = t->m->slots;
    pst_status s = t->poisoned ? PST_POISONED : t->attached ? PST_OK : PST_INVALID;
    for (int32_t i = 0; i < t->lay.n_states; i++)
        if (pst_ttl_horizon(t, i) != PST_NO_TIME)
            columns[n++] = i;
    for (uint64_t row = 0; !s && n && row < slots && looked_at < budget; row++, at++) {
        looked_at++;
        if (at >= slots)
            at = 0;
        if (!pst_is_live(pst_row(t, (uint32_t)at)[0]))
            continue;
        s = pst_undo_reserve(t, 1);
        for (int32_t k = 0; !s && k < n; k++)
            s = expire_state(t, (uint32_t)at, columns[k], &looked_at, &gone);
    }
    if (t->m->ttl_sweep != at)
        pst_put64(&t->m->ttl_sweep, at);
    if (removed)
        *removed = gone;
    return gone ? pst_poison(t, s) : s;
}
