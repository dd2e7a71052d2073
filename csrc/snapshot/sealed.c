#include "snapshot/sealed.h"

#include <string.h>

#include "base/coding.h"
#include "base/mem.h"
#include "elements/elements.h"
#include "elements/timers.h"
#include "key/hash.h"
#include "key/key.h"
#include "key/schema.h"
#include "memory/ring.h"
#include "snapshot/words.h"
#include "table/undo.h"
#include "table/value.h"

enum { AHEAD = 32 }; /* rows that are prefetched */

void pst_sealed_destroy(pst_sealed *s) {
    if (!s)
        return;
    pst_huge_drop(&s->huge);
    if (s->pool)
        pst_pool_give(s->pool, s->n_words, &s->entries, &s->bytes, &s->charge);
    pst_free(s->scratch.data);
    pst_file_schema_destroy(s->schema);
    pst_free(s);
}

uint64_t pst_sealed_rows(const pst_sealed *s) {
    return s->rows;
}
uint64_t pst_sealed_bytes(const pst_sealed *s) {
    return s->logical_bytes;
}
const pst_lineage *pst_sealed_lineage(const pst_sealed *s) {
    return &s->lineage;
}

/* ---- entries --------------------------------------------------------------------------------- */

static pst_status reserve(pst_sealed *s, size_t n) {
    pst_status st = pst_sealed_charge(s);
    if (st || s->n_words + n <= s->entries.capacity)
        return st;
    size_t capacity = s->entries.capacity * 2 + n;
    uint64_t *grown = pst_realloc(s->entries.words, capacity * sizeof *grown);
    if (!grown)
        return PST_NO_MEMORY;
    s->entries = (pst_words){grown, capacity};
    return PST_OK;
}

static pst_status keep(pst_sealed *s, const void *data, size_t size, uint64_t *to) {
    pst_buffer *b = &s->bytes;
    if (b->size + size + PST_BYTES_SLACK > b->capacity) {
        pst_status st =
            pst_charge_raise(&s->charge, s->n_words * sizeof(uint64_t) + b->size + size);
        if (!st)
            st = pst_buffer_grow(b, b->size + size + PST_BYTES_SLACK);
        if (st)
            return st;
    }
    if (size)
        memcpy(b->data + b->size, data, size);
    to[0] = b->size;
    to[1] = size;
    b->size += size;
    return PST_OK;
}

/* Whether a field has the same bytes in two images. Its place is a multiple of its width, or of 8. A
 * call of memcmp would cost more than all the rest of a small row. */
static int is_same(const pst_field *f, const uint64_t *now, const uint64_t *then, uint32_t at) {
    uint64_t differs = now[at / 8] ^ then[at / 8];
    if (f->width < 8)
        return !f->width || !(differs >> 8 * (at % 8) << (64 - 8 * f->width));
    for (uint32_t i = 1; i < f->width / 8u; i++)
        differs |= now[at / 8 + i] ^ then[at / 8 + i];
    return !differs;
}

/* Which of the columns that are present before and after differ. */
static uint64_t compare_columns(const pst_table *t, const uint64_t *row, const uint64_t *before,
                                uint64_t both) {
    const uint64_t *now = row + t->lay.image_offset / 8;
    uint64_t changed = 0;
    for (; both; both &= both - 1) {
        int i = __builtin_ctzll(both);
        const pst_field *f = &t->lay.fields[i];
        uint32_t at = f->offset - t->lay.image_offset;
        int same = is_same(f, now, before, at);
        if (!same && f->is_bytes) {
            const uint64_t *a = now + at / 8, *b = before + at / 8;
            pst_bytes old = {pst_ref_data(t->heap, b), pst_ref_size(b)};
            same = pst_ref_equals(t->heap, a, old);
        }
        if (!same)
            changed |= UINT64_C(1) << i;
    }
    return changed;
}

/* ---- whole rows ------------------------------------------------------------------------------ */

