/* batch_elements.c: the lists of many keys, and how many elements they have. */
#include "access/batch_elements.h"

#include <string.h>

#include "fetch/entries.h"
#include "fetch/items.h"
#include "fetch/used.h"
#include "table/ttl.h"

pst_status pst_check_values(pst_batch *b, int32_t column, pst_kind kind, uint8_t type,
                            const pst_array *values) {
    pst_table *t = b->t;
    pst_status s = pst_batch_ready(b);
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
    return PST_OK;
}

pst_status pst_check_elements(pst_batch *b, int32_t column, pst_kind kind, uint8_t type,
                              const pst_array *values) {
    pst_status s = pst_check_values(b, column, kind, type, values);
    for (int64_t i = 0; !s && values->validity && i < values->length; i++)
        if (pst_array_is_null(values, i)) {
            b->t->detail.row = i;
            s = PST_INVALID;
        }
    return s;
}

void pst_batch_prepare_roots(pst_batch *b, int64_t i) {
    const pst_table *t = b->t;
    int64_t end = i + PST_GROUP < b->length ? i + PST_GROUP : b->length;
    pst_batch_resolve(b, end);
    for (int32_t column = 0; column < t->lay.n_states; column++) {
        uint8_t kind = t->lay.fields[column].kind;
        if (kind != PST_LIST && kind != PST_MAP)
            continue;
        pst_roots r = pst_roots_of(b, column);
        for (int64_t k = i; k < end; k++)
            pst_prefetch_root(&r, k, kind == PST_MAP ? PST_MAP_ROOT : PST_LIST_TAIL);
    }
    b->prepared = end;
}

/* ---- lists ---------------------------------------------------------------------------------- */

/* Items that are words side by side, for lists without times; else NULL. */
static const uint8_t *words_of(const pst_table *t, int32_t column, const pst_array *items) {
    const pst_list_shape *s = &t->collections[column].list;
    return s->width == 8 && !s->timed ? (const uint8_t *)items->values + items->offset * 8 : NULL;
}

/* The frequent append, of a word to an untimed list with room in its last chunk. 0: not so. */
static inline int append_word(pst_table *t, const pst_roots *r, int64_t i, const uint8_t *item) {
    uint32_t slot = r->slots[i];
    if (slot == PST_NONE)
        return 0;
    uint64_t *row = (uint64_t *)(void *)(r->rows + slot * r->row_size);
    uint64_t *field = (uint64_t *)(void *)((uint8_t *)row + r->offset);
    if (!pst_row_has(&t->lay, row, r->column))
        return 0;
    uint64_t word;
    memcpy(&word, item, sizeof word);
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
    pst_status s = pst_check_elements(b, column, PST_LIST, type, items);
    if (!s && items->length != b->length)
        s = PST_INVALID;
    if (s)
        return s;
    const uint8_t *words = words_of(t, column, items);
    pst_roots r = pst_roots_of(b, column);
    int64_t i = 0;
    while (!s && i < b->length) {
        pst_prefetch_elements(b, &r, i, PST_LIST_TAIL);
        if (i % PST_GROUP == 0) {
            s = pst_undo_reserve(t, PST_GROUP);
            pst_array_prefetch(items, i);
        }
        if (!s && !(words && append_word(t, &r, i, words + i * 8)))
            s = append_one(b, i, column, items, i);
        i += !s;
    }
    return pst_refused(t, i, s);
}

