/* batch_maps.c: the maps of many keys. */
#include <string.h>

#include "access/batch_elements.h"
#include "fetch/entries.h"
#include "key/schema.h"

/* A map with this many entries has nodes that are not in the near caches. */
#ifndef PST_LARGE_MAP
#define PST_LARGE_MAP (1u << 16) /* tests make it small */
#endif

/* Prefetches the paths of every `step`-th row from `from` to `to` whose map is large. Returns
 * whether they end in more than one leaf. */
static int prefetch_large(const pst_batch *b, const pst_roots *r, const pst_array *keys,
                          int64_t from, int64_t to, int64_t step) {
    _Static_assert((int)PST_GROUP <= (int)PST_TREE_PATHS, "a group's paths are followed together");
    const pst_table *t = b->t;
    pst_tree_root root[PST_GROUP];
    pst_tree_entry e[PST_GROUP];
    int n = 0;
    for (int64_t i = from; i < to; i += step) {
        if (r->slots[i] == PST_NONE)
            continue;
        root[n] = pst_row_map(t, pst_row(t, r->slots[i]), r->column);
        if (root[n].count < PST_LARGE_MAP)
            continue;
        pst_cell key;
        pst_array_cell(keys, i, &key);
        pst_entry_key(t, r->column, &key, &e[n++]);
    }
    return pst_tree_prefetch_paths(r->heap, pst_heap_bytes(t), &t->collections[r->column].map, root,
                                   e, n);
}

/* Prefetches the paths of the group that begins at i, if one of its maps is large. */
static void prefetch_paths(const pst_batch *b, const pst_roots *r, const pst_array *keys,
                           int64_t i) {
    int64_t to = i + PST_GROUP < r->length ? i + PST_GROUP : r->length;
    int large = 0;
    for (int64_t k = i; k < to; k++)
        large |= r->slots[k] != PST_NONE && *pst_root_at(r, k) >> 32 >= PST_LARGE_MAP;
    /* Where the first and the last key end in one leaf, the keys come in order, and that leaf is
     * now on its way. */
    if (large && to - i > 1 && prefetch_large(b, r, keys, i, to, to - i - 1))
        prefetch_large(b, r, keys, i, to, 1);
}

static pst_status check_map_keys(pst_batch *b, int32_t column, const pst_array *keys) {
    pst_table *t = b->t;
    uint8_t type = 0;
    if (column >= 0 && column < t->lay.n_states)
        type = t->schema.states[column].map_key;
    pst_status s = pst_check_elements(b, column, PST_MAP, type, keys);
    return !s && keys->length != b->length ? PST_INVALID : s;
}

static pst_status put_entry(pst_batch *b, int64_t i, int32_t column, const pst_array *keys,
                            const pst_array *values) {
    pst_table *t = b->t;
    pst_cell key, value;
    pst_tree_entry e = {.is_null = 0};
    uint64_t room[PST_TREE_MAX_VALUE_WORDS];
    uint32_t slot;
    pst_status s = pst_batch_row(b, i, &slot);
    if (s)
        return s;
    pst_array_cell(keys, i, &key);
    int64_t at = values->length == 1 ? 0 : i;
    int is_null = pst_array_is_null(values, at);
    if (!is_null)
        pst_array_cell(values, at, &value);
    pst_entry_key(t, column, &key, &e);
    s = pst_entry_value(t, column, is_null ? NULL : &value, room, &e);
    return s ? s : pst_row_map_put(t, slot, column, &e);
}

pst_status pst_batch_map_put(pst_batch *b, int32_t column, const pst_array *keys,
                             const pst_array *values) {
    pst_table *t = b->t;
    pst_status s = check_map_keys(b, column, keys);
    if (!s)
        s = pst_check_values(b, column, PST_MAP, t->lay.fields[column].type, values);
    if (!s && values->length != b->length && values->length != 1)
        s = PST_INVALID;
    if (s)
        return s;
    pst_roots r = pst_roots_of(b, column);
    int64_t i = 0;
    while (!s && i < b->length) {
        pst_prefetch_elements(b, &r, i, PST_MAP_ROOT);
        if (i % PST_GROUP == 0) {
            s = pst_undo_reserve(t, PST_GROUP);
            pst_array_prefetch(keys, i);
            pst_array_prefetch(values, i);
            prefetch_paths(b, &r, keys, i);
        }
        if (!s)
            s = put_entry(b, i, column, keys, values);
        i += !s;
    }
    return pst_refused(t, i, s);
}

static pst_status remove_entry(pst_batch *b, int64_t i, int32_t column, const pst_array *keys) {
    pst_table *t = b->t;
    pst_cell key;
    pst_tree_entry e = {.is_null = 0};
    uint32_t slot = pst_batch_slot(b, i);
    if (slot == PST_NONE)
        return PST_OK;
    pst_array_cell(keys, i, &key);
    pst_entry_key(t, column, &key, &e);
    /* Where entries lie in files a removal is a put, and may be refused memory as that (TR7). */
    int puts = pst_entries_are_below(t, slot, column);
    pst_status s = pst_row_map_remove(t, slot, column, &e);
    if (s == PST_NOT_FOUND)
        return PST_OK;
    return puts ? s : pst_poison(t, s);
}