/* The columns of which a row's record has a value or a null (GW1). */
static uint64_t columns_of_rows(const pst_row_layout *lay) {
    return lay->values | (lay->timer >= 0 ? UINT64_C(1) << lay->timer : 0);
}

static uint64_t bytes_of_values(const pst_table *t, const uint64_t *row, uint64_t columns) {
    uint64_t bytes = 0;
    for (; columns; columns &= columns - 1) {
        const pst_field *f = &t->lay.fields[__builtin_ctzll(columns)];
        bytes += f->is_bytes ? pst_ref_size(row + f->offset / 8) : f->width;
    }
    return bytes;
}

/* The columns that the record of a changed row carries, where rows are to be whole. A row of which
 * the epoch before had nothing (`born`) has no values but those that changed. */
static uint64_t widened(const pst_sealed *s, const pst_table *t, const uint64_t *row, int born,
                        uint64_t changed) {
    uint64_t after = pst_presence(&t->lay, row) & s->columns;
    if (!s->whole_bytes)
        return changed;
    if (born || bytes_of_values(t, row, after) <= s->whole_bytes)
        return changed | s->columns;
    return changed | ((changed & s->times) >> 1 & after);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static pst_status put_cells(pst_sealed *s, const pst_table *t, const uint64_t *row,
                            uint64_t present, uint64_t **w) {
    for (; present; present &= present - 1) {
        const pst_field *f = &t->lay.fields[__builtin_ctzll(present)];
        pst_cell cell = {{0, 0}, {NULL, 0}};
        pst_field_cell(f, row, t->heap, &cell);
        if (f->type < PST_STRING) {
            *(*w)++ = cell.word[0];
            if (f->width == 16)
                *(*w)++ = cell.word[1];
            s->logical_bytes += f->width;
            continue;
        }
        pst_status st = keep(s, cell.bytes.data, cell.bytes.size, *w);
        if (st)
            return st;
        s->logical_bytes += cell.bytes.size;
        *w += 2;
    }
    return PST_OK;
}

static pst_status emit(pst_sealed *s, const pst_table *t, const uint64_t *row, int deleted,
                       uint64_t changed, uint64_t present) {
    uint64_t *w = s->entries.words + s->n_words;
    const uint64_t *k = row + t->lay.key_offset / 8;
    pst_status st;
    uint32_t null = (uint32_t)row[0] & PST_FLAG_NULL_KEY;
    *w++ = k[0];
    s->logical_bytes += 8;
    if (s->key_kind == PST_KEY_BYTES) {
        st = keep(s, pst_ref_data(t->heap, k + 1), pst_ref_size(k + 1), w);
        if (st)
            return st;
        s->logical_bytes += w[1] - 8;
        w += 2;
    }
    *w++ = (deleted ? PST_INFO_DELETE : 0u) | (null ? PST_INFO_NULL : 0u) |
           (s->wide ? 0 : changed << 8 | present << 16);
    if (s->wide) {
        *w++ = changed;
        *w++ = present;
    }
    st = put_cells(s, t, row, present, &w);
    s->n_words = (size_t)(w - s->entries.words);
    s->rows++;
    return st ? st : pst_sealed_charge(s);
}

/* ---- entries with elements beside them ------------------------------------------------------- */

/* Files with elements have one key column more (elements.h), so every entry has a bytes key: the
 * row's key in the form of several columns, then the element or its absence. */

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
    pst_status st = keep(s, form, (size_t)(p - form), w + 1);
    s->logical_bytes += (word ? 8 : own.size) + element.size;
    if (form != small)
        pst_free(form);
    return st;
}

/* Returns where the cells go. */
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

/* Begins the entry of a row, or of one of its elements (data not NULL), with room for so many words
 * of cells. *w is where it begins: three words of the key, then what put_info puts. */
static pst_status begin_entry(pst_sealed *s, const pst_table *t, const uint64_t *row,
                              pst_bytes element, size_t cells, uint64_t **w) {
    pst_status st = reserve(s, ENTRY_WORDS + cells);
    *w = s->entries.words + s->n_words;
    return st ? st : keep_key(s, t, row, element, *w);
}

