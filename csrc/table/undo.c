#include "table/undo.h"

#include "memory/ring.h"
#include "memory/span.h"
#include "table/index.h"

/* Grows rows or a log. At the limit the heap gives up what it has for values to come, before what makes
 * room passes the limit. */
static pst_status commit(pst_table *t, int space, uint64_t need) {
    uint64_t have = t->h->committed[space];
    int clearing = t->arena.clearing;
    t->arena.clearing = 0;
    pst_status s = pst_arena_commit(&t->arena, space, need);
    if (s == PST_LIMIT && need > have && pst_span_yield(t, need - have))
        s = pst_arena_commit(&t->arena, space, need);
    t->arena.clearing = clearing;
    return s == PST_LIMIT && clearing ? pst_arena_commit(&t->arena, space, need) : s;
}

pst_status pst_undo_reserve(pst_table *t, uint64_t n) {
    if (t->index_due) {
        int clearing = t->arena.clearing;
        t->arena.clearing = 1;
        pst_status s = pst_index_tidy(t);
        t->arena.clearing = clearing;
        if (s)
            return s;
    }
    if (t->undo_count + n > t->undo_capacity) {
        int space = PST_SPACE_UNDO + (int)(t->h->active % PST_UNDO_LOGS);
        if (t->undo_count + n > UINT32_MAX - 1)
            return PST_TOO_LARGE;
        pst_status s = commit(t, space, (t->undo_count + n) * t->lay.record_size);
        if (s)
            return s;
        t->undo_capacity = t->h->committed[space] / t->lay.record_size;
    }
    if (t->m->slots + n > t->row_capacity) {
        if (t->m->slots + n > UINT32_MAX - 16)
            return PST_TOO_LARGE;
        pst_status s = commit(t, PST_SPACE_ROWS, (t->m->slots + n) * t->lay.row_size);
        if (s)
            return s;
        t->row_capacity = t->h->committed[PST_SPACE_ROWS] / t->lay.row_size;
    }
    return PST_OK;
}

static uint64_t undo_records(pst_table *t, uint64_t epoch) {
    uint64_t n = t->h->undo_count[epoch % PST_UNDO_LOGS];
    uint8_t *log = pst_undo_log(t, epoch);
    for (uint64_t i = n; i-- > 0;) {
        const uint64_t *record = pst_undo_record(t, log, i);
        uint64_t *row = pst_row(t, (uint32_t)record[0]);
        if (record[0] & PST_UNDO_KEY) {
            pst_put64(row + t->lay.key_offset / 8 + 2, record[1]);
            continue;
        }
        pst_put_words(row + t->lay.image_offset / 8, record + 2, t->lay.image_words);
        PST_FENCE(__ATOMIC_RELEASE);
        pst_put64(row, record[1]);
    }
    return n;
}

/* Resets a slot's index entry and header as if the epoch had never taken it. A row without the
 * epoch's stamp that was not admitted either has no entry yet: either a kill came before its header
 * was written, or the slot's name only left the ring or went to its end. */
static void undo_insert(pst_table *t, pst_meta *target, uint64_t epoch, uint32_t slot) {
    uint64_t *row = pst_row(t, slot);
    if (pst_header_stamp(row[0]) != pst_stamp(epoch) << 8 && !pst_is_of_admission(row[0], epoch))
        return;
    uint64_t hash = pst_row_hash(t, row);
    int32_t group = pst_group_of(t, hash);
    if (group >= t->first_key_group && group <= t->last_key_group)
        pst_index_undo(t, target, hash, slot);
    pst_put64(row, 0);
}

static uint64_t undo_inserts(pst_table *t, uint64_t epoch, pst_meta *target) {
    const pst_meta *m = pst_meta_of(t, epoch), *before = pst_meta_of(t, epoch - 1);
    const pst_ring *r = &m->rings[PST_RING_SLOTS], *b = &before->rings[PST_RING_SLOTS];
    /* Within an epoch reusable slots are taken first, fresh ones after. */
    for (uint32_t slot = m->slots; slot-- > before->slots;)
        undo_insert(t, target, epoch, slot);
    for (uint32_t p = r->head; p-- != b->head;)
        undo_insert(t, target, epoch, pst_ring_at(t, PST_RING_SLOTS, p));
    /* An epoch that lowered the number of slots took no fresh ones. */
    uint32_t fresh = m->slots > before->slots ? m->slots - before->slots : 0;
    return fresh + (r->head - b->head);
}

uint64_t pst_undo_to_sealed(pst_table *t) {
    pst_header *h = t->h;
    pst_meta *target = pst_meta_of(t, h->sealed);
    uint64_t n = 0;
    for (uint64_t e = h->active; e > h->sealed; e--) {
        n += undo_records(t, e);
        n += undo_inserts(t, e, target);
    }
    return n;
}
