/* batch_elements.c: the lists and maps of many keys. */
#include <string.h>

#include "batch.h"
#include "collections.h"
#include "schema.h"
#include "ttl.h"

static pst_status check_values(pst_batch *b, int32_t column, pst_kind kind, uint8_t type,
                               const pst_array *values) {
    pst_table *t = b->t;
    pst_status s = pst_batch_usable(b);
    if (s)
        return s;
    pst_no_detail(&t->detail);
    t->detail.column = column;
    s = pst_check_kind(t, column, kind);
    if (s)
        return s;
    if (values->type != type && !(type == PST_OBJECT && values->type == PST_BINARY))
        return PST_WRONG_TYPE;
    if (type == PST_FIXED && values->width != t->schema.states[column].width)
        return PST_WRONG_TYPE;
    for (int64_t i = 0; values->validity && i < values->length; i++)
        if (pst_array_is_null(values, i)) {
            t->detail.row = i;
            return PST_INVALID;
        }
    return PST_OK;
}

/* What an operation wants first of a list or map. A constant wherever it is passed. */
typedef enum pst_wanted { LIST_TAIL, LIST_HEAD, MAP_ROOT } pst_wanted;

/* Where a column's roots lie: the caller's own copy, for a compiler must take any store to the table
 * for one to the table's handle. */
typedef struct roots {
    const uint32_t *slots;
    int64_t length;
    uint8_t *rows;
    uint64_t row_size;
    uint8_t *heap;
    uint32_t offset;
    int32_t column;
} roots;

static inline roots roots_of(const pst_batch *b, int32_t column) {
    const pst_table *t = b->t;
    return (roots){b->slots,        b->length, t->rows,
                   t->lay.row_size, t->heap,   t->lay.fields[column].offset,
                   column};
}

/* The column's words in row i: a root only where the state is present. */
static inline const uint64_t *root_at(const roots *r, int64_t i) {
    return (const uint64_t *)(const void *)(r->rows + r->slots[i] * r->row_size + r->offset);
}

/* Brings in what the root of row i names: the row is in cache. What an absent state's words name is
 * brought in for nothing. */
PST_PREFETCH void prefetch_root(const roots *r, int64_t i, pst_wanted wanted) {
    if (i >= r->length || r->slots[i] == PST_NONE)
        return;
    const uint64_t *root = root_at(r, i);
    if (wanted == MAP_ROOT)
        pst_tree_prefetch(r->heap, root);
    else if (wanted == LIST_TAIL)
        pst_list_prefetch(r->heap, root);
    else
        pst_list_prefetch_first(r->heap, root);
}

/* Brings in row i + 2 * PST_GROUP, and what the root of row i + PST_GROUP names. */
static inline __attribute__((always_inline)) void bring_ahead(pst_batch *b, const roots *r,
                                                              int64_t i, pst_wanted wanted) {
    if (i % PST_GROUP == 0 && i + PST_GROUP < r->length)
        pst_batch_bring(b, i + PST_GROUP);
    prefetch_root(r, i + PST_GROUP, wanted);
}

/* Called for each i in turn: row i is ready; that of a group further on is in cache, and what its
 * root names on its way there. One at a time, for the processor waits for few lines at once. */
static inline __attribute__((always_inline)) void bring_elements(pst_batch *b, const roots *r,
                                                                 int64_t i, pst_wanted wanted) {
    for (int64_t k = -PST_GROUP; i == 0 && k < 0; k++)
        bring_ahead(b, r, k, wanted);
    bring_ahead(b, r, i, wanted);
}

/* ---- lists ---------------------------------------------------------------------------------- */

/* Items that are words side by side, for lists without times; else NULL. */
static const uint64_t *words_of(const pst_table *t, int32_t column, const pst_array *items) {
    const pst_list_shape *s = &t->collections[column].list;
    return s->width == 8 && !s->timed ? (const uint64_t *)items->values + items->offset : NULL;
}