/* `w`: behind the last cell. */
static void end_entry(pst_sealed *s, const uint64_t *w) {
    s->n_words = (size_t)(w - s->entries.words);
    s->rows++;
}

/* ---- timers ---------------------------------------------------------------------------------- */

/* Those that are elements in files (TM4). A key's only timer is a column of its row like any
 * other. */

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

static int are_apart(const pst_table *t, uint32_t slot) {
    return pst_timers_are_apart(&t->lay, pst_presence(&t->lay, pst_row(t, slot)));
}

/* Had the row, in the last sealed epoch, timers that are elements in files? */
static int were_apart(const pst_table *t, uint32_t slot) {
    uint64_t header = pst_row(t, slot)[0];
    uint32_t index = (uint32_t)(header >> 32);
    if (pst_header_stamp(header) != t->stamp)
        return are_apart(t, slot);
    return index != PST_NONE &&
           pst_timers_are_apart(&t->lay, pst_undo_presence(t, pst_undo_record(t, t->undo, index)));
}

/* The header that the row had when the open epoch admitted it, and its image then; 0: it did not. */
static uint64_t admitted_header(const pst_table *t, const uint64_t *row, const uint64_t **image) {
    uint64_t header = row[0];
    *image = row + t->lay.image_offset / 8;
    if (pst_header_stamp(header) == t->stamp && header >> 32 != PST_NONE) {
        const uint64_t *record = pst_undo_record(t, t->undo, header >> 32);
        header = record[1];
        *image = record + 2;
    }
    return pst_is_admitted(header, t->h->active) ? header : 0;
}

/* Whether the timer was there already when the open epoch admitted its row (AD2). */
static int came_with_row(const pst_table *t, int domain, const pst_tree_entry *e) {
    const pst_row_layout *lay = &t->lay;
    const uint64_t *image, *row = pst_row(t, (uint32_t)e->key[1]);
    uint64_t header = t->admitted ? admitted_header(t, row, &image) : 0;
    if (!header)
        return 0;
    if (header == row[0])
        return 1;
    uint64_t had = lay->wide ? image[0] : header >> 1 & 0x7F;
    if (lay->timer >= 0 && had >> lay->timer & 1)
        return pst_timer_is_packed(*pst_image_field(lay, image, lay->timer), (pst_domain)domain,
                                   pst_timer_time(e->key[0]));
    pst_timer timer = {e->key[0], (uint32_t)e->key[1], (pst_domain)domain};
    size_t low = 0, high;
    const pst_timer *all = pst_timers_admitted(t, &high);
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = pst_timer_compare(&timer, &all[middle]);
        if (!order)
            return 1;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return 0;
}

/* The timers with which rows were admitted, as far as they are elements of files and no longer: no
 * difference between trees names those. */
static pst_status emit_admitted(pst_sealed *s, const pst_table *t) {
    size_t n;
    const pst_timer *all = pst_timers_admitted(t, &n);
    pst_status st = PST_OK;
    for (size_t i = 0; !st && i < n; i++) {
        const pst_timer *timer = &all[i];
        const uint64_t *row = pst_row(t, timer->slot);
        pst_tree_entry e = {.key = {timer->word, timer->slot}};
        if (pst_header_stamp(row[0]) != t->stamp)
            continue;
        int32_t group = pst_group_of(t, pst_row_hash(t, row));
        if (!are_apart(t, timer->slot) || !pst_timer_is_there(t, t->m, group, timer))
            st = emit_timer(s, t, (int)timer->domain, PST_DELETE, &e);
    }
    return st;
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
        for (int i = 0; !st && i < n; i++) {
            uint32_t slot = (uint32_t)e[i].key[1];
            if (op[i] == PST_PUT ? are_apart(t, slot) && !came_with_row(t, domain, &e[i])
                                 : were_apart(t, slot))
                st = emit_timer(s, t, domain, op[i], &e[i]);
        }
    }
    return st || found == PST_NOT_FOUND ? st : found;
}

