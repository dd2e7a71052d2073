/* sealed_elements.c: what an epoch changed of lists, maps and timers.
 *
 * Their files have one key column more (elements.h), so every entry has a bytes key: the row's key
 * in the form of several columns, then the element or its absence. */
#include <string.h>

#include "base/hash.h"
#include "base/key.h"
#include "base/mem.h"
#include "elements/elements.h"
#include "elements/timers.h"
#include "snapshot/sealed.h"
#include "table/undo.h"

/* One column's part of the encoding in key.c. */
static uint8_t *put_part(uint8_t *p, pst_bytes b) {
    *p++ = 1;
    memcpy(p, &b.size, 4);
    if (b.size)
        memcpy(p + 4, b.data, b.size);
    return p + 4 + b.size;
}

/* Keeps the file's key of a row, or of one of its elements (data not NULL): {hash, offset,
 * size}. */
static pst_status keep_key(pst_sealed *s, const pst_table *t, const uint64_t *row,
                           pst_bytes element, uint64_t *w) {
    const uint64_t *k = row + t->lay.key_offset / 8;
    int word = t->lay.key_kind == PST_KEY_WORD, null = (row[0] & PST_FLAG_NULL_KEY) != 0;
    pst_bytes own = {NULL, 0};
    if (!word)
        own = (pst_bytes){pst_ref_data(t->heap, k + 1), pst_ref_size(k + 1)};
    /* The form of one string column is its bytes alone; all others are tagged already. */
    int plain = t->schema.n_keys == 1 && t->schema.keys[0].type != PST_DECIMAL;
    size_t room = 16 + (size_t)own.size + element.size + 8;
    uint8_t small[512], *form = room <= sizeof small ? small : pst_malloc(room), *p = form;
    if (!form)
        return PST_NO_MEMORY;
    if (null) {
        *p++ = 0;
    } else if (word) {
        p += pst_key_put_word(p, k[0]);
    } else if (plain) {
        p = put_part(p, own);
    } else {
        memcpy(p, own.data, own.size);
        p += own.size;
    }
    if (element.data)
        p = put_part(p, element);
    else
        *p++ = 0;
    w[0] = 0; /* the writer hashes the columns that are hashed */
    pst_status st = pst_sealed_keep(s, form, (size_t)(p - form), w + 1);
    s->logical_bytes += (word ? 8 : own.size) + element.size;
    if (form != small)
        pst_free(form);
    return st;
}

static uint64_t *put_info(const pst_sealed *s, uint64_t *w, pst_record_op op, uint64_t changed,
                          uint64_t present) {
    *w++ = (op == PST_DELETE ? PST_INFO_DELETE : 0u) | (s->wide ? 0 : changed << 8 | present << 16);
    if (s->wide) {
        *w++ = changed;
        *w++ = present;
    }
    return w;
}

enum { ENTRY_WORDS = 6 }; /* key, info and masks */

static pst_status begin_entry(pst_sealed *s, const pst_table *t, const uint64_t *row,
                              pst_bytes element, size_t cells, uint64_t **w) {
    pst_status st = pst_sealed_reserve(s, ENTRY_WORDS + cells);
    *w = s->entries.words + s->n_words;
    return st ? st : keep_key(s, t, row, element, *w);
}

static void end_entry(pst_sealed *s, const uint64_t *w) {
    s->n_words = (size_t)(w - s->entries.words);
    s->rows++;
}

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
    return pst_list_load(image + (t->lay.fields[i].offset - t->lay.image_offset) / 8);
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
    pst_status st = begin_entry(s, t, row, none, 2 * (size_t)t->lay.n_states, &w);
    if (st)
        return st;
    for (int32_t i = 0; i < t->lay.n_states; i++)
        if (markers[i].said) {
            changed |= UINT64_C(1) << i;
            present |= (uint64_t)markers[i].starts << i;
        }
    w = put_info(s, w + 3, PST_PUT, changed, present);
    for (uint64_t left = present; !st && left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        if (values >> i & 1) {
            st = pst_sealed_cells(s, t, row, left & -left, &w);
        } else {
            st = pst_sealed_keep(s, &markers[i].start, 8, w);
            w += 2;
        }
    }
    end_entry(s, w);
    return st;
}

