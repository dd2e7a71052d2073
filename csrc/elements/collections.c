#include "elements/collections.h"

pst_status pst_check_kind(const pst_table *t, int32_t i, pst_kind kind) {
    return i >= 0 && i < t->lay.n_states && t->lay.fields[i].kind == kind ? PST_OK : PST_INVALID;
}

/* ---- cells ---------------------------------------------------------------------------------- */

pst_status pst_item_of(const pst_table *t, int32_t i, const pst_cell *cell, pst_item *item) {
    uint32_t width = t->collections[i].list.width;
    item->time = pst_ttl_stamp(t, i);
    if (t->lay.fields[i].type >= PST_STRING) {
        if (width && cell->bytes.size != width)
            return PST_WRONG_TYPE;
        item->data = cell->bytes.data;
        item->size = cell->bytes.size;
        return cell->bytes.size > PST_MAX_BYTES ? PST_TOO_LARGE : PST_OK;
    }
    /* Little-endian: the low bytes come first. */
    item->data = cell->word;
    item->size = width;
    return PST_OK;
}

void pst_item_cell(const pst_table *t, int32_t i, const pst_item *item, pst_cell *cell) {
    uint8_t type = t->lay.fields[i].type;
    if (type >= PST_STRING) {
        cell->bytes = (pst_bytes){item->data, item->size};
        return;
    }
    uint64_t aligned[2] = {0, 0};
    memcpy(aligned, item->data, item->size);
    pst_field as = {.width = (uint16_t)item->size, .type = type};
    pst_field_load(&as, aligned, cell->word);
}

void pst_entry_key(const pst_table *t, int32_t i, const pst_cell *key, pst_tree_entry *e) {
    const pst_column *c = &t->schema.states[i];
    e->key[0] = e->key[1] = 0;
    if (t->collections[i].map.key_is_ref)
        e->key_bytes = key->bytes;
    else if (c->map_key == PST_DECIMAL)
        memcpy(e->key, (uint64_t[2]){key->word[1], key->word[0]}, sizeof e->key);
    else
        e->key[0] = pst_canonical_word((pst_type)c->map_key, key->word[0]);
}

void pst_entry_key_cell(const pst_table *t, int32_t i, const pst_tree_entry *e, pst_cell *key) {
    const pst_column *c = &t->schema.states[i];
    key->word[1] = 0;
    if (t->collections[i].map.key_is_ref) {
        key->bytes = e->key_bytes;
    } else if (c->map_key == PST_DECIMAL) {
        key->word[0] = e->key[1];
        key->word[1] = e->key[0];
    } else {
        key->word[0] = e->key[0];
    }
}

pst_status pst_entry_value(const pst_table *t, int32_t i, const pst_cell *value,
                           uint64_t room[PST_TREE_MAX_VALUE_WORDS], pst_tree_entry *e) {
    const pst_tree_shape *s = &t->collections[i].map;
    e->time = pst_ttl_stamp(t, i);
    e->is_null = !value;
    if (!value)
        return PST_OK;
    if (s->value_is_ref) {
        e->value_bytes = value->bytes;
        return value->bytes.size > PST_MAX_BYTES ? PST_TOO_LARGE : PST_OK;
    }
    if (t->lay.fields[i].type != PST_FIXED) {
        e->value = value->word;
        return PST_OK;
    }
    e->value = room;
    if (value->bytes.size != s->value_words * 8u)
        return PST_WRONG_TYPE;
    memcpy(room, value->bytes.data, value->bytes.size);
    return PST_OK;
}

void pst_entry_value_cell(const pst_table *t, int32_t i, const pst_tree_entry *e, pst_cell *value) {
    const pst_tree_shape *s = &t->collections[i].map;
    if (e->is_null)
        return;
    if (s->value_is_ref) {
        value->bytes = e->value_bytes;
    } else if (t->lay.fields[i].type == PST_FIXED) {
        value->bytes = (pst_bytes){(const uint8_t *)e->value, s->value_words * 8u};
    } else {
        value->word[0] = e->value[0];
        value->word[1] = s->value_words > 1 ? e->value[1] : 0;
    }
}

/* ---- roots ---------------------------------------------------------------------------------- */

static void unmark(pst_table *t, uint64_t *row, int32_t i) {
    pst_row_set_presence(t, row, pst_presence(&t->lay, row) & ~(UINT64_C(1) << i));
}

void pst_row_list_store(pst_table *t, uint32_t slot, int32_t i, const pst_list *l) {
    uint64_t *row = pst_row(t, slot);
    pst_touch(t, slot, row);
    PST_FENCE(__ATOMIC_RELEASE);
    pst_list_store(pst_field_at(&t->lay, row, i), l);
    if (l->first)
        pst_row_mark(t, row, i);
    else if (pst_row_has(&t->lay, row, i))
        unmark(t, row, i);
}