/* The frequent append, of a word to an untimed list with room in its last chunk. 0: not so. */
static inline int append_word(pst_table *t, const roots *r, int64_t i, uint64_t word) {
    uint32_t slot = r->slots[i];
    if (slot == PST_NONE)
        return 0;
    uint64_t *row = (uint64_t *)(void *)(r->rows + slot * r->row_size);
    uint64_t *field = (uint64_t *)(void *)((uint8_t *)row + r->offset);
    if (!pst_row_has(&t->lay, row, r->column))
        return 0;
    pst_list l = pst_list_load(field);
    if (!pst_list_append_word(r->heap, &l, word))
        return 0;
    pst_touch(t, slot, row);
    PST_FENCE(__ATOMIC_RELEASE);
    pst_list_store_end(field, &l);
    return 1;
}

static pst_status append_one(pst_batch *b, int64_t i, int32_t column, const pst_array *items,
                             int64_t at) {
    pst_cell cell;
    pst_item item;
    uint32_t slot;
    pst_status s = pst_batch_row(b, i, &slot);
    if (s)
        return s;
    pst_array_cell(items, at, &cell);
    s = pst_item_of(b->t, column, &cell, &item);
    return s ? s : pst_row_list_append(b->t, slot, column, &item);
}

pst_status pst_batch_list_append(pst_batch *b, int32_t column, const pst_array *items) {
    pst_table *t = b->t;
    uint8_t type = column >= 0 && column < t->lay.n_states ? t->lay.fields[column].type : 0;
    pst_status s = check_values(b, column, PST_LIST, type, items);
    if (!s && items->length != b->length)
        s = PST_INVALID;
    if (s)
        return s;
    const uint64_t *words = words_of(t, column, items);
    roots r = roots_of(b, column);
    for (int64_t i = 0; !s && i < b->length; i++) {
        bring_elements(b, &r, i, LIST_TAIL);
        if (i % PST_GROUP == 0) {
            s = pst_undo_reserve(t, PST_GROUP);
            pst_array_prefetch(items, i);
        }
        if (!s && !(words && append_word(t, &r, i, words[i])))
            s = append_one(b, i, column, items, i);
    }
    return pst_poison(t, s);
}

pst_status pst_batch_list_append_many(pst_batch *b, int32_t column, const int32_t *offsets,
                                      const pst_array *items) {
    pst_table *t = b->t;
    uint8_t type = column >= 0 && column < t->lay.n_states ? t->lay.fields[column].type : 0;
    pst_status s = check_values(b, column, PST_LIST, type, items);
    for (int64_t i = 0; !s && i < b->length; i++)
        if (offsets[i] < 0 || offsets[i] > offsets[i + 1] || offsets[i + 1] > items->length)
            s = PST_INVALID;
    if (s)
        return s;
    const uint64_t *words = words_of(t, column, items);
    roots r = roots_of(b, column);
    for (int64_t i = 0; !s && i < b->length; i++) {
        bring_elements(b, &r, i, LIST_TAIL);
        if (i % PST_GROUP == 0)
            s = pst_undo_reserve(t, PST_GROUP);
        for (int64_t k = offsets[i]; !s && k < offsets[i + 1]; k++)
            if (!(words && append_word(t, &r, i, words[k])))
                s = append_one(b, i, column, items, k);
    }
    return pst_poison(t, s);
}

/* ---- counting and copying --------------------------------------------------------------------- */

static pst_status count_of(pst_batch *b, int64_t i, int32_t column, uint64_t *count) {
    uint32_t slot = pst_batch_slot(b, i);
    *count = 0;
    return slot == PST_NONE ? PST_OK : pst_row_count(b->t, slot, column, count);
}

static inline __attribute__((always_inline)) pst_status offsets_of(pst_batch *b, int32_t column,
                                                                   int64_t *offsets,
                                                                   pst_wanted wanted) {
    pst_status s = PST_OK;
    roots r = roots_of(b, column);
    offsets[0] = 0;
    for (int64_t i = 0; !s && i < b->length; i++) {
        uint64_t count;
        bring_elements(b, &r, i, wanted);
        s = count_of(b, i, column, &count);
        offsets[i + 1] = offsets[i] + (int64_t)count;
    }
    return s;
}

