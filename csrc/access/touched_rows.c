/* touched_rows.c: the rows that the open epoch touched, as batches. */
#include <string.h>

#include "access/batch.h"
#include "base/mem.h"
#include "base/scratch.h"
#include "key/hash.h"
#include "key/schema.h"
#include "memory/ring.h"

/* The cursor's row: undo records first, then reused slots, then fresh ones. Slots of rows that the
 * epoch has admitted, or dropped, are PST_NONE: those that it has touched since have records. */
static int touched_slot(const pst_table *t, uint64_t at, uint32_t *slot) {
    const pst_meta *before = pst_meta_of(t, t->h->sealed);
    uint32_t head = before->rings[PST_RING_SLOTS].head;
    uint64_t reused = t->m->rings[PST_RING_SLOTS].head - head;
    if (at < t->undo_count) {
        *slot = (uint32_t)*pst_undo_record(t, t->undo, at);
        return 1;
    }
    at -= t->undo_count;
    if (at < reused) {
        *slot = pst_ring_at(t, PST_RING_SLOTS, head + (uint32_t)at);
    } else {
        *slot = before->slots + (uint32_t)(at - reused);
        if (*slot >= t->m->slots)
            return 0;
    }
    if (t->admitted && !pst_row_is_made(t, pst_row(t, *slot)))
        *slot = PST_NONE;
    return 1;
}

/* Sets what an operation needs to look a row up again. The key's bytes stay in the table: they do
 * not move before the epoch is sealed, and that also ends the batch. */
static void take_key(pst_batch *b, int64_t i, const uint64_t *row) {
    const pst_table *t = b->t;
    const uint64_t *k = row + t->lay.key_offset / 8;
    b->nulls[i] = row[0] & PST_FLAG_NULL_KEY;
    if (b->own_words) {
        b->own_words[i] = k[0];
        b->hash[i] = b->nulls[i] ? PST_HASH_SEED
                                 : pst_hash_word(t->schema.keys[0].type, k[0], PST_HASH_SEED);
        return;
    }
    b->hash[i] = k[0];
    b->bytes[i] = (pst_bytes){pst_ref_data(t->heap, k + 1), pst_ref_size(k + 1)};
}

static pst_status allocate(pst_batch *b, int64_t most) {
    size_t n = (size_t)most;
    pst_status s = pst_batch_allocate(b, n);
    if (s)
        return s;
    b->nulls = pst_malloc(n);
    if (b->t->lay.key_kind == PST_KEY_WORD)
        b->words = b->own_words = pst_scratch_take(n * sizeof *b->own_words);
    else
        b->bytes = pst_scratch_take(n * sizeof *b->bytes);
    return b->nulls && (b->own_words || b->bytes) ? PST_OK : PST_NO_MEMORY;
}

pst_status pst_batch_of_rows(pst_table *t, int64_t most, pst_batch **batch) {
    if (!t->attached || most < 1)
        return PST_INVALID;
    if (t->poisoned)
        return PST_POISONED;
    if ((uint64_t)most > SIZE_MAX / sizeof(pst_bytes))
        return PST_NO_MEMORY;
    pst_batch *b = pst_calloc(1, sizeof *b);
    if (!b)
        return PST_NO_MEMORY;
    b->t = t;
    b->generation = t->generation;
    b->of_rows = 1;
    pst_status s = allocate(b, most);
    if (s) {
        pst_batch_destroy(b);
        return s;
    }
    *batch = b;
    return PST_OK;
}

void pst_batch_take_row(pst_batch *b, uint32_t slot) {
    b->slots[b->length] = slot;
    take_key(b, b->length++, pst_row(b->t, slot));
}

typedef int (*next_slot)(const pst_table *t, uint64_t at, uint32_t *slot);

static int any_slot(const pst_table *t, uint64_t at, uint32_t *slot) {
    *slot = (uint32_t)at;
    return at < t->m->slots;
}

static pst_status take_live(pst_table *t, next_slot next, uint64_t *cursor, int64_t most,
                            pst_batch **batch) {
    uint32_t slot;
    pst_batch *b;
    pst_status s = pst_batch_of_rows(t, most, &b);
    if (s)
        return s;
    for (; b->length < most && next(t, *cursor, &slot); ++*cursor) {
        uint32_t ahead;
        if (next(t, *cursor + 2 * PST_GROUP, &ahead) && ahead != PST_NONE)
            pst_prefetch_row(t, ahead);
        if (slot != PST_NONE && pst_is_live(pst_row(t, slot)[0]))
            pst_batch_take_row(b, slot);
    }
    b->lined = b->guessed = b->resolved = b->length;
    if (!b->length) {
        pst_batch_destroy(b);
        return PST_NOT_FOUND;
    }
    *batch = b;
    return PST_OK;
}

pst_status pst_batch_changed(pst_table *t, uint64_t *cursor, int64_t most, pst_batch **batch) {
    return take_live(t, touched_slot, cursor, most, batch);
}

void pst_table_keep_rows(pst_table *t, int keep) {
    t->keeps_rows = keep;
}

pst_status pst_batch_all(pst_table *t, uint64_t *cursor, int64_t most, pst_batch **batch) {
    return take_live(t, any_slot, cursor, most, batch);
}

/* ---- keys out -------------------------------------------------------------------------------- */

static pst_status check_key(const pst_batch *b, int32_t column, int is_bytes) {
    pst_status s = pst_batch_usable(b);
    if (s)
        return s;
    if (!b->of_rows || column < 0 || column >= b->t->schema.n_keys)
        return PST_INVALID;
    int has = !pst_type_width(b->t->schema.keys[column].type);
    return has == is_bytes ? PST_OK : PST_WRONG_TYPE;
}

static pst_status decode_key(const pst_batch *b, int64_t i, int32_t column, pst_cell *cells,
                             int *valid) {
    uint32_t nulls;
    if (b->bytes && i + PST_GROUP < b->length) /* in a row, or in a block */
        __builtin_prefetch(b->bytes[i + PST_GROUP].data);
    pst_bytes none = {NULL, 0};
    pst_status s = pst_key_decode(&b->t->schema, b->own_words ? b->own_words[i] : 0,
                                  b->own_words ? none : b->bytes[i], b->nulls[i], cells, &nulls);
    *valid = !s && !(nulls >> column & 1);
    return s;
}

pst_status pst_batch_get_key(pst_batch *b, int32_t column, void *values, uint8_t *valid) {
    pst_status s = check_key(b, column, 0);
    if (s)
        return s;
    uint32_t width = pst_type_width(b->t->schema.keys[column].type);
    pst_cell cells[PST_MAX_KEYS];
    uint8_t *out = values;
    for (int64_t i = 0; i < b->length; i++, out += width) {
        int present;
        s = decode_key(b, i, column, cells, &present);
        if (s)
            return s;
        valid[i] = (uint8_t)present;
        if (present)
            memcpy(out, cells[column].word, width); /* little-endian: the low bytes come first */
        else
            memset(out, 0, width);
    }
    return PST_OK;
}

pst_status pst_batch_get_key_bytes(pst_batch *b, int32_t column, const pst_bytes_out *out) {
    pst_status s = check_key(b, column, 1);
    if (s)
        return s;
    pst_cell cells[PST_MAX_KEYS];
    int64_t total = 0;
    for (int64_t i = 0; i < b->length; i++) {
        int present;
        s = decode_key(b, i, column, cells, &present);
        if (s)
            return s;
        s = pst_out_value(out, i, present, present ? cells[column].bytes : (pst_bytes){NULL, 0},
                          &total);
        if (s)
            return s;
    }
    return pst_out_end(out, b->length, total);
}