/* A timer that stays, while in files it becomes an element or is one no longer: no difference
 * between trees names it. */
static pst_status emit_staying(pst_sealed *s, const pst_table *t, const uint64_t *row,
                               uint64_t before, const uint64_t *image) {
    const pst_row_layout *lay = &t->lay;
    uint64_t after = pst_presence(lay, row);
    const uint64_t *from = image;
    pst_record_op op = PST_PUT;
    pst_meta *m = t->m;
    if (lay->timer < 0 || !image)
        return PST_OK;
    if (pst_timers_are_apart(lay, before) && after >> lay->timer & 1) {
        op = PST_DELETE;
        m = pst_meta_of(t, t->h->sealed);
        from = row + lay->image_offset / 8;
    } else if (!(before >> lay->timer & 1) || !pst_timers_are_apart(lay, after)) {
        return PST_OK;
    }
    uint64_t word = *pst_image_field(lay, from, lay->timer);
    uint32_t slot = (uint32_t)((uint64_t)((const uint8_t *)row - t->rows) / lay->row_size);
    pst_domain domain = pst_timer_packed_domain(word);
    pst_tree_entry e = {.key = {pst_timer_word(pst_timer_packed_time(word)), slot}};
    pst_tree_root root = *pst_timer_root(t, m, pst_group_of(t, pst_row_hash(t, row)), domain);
    pst_status st = pst_tree_find(t->heap, pst_heap_bytes(t), &pst_timer_shape, root, &e);
    if (st)
        return st == PST_NOT_FOUND ? PST_OK : st;
    return emit_timer(s, t, (int)domain, op, &e);
}

static pst_status gather_timers(pst_sealed *s, const pst_table *t) {
    pst_meta *before = pst_meta_of(t, t->h->sealed);
    pst_status st = PST_OK;
    if (!before->timed_apart && !t->m->timed_apart && !t->admitted_timers.size)
        return PST_OK;
    st = emit_admitted(s, t);
    for (int32_t g = t->first_key_group; !st && g <= t->last_key_group; g++)
        for (int domain = 0; !st && domain < 2; domain++)
            st = emit_timers(s, t, domain, *pst_timer_root(t, before, g, (pst_domain)domain),
                             *pst_timer_root(t, t->m, g, (pst_domain)domain));
    return st;
}

static pst_status gather_group_timers(pst_sealed *s, const pst_table *t, int32_t key_group) {
    pst_status st = PST_OK;
    for (int domain = 0; !st && t->m->timed_apart && domain < 2; domain++)
        st = emit_timers(s, t, domain, (pst_tree_root){0, 0},
                         *pst_timer_root(t, t->m, key_group, (pst_domain)domain));
    return st;
}

/* ---- rows with lists, maps and timers -------------------------------------------------------- */

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
            st = put_cells(s, t, row, left & -left, &w);
        } else {
            st = keep(s, &markers[i].start, 8, w);
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

/* ---- elements -------------------------------------------------------------------------------- */

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
        st = keep(s, blob, size, kept);
    if (st)
        return st;
    s->logical_bytes += size;
    end_entry(s, put_cell_bytes(put_info(s, w + 3, PST_PUT, bit, bit), kept));
    return PST_OK;
}

