/* current_elements.c: the list or map of one key, and walks over them. */
#include <string.h>

#include "access/batch.h"
#include "access/current_key.h"
#include "base/mem.h"
#include "elements/collections.h"
#include "fetch/entries.h"
#include "fetch/items.h"
#include "fetch/used.h"
#include "table/ttl.h"

struct pst_elements {
    pst_table *t;
    int32_t column;
    pst_kind kind;
    int ended;
    int is_null;          /* the entry that was given last has no value */
    uint32_t slot;        /* of the current key; PST_NONE in a walk over a batch's row */
    pst_items *items;     /* of a list of which some lie in files */
    pst_entries *entries; /* likewise of a map */
    pst_tree_root root;   /* of a map of which all lies here */
    union {
        pst_list_cursor list;
        pst_tree_cursor map;
    } at;
};

static pst_status row_of(pst_table *t, int32_t column, pst_kind kind, int make, uint32_t *slot) {
    pst_status s = pst_check_kind(t, column, kind);
    return s ? s : pst_current_row(t, make, slot);
}

pst_status pst_list_add(pst_table *t, int32_t column, const pst_cell *cell) {
    uint32_t slot;
    pst_item item;
    pst_status s = pst_check_kind(t, column, PST_LIST);
    if (!s)
        s = pst_item_of(t, column, cell, &item);
    if (!s)
        s = pst_current_row(t, 1, &slot);
    return s ? s : pst_refused(t, 0, pst_row_list_append(t, slot, column, &item));
}

pst_status pst_map_get(pst_table *t, int32_t column, const pst_cell *key, pst_cell *value,
                       int *is_null) {
    uint32_t slot;
    pst_tree_entry e = {.is_null = 0};
    pst_status s = row_of(t, column, PST_MAP, 0, &slot);
    if (s)
        return s;
    if (slot == PST_NONE)
        return PST_NOT_FOUND;
    pst_entry_key(t, column, key, &e);
    pst_no_detail(&t->detail);
    s = pst_row_map_use(t, slot, column, &e);
    if (s == PST_NOT_HERE)
        s = pst_entries_get(t, slot, column, &e);
    if (!s)
        pst_entry_value_cell(t, column, &e, value);
    *is_null = e.is_null;
    return s;
}

pst_status pst_map_put(pst_table *t, int32_t column, const pst_cell *key, const pst_cell *value) {
    uint32_t slot;
    uint64_t room[PST_TREE_MAX_VALUE_WORDS];
    pst_tree_entry e = {.is_null = 0};
    pst_status s = pst_check_kind(t, column, PST_MAP);
    if (s)
        return s;
    pst_entry_key(t, column, key, &e);
    s = pst_entry_value(t, column, value, room, &e);
    if (!s && t->collections[column].map.key_is_ref && e.key_bytes.size > PST_MAX_BYTES)
        s = PST_TOO_LARGE;
    if (!s)
        s = pst_current_row(t, 1, &slot);
    return s ? s : pst_refused(t, 0, pst_row_map_put(t, slot, column, &e));
}

/* Of a map with entries in files it is told whether there was one, and one that had expired goes, too: it
 * must not come back where a later run lets entries live for longer. */
static pst_status remove_below(pst_table *t, uint32_t slot, int32_t column,
                               const pst_tree_entry *e) {
    pst_tree_entry old = *e;
    pst_no_detail(&t->detail);
    pst_status there = pst_row_map_get(t, slot, column, &old);
    if (there == PST_NOT_HERE) {
        there = pst_entries_find(t, slot, column, &old);
        if (there)
            return there;
        if (t->collections[column].map.timed && pst_ttl_hides(t, column, old.time))
            there = PST_NOT_FOUND;
    }
    pst_status s = pst_undo_reserve(t, 1);
    if (!s)
        s = pst_row_map_remove(t, slot, column, e);
    return s && s != PST_NOT_FOUND ? pst_refused(t, 0, s) : there;
}

static pst_status remove_entry(pst_table *t, int32_t column, const pst_cell *key) {
    uint32_t slot;
    pst_tree_entry e = {.is_null = 0};
    pst_status s = row_of(t, column, PST_MAP, 0, &slot);
    if (s)
        return s;
    if (slot == PST_NONE || !pst_row_has(&t->lay, pst_row(t, slot), column))
        return PST_NOT_FOUND;
    pst_entry_key(t, column, key, &e);
    if (pst_entries_are_below(t, slot, column))
        return remove_below(t, slot, column, &e);
    s = pst_undo_reserve(t, 1);
    if (s)
        return s;
    s = pst_row_map_remove(t, slot, column, &e);
    return s == PST_NOT_FOUND ? s : pst_poison(t, s);
}

