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

static void store_time(pst_table *t, uint64_t *row, int32_t i, int64_t stamp) {
    int32_t time = t->lay.fields[i].time;
    uint64_t *field = pst_field_at(&t->lay, row, time);
    if (!pst_row_has(&t->lay, row, time) || pst_get64(field) != (uint64_t)stamp)
        pst_put64(field, (uint64_t)stamp);
    pst_row_mark(t, row, time);
}

void pst_row_stamp(pst_table *t, uint64_t *row, int32_t i) {
    store_time(t, row, i, pst_ttl_rewritten(t, i, pst_row_time(t, row, i)));
}

pst_status pst_row_refresh(pst_table *t, uint32_t slot, int32_t i) {
    uint64_t *row = pst_row(t, slot);
    int64_t written = pst_row_time(t, row, i), left = pst_ttl_read(t, i, written);
    if (left == written)
        return PST_OK;
    pst_clearing(t); /* of what was written: a full table can be read */
    pst_status s = pst_cleared(t, pst_undo_reserve(t, 1));
    if (s)
        return s;
    row = pst_row(t, slot);
    pst_touch(t, slot, row);
    store_time(t, row, i, left);
    return PST_OK;
}