pst_status pst_batch_list_append_many(pst_batch *b, int32_t column, const int32_t *offsets,
                                      const pst_array *items) {
    pst_table *t = b->t;
    uint8_t type = column >= 0 && column < t->lay.n_states ? t->lay.fields[column].type : 0;
    pst_status s = pst_check_elements(b, column, PST_LIST, type, items);
    for (int64_t i = 0; !s && i < b->length; i++)
        if (offsets[i] < 0 || offsets[i] > offsets[i + 1] || offsets[i + 1] > items->length)
            s = PST_INVALID;
    if (s)
        return s;
    const uint8_t *words = words_of(t, column, items);
    pst_roots r = pst_roots_of(b, column);
    int64_t i = 0, k = 0;
    while (!s && i < b->length) {
        pst_prefetch_elements(b, &r, i, PST_LIST_TAIL);
        k = offsets[i];
        if (i % PST_GROUP == 0)
            s = pst_undo_reserve(t, PST_GROUP);
        while (!s && k < offsets[i + 1]) {
            if (!(words && append_word(t, &r, i, words + k * 8)))
                s = append_one(b, i, column, items, k);
            k += !s;
        }
        i += !s;
    }
    s = pst_refused(t, i, s);
    if (s == PST_NO_ROOM)
        t->detail.offset = k;
    return s;
}

/* ---- counting and copying -------------------------------------------------------------------- */

static pst_status count_of(pst_batch *b, int64_t i, int32_t column, uint64_t *count) {
    uint32_t slot = pst_batch_slot(b, i);
    *count = 0;
    if (slot == PST_NONE)
        return PST_OK;
    if (pst_entries_are_below(b->t, slot, column))
        return pst_entries_count(b->t, slot, column, count);
    pst_status s = pst_items_use(b->t, slot, column);
    if (s)
        return s;
    return pst_items_are_below(b->t, slot, column) ? pst_items_count(b->t, slot, column, count)
                                                   : pst_row_count(b->t, slot, column, count);
}

static inline __attribute__((always_inline)) pst_status offsets_of(pst_batch *b, int32_t column,
                                                                   int64_t *offsets,
                                                                   pst_wanted wanted) {
    pst_status s = PST_OK;
    pst_roots r = pst_roots_of(b, column);
    offsets[0] = 0;
    for (int64_t i = 0; !s && i < b->length; i++) {
        uint64_t count;
        pst_prefetch_elements(b, &r, i, wanted);
        s = count_of(b, i, column, &count);
        offsets[i + 1] = offsets[i] + (int64_t)count;
    }
    return s;
}

pst_status pst_batch_element_offsets(pst_batch *b, int32_t column, int64_t *offsets) {
    pst_status s = pst_batch_ready(b);
    if (!s && pst_check_kind(b->t, column, PST_LIST))
        s = pst_check_kind(b->t, column, PST_MAP);
    if (s)
        return s;
    return b->t->lay.fields[column].kind == PST_LIST ? offsets_of(b, column, offsets, PST_LIST_HEAD)
                                                     : offsets_of(b, column, offsets, PST_MAP_ROOT);
}

pst_status pst_batch_elements_read(pst_batch *b, int32_t column) {
    pst_status s = pst_batch_ready(b);
    if (!s && pst_check_kind(b->t, column, PST_LIST))
        s = pst_check_kind(b->t, column, PST_MAP);
    for (int64_t i = 0; !s && b->t->ttl[column].lenient && i < b->length; i++) {
        uint32_t slot = pst_batch_slot(b, i);
        if (slot != PST_NONE)
            s = pst_items_drop_shown(b->t, slot, column);
    }
    return s;
}

/* Copies the items that a reader sees; whole chunks, where none can be hidden. */
static pst_status copy_list(const pst_table *t, int32_t column, const pst_list *l, uint64_t count,
                            uint8_t *out, int stream) {
    const pst_list_shape *s = &t->collections[column].list;
    if (!s->timed || !pst_ttl_is_set(t, column)) {
        if (count != pst_list_count(t->heap, pst_heap_bytes(t), l))
            return PST_CHANGED;
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
                return PST_CHANGED;
            memcpy(out, run.data + k * s->width, s->width);
            out += s->width;
        }
    if (st != PST_NOT_FOUND)
        return st;
    return count ? PST_CHANGED : PST_OK;
}

