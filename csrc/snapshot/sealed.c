#include "snapshot/sealed.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/schema.h"
#include "memory/ring.h"
#include "table/undo.h"
#include "table/value.h"

enum { AHEAD = 32 };

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

pst_status pst_sealed_reserve(pst_sealed *s, size_t n) {
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

pst_status pst_sealed_keep(pst_sealed *s, const void *data, size_t size, uint64_t *to) {
    pst_key_buffer *b = &s->bytes;
    if (b->size + size + PST_BYTES_SLACK > b->capacity) {
        size_t capacity = b->capacity ? b->capacity * 2 : 4096;
        while (capacity < b->size + size + PST_BYTES_SLACK)
            capacity *= 2;
        pst_status st =
            pst_charge_raise(&s->charge, s->n_words * sizeof(uint64_t) + b->size + size);
        if (st)
            return st;
        uint8_t *grown = pst_realloc(b->data, capacity);
        if (!grown)
            return PST_NO_MEMORY;
        b->data = grown;
        b->capacity = capacity;
    }
    if (size)
        memcpy(b->data + b->size, data, size);
    to[0] = b->size;
    to[1] = size;
    b->size += size;
    return PST_OK;
}

/* Which of the columns that are present before and after differ. */
uint64_t pst_sealed_compare(const pst_table *t, const uint64_t *row, const uint64_t *before,
                            uint64_t both) {
    const uint8_t *now = (const uint8_t *)row + t->lay.image_offset;
    const uint8_t *then = (const uint8_t *)before;
    uint64_t changed = 0;
    for (; both; both &= both - 1) {
        int i = __builtin_ctzll(both);
        const pst_field *f = &t->lay.fields[i];
        uint32_t at = f->offset - t->lay.image_offset;
        int same;
        if (f->width == 8)
            same = *(const uint64_t *)(now + at) == *(const uint64_t *)(then + at);
        else
            same = memcmp(now + at, then + at, f->width) == 0;
        if (!same && f->is_bytes) {
            const uint64_t *a = (const uint64_t *)(now + at), *b = (const uint64_t *)(then + at);
            pst_bytes old = {pst_ref_data(t->heap, b), pst_ref_size(b)};
            same = pst_ref_equals(t->heap, a, old);
        }
        if (!same)
            changed |= UINT64_C(1) << i;
    }
    return changed;
}

pst_status pst_sealed_cells(pst_sealed *s, const pst_table *t, const uint64_t *row,
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
        pst_status st = pst_sealed_keep(s, cell.bytes.data, cell.bytes.size, *w);
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
        st = pst_sealed_keep(s, pst_ref_data(t->heap, k + 1), pst_ref_size(k + 1), w);
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
    st = pst_sealed_cells(s, t, row, present, &w);
    s->n_words = (size_t)(w - s->entries.words);
    s->rows++;
    return st ? st : pst_sealed_charge(s);
}

PST_PREFETCH void bring_block(const pst_table *t, const uint64_t *ref) {
    const uint8_t *data = pst_ref_data(t->heap, ref);
    if (!pst_ref_is_block(ref))
        return;
    __builtin_prefetch(data, 0, 2);
    __builtin_prefetch(data + pst_ref_size(ref) - 1, 0, 2);
}

/* Prefetches the blocks behind a touched row's key and these columns, before and after. The row and
 * its record are in cache. Where a state is absent, this prefetches something useless. */
PST_PREFETCH void bring_bytes(const pst_table *t, const uint64_t *record, uint64_t columns) {
    const uint64_t *row = pst_row(t, (uint32_t)record[0]);
    if (t->lay.key_kind == PST_KEY_BYTES)
        bring_block(t, row + t->lay.key_offset / 8 + 1);
    for (; columns; columns &= columns - 1) {
        uint32_t at = t->lay.fields[__builtin_ctzll(columns)].offset;
        bring_block(t, row + at / 8);
        bring_block(t, record + 2 + (at - t->lay.image_offset) / 8);
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
            pst_sealed_prefetch_elements(t, pst_undo_record(t, t->undo, i + AHEAD / 4));
        if (has_bytes && i + AHEAD / 2 < t->undo_count)
            bring_bytes(t, pst_undo_record(t, t->undo, i + AHEAD / 2), bytes);
        const uint64_t *record = pst_undo_record(t, t->undo, i);
        const uint64_t *row = pst_row(t, (uint32_t)record[0]);
        uint64_t before = pst_undo_presence(t, record);
        uint64_t after = pst_presence(&t->lay, row);
        if (t->lay.has_elements) {
            pst_status s_row = pst_sealed_row_with_elements(s, t, row, before, record + 2);
            if (s_row)
                return s_row;
            continue;
        }
        uint64_t changed =
            (before ^ after) | pst_sealed_compare(t, row, record + 2, before & after);
        if (!changed)
            continue;
        pst_status st =
            after ? emit(s, t, row, 0, changed, changed & after) : emit(s, t, row, 1, 0, 0);
        if (st)
            return st;
    }
    return PST_OK;
}

/* A slot that the epoch took. Where its name only left the ring, the row may be of an insert that
 * was undone: its header alone tells (V2). */
static pst_status gather_inserted(pst_sealed *s, const pst_table *t, uint32_t slot) {
    const uint64_t *row = pst_row(t, slot);
    uint64_t present = pst_presence(&t->lay, row);
    if (!pst_is_live(row[0]))
        return PST_OK;
    if (t->lay.has_elements)
        return pst_sealed_row_with_elements(s, t, row, 0, NULL);
    return present ? emit(s, t, row, 0, present, present) : PST_OK;
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
    const pst_meta *before = pst_meta_of(t, t->h->sealed);
    uint32_t from = before->rings[PST_RING_SLOTS].head, to = t->m->rings[PST_RING_SLOTS].head;
    size_t rows = (size_t)(t->undo_count + (t->m->slots - before->slots) + (to - from));
    pst_status st = take_buffers(s, t, rows * entry_words(s, t) + 1);
    if (!st)
        st = gather_touched(s, t);
    for (uint32_t p = from; !st && p != to; p++) {
        if (to - p > AHEAD)
            pst_prefetch_row(t, pst_ring_at(t, PST_RING_SLOTS, p + AHEAD));
        st = gather_inserted(s, t, pst_ring_at(t, PST_RING_SLOTS, p));
    }
    for (uint32_t slot = before->slots; !st && slot < t->m->slots; slot++)
        st = gather_inserted(s, t, slot);
    return !st && t->lay.timers >= 0 ? pst_sealed_timers(s, t) : st;
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
        st = pst_sealed_reserve(s, words);
        if (!st)
            st = gather_inserted(s, t, (uint32_t)*cursor);
    }
    for (; !st && *cursor >= slots && *cursor < slots + timers && !is_large(s); ++*cursor) {
        int32_t group = t->first_key_group + (int32_t)(*cursor - slots);
        if (group >= s->first_key_group && group <= s->last_key_group)
            st = pst_sealed_group_timers(s, t, group);
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
    if (!st)
        st = gather(s, t);
    if (!st)
        pst_huge_take(t, &s->huge);
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
