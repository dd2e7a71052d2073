#include "elements/apply.h"

#include <string.h>

#include "elements/timers.h"

int pst_mapping_make(const pst_table *t, const int32_t *columns, int32_t n, pst_mapping *m) {
    *m = (pst_mapping){.columns = columns, .n = n};
    if (n < 0 || n > PST_MAX_STATES)
        return 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t column = columns ? columns[i] : i;
        if (column < 0)
            continue;
        if (column >= t->lay.n_states || m->here >> column & 1)
            return 0;
        m->here |= UINT64_C(1) << column;
        m->taken |= UINT64_C(1) << i;
        uint8_t kind = t->lay.fields[column].kind;
        m->values |= (uint64_t)(kind == PST_VALUE || kind == PST_TIMER) << i;
    }
    return 1;
}

int pst_record_timer(const pst_table *t, const pst_record *r, const pst_mapping *m, int element,
                     pst_domain *domain, int64_t *time_ms) {
    if (t->lay.timers < 0 || r->op != PST_PUT)
        return 0;
    if (element) {
        pst_bytes e = r->key[t->schema.n_keys].bytes;
        if (e.size != PST_ELEMENT_TIMER || pst_get_big(e.data, PST_ELEMENT_ID) != PST_TIMERS_ID ||
            e.data[PST_ELEMENT_ID] > 1)
            return 0;
        *domain = (pst_domain)e.data[PST_ELEMENT_ID];
        *time_ms = pst_timer_time(pst_get_big(e.data + PST_ELEMENT_ID + 1, 8));
        return 1;
    }
    for (uint64_t left = r->changed & r->present & m->taken; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        uint64_t word = r->cells[i].word[0];
        if (pst_mapped(m, i) != t->lay.timer)
            continue;
        *domain = pst_timer_packed_domain(word);
        *time_ms = pst_timer_packed_time(word);
        return 1;
    }
    return 0;
}

/* What a row's record says of a list or map: it is void, or a list that begins later. */
static pst_status apply_marker(pst_table *t, uint32_t slot, int32_t column, const pst_cell *cell,
                               int present) {
    uint64_t *row = pst_row(t, slot), start;
    if (!present || t->lay.fields[column].kind != PST_LIST)
        return pst_row_clear(t, row, column);
    if (cell->bytes.size != sizeof start)
        return PST_CORRUPT;
    memcpy(&start, cell->bytes.data, sizeof start);
    pst_list l = pst_row_list(t, row, column);
    pst_status s = pst_list_trim_to(t, &l, start);
    if (!s)
        pst_row_list_store(t, slot, column, &l);
    return s;
}

pst_status pst_apply_column(pst_table *t, uint32_t slot, int32_t column, const pst_cell *cell,
                            int present, uint64_t here) {
    uint64_t *row = pst_row(t, slot);
    pst_kind kind = (pst_kind)t->lay.fields[column].kind;
    /* A time alone would keep a row whose values are all gone. */
    if (kind == PST_TIME && present && !pst_row_has(&t->lay, row, column - 1))
        return PST_OK;
    pst_touch(t, slot, row);
    if (kind == PST_LIST || kind == PST_MAP)
        return apply_marker(t, slot, column, cell, present);
    if (kind == PST_TIMER) {
        if (!present)
            return pst_timer_replace(t, slot, NULL);
        t->applied = slot;
        t->applied_timer = cell->word[0];
        return pst_timer_replace(t, slot, cell->word);
    }
    if (kind == PST_TIMERS || !t->lay.fields[column].width)
        return PST_OK;
    if (!present)
        return pst_row_clear(t, row, column);
    pst_status s = pst_row_put(t, row, column, cell);
    /* The record is from before the state had a time to live: it gets the time of now. Otherwise
     * its time follows, or stays. */
    int32_t time = t->lay.fields[column].time;
    if (!s && time >= 0 && !(here >> time & 1))
        pst_row_stamp(t, row, column);
    return s;
}

pst_status pst_apply_columns(pst_table *t, uint32_t slot, const pst_record *r,
                             const pst_mapping *m) {
    pst_status s = PST_OK;
    for (uint64_t left = r->changed & m->taken; !s && left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        s = pst_apply_column(t, slot, pst_mapped(m, i), &r->cells[i], (int)(r->present >> i & 1),
                             m->here);
    }
    return s;
}

pst_status pst_apply_delete(pst_table *t, uint32_t slot, const pst_mapping *m) {
    uint64_t *row = pst_row(t, slot);
    pst_status s = PST_OK;
    pst_touch(t, slot, row);
    if (t->lay.timer >= 0 && m->here >> t->lay.timer & 1)
        s = pst_timer_replace(t, slot, NULL);
    return s ? s : pst_row_delete(t, row);
}