static pst_status emit_items(pst_sealed *s, const pst_table *t, const uint64_t *row, int32_t i,
                             const pst_list *l, uint64_t from) {
    pst_list_cursor c;
    pst_status st = pst_buffer_reserve(&s->scratch, PST_RUN_BYTES);
    pst_list_seek(&c, t->heap, pst_heap_bytes(t), &t->collections[i].list, l, from);
    while (!st) {
        uint64_t taken, seq = c.seq;
        size_t size = s->scratch.capacity;
        st = pst_list_pack_next(&c, PST_RUN_BYTES, s->scratch.data, &size, &taken);
        if (st == PST_TOO_LARGE && size > s->scratch.capacity)
            st = pst_buffer_reserve(&s->scratch, size);
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
    pst_status st = pst_buffer_reserve(&s->scratch, size);
    if (st)
        return st;
    uint8_t *room = s->scratch.data;
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
    w = put_info(s, w + 3, op, columns, e->is_null ? columns & ~bit : columns);
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
        st = keep(s, cell.bytes.data, cell.bytes.size, w);
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
        st = emit_entry(s, t, row, i, e.is_gone ? PST_DELETE : op, &e);
        if (st)
            break;
    }
    return st == PST_NOT_FOUND ? PST_OK : st;
}

/* ---- a touched row --------------------------------------------------------------------------- */

static uint64_t map_word_before(const pst_table *t, const uint64_t *image, uint64_t presence,
                                int32_t i) {
    return presence >> i & 1 ? *pst_image_field(&t->lay, image, i) : 0;
}

/* Is the map another one, so that what files have of the old one is void? Where all of that was in the
 * row, too, its entries are told one by one. */
static int is_other_map(const pst_table *t, const uint64_t *row, uint64_t presence,
                        const uint64_t *image, int32_t i) {
    return (map_word_before(t, image, presence, i) & PST_MAP_BELOW) != 0 &&
           !pst_row_map_is_below(t, row, i);
}

static pst_status emit_collection(pst_sealed *s, const pst_table *t, const uint64_t *row, int32_t i,
                                  uint64_t presence, const uint64_t *image) {
    if (t->lay.fields[i].kind == PST_LIST) {
        pst_list before = list_before(t, image, presence, i), after = pst_row_list(t, row, i);
        pst_list_change c = compare_lists(t, &before, &after);
        return c.changed && c.from < after.end ? emit_items(s, t, row, i, &after, c.from) : PST_OK;
    }
    pst_tree_root before = pst_map_root(map_word_before(t, image, presence, i));
    pst_tree_root after = pst_row_map(t, row, i);
    if (!after.node)
        return PST_OK; /* the row's record says that it is void, or nothing has changed */
    if (is_other_map(t, row, presence, image, i))
        before = (pst_tree_root){0, 0};
    return emit_entries(s, t, row, i, before, after);
}

/* As `widened`. Where the row is whole, its record says so of lists, maps and timers too, as far as
 * older files have nothing of them that counts (GW2). */
static uint64_t widened_markers(const pst_sealed *s, const pst_table *t, const uint64_t *row,
                                int born, uint64_t changed, marker *markers) {
    const pst_row_layout *lay = &t->lay;
    uint64_t after = pst_presence(lay, row), carried = widened(s, t, row, born, changed);
    if (!s->whole_bytes || s->columns & ~carried)
        return carried;
    for (int32_t i = 0; i < lay->n_states; i++) {
        const pst_field *f = &lay->fields[i];
        if ((f->kind != PST_LIST && f->kind != PST_MAP) || (!born && after >> i & 1))
            continue;
        markers[i] = (marker){1, 0, 0};
        if (f->time >= 0)
            carried |= UINT64_C(1) << f->time;
    }
    if (lay->timers >= 0 && (born || !pst_timers_are_apart(lay, after)))
        carried |= UINT64_C(1) << lay->timers;
    return carried;
}

static pst_status gather_with_elements(pst_sealed *s, const pst_table *t, const uint64_t *row,
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
            markers[i].said =
                is_other_map(t, row, before, image, i) || ((before >> i & 1) && !(after >> i & 1));
        }
        marked |= (uint64_t)markers[i].said << i;
    }
    uint64_t changed = (before ^ after) & values;
    if (image)
        changed |= compare_columns(t, row, image, before & after & values);
    pst_status st = PST_OK;
    if (changed | marked || (!before && s->whole_bytes)) {
        uint64_t carried = widened_markers(s, t, row, !before, changed, markers);
        st = emit_row(s, t, row, carried, carried & after & values, markers);
    }
    if (!st && t->lay.timers >= 0)
        st = emit_staying(s, t, row, before, image);
    for (int32_t k = 0; !st && elements && k < t->lay.n_states; k++) {
        int32_t i = t->collections[k].nth;
        if (elements >> i & 1)
            st = emit_collection(s, t, row, i, before, image);
        elements &= ~(UINT64_C(1) << i);
    }
    return st;
}

