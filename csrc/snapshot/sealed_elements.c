/* sealed_elements.c: what an epoch changed of rows with lists, maps and timers. */
#include <string.h>

#include "base/mem.h"
#include "elements/elements.h"
#include "snapshot/sealed.h"
#include "snapshot/sealed_entry.h"
#include "table/undo.h"

/* ---- the row itself ------------------------------------------------------------------------- */

/* What the row's record says of a list or map. */
typedef struct marker {
    int said;
    int starts; /* a list whose head went: at `start` */
    uint64_t start;
} marker;

static pst_list list_before(const pst_table *t, const uint64_t *image, uint64_t presence,
                            int32_t i) {
    if (!(presence >> i & 1))
        return (pst_list){0};
    return pst_list_load(pst_image_field(&t->lay, image, i));
}

static pst_list_change compare_lists(const pst_table *t, const pst_list *before,
                                     const pst_list *after) {
    return pst_list_compare(t->heap, pst_heap_bytes(t), before, after);
}

static marker mark_list(const pst_table *t, const pst_list *before, const pst_list *after) {
    pst_list_change c = compare_lists(t, before, after);
    if (!before->first || !c.changed)
        return (marker){0, 0, 0};
    if (!after->first || c.replaced)
        return (marker){1, 0, 0};
    return (marker){before->first != after->first, 1, c.start};
}

static pst_status emit_row(pst_sealed *s, const pst_table *t, const uint64_t *row, uint64_t changed,
                           uint64_t present, const marker *markers) {
    uint64_t *w, values = present;
    pst_bytes none = {NULL, 0};
    pst_status st = pst_entry_begin(s, t, row, none, 2 * (size_t)t->lay.n_states, &w);
    if (st)
        return st;
    for (int32_t i = 0; i < t->lay.n_states; i++)
        if (markers[i].said) {
            changed |= UINT64_C(1) << i;
            present |= (uint64_t)markers[i].starts << i;
        }
    w = pst_entry_info(s, w + 3, PST_PUT, changed, present);
    for (uint64_t left = present; !st && left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        if (values >> i & 1) {
            st = pst_sealed_cells(s, t, row, left & -left, &w);
        } else {
            st = pst_sealed_keep(s, &markers[i].start, 8, w);
            w += 2;
        }
    }
    pst_entry_end(s, w);
    return st;
}

static pst_status emit_delete(pst_sealed *s, const pst_table *t, const uint64_t *row) {
    uint64_t *w;
    pst_bytes none = {NULL, 0};
    pst_status st = pst_entry_begin(s, t, row, none, 0, &w);
    if (!st)
        pst_entry_end(s, pst_entry_info(s, w + 3, PST_DELETE, 0, 0));
    return st;
}

/* ---- elements ------------------------------------------------------------------------------- */

static uint64_t *put_cell_bytes(uint64_t *w, const uint64_t ref[2]) {
    w[0] = ref[0];
    w[1] = ref[1];
    return w + 2;
}

static pst_status emit_run(pst_sealed *s, const pst_table *t, const uint64_t *row, int32_t i,
                           uint64_t seq, const uint8_t *blob, size_t size) {
    uint8_t element[12];
    uint64_t *w, kept[2], bit = UINT64_C(1) << i;
    pst_put_big(element, t->collections[i].id, 4);
    pst_put_big(element + 4, seq, 8);
    pst_status st = pst_entry_begin(s, t, row, (pst_bytes){element, sizeof element}, 2, &w);
    if (!st)
        st = pst_sealed_keep(s, blob, size, kept);
    if (st)
        return st;
    s->logical_bytes += size;
    pst_entry_end(s, put_cell_bytes(pst_entry_info(s, w + 3, PST_PUT, bit, bit), kept));
    return PST_OK;
}

/* Room for that much to be put together. */
static uint8_t *scratch(pst_sealed *s, size_t size) {
    pst_key_buffer *b = &s->scratch;
    if (b->capacity < size) {
        pst_free(b->data);
        b->capacity = 0;
        b->data = pst_malloc(2 * size);
        if (b->data)
            b->capacity = 2 * size;
    }
    return b->data;
}

static pst_status emit_items(pst_sealed *s, const pst_table *t, const uint64_t *row, int32_t i,
                             const pst_list *l, uint64_t from) {
    pst_list_cursor c;
    pst_status st = scratch(s, PST_RUN_BYTES) ? PST_OK : PST_NO_MEMORY;
    pst_list_seek(&c, t->heap, pst_heap_bytes(t), &t->collections[i].list, l, from);
    while (!st) {
        uint64_t taken, seq = c.seq;
        size_t size = s->scratch.capacity;
        st = pst_list_pack_next(&c, PST_RUN_BYTES, s->scratch.data, &size, &taken);
        if (st == PST_TOO_LARGE && size > s->scratch.capacity)
            st = scratch(s, size) ? PST_OK : PST_NO_MEMORY;
        else if (!st)
            st = emit_run(s, t, row, i, seq, s->scratch.data, size);
    }
    return st == PST_NOT_FOUND ? PST_OK : st;
}

/* The element of an entry: its words in big-endian order, or its bytes. */
static pst_status entry_element(pst_sealed *s, const pst_table *t, int32_t i,
                                const pst_tree_entry *e, pst_bytes *element) {
    const pst_tree_shape *shape = &t->collections[i].map;
    size_t size = 4 + (shape->key_is_ref ? e->key_bytes.size : shape->key_words * 8u);
    uint8_t *room = scratch(s, size);
    if (!room)
        return PST_NO_MEMORY;
    pst_put_big(room, t->collections[i].id, 4);
    if (!shape->key_is_ref)
        for (int k = 0; k < shape->key_words; k++)
            pst_put_big(room + 4 + 8 * k, e->key[k], 8);
    else if (e->key_bytes.size)
        memcpy(room + 4, e->key_bytes.data, e->key_bytes.size);
    *element = (pst_bytes){room, (uint32_t)size};
    return PST_OK;
}

