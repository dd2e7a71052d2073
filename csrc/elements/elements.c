#include "elements/elements.h"

#include "elements/timers.h"
#include "table/ttl.h"

/* The row that the element belongs to; made if it is to be put. Most elements follow one of the
 * same row, whose slot is passed in. */
static pst_status row_of(pst_table *t, const pst_key *key, int make, uint32_t *slot) {
    const uint64_t *row = *slot == PST_NONE ? NULL : pst_row(t, *slot);
    if (row && pst_is_live(row[0]) && pst_row_matches(t, row, key))
        return PST_OK;
    if (make)
        return pst_row_make(t, key, slot);
    *slot = pst_index_find(t, key);
    return PST_OK;
}

/* The record's column that is the table's column i; -1: there is none. */
static int32_t source_of(int32_t i, const int32_t *columns, int32_t n) {
    if (!columns)
        return i < n ? i : -1;
    while (--n >= 0 && columns[n] != i)
        ;
    return n;
}

/* What a put carries of column i, NULL for nothing or for a null, and the time beside it. */
static const pst_cell *value_of(const pst_record *r, int32_t i, int64_t *time) {
    uint64_t bit = UINT64_C(1) << i, after = bit << 1;
    *time = PST_NO_TIME;
    if (r->changed & r->present & after)
        *time = (int64_t)r->cells[i + 1].word[0];
    return r->changed & r->present & bit ? &r->cells[i] : NULL;
}

static pst_status apply_items(pst_table *t, uint32_t slot, int32_t i, uint64_t seq,
                              pst_bytes blob) {
    const pst_list_shape *s = &t->collections[i].list;
    pst_list l = pst_row_list(t, pst_row(t, slot), i);
    pst_packed p;
    pst_item item;
    pst_status st = pst_packed_open(&p, s, blob);
    if (!st && !l.first)
        l.end = seq;
    if (!st && seq > l.end)
        return PST_CORRUPT;
    for (; !st && seq < l.end; seq++)
        st = pst_packed_next(&p, &item); /* the list has it already */
    if (st)
        return st == PST_NOT_FOUND ? PST_OK : st;
    st = pst_list_append_packed(t, s, &l, &p, pst_ttl_stamp(t, i));
    if (st)
        return st;
    if (l.first)
        pst_row_list_store(t, slot, i, &l);
    return PST_OK;
}

static pst_status apply_entry(pst_table *t, uint32_t slot, int32_t i, pst_bytes key, int put,
                              const pst_cell *value, int64_t time, uint32_t more) {
    const pst_tree_shape *s = &t->collections[i].map;
    uint64_t room[PST_TREE_MAX_VALUE_WORDS];
    pst_tree_entry e = {.time = time};
    uint32_t size = s->key_words * 8u;
    if (s->key_is_ref)
        e.key_bytes = key;
    else if (key.size != size)
        return put ? PST_CORRUPT : PST_OK;
    for (int k = 0; !s->key_is_ref && k < s->key_words; k++)
        e.key[k] = pst_get_big(key.data + 8 * k, 8);
    if (!put) {
        pst_status st = pst_row_map_remove(t, slot, i, &e);
        return st == PST_NOT_FOUND ? PST_OK : st;
    }
    pst_status st = pst_entry_value(t, i, value, room, &e);
    if (time != PST_NO_TIME)
        e.time = time;
    return st ? st : pst_row_map_append(t, slot, i, &e, more);
}

/* An element stays one, also where it is a row's only timer: files have it so. */
static pst_status apply_timer(pst_table *t, const pst_key *key, pst_bytes rest, int put,
                              uint32_t *slot) {
    if (rest.size != 9 || rest.data[0] > 1)
        return put ? PST_CORRUPT : PST_OK;
    int64_t time_ms = pst_timer_time(pst_get_big(rest.data + 1, 8));
    pst_domain domain = (pst_domain)rest.data[0];
    pst_status s = row_of(t, key, put, slot);
    if (s || *slot == PST_NONE)
        return s;
    int in_record = *slot == t->applied;
    /* The element goes because the record of the row has the timer now. */
    if (!put && in_record && pst_timer_is_packed(t->applied_timer, domain, time_ms))
        return PST_OK;
    s = put ? pst_timer_add(t, *slot, domain, time_ms)
            : pst_timer_remove(t, *slot, domain, time_ms);
    if (!s && !in_record && t->lay.timer >= 0)
        pst_timer_set_apart(t, *slot);
    return s == PST_NOT_FOUND ? PST_OK : s;
}

/* The list or map of that id; -1: there is none. */
static int32_t column_of(const pst_table *t, uint32_t id) {
    int32_t i = t->lay.n_states - 1;
    while (i >= 0 && ((t->lay.fields[i].kind != PST_LIST && t->lay.fields[i].kind != PST_MAP) ||
                      t->collections[i].id != id))
        i--;
    return i;
}

pst_status pst_element_apply(pst_table *t, const pst_key *key, const pst_record *r,
                             const int32_t *columns, int32_t n_columns, uint32_t more,
                             uint32_t *slot) {
    pst_bytes element = r->key[t->schema.n_keys].bytes;
    if (element.size < PST_ELEMENT_ID)
        return PST_CORRUPT;
    uint32_t id = (uint32_t)pst_get_big(element.data, PST_ELEMENT_ID);
    pst_bytes rest = {element.data + PST_ELEMENT_ID, element.size - PST_ELEMENT_ID};
    const pst_cell *value = NULL;
    int64_t time = PST_NO_TIME;
    if (id == PST_TIMERS_ID)
        return t->lay.timers < 0 ? PST_OK : apply_timer(t, key, rest, r->op == PST_PUT, slot);
    int32_t i = column_of(t, id), from = i < 0 ? -1 : source_of(i, columns, n_columns);
    if (i < 0)
        return PST_OK;
    int is_list = t->lay.fields[i].kind == PST_LIST, put = r->op == PST_PUT;
    if (put) {
        value = from < 0 ? NULL : value_of(r, from, &time);
        if (from < 0 || !(r->changed >> from & 1) || (is_list && (!value || rest.size != 8)))
            return PST_CORRUPT;
    } else if (is_list) {
        return PST_OK; /* runs of items are never taken back */
    }
    /* A run without items makes no row: it would hold nothing. */
    pst_status s = row_of(t, key, put && !(is_list && value->bytes.size <= 1), slot);
    if (s || *slot == PST_NONE)
        return s;
    if (is_list)
        return apply_items(t, *slot, i, pst_get_big(rest.data, 8), value->bytes);
    return apply_entry(t, *slot, i, rest, put, value, time, more);
}