/* Prefetches what comparing the lists and maps of a touched row begins with. The row and its undo
 * record are in cache. */
PST_PREFETCH void prefetch_elements(const pst_table *t, const uint64_t *record) {
    const uint64_t *row = pst_row(t, (uint32_t)record[0]), *image = record + 2;
    for (int32_t i = 0; i < t->lay.n_states; i++) {
        const pst_field *f = &t->lay.fields[i];
        const uint64_t *now = row + f->offset / 8;
        if (f->kind == PST_LIST) {
            pst_list_prefetch_first(t->heap, now);
            pst_list_prefetch_last(t->heap, now);
            pst_list_prefetch(t->heap, now);
        } else if (f->kind == PST_MAP) {
            pst_tree_prefetch(t->heap, image + (f->offset - t->lay.image_offset) / 8);
            pst_tree_prefetch(t->heap, now);
        }
    }
}

/* ---- all that the epoch changed -------------------------------------------------------------- */

PST_PREFETCH void prefetch_block(const pst_table *t, const uint64_t *ref) {
    const uint8_t *data = pst_ref_data(t->heap, ref);
    if (!pst_ref_is_block(ref))
        return;
    __builtin_prefetch(data, 0, 2);
    __builtin_prefetch(data + pst_ref_size(ref) - 1, 0, 2);
}

/* Prefetches the blocks behind a touched row's key and these columns, before and after. The row and
 * its record are in cache. Where a state is absent, this prefetches something useless. */
PST_PREFETCH void prefetch_bytes(const pst_table *t, const uint64_t *record, uint64_t columns) {
    const uint64_t *row = pst_row(t, (uint32_t)record[0]);
    if (t->lay.key_kind == PST_KEY_BYTES)
        prefetch_block(t, row + t->lay.key_offset / 8 + 1);
    for (; columns; columns &= columns - 1) {
        uint32_t at = t->lay.fields[__builtin_ctzll(columns)].offset;
        prefetch_block(t, row + at / 8);
        prefetch_block(t, record + 2 + (at - t->lay.image_offset) / 8);
    }
}

static uint64_t columns_of_bytes(const pst_table *t) {
    uint64_t columns = 0;
    for (int32_t i = 0; i < t->lay.n_states; i++)
        if (t->lay.fields[i].is_bytes && t->lay.fields[i].kind == PST_VALUE)
            columns |= UINT64_C(1) << i;
    return columns;
}

static pst_status gather_touched(pst_sealed *s, const pst_table *t) {
    uint64_t bytes = columns_of_bytes(t);
    int has_bytes = bytes || t->lay.key_kind == PST_KEY_BYTES;
    for (uint64_t i = 0; i < t->undo_count; i++) {
        /* Rows are prefetched by their records, records by their place: the hardware alone does not
         * run far enough ahead of either. */
        if (i + 3 * AHEAD < t->undo_count)
            __builtin_prefetch(pst_undo_record(t, t->undo, i + 3 * AHEAD));
        if (i + AHEAD < t->undo_count)
            pst_prefetch_row(t, (uint32_t)*pst_undo_record(t, t->undo, i + AHEAD));
        if (t->lay.has_elements && i + AHEAD / 4 < t->undo_count)
            prefetch_elements(t, pst_undo_record(t, t->undo, i + AHEAD / 4));
        if (has_bytes && i + AHEAD / 2 < t->undo_count)
            prefetch_bytes(t, pst_undo_record(t, t->undo, i + AHEAD / 2), bytes);
        const uint64_t *record = pst_undo_record(t, t->undo, i);
        const uint64_t *row = pst_row(t, (uint32_t)record[0]);
        uint64_t before = pst_undo_presence(t, record);
        uint64_t after = pst_presence(&t->lay, row);
        if (t->lay.has_elements) {
            pst_status s_row = gather_with_elements(s, t, row, before, record + 2);
            if (s_row)
                return s_row;
            continue;
        }
        uint64_t changed = (before ^ after) | compare_columns(t, row, record + 2, before & after);
        if (!changed)
            continue;
        changed = widened(s, t, row, !before, changed);
        pst_status st =
            after ? emit(s, t, row, 0, changed, changed & after) : emit(s, t, row, 1, 0, 0);
        if (st)
            return st;
    }
    return PST_OK;
}

