#include "table/epoch.h"

#include <string.h>
#include <time.h>

#include "memory/pins.h"
#include "memory/ring.h"
#include "memory/span.h"
#include "table/undo.h"

/* Was an untouched row admitted before the last three epochs? Then nobody has to know it any more
 * (R5), and the epoch's number must not come round. */
static int was_admitted_before(uint64_t header, uint64_t epoch) {
    uint32_t by = (uint32_t)(header >> 32);
    return header && by != PST_NONE && (uint32_t)epoch - by >= 3;
}

static void sweep_stamps(pst_table *t, uint64_t epoch) {
    pst_meta *m = pst_meta_of(t, epoch);
    uint64_t n = ((uint64_t)m->slots >> PST_SWEEP_SHIFT) + PST_SWEEP_LEAST;
    uint32_t recent[3];
    for (uint64_t k = 0; k < 3; k++)
        recent[k] = epoch >= k ? pst_stamp(epoch - k) << 8 : 0;
    if (n > m->slots)
        n = m->slots;
    uint64_t at = m->sweep;
    for (uint64_t i = 0; i < n; i++, at++) {
        if (at >= m->slots)
            at = 0;
        uint64_t *row = pst_row(t, (uint32_t)at);
        uint32_t stamp = pst_header_stamp(row[0]);
        if (stamp ? stamp != recent[0] && stamp != recent[1] && stamp != recent[2]
                  : was_admitted_before(row[0], epoch))
            pst_put64(row, pst_make_header((uint32_t)row[0], 0, PST_NONE));
    }
    pst_put64(&m->sweep, at);
}

/* All but the part of the directory that has never been used. */
static void copy_meta(const pst_table *t, pst_meta *to, const pst_meta *from) {
    size_t used = offsetof(pst_meta, shards) + pst_directory_size(t, from) * sizeof(pst_shard);
    size_t roots = offsetof(pst_meta, shards) + t->h->shards * sizeof(pst_shard);
    pst_put_words((uint64_t *)to, (const uint64_t *)from, used / 8);
    pst_put_words((uint64_t *)to + roots / 8, (const uint64_t *)from + roots / 8,
                  (t->h->meta_size - roots) / 8);
}

/* Trims the empty log of epoch e. */
static void trim_log(pst_table *t, uint64_t e) {
    pst_header *h = t->h;
    int space = PST_SPACE_UNDO + (int)(e % PST_UNDO_LOGS);
    uint64_t have = h->committed[space], need = 0;
    if (have <= PST_SPARE_LOG)
        return;
    for (int i = 0; i < PST_RECENT; i++)
        if (h->undo_recent[i] > need)
            need = h->undo_recent[i];
    need += need / 8;
    if (have - PST_SPARE_LOG <= need || pst_reader_lags(h))
        return;
    uint64_t keep = have > PST_GIVE_BACK ? have - PST_GIVE_BACK : 0;
    pst_arena_give_back(&t->arena, space, keep > need ? keep : need);
}

/* As nobody returns any more, the logs hold nothing: gives them back, but for a little of the open
 * epoch's. */
static void drop_logs(pst_table *t) {
    pst_header *h = t->h;
    int space = PST_SPACE_UNDO + (int)(h->active % PST_UNDO_LOGS);
    if (pst_reader_lags(h))
        return;
    for (int at = PST_SPACE_UNDO; at < PST_SPACE_UNDO + PST_UNDO_LOGS; at++)
        pst_arena_give_back(&t->arena, at, at == space ? PST_SPARE_LOG : 0);
    t->undo_capacity = h->committed[space] / t->lay.record_size;
}

void pst_epoch_begin(pst_table *t) {
    pst_header *h = t->h;
    uint64_t e = h->sealed + 1;
    pst_put64(&h->undo_recent[h->sealed % PST_RECENT],
              h->undo_count[h->sealed % PST_UNDO_LOGS] * t->lay.record_size);
    if (e > 3 && h->floor < e - 3)
        pst_release64(&h->floor, e - 3);
    PST_FENCE(__ATOMIC_SEQ_CST);
    pst_put64(&h->undo_count[e % PST_UNDO_LOGS], 0);
    trim_log(t, e);
    pst_meta *m = pst_meta_of(t, e);
    const pst_meta *before = pst_meta_of(t, e - 1);
    copy_meta(t, m, before);
    pst_put64(&m->epoch, e);
    for (int r = 0; r < PST_RINGS; r++) {
        pst_ring *ring = &m->rings[r];
        if (ring->tail == 0)
            continue;
        pst_put32(&ring->sealed_tail[2], ring->sealed_tail[1]);
        pst_put32(&ring->sealed_tail[1], ring->sealed_tail[0]);
        pst_put32(&ring->sealed_tail[0], ring->tail);
        pst_put32(&ring->sealed_head[2], ring->sealed_head[1]);
        pst_put32(&ring->sealed_head[1], ring->sealed_head[0]);
        pst_put32(&ring->sealed_head[0], ring->head);
        for (uint64_t k = 1; k < 3; k++)
            if (e <= h->floor + k) {
                pst_put32(&ring->sealed_tail[k], ring->sealed_tail[k - 1]);
                pst_put32(&ring->sealed_head[k], ring->sealed_head[k - 1]);
            }
    }
    pst_release64(&h->active, e);
    t->m = m;
    t->undo = pst_undo_log(t, e);
    t->undo_count = t->reused = t->admitted = 0;
    t->undo_capacity = h->committed[PST_SPACE_UNDO + (int)(e % PST_UNDO_LOGS)] / t->lay.record_size;
    t->row_capacity = h->committed[PST_SPACE_ROWS] / t->lay.row_size;
    t->stamp = pst_stamp(e) << 8;
    t->birth = (uint32_t)e;
    t->admitted_timers.size = 0;
    t->poisoned = PST_OK;
    t->hot = t->deaths = 0;
    t->index_due = 1;
    t->span_cursor = 1;
    t->span_none = UINT32_MAX;
    t->generation++;
    t->current.generation = 0;
    sweep_stamps(t, e);
}

