#include "elements.h"

#include "timers.h"
#include "ttl.h"

/* The row that the element belongs to; made if it is to be put. */
static pst_status row_of(pst_table *t, const pst_key *key, int make, uint32_t *slot) {
    *slot = pst_index_find(t, key);
    return *slot == PST_NONE && make ? pst_row_insert(t, key, slot) : PST_OK;
}

/* The value of a record that carries one column, or one and its time. */
static const pst_cell *value_of(const pst_record *r, int64_t *time) {
    uint64_t rest = r->changed & (r->changed - 1);
    *time = PST_NO_TIME;
    if (!r->changed)
        return NULL;
    if (rest & r->present)
        *time = (int64_t)r->cells[__builtin_ctzll(rest)].word[0];
    int i = __builtin_ctzll(r->changed);
    return r->present >> i & 1 ? &r->cells[i] : NULL;
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
    for (; !st && (st = pst_packed_next(&p, &item)) == PST_OK; seq++) {
        if (seq < l.end)
            continue;
        if (!p.timed)
            item.time = pst_ttl_stamp(t, i);
        st = pst_list_append(t, s, &l, &item);
    }
    if (st != PST_NOT_FOUND)
        return st;
    if (l.first)
        pst_row_list_store(t, slot, i, &l);
    return PST_OK;
}

static pst_status apply_entry(pst_table *t, uint32_t slot, int32_t i, pst_bytes key,
                              const pst_cell *value, int64_t time) {
    const pst_tree_shape *s = &t->collections[i].map;
    uint64_t room[PST_TREE_MAX_VALUE_WORDS];
    pst_tree_entry e = {.time = time};
    uint32_t size = s->key_words * 8u;
    if (s->key_is_ref)
        e.key_bytes = key;
    else if (key.size != size)
        return PST_CORRUPT;
    for (int k = 0; !s->key_is_ref && k < s->key_words; k++)
        e.key[k] = pst_get_big(key.data + 8 * k, 8);
    if (!value) {
        pst_status st = pst_row_map_remove(t, slot, i, &e);
        return st == PST_NOT_FOUND ? PST_OK : st;
    }
    pst_status st = pst_entry_value(t, i, value, room, &e);
    if (time != PST_NO_TIME)
        e.time = time;
    return st ? st : pst_row_map_store(t, slot, i, &e);
}

static pst_status apply_timer(pst_table *t, const pst_key *key, pst_bytes rest, int put) {
    uint32_t slot;
    if (rest.size != 9 || rest.data[0] > 1)
        return PST_CORRUPT;
    int64_t time_ms = pst_timer_time(pst_get_big(rest.data + 1, 8));
    pst_status s = row_of(t, key, put, &slot);
    if (s || slot == PST_NONE)
        return s;
    if (put)
        return pst_timer_add(t, slot, (pst_domain)rest.data[0], time_ms);
    s = pst_timer_remove(t, slot, (pst_domain)rest.data[0], time_ms);
    return s == PST_NOT_FOUND ? PST_OK : s;
}

pst_status pst_element_apply(pst_table *t, const pst_key *key, const pst_record *r) {
    pst_bytes element = r->key[t->schema.n_keys].bytes;
    if (element.size < 4)
        return PST_CORRUPT;
    uint32_t id = (uint32_t)pst_get_big(element.data, 4), slot;
    pst_bytes rest = {element.data + 4, element.size - 4};
    int64_t time;
    const pst_cell *value = value_of(r, &time);
    if (id == PST_TIMERS_ID)
        return t->lay.timers < 0 ? PST_OK : apply_timer(t, key, rest, r->op == PST_PUT);
    int32_t i = 0;
    while (i < t->lay.n_states && (t->lay.fields[i].kind == PST_VALUE ||
                                   t->lay.fields[i].kind > PST_MAP || t->collections[i].id != id))
        i++;
    if (i == t->lay.n_states)
        return PST_OK;
    if (r->op == PST_PUT && !value)
        return PST_CORRUPT;
    pst_status s = row_of(t, key, value != NULL, &slot);
    if (s || slot == PST_NONE)
        return s;
    if (t->lay.fields[i].kind == PST_MAP)
        return apply_entry(t, slot, i, rest, value, time);
    if (!value || rest.size != 8)
        return PST_CORRUPT;
    return apply_items(t, slot, i, pst_get_big(rest.data, 8), value->bytes);
}