void pst_row_map_replace(pst_table *t, uint32_t slot, int32_t i, pst_tree_root before,
                         pst_tree_root root) {
    if (!memcmp(&before, &root, sizeof root))
        return;
    uint64_t *row = pst_row(t, slot), word, below = pst_row_map_word(t, row, i) & PST_MAP_BELOW;
    memcpy(&word, &root, sizeof word);
    pst_touch(t, slot, row);
    PST_FENCE(__ATOMIC_RELEASE);
    pst_put64(pst_field_at(&t->lay, row, i), word | below);
    if (word | below)
        pst_row_mark(t, row, i);
    else
        unmark(t, row, i);
}

void pst_row_map_begin_below(pst_table *t, uint32_t slot, int32_t i) {
    uint64_t *row = pst_row(t, slot);
    pst_touch(t, slot, row);
    PST_FENCE(__ATOMIC_RELEASE);
    pst_put64(pst_field_at(&t->lay, row, i), PST_MAP_BELOW);
    pst_row_mark(t, row, i);
}

/* ---- lists ---------------------------------------------------------------------------------- */

pst_status pst_row_list_append(pst_table *t, uint32_t slot, int32_t i, const pst_item *item) {
    const pst_list_shape *s = &t->collections[i].list;
    pst_list l = pst_row_list(t, pst_row(t, slot), i);
    pst_status st = PST_OK;
    int64_t horizon = s->timed && l.first ? pst_ttl_horizon(t, i) : PST_NO_TIME;
    if (horizon != PST_NO_TIME)
        st = pst_list_trim(t, s, &l, horizon + 1, NULL);
    int trimmed = horizon != PST_NO_TIME && !st;
    if (!st)
        st = pst_list_append(t, s, &l, item);
    if (!st || trimmed)
        pst_row_list_store(t, slot, i, &l);
    return st;
}

/* ---- maps ----------------------------------------------------------------------------------- */

pst_status pst_row_map_get(pst_table *t, uint32_t slot, int32_t i, pst_tree_entry *e) {
    const uint64_t *row = pst_row(t, slot);
    pst_tree_root root = pst_row_map(t, row, i);
    pst_status st = pst_tree_find(t->heap, pst_heap_bytes(t), &t->collections[i].map, root, e);
    if (st == PST_NOT_FOUND && pst_row_map_is_below(t, row, i))
        return PST_NOT_HERE;
    if (st || e->is_gone)
        return st ? st : PST_NOT_FOUND;
    return t->collections[i].map.timed && pst_ttl_hides(t, i, e->time) ? PST_NOT_FOUND : PST_OK;
}

static int same_entry(const pst_tree_shape *s, const pst_tree_entry *a, const pst_tree_entry *b) {
    if (a->is_null || b->is_null)
        return a->is_null && b->is_null && a->is_gone == b->is_gone;
    if (s->value_is_ref)
        return a->value_bytes.size == b->value_bytes.size &&
               (!a->value_bytes.size ||
                !memcmp(a->value_bytes.data, b->value_bytes.data, a->value_bytes.size));
    return !memcmp(a->value, b->value, s->value_words * 8u);
}

/* Gives an entry the time that it leaves in place of the one that is there. An equal value that is
 * young enough keeps its time: nothing is to be written (X2). */
static int is_settled(const pst_table *t, int32_t i, pst_tree_root root, pst_tree_entry *e) {
    const pst_tree_shape *s = &t->collections[i].map;
    if (!s->timed)
        return 0;
    pst_tree_entry old = *e;
    if (pst_tree_find(t->heap, pst_heap_bytes(t), s, root, &old))
        return 0;
    e->time = pst_ttl_rewritten(t, i, old.time);
    return !pst_ttl_is_stale(t, i, old.time) && !pst_ttl_expired(t, i, old.time) &&
           same_entry(s, &old, e);
}

pst_status pst_row_map_append(pst_table *t, uint32_t slot, int32_t i, const pst_tree_entry *e,
                              uint32_t more) {
    pst_tree_root before = pst_row_map(t, pst_row(t, slot), i), root = before;
    pst_status st = pst_tree_append(t, &t->collections[i].map, &root, e, more);
    pst_row_map_replace(t, slot, i, before, root); /* also where it was refused memory (TR7) */
    return st;
}