void pst_epoch_recover(pst_table *t) {
    pst_header *h = t->h;
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    t->recovered_records = 0;
    int counted = h->counted != 0;
    pst_put64(&h->counted, 0);
    if (h->active != h->sealed || (h->rollbacks & 1)) {
        pst_release64(&h->rollbacks, h->rollbacks | 1);
        PST_FENCE(__ATOMIC_SEQ_CST);
        t->recovered_records = pst_undo_to_sealed(t);
        if (!counted)
            pst_span_recover(t);
        pst_release64(&h->active, h->sealed);
        pst_release64(&h->rollbacks, h->rollbacks + 1);
    }
    pst_epoch_begin(t);
    clock_gettime(CLOCK_MONOTONIC, &to);
    t->recovery_ns = (uint64_t)(to.tv_sec - from.tv_sec) * UINT64_C(1000000000) +
                     (uint64_t)to.tv_nsec - (uint64_t)from.tv_nsec;
}

pst_status pst_table_rollback(pst_table *t, int32_t back) {
    pst_header *h = t->h;
    if (!t->attached || back < 0)
        return PST_INVALID;
    if ((uint64_t)back > h->sealed || h->sealed - (uint64_t)back < h->floor)
        return PST_NO_UNDO;
    pst_release64(&h->rollbacks, h->rollbacks | 1);
    PST_FENCE(__ATOMIC_SEQ_CST);
    if (back) {
        pst_release64(&h->undone, h->undone + 1);
        pst_release64(&h->sealed, h->sealed - (uint64_t)back);
    }
    pst_epoch_recover(t);
    return PST_OK;
}

pst_status pst_table_lineage(const pst_table *t, int32_t back, pst_lineage *lineage) {
    const pst_header *h = t->h;
    if (back < 0 || back > 2)
        return PST_INVALID;
    if ((uint64_t)back > h->sealed || h->sealed - (uint64_t)back < h->floor)
        return PST_NO_UNDO;
    *lineage = pst_meta_of(t, h->sealed - (uint64_t)back)->lineage;
    return PST_OK;
}

/* Has the open epoch left everything as it found it, blocks too? */
static int is_pristine(const pst_table *t) {
    const pst_meta *before = pst_meta_of(t, t->h->sealed), *m = t->m;
    int same = m->heap_top == before->heap_top && m->free_spans == before->free_spans &&
               m->index_granules == before->index_granules &&
               !memcmp(m->bump, before->bump, sizeof m->bump) &&
               !memcmp(m->bump_left, before->bump_left, sizeof m->bump_left);
    for (int r = 0; r < PST_RINGS && same; r++)
        same =
            m->rings[r].head == before->rings[r].head && m->rings[r].tail == before->rings[r].tail;
    return same;
}

pst_status pst_table_settle(pst_table *t) {
    pst_header *h = t->h;
    if (!t->attached || pst_table_dirty(t) || t->admitted)
        return PST_INVALID;
    if (t->poisoned)
        return PST_POISONED;
    if (h->floor < h->sealed)
        pst_release64(&h->floor, h->sealed);
    pst_status s = PST_OK;
    if (!is_pristine(t))
        s = pst_table_rollback(t, 0);
    else
        pst_epoch_begin(t);
    if (!s)
        drop_logs(t);
    return s;
}

int pst_table_dirty(const pst_table *t) {
    const pst_meta *before = pst_meta_of(t, t->h->sealed);
    uint32_t taken = t->m->slots - before->slots + t->m->rings[PST_RING_SLOTS].head -
                     before->rings[PST_RING_SLOTS].head;
    return t->undo_count != 0 || taken != t->admitted;
}