pst_status pst_batch_element_offsets(pst_batch *b, int32_t column, int64_t *offsets) {
    pst_status s = pst_batch_usable(b);
    if (!s && pst_check_kind(b->t, column, PST_LIST))
        s = pst_check_kind(b->t, column, PST_MAP);
    if (s)
        return s;
    return b->t->lay.fields[column].kind == PST_LIST ? offsets_of(b, column, offsets, LIST_HEAD)
                                                     : offsets_of(b, column, offsets, MAP_ROOT);
}

/* Copies the runs that a reader sees; where nothing can be hidden, whole chunks. */
static pst_status copy_list(const pst_table *t, int32_t column, const pst_list *l, uint64_t count,
                            uint8_t *out, int stream) {
    const pst_list_shape *s = &t->collections[column].list;
    if (!s->timed || !pst_ttl_is_set(t, column)) {
        if (count != pst_list_count(t->heap, pst_heap_bytes(t), l))
            return PST_STALE;
        if (!s->timed)
            return (stream ? pst_list_stream : pst_list_copy)(t->heap, pst_heap_bytes(t), s, l, out,
                                                              (size_t)count * s->width);
    }
    pst_list_cursor c;
    pst_list_run run;
    pst_status st;
    pst_list_seek(&c, t->heap, pst_heap_bytes(t), s, l, 0);
    while ((st = pst_list_next_run(&c, &run)) == PST_OK)
        for (uint64_t k = 0; k < run.count; k++) {
            if (pst_ttl_hides(t, column, *(run.times - k)))
                continue;
            if (!count--)
                return PST_STALE;
            memcpy(out, run.data + k * s->width, s->width);
            out += s->width;
        }
    return st == PST_NOT_FOUND ? PST_OK : st;
}

/* Lists that are about to be copied: of list i, at i % PST_GROUP, the chunk to bring in next. */
typedef struct chains {
    pst_list list[PST_GROUP];
    uint32_t at[PST_GROUP];
} chains;

/* A chain is followed from a group ahead, a chunk with every other list that is copied: followed all
 * at once it waits at every chunk. Of long ones the beginning. */
static void follow_ahead(pst_batch *b, const roots *r, int64_t i, chains *c) {
    const pst_table *t = b->t;
    int64_t next = i + PST_GROUP;
    bring_ahead(b, r, i, LIST_HEAD);
    c->at[next % PST_GROUP] = 0;
    if (next < b->length && b->slots[next] != PST_NONE) {
        pst_list l = pst_row_list(t, pst_row(t, b->slots[next]), r->column);
        c->list[next % PST_GROUP] = l;
        c->at[next % PST_GROUP] = l.first;
    }
    for (int64_t k = next - 2; k > i; k -= 2) {
        uint64_t at = (uint64_t)k % PST_GROUP;
        if (c->at[at])
            c->at[at] =
                pst_list_prefetch_chunk(t->heap, pst_heap_bytes(t), &c->list[at], c->at[at]);
    }
}

/* As bring_elements, all of a list. */
static void bring_chains(pst_batch *b, const roots *r, int64_t i, chains *c) {
    for (int64_t k = -PST_GROUP; i == 0 && k < 0; k++)
        follow_ahead(b, r, k, c);
    follow_ahead(b, r, i, c);
}

/* From here on an output is not in the nearer caches anyway when it is used: copied and summed, up to
 * 8 MB are faster through them, 16 MB past them. */
#define STREAM_BYTES ((uint64_t)12 << 20)

