/* seal.c: the end of an epoch. Its changes are gathered, what lives moves together, what died is
 * let go of, and then one store makes all of it count (E1). */
#include <string.h>

#include "base/mem.h"
#include "memory/alloc.h"
#include "memory/ring.h"
#include "memory/span.h"
#include "snapshot/cut.h"
#include "snapshot/evacuate.h"
#include "snapshot/sealed.h"
#include "table/epoch.h"
#include "table/slots.h"
#include "table/undo.h"
#include "table/value.h"

/* The slots whose rows died in the open epoch. They become reusable once it has left the window, in
 * ascending order: rows that are made one after the other then lie side by side, and timers of one
 * time come to the end of their run in the tree. Without `marks`, in the order of their deaths. */
typedef struct retired {
    pst_table *t;
    uint64_t *marks; /* a bit per slot */
} retired;

static pst_status retire(const retired *r, uint32_t slot) {
    pst_table *t = r->t;
    const uint64_t *row = pst_row(t, slot);
    if (pst_is_live(row[0]))
        return PST_OK;
    pst_status s = pst_row_free_key(t, row);
    if (s || !r->marks)
        return s ? s : pst_slot_free(t, slot);
    r->marks[slot / 64] |= UINT64_C(1) << slot % 64;
    return PST_OK;
}

/* A slot that the epoch took. Of a row that was admitted and touched there is a record. Names that
 * only went to the ring's end are among those that have left it. */
static pst_status retire_taken(const retired *r, uint32_t slot) {
    const uint64_t *row = pst_row(r->t, slot);
    int dead = pst_row_is_made(r->t, row) || pst_is_of_admission(row[0], r->t->h->active);
    return dead ? retire(r, slot) : PST_OK;
}

static pst_status retire_all(const retired *r) {
    pst_table *t = r->t;
    const pst_meta *before = pst_meta_of(t, t->h->sealed);
    pst_status s = PST_OK;
    for (uint64_t i = 0; !s && i < t->undo_count; i++)
        s = retire(r, (uint32_t)*pst_undo_record(t, t->undo, i));
    for (uint32_t slot = before->slots; !s && slot < t->m->slots; slot++)
        s = retire_taken(r, slot);
    uint32_t head = t->m->rings[PST_RING_SLOTS].head;
    for (uint32_t p = before->rings[PST_RING_SLOTS].head; !s && p != head; p++)
        s = retire_taken(r, pst_ring_at(t, PST_RING_SLOTS, p));
    return s;
}

static pst_status free_marked(const retired *r, size_t words) {
    pst_status s = PST_OK;
    for (size_t i = 0; i < words; i++)
        for (uint64_t left = r->marks[i]; !s && left; left &= left - 1)
            s = pst_slot_free(r->t, (uint32_t)(i * 64) + (uint32_t)__builtin_ctzll(left));
    return s;
}

static pst_status retire_dead(pst_table *t) {
    enum { SLOTS_A_CHANGE = 1024 }; /* few changes are not worth looking at a bit of each slot */
    retired r = {t, NULL};
    size_t words = (size_t)t->m->slots / 64 + 1;
    if (t->undo_count + pst_rows_made(t) - pst_meta_of(t, t->h->sealed)->slots >
        t->m->slots / SLOTS_A_CHANGE)
        r.marks = pst_calloc(words, sizeof *r.marks);
    pst_status s = retire_all(&r);
    if (!s && r.marks)
        s = free_marked(&r, words);
    pst_free(r.marks);
    return s;
}

static pst_status seal(pst_table *t, const pst_lineage *lineage, pst_sealed **sealed) {
    if (!t->attached)
        return PST_INVALID;
    if (t->poisoned)
        return PST_POISONED;
    pst_sealed *out = NULL;
    pst_status s = sealed ? pst_sealed_gather(t, lineage, &out) : PST_OK;
    if (s)
        return s;
    t->index_due = 0;
    pst_evacuate(t);
    uint32_t cut_phase = t->m->cut_phase, cut_at = t->m->cut_at;
    int moved = pst_cut_move(t);
    uint32_t tails[PST_RINGS], hot[PST_CLASSES];
    for (int r = 0; r < PST_RINGS; r++)
        tails[r] = t->m->rings[r].tail;
    memcpy(hot, t->m->hot, sizeof hot);
    s = t->poisoned;
    if (!s && t->deaths)
        s = retire_dead(t);
    if (!s)
        s = pst_block_settle(t);
    if (s) {
        /* What was pushed would be pushed again by the next attempt, and then taken twice. */
        for (int r = 0; r < PST_RINGS; r++)
            pst_put32(&t->m->rings[r].tail, tails[r]);
        for (int c = 0; c < PST_CLASSES; c++)
            pst_put32(&t->m->hot[c], hot[c]);
        /* What died in the epoch may live again in it. */
        pst_put32(&t->m->cut_phase, cut_phase);
        pst_put32(&t->m->cut_at, cut_at);
        t->hot = 1;
        pst_span_count_listed(t, t->m);
        t->detail.sys_errno = t->arena.last_errno;
        pst_sealed_destroy(out);
        /* What is gathered again must not find rows that have moved: they would be other rows. */
        return moved ? pst_poison(t, s) : s;
    }
    pst_evacuate_keys(t);
    pst_cut_tidy(t);
    pst_span_tidy(t);
    pst_put_words((uint64_t *)&t->m->lineage, (const uint64_t *)(const void *)lineage,
                  sizeof *lineage / 8);
    pst_release64(&t->h->sealed, t->h->active);
    pst_epoch_begin(t);
    if (sealed)
        *sealed = out;
    return PST_OK;
}

pst_status pst_table_seal(pst_table *t, const pst_lineage *lineage, pst_sealed **sealed) {
    pst_clearing(t);
    return pst_cleared(t, seal(t, lineage, sealed));
}