static pst_status remove_entries(pst_batch *b, int32_t column, const pst_array *keys) {
    pst_table *t = b->t;
    pst_status s = check_map_keys(b, column, keys);
    if (s)
        return s;
    pst_roots r = pst_roots_of(b, column);
    int64_t i = 0;
    while (!s && i < b->length) {
        pst_prefetch_elements(b, &r, i, PST_MAP_ROOT);
        if (i % PST_GROUP == 0) {
            if (pst_pause(t, i))
                return PST_NO_ROOM;
            s = pst_undo_reserve(t, PST_GROUP);
        }
        if (!s)
            s = remove_entry(b, i, column, keys);
        i += !s;
    }
    return pst_refused(t, i, s);
}

pst_status pst_batch_map_remove(pst_batch *b, int32_t column, const pst_array *keys) {
    pst_clearing(b->t);
    return pst_cleared(b->t, remove_entries(b, column, keys));
}

static pst_status get_entry(pst_batch *b, int64_t i, int32_t column, const pst_array *keys,
                            pst_tree_entry *e) {
    pst_cell key;
    uint32_t slot = pst_batch_slot(b, i);
    if (slot == PST_NONE)
        return PST_NOT_FOUND;
    pst_array_cell(keys, i, &key);
    pst_entry_key(b->t, column, &key, e);
    pst_status s = b->t->ttl[column].lenient ? pst_row_map_get(b->t, slot, column, e)
                                             : pst_row_map_use(b->t, slot, column, e);
    return s == PST_NOT_HERE ? pst_entries_get(b->t, slot, column, e) : s;
}

/* Notes that entries were read, where that ends what is visible: a batch sees what has expired at
 * each place of its entry. */
static pst_status entries_read(pst_batch *b, int32_t column, const pst_array *keys) {
    pst_status s = PST_OK;
    for (int64_t i = 0; !s && b->t->ttl[column].lenient && i < b->length; i++) {
        pst_tree_entry e = {.is_null = 0};
        pst_cell key;
        uint32_t slot = pst_batch_slot(b, i);
        if (slot == PST_NONE)
            continue;
        pst_array_cell(keys, i, &key);
        pst_entry_key(b->t, column, &key, &e);
        s = pst_row_map_use(b->t, slot, column, &e);
        s = s == PST_NOT_FOUND || s == PST_NOT_HERE ? PST_OK : s;
    }
    return s;
}

/* The low bytes of words come first. */
static inline __attribute__((always_inline)) pst_status get_fixed(pst_batch *b, int32_t column,
                                                                  const pst_array *keys,
                                                                  size_t width, uint8_t *values,
                                                                  uint8_t *valid) {
    pst_roots r = pst_roots_of(b, column);
    for (int64_t i = 0; i < b->length; i++) {
        pst_prefetch_elements(b, &r, i, PST_MAP_ROOT);
        if (i % PST_GROUP == 0) {
            pst_array_prefetch(keys, i);
            prefetch_paths(b, &r, keys, i);
        }
        pst_tree_entry e = {.is_null = 0};
        pst_status s = get_entry(b, i, column, keys, &e);
        uint8_t *out = values + (size_t)i * width;
        if (s && s != PST_NOT_FOUND)
            return s;
        valid[i] = s == PST_OK && !e.is_null;
        if (valid[i])
            memcpy(out, e.value, width);
        else
            memset(out, 0, width);
    }
    return entries_read(b, column, keys);
}

pst_status pst_batch_map_get(pst_batch *b, int32_t column, const pst_array *keys, void *values,
                             uint8_t *valid) {
    pst_table *t = b->t;
    pst_status s = check_map_keys(b, column, keys);
    if (s)
        return s;
    if (t->collections[column].map.value_is_ref)
        return PST_WRONG_TYPE;
    size_t width = t->lay.fields[column].type == PST_FIXED
                       ? t->schema.states[column].width
                       : pst_type_width((pst_type)t->lay.fields[column].type);
    return width == 8 ? get_fixed(b, column, keys, 8, values, valid)
                      : get_fixed(b, column, keys, width, values, valid);
}

pst_status pst_batch_map_get_bytes(pst_batch *b, int32_t column, const pst_array *keys,
                                   const pst_bytes_out *out) {
    pst_status s = check_map_keys(b, column, keys);
    if (s)
        return s;
    if (!b->t->collections[column].map.value_is_ref)
        return PST_WRONG_TYPE;
    pst_roots r = pst_roots_of(b, column);
    int64_t total = 0;
    for (int64_t i = 0; i < b->length; i++) {
        pst_tree_entry e = {.is_null = 0};
        pst_prefetch_elements(b, &r, i, PST_MAP_ROOT);
        s = get_entry(b, i, column, keys, &e);
        if (s && s != PST_NOT_FOUND)
            return s;
        int found = s == PST_OK && !e.is_null;
        s = pst_out_value(out, i, found, found ? e.value_bytes : (pst_bytes){NULL, 0}, &total);
        if (s)
            return s;
    }
    if (out->data || !total) {
        s = entries_read(b, column, keys);
        if (s)
            return s;
    }
    return pst_out_end(out, b->length, total);
}