pst_status pst_row_map_append_run(pst_table *t, uint32_t slot, int32_t i, const pst_tree_entry *e,
                                  uint32_t n, uint32_t more, uint32_t *done) {
    pst_tree_root before = pst_row_map(t, pst_row(t, slot), i), root = before;
    pst_status st = pst_tree_append_run(t, &t->collections[i].map, &root, e, n, more, done);
    pst_row_map_replace(t, slot, i, before, root);
    return st;
}

pst_status pst_row_map_put(pst_table *t, uint32_t slot, int32_t i, const pst_tree_entry *e) {
    pst_tree_root before = pst_row_map(t, pst_row(t, slot), i), root = before;
    pst_tree_entry timed = *e;
    if (is_settled(t, i, before, &timed))
        return PST_OK;
    pst_status st = pst_tree_put(t, &t->collections[i].map, &root, &timed);
    pst_row_map_replace(t, slot, i, before, root); /* also where it was refused memory (TR7) */
    if (st)
        return st;
    t->entries_made += root.count - before.count;
    return PST_OK;
}

/* Of a map whose other entries lie in files: what is older there is to be seen no more. */
static pst_status remove_below(pst_table *t, uint32_t slot, int32_t i, const pst_tree_entry *e) {
    const pst_tree_shape *s = &t->collections[i].map;
    pst_tree_root before = pst_row_map(t, pst_row(t, slot), i), root = before;
    pst_tree_entry old = *e, gone = *e;
    pst_status st = pst_tree_find(t->heap, pst_heap_bytes(t), s, root, &old);
    if (st && st != PST_NOT_FOUND)
        return st;
    if (!st && old.is_gone)
        return PST_NOT_FOUND;
    int hidden = !st && s->timed && pst_ttl_hides(t, i, old.time);
    gone.is_null = gone.is_gone = 1;
    gone.time = s->timed ? PST_NO_TIME : 0;
    st = pst_tree_put(t, s, &root, &gone);
    pst_row_map_replace(t, slot, i, before, root); /* also where it was refused memory (TR7) */
    if (st)
        return st;
    return hidden ? PST_NOT_FOUND : PST_OK;
}

pst_status pst_row_map_remove(pst_table *t, uint32_t slot, int32_t i, const pst_tree_entry *e) {
    if (pst_row_map_is_below(t, pst_row(t, slot), i))
        return remove_below(t, slot, i, e);
    const pst_tree_shape *s = &t->collections[i].map;
    pst_tree_root before = pst_row_map(t, pst_row(t, slot), i), root = before;
    pst_tree_entry old = *e;
    pst_status st = pst_tree_find(t->heap, pst_heap_bytes(t), s, root, &old);
    if (st)
        return st;
    int hidden = s->timed && pst_ttl_hides(t, i, old.time);
    st = pst_tree_remove(t, s, &root, e);
    if (st)
        return st;
    pst_row_map_replace(t, slot, i, before, root);
    return hidden ? PST_NOT_FOUND : PST_OK;
}

/* The elements of a timed list or map that are not hidden. */
static pst_status count_visible(const pst_table *t, const uint64_t *row, int32_t i,
                                uint64_t *count) {
    const pst_collection *own = &t->collections[i];
    pst_status st;
    *count = 0;
    if (t->lay.fields[i].kind == PST_LIST) {
        pst_list l = pst_row_list(t, row, i);
        pst_list_cursor c;
        pst_item item;
        pst_list_seek(&c, t->heap, pst_heap_bytes(t), &own->list, &l, 0);
        while ((st = pst_list_next(&c, &item, NULL)) == PST_OK)
            *count += !pst_ttl_hides(t, i, item.time);
    } else {
        pst_tree_cursor c;
        pst_tree_entry e;
        pst_tree_seek(&c, t->heap, pst_heap_bytes(t), &own->map, pst_row_map(t, row, i), NULL);
        while ((st = pst_tree_next(&c, &e)) == PST_OK)
            *count += !pst_ttl_hides(t, i, e.time);
    }
    return st == PST_NOT_FOUND ? PST_OK : st;
}

pst_status pst_row_count(pst_table *t, uint32_t slot, int32_t i, uint64_t *count) {
    const uint64_t *row = pst_row(t, slot);
    *count = 0;
    if (!pst_row_has(&t->lay, row, i))
        return PST_OK;
    if (t->lay.fields[i].kind == PST_MAP && pst_row_map_is_below(t, row, i))
        return PST_NOT_HERE;
    if (pst_ttl_is_set(t, i))
        return count_visible(t, row, i, count);
    if (t->lay.fields[i].kind == PST_LIST) {
        pst_list l = pst_row_list(t, row, i);
        *count = pst_list_count(t->heap, pst_heap_bytes(t), &l);
    } else {
        *count = pst_row_map(t, row, i).count;
    }
    return PST_OK;
}