pst_status pst_batch_list_copy(pst_batch *b, int32_t column, const int64_t *offsets, void *values) {
    pst_table *t = b->t;
    pst_status s = pst_batch_usable(b);
    if (!s)
        s = pst_check_kind(t, column, PST_LIST);
    if (s)
        return s;
    uint32_t width = t->collections[column].list.width;
    if (!width)
        return PST_INVALID;
    uint64_t bytes = (uint64_t)(offsets[b->length] - offsets[0]) * width;
    int stream = width % 8 == 0 && bytes >= STREAM_BYTES;
    roots r = roots_of(b, column);
    chains c = {0};
    for (int64_t i = 0; !s && i < b->length; i++) {
        bring_chains(b, &r, i, &c);
        uint64_t count = (uint64_t)(offsets[i + 1] - offsets[i]);
        uint32_t slot = pst_batch_slot(b, i);
        if (slot == PST_NONE || !count)
            continue;
        pst_list l = pst_row_list(t, pst_row(t, slot), column);
        s = copy_list(t, column, &l, count, (uint8_t *)values + (uint64_t)offsets[i] * width,
                      stream);
    }
    if (stream)
        pst_streamed();
    return s;
}

/* ---- maps ------------------------------------------------------------------------------------- */

/* Entries of a map whose nodes are not in the near caches. */
enum { LARGE_MAP = 1 << 16 };

static void bring_large(const pst_batch *b, const roots *r, const pst_array *keys, int64_t from,
                        int64_t to) {
    const pst_table *t = b->t;
    pst_tree_root root[PST_GROUP];
    pst_tree_entry e[PST_GROUP];
    int n = 0;
    for (int64_t i = from; i < to; i++) {
        if (r->slots[i] == PST_NONE)
            continue;
        root[n] = pst_row_map(t, pst_row(t, r->slots[i]), r->column);
        if (root[n].count < LARGE_MAP)
            continue;
        pst_cell key;
        pst_array_cell(keys, i, &key);
        pst_entry_key(t, r->column, &key, &e[n++]);
    }
    pst_tree_bring_paths(r->heap, pst_heap_bytes(t), &t->collections[r->column].map, root, e, n);
}

/* Brings in the paths of the group that begins at i, if one of its maps is large. */
static void bring_paths(const pst_batch *b, const roots *r, const pst_array *keys, int64_t i) {
    int64_t to = i + PST_GROUP < r->length ? i + PST_GROUP : r->length;
    int large = 0;
    for (int64_t k = i; k < to; k++)
        large |= r->slots[k] != PST_NONE && *root_at(r, k) >> 32 >= LARGE_MAP;
    if (large)
        bring_large(b, r, keys, i, to);
}

static pst_status check_map_keys(pst_batch *b, int32_t column, const pst_array *keys) {
    pst_table *t = b->t;
    uint8_t type = 0;
    if (column >= 0 && column < t->lay.n_states)
        type = t->schema.states[column].map_key;
    pst_status s = check_values(b, column, PST_MAP, type, keys);
    return !s && keys->length != b->length ? PST_INVALID : s;
}

pst_status pst_batch_map_put(pst_batch *b, int32_t column, const pst_array *keys,
                             const pst_array *values) {
    pst_table *t = b->t;
    pst_status s = check_map_keys(b, column, keys);
    if (!s)
        s = check_values(b, column, PST_MAP, t->lay.fields[column].type, values);
    if (!s && values->length != b->length && values->length != 1)
        s = PST_INVALID;
    if (s)
        return s;
    roots r = roots_of(b, column);
    for (int64_t i = 0; !s && i < b->length; i++) {
        bring_elements(b, &r, i, MAP_ROOT);
        if (i % PST_GROUP == 0) {
            s = pst_undo_reserve(t, PST_GROUP);
            pst_array_prefetch(keys, i);
            pst_array_prefetch(values, i);
            bring_paths(b, &r, keys, i);
        }
        pst_cell key, value;
        pst_tree_entry e = {{0, 0}, {NULL, 0}, NULL, {NULL, 0}, 0};
        uint64_t room[PST_TREE_MAX_VALUE_WORDS];
        uint32_t slot;
        if (!s)
            s = pst_batch_row(b, i, &slot);
        if (s)
            break;
        pst_array_cell(keys, i, &key);
        pst_array_cell(values, values->length == 1 ? 0 : i, &value);
        pst_entry_key(t, column, &key, &e);
        s = pst_entry_value(t, column, &value, room, &e);
        if (!s)
            s = pst_row_map_put(t, slot, column, &e);
    }
    return pst_poison(t, s);
}