pst_status pst_map_remove(pst_table *t, int32_t column, const pst_cell *key) {
    pst_clearing(t);
    return pst_cleared(t, remove_entry(t, column, key));
}

pst_status pst_elements_count(pst_table *t, int32_t column, uint64_t *count) {
    uint32_t slot;
    pst_kind kind = pst_check_kind(t, column, PST_LIST) ? PST_MAP : PST_LIST;
    pst_status s = row_of(t, column, kind, 0, &slot);
    *count = 0;
    if (s || slot == PST_NONE)
        return s;
    pst_no_detail(&t->detail);
    if (pst_entries_are_below(t, slot, column))
        return pst_entries_count(t, slot, column, count);
    return pst_items_are_below(t, slot, column) ? pst_items_count(t, slot, column, count)
                                                : pst_row_count(t, slot, column, count);
}

pst_status pst_list_below(pst_table *t, int32_t column, uint64_t *items) {
    uint32_t slot;
    uint64_t end;
    pst_status s = row_of(t, column, PST_LIST, 0, &slot);
    *items = 0;
    if (s || slot == PST_NONE || !pst_items_are_below(t, slot, column))
        return s;
    pst_list l = pst_row_list(t, pst_row(t, slot), column);
    (void)pst_list_is_below(t, &l, &end);
    *items = end - pst_list_start(t->heap, pst_heap_bytes(t), &l);
    return PST_OK;
}

pst_status pst_map_below(pst_table *t, int32_t column, int *below) {
    uint32_t slot;
    pst_status s = row_of(t, column, PST_MAP, 0, &slot);
    *below = !s && slot != PST_NONE && pst_entries_are_below(t, slot, column);
    return s;
}

/* ---- walks ----------------------------------------------------------------------------------- */

pst_status pst_elements_create(pst_table *t, pst_elements **elements) {
    pst_elements *e = pst_calloc(1, sizeof *e);
    if (!e)
        return PST_NO_MEMORY;
    e->t = t;
    e->ended = 1;
    *elements = e;
    return PST_OK;
}

static void end_items(pst_elements *e) {
    pst_items_close(e->items);
    pst_entries_close(e->entries);
    e->items = NULL;
    e->entries = NULL;
}

void pst_elements_destroy(pst_elements *e) {
    if (e)
        end_items(e);
    pst_free(e);
}

static pst_status start(pst_elements *e, uint32_t slot, int32_t column) {
    const pst_table *t = e->t;
    e->column = column;
    e->kind = (pst_kind)t->lay.fields[column].kind;
    e->is_null = 0;
    e->ended = slot == PST_NONE || !pst_row_has(&t->lay, pst_row(t, slot), column);
    pst_no_detail(&e->t->detail);
    end_items(e);
    if (e->ended)
        return PST_OK;
    if (pst_items_are_below(t, slot, column)) {
        pst_status s = pst_items_open(e->t, slot, column, &e->items);
        e->ended = s != PST_OK;
        return s;
    }
    if (pst_entries_are_below(t, slot, column)) {
        pst_status s = pst_entries_open(e->t, slot, column, &e->entries);
        e->ended = s != PST_OK;
        return s;
    }
    const uint64_t *row = pst_row(t, slot);
    const pst_collection *c = &t->collections[column];
    if (e->kind == PST_LIST) {
        pst_list l = pst_row_list(t, row, column);
        pst_list_seek(&e->at.list, t->heap, pst_heap_bytes(t), &c->list, &l, 0);
    } else {
        e->root = pst_row_map(t, row, column);
        pst_tree_seek(&e->at.map, t->heap, pst_heap_bytes(t), &c->map, e->root, NULL);
    }
    return PST_OK;
}

static pst_status check_collection(const pst_table *t, int32_t column) {
    return pst_check_kind(t, column, PST_LIST) ? pst_check_kind(t, column, PST_MAP) : PST_OK;
}

pst_status pst_elements_start(pst_elements *e, int32_t column) {
    uint32_t slot;
    pst_status s = check_collection(e->t, column);
    if (!s)
        s = pst_current_row(e->t, 0, &slot);
    if (!s && slot != PST_NONE)
        s = pst_items_use(e->t, slot, column);
    if (!s) {
        s = start(e, slot, column);
        e->slot = slot;
    }
    return s;
}

pst_status pst_elements_start_row(pst_elements *e, pst_batch *b, int64_t i, int32_t column) {
    pst_status s = pst_batch_ready(b);
    if (!s)
        s = check_collection(e->t, column);
    if (!s && (b->t != e->t || i < 0 || i >= b->length))
        s = PST_INVALID;
    if (s)
        return s;
    if (i % PST_GROUP == 0)
        pst_batch_prepare_rows(b, i);
    pst_batch_resolve(b, i + 1);
    e->slot = PST_NONE; /* the key may be in the batch again */
    return start(e, pst_batch_slot(b, i), column);
}