static pst_status copy_items(const pst_table *t, int32_t column, pst_items *x, uint64_t count,
                             uint8_t *out) {
    const pst_list_shape *shape = &t->collections[column].list;
    pst_item item;
    pst_status s;
    while ((s = pst_items_next(x, &item)) == PST_OK) {
        if (shape->timed && pst_ttl_hides(t, column, item.time))
            continue;
        if (!count--)
            return PST_CHANGED;
        memcpy(out, item.data, shape->width);
        out += shape->width;
    }
    if (s != PST_NOT_FOUND)
        return s;
    return count ? PST_CHANGED : PST_OK;
}

/* As copy_list, of a list of which some items lie in files. */
static pst_status copy_below(pst_table *t, uint32_t slot, int32_t column, uint64_t count,
                             uint8_t *out) {
    pst_items *x;
    pst_status s = pst_items_open(t, slot, column, &x);
    if (s)
        return s;
    s = copy_items(t, column, x, count, out);
    pst_items_close(x);
    return s;
}

/* Lists that are about to be copied. List i is at i % PST_GROUP, with the chunk to prefetch
 * next. */
typedef struct chains {
    pst_list list[PST_GROUP];
    uint32_t at[PST_GROUP];
} chains;

/* A chain is followed from a group ahead, by one chunk with every other list that is copied:
 * followed all at once it would wait at every chunk. Of a long chain only the beginning is
 * followed. */
static void follow_ahead(pst_batch *b, const pst_roots *r, int64_t i, chains *c) {
    const pst_table *t = b->t;
    int64_t next = i + PST_GROUP;
    pst_prefetch_ahead(b, r, i, PST_LIST_HEAD);
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

/* As pst_prefetch_elements, for all chunks of a list. */
static void prefetch_chains(pst_batch *b, const pst_roots *r, int64_t i, chains *c) {
    for (int64_t k = -PST_GROUP; i == 0 && k < 0; k++)
        follow_ahead(b, r, k, c);
    follow_ahead(b, r, i, c);
}

/* An output of this size is no longer in the nearer caches when it is used. Measured by copying and
 * summing: 8 MB are faster through the caches, 16 MB past them. */
#ifndef PST_STREAM_BYTES
#define PST_STREAM_BYTES ((uint64_t)12 << 20) /* tests make it small */
#endif

/* Do the runs rise from the beginning, and end within the capacity? */
static int runs_fit(const int64_t *offsets, int64_t n, uint32_t width, uint64_t capacity) {
    int falls = offsets[0] != 0;
    for (int64_t i = 0; i < n; i++)
        falls |= offsets[i + 1] < offsets[i];
    return !falls && (uint64_t)offsets[n] <= capacity / width;
}

pst_status pst_batch_list_copy(pst_batch *b, int32_t column, const int64_t *offsets, void *values,
                               uint64_t capacity) {
    pst_table *t = b->t;
    pst_status s = pst_batch_ready(b);
    if (!s)
        s = pst_check_kind(t, column, PST_LIST);
    if (s)
        return s;
    uint32_t width = t->collections[column].list.width;
    if (!width)
        return PST_INVALID;
    if (!runs_fit(offsets, b->length, width, capacity))
        return PST_CHANGED;
    uint64_t bytes = (uint64_t)offsets[b->length] * width;
    int stream = width % 8 == 0 && bytes >= PST_STREAM_BYTES;
    pst_roots r = pst_roots_of(b, column);
    chains c = {0};
    for (int64_t i = 0; !s && i < b->length; i++) {
        prefetch_chains(b, &r, i, &c);
        uint64_t count = (uint64_t)(offsets[i + 1] - offsets[i]);
        uint32_t slot = pst_batch_slot(b, i);
        if (!count)
            continue;
        if (slot == PST_NONE)
            return PST_CHANGED;
        uint8_t *out = (uint8_t *)values + (uint64_t)offsets[i] * width;
        if (pst_items_are_below(t, slot, column)) {
            s = copy_below(t, slot, column, count, out);
            continue;
        }
        pst_list l = pst_row_list(t, pst_row(t, slot), column);
        s = copy_list(t, column, &l, count, out, stream);
    }
    if (stream)
        pst_streamed();
    return s;
}