pst_status pst_batch_map_remove(pst_batch *b, int32_t column, const pst_array *keys) {
    pst_table *t = b->t;
    pst_status s = check_map_keys(b, column, keys);
    if (s)
        return s;
    roots r = roots_of(b, column);
    for (int64_t i = 0; !s && i < b->length; i++) {
        bring_elements(b, &r, i, MAP_ROOT);
        if (i % PST_GROUP == 0)
            s = pst_undo_reserve(t, PST_GROUP);
        pst_cell key;
        pst_tree_entry e = {{0, 0}, {NULL, 0}, NULL, {NULL, 0}, 0};
        uint32_t slot = pst_batch_slot(b, i);
        if (s || slot == PST_NONE)
            continue;
        pst_array_cell(keys, i, &key);
        pst_entry_key(t, column, &key, &e);
        s = pst_row_map_remove(t, slot, column, &e);
        s = s == PST_NOT_FOUND ? PST_OK : s;
    }
    return pst_poison(t, s);
}

static pst_status get_entry(pst_batch *b, int64_t i, int32_t column, const pst_array *keys,
                            pst_tree_entry *e) {
    pst_cell key;
    uint32_t slot = pst_batch_slot(b, i);
    if (slot == PST_NONE)
        return PST_NOT_FOUND;
    pst_array_cell(keys, i, &key);
    pst_entry_key(b->t, column, &key, e);
    return pst_row_map_use(b->t, slot, column, e);
}

/* The low bytes of words come first. */
static inline __attribute__((always_inline)) pst_status get_fixed(pst_batch *b, int32_t column,
                                                                  const pst_array *keys,
                                                                  size_t width, uint8_t *values,
                                                                  uint8_t *valid) {
    roots r = roots_of(b, column);
    for (int64_t i = 0; i < b->length; i++) {
        bring_elements(b, &r, i, MAP_ROOT);
        if (i % PST_GROUP == 0) {
            pst_array_prefetch(keys, i);
            bring_paths(b, &r, keys, i);
        }
        pst_tree_entry e = {{0, 0}, {NULL, 0}, NULL, {NULL, 0}, 0};
        pst_status s = get_entry(b, i, column, keys, &e);
        uint8_t *out = values + (size_t)i * width;
        if (s && s != PST_NOT_FOUND)
            return s;
        valid[i] = s == PST_OK;
        if (valid[i])
            memcpy(out, e.value, width);
        else
            memset(out, 0, width);
    }
    return PST_OK;
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
                                   int32_t *offsets, uint8_t *valid, uint8_t *data) {
    pst_status s = check_map_keys(b, column, keys);
    if (s)
        return s;
    if (!b->t->collections[column].map.value_is_ref)
        return PST_WRONG_TYPE;
    roots r = roots_of(b, column);
    int64_t total = 0;
    for (int64_t i = 0; i < b->length; i++) {
        pst_tree_entry e = {{0, 0}, {NULL, 0}, NULL, {NULL, 0}, 0};
        bring_elements(b, &r, i, MAP_ROOT);
        s = get_entry(b, i, column, keys, &e);
        if (s && s != PST_NOT_FOUND)
            return s;
        uint32_t size = s ? 0 : e.value_bytes.size;
        if (!data) {
            offsets[i] = (int32_t)total;
            valid[i] = s == PST_OK;
        } else if (size) {
            memcpy(data + total, e.value_bytes.data, size);
        }
        total += size;
        if (total > INT32_MAX)
            return PST_TOO_LARGE;
    }
    if (!data)
        offsets[b->length] = (int32_t)total;
    return PST_OK;
}
