#include "table/value.h"

#include "memory/alloc.h"
#include "memory/ring.h"
#include "memory/size_class.h"
#include "memory/span.h"
#include "table/roots.h"
#include "table/slots.h"
#include "table/ttl.h"

/* Makes a row for a key without one, complete but for its header. */
static pst_status fill_row(pst_table *t, const pst_key *key, uint32_t *slot) {
    uint64_t ref[2] = {0, 0};
    if (t->lay.key_kind == PST_KEY_BYTES) {
        pst_ref_make(ref, key->bytes);
        if (pst_ref_is_block(ref)) {
            uint32_t granule;
            pst_status s = pst_block_alloc(t, pst_class_of(key->bytes.size), &granule);
            if (s)
                return s;
            pst_put_bytes(pst_block(t, granule), key->bytes.data, key->bytes.size);
            ref[1] |= granule;
        }
    }
    pst_slot_take(t, slot);
    uint64_t *row = pst_row(t, *slot), *k = row + t->lay.key_offset / 8;
    if (t->lay.key_kind == PST_KEY_WORD) {
        pst_put64(k, key->word);
    } else {
        pst_put64(k, key->hash);
        pst_put64(k + 1, ref[0]);
        pst_put64(k + 2, ref[1]);
    }
    if (t->lay.wide)
        pst_put64(row + t->lay.image_offset / 8, 0);
    return PST_OK;
}

pst_status pst_row_make(pst_table *t, const pst_key *key, uint32_t *slot) {
    pst_vacancy v;
    pst_key own;
    uint32_t found = pst_index_seek(t, key, &v);
    if (found == PST_NONE && __builtin_expect(t->m->ties, 0))
        found = pst_index_find_untied(t, key);
    if (found != PST_NONE) {
        *slot = found;
        return PST_OK;
    }
    if (v.ties >= PST_TIES) {
        own = pst_untied(t, key);
        key = &own;
        (void)pst_index_seek(t, key, &v);
        pst_put32(&t->m->ties, 1);
    }
    pst_status s = pst_index_reserve(t, key, &v);
    if (!s)
        s = fill_row(t, key, slot);
    if (s)
        return s;
    PST_FENCE(__ATOMIC_RELEASE);
    pst_put64(pst_row(t, *slot), pst_make_header(key->null, t->stamp, PST_NONE));
    pst_index_take(&v, *slot);
    return PST_OK;
}

/* Was the block that a present reference names taken in the open epoch? */
static int is_born(const pst_table *t, const uint64_t *row, int32_t i, uint32_t granule) {
    uint32_t undo = (uint32_t)(row[0] >> 32);
    if (undo == PST_NONE)
        return 1;
    const uint64_t *record = pst_undo_record(t, t->undo, undo);
    if (!(pst_undo_presence(t, record) >> i & 1))
        return 1;
    const uint64_t *ref = pst_image_field(&t->lay, record + 2, i);
    return !(pst_ref_is_block(ref) && pst_ref_granule(ref) == granule);
}

static pst_status free_ref(pst_table *t, const uint64_t *row, int32_t i, const uint64_t ref[2]) {
    if (!pst_ref_is_block(ref))
        return PST_OK;
    return pst_block_free(t, pst_class_of(pst_ref_size(ref)), pst_ref_granule(ref),
                          is_born(t, row, i, pst_ref_granule(ref)));
}

/* Sees to it that a block that is replaced can be listed, so that a value that is refused leaves the
 * row as it was. */
static pst_status reserve_name(pst_table *t, const uint64_t ref[2]) {
    return pst_ref_is_block(ref) ? pst_ring_reserve(t, pst_class_of(pst_ref_size(ref)), 1) : PST_OK;
}

static pst_status put_bytes(pst_table *t, uint64_t *row, int32_t i, pst_bytes bytes) {
    uint64_t *field = pst_field_at(&t->lay, row, i), ref[2], old[2] = {0, 0};
    if (bytes.size > PST_MAX_BYTES)
        return PST_TOO_LARGE;
    if (pst_row_has(&t->lay, row, i)) {
        old[0] = field[0];
        old[1] = field[1];
    }
    pst_ref_make(ref, bytes);
    if (pst_ref_is_block(ref)) {
        uint32_t c = pst_class_of(bytes.size), granule;
        if (pst_ref_is_block(old) && pst_class_of(pst_ref_size(old)) == c &&
            is_born(t, row, i, pst_ref_granule(old))) {
            granule = pst_ref_granule(old);
            old[0] = 0;
        } else {
            pst_status s = reserve_name(t, old);
            if (!s)
                s = pst_block_alloc(t, c, &granule);
            if (s)
                return s;
        }
        pst_put_bytes(pst_block(t, granule), bytes.data, bytes.size);
        ref[1] |= granule;
    }
    PST_FENCE(__ATOMIC_RELEASE);
    pst_put64(field, ref[0]);
    pst_put64(field + 1, ref[1]);
    pst_row_mark(t, row, i);
    return free_ref(t, row, i, old);
}