static pst_status emit_entry(pst_sealed *s, const pst_table *t, const uint64_t *row, int32_t i,
                             pst_record_op op, const pst_tree_entry *e) {
    uint64_t *w, bit = UINT64_C(1) << i;
    pst_bytes element;
    pst_status st = entry_element(s, t, i, e, &element);
    if (!st)
        st = pst_entry_begin(s, t, row, element, 3, &w);
    if (st)
        return st;
    if (op == PST_DELETE) {
        pst_entry_end(s, pst_entry_info(s, w + 3, op, 0, 0));
        return PST_OK;
    }
    int timed = t->collections[i].map.timed;
    uint64_t columns = timed ? bit | bit << 1 : bit;
    pst_cell cell;
    w = pst_entry_info(s, w + 3, op, columns, e->is_null ? columns & ~bit : columns);
    pst_entry_value_cell(t, i, e, &cell);
    if (e->is_null) {
        s->null_entries = 1;
    } else if (!pst_is_wide_value((pst_type)t->lay.fields[i].type)) {
        *w++ = cell.word[0];
        s->logical_bytes += 8;
    } else if (t->lay.fields[i].type == PST_DECIMAL) {
        w = put_cell_bytes(w, cell.word);
        s->logical_bytes += 16;
    } else {
        st = pst_sealed_keep(s, cell.bytes.data, cell.bytes.size, w);
        w += 2;
        s->logical_bytes += cell.bytes.size;
    }
    if (timed)
        *w++ = (uint64_t)e->time;
    pst_entry_end(s, w);
    return st;
}

static pst_status emit_entries(pst_sealed *s, const pst_table *t, const uint64_t *row, int32_t i,
                               pst_tree_root before, pst_tree_root after) {
    pst_tree_diff d;
    pst_tree_entry e;
    pst_record_op op;
    pst_status st;
    pst_tree_diff_open(&d, t->heap, pst_heap_bytes(t), &t->collections[i].map, before, after);
    while ((st = pst_tree_diff_next(&d, &op, &e)) == PST_OK) {
        st = emit_entry(s, t, row, i, op, &e);
        if (st)
            break;
    }
    return st == PST_NOT_FOUND ? PST_OK : st;
}

/* ---- a touched row -------------------------------------------------------------------------- */

static pst_tree_root map_before(const pst_table *t, const uint64_t *image, uint64_t presence,
                                int32_t i) {
    pst_tree_root root = {0, 0};
    if (presence >> i & 1)
        memcpy(&root, pst_image_field(&t->lay, image, i), sizeof root);
    return root;
}

static pst_status emit_collection(pst_sealed *s, const pst_table *t, const uint64_t *row, int32_t i,
                                  uint64_t presence, const uint64_t *image) {
    if (t->lay.fields[i].kind == PST_LIST) {
        pst_list before = list_before(t, image, presence, i), after = pst_row_list(t, row, i);
        pst_list_change c = compare_lists(t, &before, &after);
        return c.changed && c.from < after.end ? emit_items(s, t, row, i, &after, c.from) : PST_OK;
    }
    pst_tree_root after = pst_row_map(t, row, i);
    if (!after.node)
        return PST_OK; /* the row's record says that it is void */
    return emit_entries(s, t, row, i, map_before(t, image, presence, i), after);
}

pst_status pst_sealed_row_with_elements(pst_sealed *s, const pst_table *t, const uint64_t *row,
                                        uint64_t before, const uint64_t *image) {
    uint64_t after = pst_presence(&t->lay, row), values = 0, elements = 0;
    marker markers[PST_MAX_STATES];
    uint64_t marked = 0;
    if (!after)
        return before ? emit_delete(s, t, row) : PST_OK;
    for (int32_t i = 0; i < t->lay.n_states; i++) {
        markers[i] = (marker){0, 0, 0};
        pst_kind kind = (pst_kind)t->lay.fields[i].kind;
        uint64_t bit = UINT64_C(1) << i;
        if (kind == PST_LIST || kind == PST_MAP)
            elements |= bit & (before | after);
        else if (kind != PST_TIMERS)
            values |= bit;
    }
    for (uint64_t left = elements; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        if (t->lay.fields[i].kind == PST_LIST) {
            pst_list old = list_before(t, image, before, i), now = pst_row_list(t, row, i);
            markers[i] = mark_list(t, &old, &now);
        } else {
            markers[i].said = (before >> i & 1) && !(after >> i & 1);
        }
        marked |= (uint64_t)markers[i].said << i;
    }
    uint64_t changed = (before ^ after) & values;
    if (image)
        changed |= pst_sealed_compare(t, row, image, before & after & values);
    pst_status st = PST_OK;
    if (changed | marked)
        st = emit_row(s, t, row, changed, changed & after, markers);
    if (!st && t->lay.timers >= 0)
        st = pst_sealed_staying(s, t, row, before, image);
    for (int32_t k = 0; !st && elements && k < t->lay.n_states; k++) {
        int32_t i = t->collections[k].nth;
        if (elements >> i & 1)
            st = emit_collection(s, t, row, i, before, image);
        elements &= ~(UINT64_C(1) << i);
    }
    return st;
}
