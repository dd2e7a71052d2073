#include "table/ttl.h"

#include "table/undo.h"

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
    pst_clearing(t); /* of what was written: a full table can be read */
    pst_status s = pst_cleared(t, pst_undo_reserve(t, 1));
    if (s)
        return s;
    row = pst_row(t, slot);
    pst_touch(t, slot, row);
    pst_row_stamp(t, row, i);
    return PST_OK;
}