pst_status pst_row_move_bytes(pst_table *t, uint32_t slot, int32_t i) {
    uint64_t *row = pst_row(t, slot), *field = pst_field_at(&t->lay, row, i);
    uint64_t ref[2] = {field[0], field[1]}, old[2] = {field[0], field[1]};
    uint32_t granule, size = pst_ref_size(ref);
    if (!pst_ref_is_block(ref) || !pst_span_is_left(t, pst_ref_granule(ref)))
        return PST_OK;
    pst_status s = pst_block_alloc(t, pst_class_of(size), &granule);
    if (s)
        return s;
    s = pst_ring_reserve(t, pst_class_of(size), 1);
    if (s) {
        (void)pst_block_free(t, pst_class_of(size), granule, 1); /* born: cannot fail */
        return s;
    }
    pst_put_bytes(pst_block(t, granule), pst_ref_data(t->heap, old), size);
    ref[1] = pst_ref_moved(ref, granule);
    pst_touch(t, slot, row);
    PST_FENCE(__ATOMIC_RELEASE);
    pst_put64(field + 1, ref[1]);
    return free_ref(t, row, i, old);
}

/* What died in the epoch, and what was in its chains, has been listed in the rings by now: this
 * block is listed directly. */
pst_status pst_row_move_key(pst_table *t, uint32_t slot) {
    uint64_t *ref = pst_row(t, slot) + t->lay.key_offset / 8 + 1;
    uint32_t from = pst_ref_granule(ref), size = pst_ref_size(ref), to;
    if (!pst_ref_is_block(ref) || !pst_span_is_left(t, from))
        return PST_OK;
    uint32_t c = pst_class_of(size);
    pst_status s = pst_undo_reserve(t, 1);
    if (!s)
        s = pst_ring_reserve(t, c, PST_MOST_SKIPPED + 1);
    if (!s)
        s = pst_block_alloc(t, c, &to);
    if (s)
        return s;
    pst_put_bytes(pst_block(t, to), pst_ref_data(t->heap, ref), size);
    pst_undo_set_key(t, slot, ref + 1, pst_ref_moved(ref, to));
    return pst_block_free(t, c, from, 0);
}

pst_status pst_row_put(pst_table *t, uint64_t *row, int32_t i, const pst_cell *cell) {
    const pst_field *f = &t->lay.fields[i];
    if (f->is_bytes)
        return put_bytes(t, row, i, cell->bytes);
    if (f->type == PST_FIXED) {
        if (cell->bytes.size != f->width)
            return PST_WRONG_TYPE;
        pst_put_bytes(pst_field_at(&t->lay, row, i), cell->bytes.data, f->width);
    } else {
        pst_field_store(f, row, cell->word);
    }
    pst_row_mark(t, row, i);
    return PST_OK;
}

static int same_value(const pst_table *t, const uint64_t *row, int32_t i, const pst_cell *cell) {
    const pst_field *f = &t->lay.fields[i];
    pst_cell old = {{0, 0}, {NULL, 0}};
    pst_field_cell(f, row, t->heap, &old);
    if (f->type >= PST_STRING)
        return old.bytes.size == cell->bytes.size &&
               (!old.bytes.size || !memcmp(old.bytes.data, cell->bytes.data, old.bytes.size));
    return old.word[0] == cell->word[0] && (f->width < 16 || old.word[1] == cell->word[1]);
}

pst_status pst_state_put(pst_table *t, uint32_t slot, int32_t i, const pst_cell *cell) {
    uint64_t *row = pst_row(t, slot);
    int timed = t->lay.fields[i].time >= 0;
    if (timed && pst_row_has(&t->lay, row, i)) {
        int64_t written = pst_row_time(t, row, i);
        if (!pst_ttl_is_stale(t, i, written) && !pst_ttl_expired(t, i, written) &&
            same_value(t, row, i, cell))
            return PST_OK;
    }
    pst_touch(t, slot, row);
    pst_status s = pst_row_put(t, row, i, cell);
    if (!s && timed)
        pst_row_stamp(t, row, i);
    return s;
}

/* Frees what a present state keeps outside the row; its presence is the caller's. */
static pst_status drop_state(pst_table *t, uint64_t *row, int32_t i) {
    const pst_field *f = &t->lay.fields[i];
    if (f->kind == PST_LIST || f->kind == PST_MAP)
        return pst_row_drop_elements(t, row, i);
    if (!f->is_bytes)
        return PST_OK;
    uint64_t old[2];
    memcpy(old, pst_field_at(&t->lay, row, i), sizeof old);
    return free_ref(t, row, i, old);
}

pst_status pst_row_clear(pst_table *t, uint64_t *row, int32_t i) {
    uint64_t presence = pst_presence(&t->lay, row), gone = UINT64_C(1) << i;
    if (!(presence & gone))
        return PST_OK;
    if (t->lay.fields[i].time >= 0)
        gone |= UINT64_C(1) << t->lay.fields[i].time;
    pst_status s = drop_state(t, row, i);
    pst_row_set_presence(t, row, presence & ~gone);
    return s;
}

pst_status pst_row_delete(pst_table *t, uint64_t *row) {
    uint64_t presence = pst_presence(&t->lay, row);
    uint64_t kept = presence & t->lay.timed;
    pst_status s = PST_OK;
    for (int32_t i = 0; !s && t->lay.has_blocks && i < t->lay.n_states; i++)
        if (presence >> i & 1)
            s = drop_state(t, row, i);
    if (presence != kept)
        pst_row_set_presence(t, row, kept);
    return s;
}

pst_status pst_row_free_key(pst_table *t, const uint64_t *row) {
    if (t->lay.key_kind != PST_KEY_BYTES)
        return PST_OK;
    const uint64_t *ref = row + t->lay.key_offset / 8 + 1;
    if (!pst_ref_is_block(ref))
        return PST_OK;
    /* The block of a row's key is as old as the row. Even one born in this epoch waits like the
     * others. */
    return pst_block_free(t, pst_class_of(pst_ref_size(ref)), pst_ref_granule(ref), 0);
}