pst_status pst_elements_next_run(pst_elements *e, pst_run *run) {
    const pst_table *t = e->t;
    memset(run, 0, sizeof *run);
    if (e->ended)
        return PST_NOT_FOUND;
    const pst_list_shape *shape = &t->collections[e->column].list;
    if (e->kind != PST_LIST || !shape->width || (shape->timed && pst_ttl_is_set(t, e->column)))
        return PST_INVALID;
    pst_list_cursor *c = &e->at.list;
    pst_list_run found;
    run->left = e->items ? pst_items_left(e->items) : c->list.end - c->seq;
    pst_status s = e->items ? pst_items_next_run(e->items, &found) : pst_list_next_run(c, &found);
    if (s)
        end_items(e);
    e->ended = s != PST_OK;
    if (s)
        return s;
    run->items = found.data;
    run->count = found.count;
    return PST_OK;
}

pst_status pst_elements_next(pst_elements *e, pst_cell *key, pst_cell *value) {
    const pst_table *t = e->t;
    pst_status s;
    while (!e->ended) {
        if (e->kind == PST_LIST) {
            pst_item item;
            s = e->items ? pst_items_next(e->items, &item)
                         : pst_list_next(&e->at.list, &item, NULL);
            if (s ||
                (t->collections[e->column].list.timed && pst_ttl_hides(t, e->column, item.time)))
                goto skip;
            pst_item_cell(t, e->column, &item, value);
            return PST_OK;
        }
        pst_tree_entry entry;
        s = e->entries ? pst_entries_next(e->entries, &entry) : pst_tree_next(&e->at.map, &entry);
        if (s || (t->collections[e->column].map.timed && pst_ttl_hides(t, e->column, entry.time)))
            goto skip;
        pst_entry_key_cell(t, e->column, &entry, key);
        pst_entry_value_cell(t, e->column, &entry, value);
        e->is_null = entry.is_null;
        return PST_OK;
    skip:
        if (s && s != PST_NOT_FOUND)
            return s;
        if (s && (s = pst_elements_leave(e)) != PST_OK)
            return s;
    }
    return PST_NOT_FOUND;
}

pst_status pst_elements_leave(pst_elements *e) {
    if (e->ended)
        return PST_OK;
    e->ended = 1;
    end_items(e);
    return e->slot == PST_NONE ? PST_OK : pst_items_drop_shown(e->t, e->slot, e->column);
}

int pst_elements_is_null(const pst_elements *e) {
    return e->is_null;
}

pst_status pst_elements_seek(pst_elements *e, const pst_cell *key) {
    const pst_table *t = e->t;
    pst_tree_entry from = {.is_null = 0};
    if (e->ended)
        return PST_OK;
    if (e->kind != PST_MAP)
        return PST_INVALID;
    pst_entry_key(t, e->column, key, &from);
    if (e->entries)
        return pst_entries_seek(e->entries, &from);
    pst_tree_root root = e->root;
    pst_tree_seek(&e->at.map, t->heap, pst_heap_bytes(t), &t->collections[e->column].map, root,
                  &from);
    if (!e->at.map.status &&
        !pst_tree_find(t->heap, pst_heap_bytes(t), &t->collections[e->column].map, root, &from))
        return pst_tree_next(&e->at.map, &from);
    return e->at.map.status;
}

pst_status pst_elements_skip(pst_elements *e, uint64_t items) {
    if (e->kind != PST_LIST && !e->ended)
        return PST_INVALID;
    int timed = !e->ended && e->t->collections[e->column].list.timed;
    if (!e->ended && e->items && !(timed && pst_ttl_is_set(e->t, e->column)))
        return pst_items_skip(e->items, items);
    pst_list_cursor *c = &e->at.list;
    if (!e->ended && !(timed && pst_ttl_is_set(e->t, e->column))) {
        pst_list list = c->list;
        pst_list_shape shape = c->shape;
        uint64_t left = list.end - c->seq, passed = items < left ? items : left;
        pst_list_seek(c, e->t->heap, pst_heap_bytes(e->t), &shape, &list, c->seq + passed);
        return c->status == PST_NOT_FOUND ? PST_OK : c->status;
    }
    pst_cell key, value;
    pst_status s = PST_OK;
    while (items-- && !s)
        s = pst_elements_next(e, &key, &value);
    return s == PST_NOT_FOUND ? PST_OK : s;
}