/* A row that is new as a whole. Where a slot's name only left the ring, the row may be of an insert
 * that was undone: its header alone tells (V2). */
static pst_status gather_inserted(pst_sealed *s, const pst_table *t, uint32_t slot) {
    const uint64_t *row = pst_row(t, slot);
    uint64_t present = pst_presence(&t->lay, row);
    if (!pst_is_live(row[0]))
        return PST_OK;
    if (t->lay.has_elements)
        return gather_with_elements(s, t, row, 0, NULL);
    return present ? emit(s, t, row, 0, widened(s, t, row, 1, present), present) : PST_OK;
}

/* A slot that the epoch took. The row may have been admitted, and then it is no change, or one that
 * an undo record tells. */
static pst_status gather_taken(pst_sealed *s, const pst_table *t, uint32_t slot) {
    return pst_row_is_made(t, pst_row(t, slot)) ? gather_inserted(s, t, slot) : PST_OK;
}

/* Words of an entry, at most. */
static size_t entry_words(const pst_sealed *s, const pst_table *t) {
    size_t words = 2 + (s->key_kind == PST_KEY_BYTES ? 2u : 0u) + (s->wide ? 2u : 0u);
    for (int32_t i = 0; i < t->lay.n_states; i++)
        words += pst_is_wide_value(t->schema.states[i].type) ? 2 : 1;
    return words;
}

static pst_status take_buffers(pst_sealed *s, const pst_table *t, size_t words) {
    s->pool = t->pool; /* to which they go back, also where only some can be had */
    return pst_pool_take(s->pool, words, &s->entries, &s->bytes, &s->charge);
}

static pst_status gather(pst_sealed *s, const pst_table *t) {
    s->whole_bytes = t->whole_bytes;
    const pst_meta *before = pst_meta_of(t, t->h->sealed);
    uint32_t from = before->rings[PST_RING_SLOTS].head, to = t->m->rings[PST_RING_SLOTS].head;
    size_t rows = (size_t)(t->undo_count + (t->m->slots - before->slots) + (to - from));
    pst_status st = take_buffers(s, t, rows * entry_words(s, t) + 1);
    if (!st)
        st = pst_is_of_words(s, t) ? pst_gather_words(s, t) : gather_touched(s, t);
    for (uint32_t p = from; !st && p != to; p++) {
        if (to - p > AHEAD)
            pst_prefetch_row(t, pst_ring_at(t, PST_RING_SLOTS, p + AHEAD));
        st = gather_taken(s, t, pst_ring_at(t, PST_RING_SLOTS, p));
    }
    for (uint32_t slot = before->slots; !st && slot < t->m->slots; slot++)
        st = gather_taken(s, t, slot);
    return !st && t->lay.timers >= 0 ? gather_timers(s, t) : st;
}

/* What a part may have before it ends. */
#ifndef PST_COPY_ROWS
#define PST_COPY_ROWS (1u << 18) /* tests have many parts */
#endif
enum { PART_BYTES = 1 << 26 };

static int is_large(const pst_sealed *s) {
    return s->rows >= PST_COPY_ROWS || s->bytes.size >= PART_BYTES;
}