static pst_status emit_delete(pst_sealed *s, const pst_table *t, const uint64_t *row) {
    uint64_t *w;
    pst_bytes none = {NULL, 0};
    pst_status st = begin_entry(s, t, row, none, 0, &w);
    if (!st)
        end_entry(s, put_info(s, w + 3, PST_DELETE, 0, 0));
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
    pst_status st = begin_entry(s, t, row, (pst_bytes){element, sizeof element}, 2, &w);
    if (!st)
        st = pst_sealed_keep(s, blob, size, kept);
    if (st)
        return st;
    s->logical_bytes += size;
    end_entry(s, put_cell_bytes(put_info(s, w + 3, PST_PUT, bit, bit), kept));
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
        st = begin_entry(s, t, row, element, 3, &w);
    if (st)
        return st;
    if (op == PST_DELETE) {
        end_entry(s, put_info(s, w + 3, op, 0, 0));
        return PST_OK;
    }
    int timed = t->collections[i].map.timed;
    uint64_t columns = timed ? bit | bit << 1 : bit;
    pst_cell cell;
    w = put_info(s, w + 3, op, columns, columns);
    pst_entry_value_cell(t, i, e, &cell);
    if (!pst_is_wide_value((pst_type)t->lay.fields[i].type)) {
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
    end_entry(s, w);
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
        memcpy(&root, image + (t->lay.fields[i].offset - t->lay.image_offset) / 8, sizeof root);
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
    for (int32_t k = 0; !st && elements && k < t->lay.n_states; k++) {
        int32_t i = t->collections[k].nth;
        if (elements >> i & 1)
            st = emit_collection(s, t, row, i, before, image);
        elements &= ~(UINT64_C(1) << i);
    }
    return st;
}

/* ---- timers --------------------------------------------------------------------------------- */

static pst_status emit_timer(pst_sealed *s, const pst_table *t, int domain, pst_record_op op,
                             const pst_tree_entry *e) {
    uint8_t element[PST_ELEMENT_TIMER];
    uint64_t *w, bit = op == PST_PUT ? UINT64_C(1) << t->lay.timers : 0;
    pst_put_big(element, PST_TIMERS_ID, 4);
    element[4] = (uint8_t)domain;
    pst_put_big(element + 5, e->key[0], 8);
    const uint64_t *row = pst_row(t, (uint32_t)e->key[1]);
    pst_status st = begin_entry(s, t, row, (pst_bytes){element, sizeof element}, 1, &w);
    if (st)
        return st;
    w = put_info(s, w + 3, op, bit, bit);
    if (bit)
        *w++ = 1;
    end_entry(s, w);
    return PST_OK;
}

/* The rows of timers lie anywhere, so some timers are found before the first is emitted. */
static pst_status emit_timers(pst_sealed *s, const pst_table *t, int domain, pst_tree_root from,
                              pst_tree_root to) {
    enum { TOGETHER = 32 };
    pst_tree_diff d;
    pst_tree_entry e[TOGETHER];
    pst_record_op op[TOGETHER];
    pst_status found = PST_OK, st = PST_OK;
    if (!memcmp(&from, &to, sizeof to))
        return PST_OK;
    pst_tree_diff_open(&d, t->heap, pst_heap_bytes(t), &pst_timer_shape, from, to);
    while (!found && !st) {
        int n = 0;
        while (n < TOGETHER && !(found = pst_tree_diff_next(&d, &op[n], &e[n])))
            pst_prefetch_row(t, (uint32_t)e[n++].key[1]);
        for (int i = 0; !st && i < n; i++)
            st = emit_timer(s, t, domain, op[i], &e[i]);
    }
    return st || found == PST_NOT_FOUND ? st : found;
}

pst_status pst_sealed_timers(pst_sealed *s, const pst_table *t) {
    pst_meta *before = pst_meta_of(t, t->h->sealed);
    pst_status st = PST_OK;
    for (int32_t g = t->first_key_group; !st && g <= t->last_key_group; g++)
        for (int domain = 0; !st && domain < 2; domain++)
            st = emit_timers(s, t, domain, *pst_timer_root(t, before, g, (pst_domain)domain),
                             *pst_timer_root(t, t->m, g, (pst_domain)domain));
    return st;
}

pst_status pst_sealed_group_timers(pst_sealed *s, const pst_table *t, int32_t key_group) {
    pst_status st = PST_OK;
    for (int domain = 0; !st && domain < 2; domain++)
        st = emit_timers(s, t, domain, (pst_tree_root){0, 0},
                         *pst_timer_root(t, t->m, key_group, (pst_domain)domain));
    return st;
}