static pst_status gather_part(pst_sealed *s, const pst_table *t, uint64_t *cursor) {
    uint64_t slots = t->m->slots, timers = t->lay.timers < 0 ? 0 : pst_group_count(t);
    size_t words = entry_words(s, t);
    pst_status st = take_buffers(s, t, PST_COPY_ROWS * words);
    for (; !st && *cursor < slots && !is_large(s); ++*cursor) {
        const uint64_t *row = pst_row(t, (uint32_t)*cursor);
        if (!pst_is_live(row[0]))
            continue;
        int32_t group = pst_group_of(t, pst_row_hash(t, row));
        if (group < s->first_key_group || group > s->last_key_group)
            continue;
        st = reserve(s, words);
        if (!st)
            st = gather_inserted(s, t, (uint32_t)*cursor);
    }
    for (; !st && *cursor >= slots && *cursor < slots + timers && !is_large(s); ++*cursor) {
        int32_t group = t->first_key_group + (int32_t)(*cursor - slots);
        if (group >= s->first_key_group && group <= s->last_key_group)
            st = gather_group_timers(s, t, group);
    }
    return st || s->rows ? st : PST_NOT_FOUND;
}

static pst_status begin(pst_table *t, const pst_lineage *lineage, pst_sealed **sealed) {
    pst_sealed *s = pst_calloc(1, sizeof *s);
    if (!s)
        return PST_NO_MEMORY;
    *sealed = s;
    s->lineage = *lineage;
    s->tied = t->m->ties != 0;
    s->key_kind = t->lay.has_elements ? PST_KEY_BYTES : t->lay.key_kind;
    s->wide = t->lay.wide;
    s->columns = columns_of_rows(&t->lay);
    for (int32_t i = 0; i < t->lay.n_states; i++)
        if (t->lay.fields[i].kind == PST_TIME)
            s->times |= UINT64_C(1) << i & s->columns;
    s->max_parallelism = t->max_parallelism;
    s->first_key_group = t->first_key_group;
    s->last_key_group = t->last_key_group;
    return pst_file_schema_create(&t->schema, &s->schema);
}

static pst_status end(pst_table *t, pst_status st, pst_sealed *s, pst_sealed **sealed) {
    if (st) {
        t->arena.refused = 0;
        pst_sealed_destroy(s);
        return st;
    }
    *sealed = s;
    return PST_OK;
}

pst_status pst_sealed_gather(pst_table *t, const pst_lineage *lineage, pst_sealed **sealed) {
    pst_sealed *s = NULL;
    pst_status st = begin(t, lineage, &s);
    pst_timers_sort_admitted(t);
    if (!st)
        st = gather(s, t);
    if (!st)
        pst_huge_take(t, &s->huge);
    return end(t, st, s, sealed);
}

void pst_table_set_whole_rows(pst_table *t, uint64_t bytes) {
    t->whole_bytes = bytes;
}

pst_status pst_table_changes(pst_table *t, pst_sealed **sealed) {
    const pst_lineage *base = &pst_meta_of(t, t->h->sealed)->lineage;
    pst_lineage unnamed = {.epoch = base->epoch, .query = base->query};
    pst_sealed *s = NULL;
    if (!t->attached)
        return PST_INVALID;
    if (t->poisoned)
        return PST_POISONED;
    memcpy(unnamed.parent, base->id, sizeof unnamed.parent);
    pst_status st = begin(t, &unnamed, &s);
    if (!st)
        st = gather(s, t);
    return end(t, st, s, sealed);
}

pst_status pst_sealed_part(pst_table *t, int32_t first_key_group, int32_t last_key_group,
                           uint64_t *cursor, pst_sealed **part) {
    pst_lineage unnamed = {0};
    pst_sealed *s = NULL;
    pst_status st = begin(t, &unnamed, &s);
    if (!st) {
        s->first_key_group = first_key_group;
        s->last_key_group = last_key_group;
        st = gather_part(s, t, cursor);
    }
    return end(t, st, s, part);
}
