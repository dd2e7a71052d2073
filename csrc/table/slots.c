#include "table/slots.h"

#include "memory/ring.h"
#include "table/index.h"

/* ---- taking and freeing ---------------------------------------------------------------------- */

/* Prefetches the lines where burying the row's entry begins. The row may have no key's hash. */
PST_PREFETCH void prefetch_entries(const pst_table *t, const uint64_t *row) {
    uint64_t hash = pst_row_hash(t, row);
    int32_t group = pst_group_of(t, hash);
    uint32_t tag = pst_tag_of(t, hash), seen = 0;
    if (group < t->first_key_group || group > t->last_key_group)
        return;
    for (uint64_t e = t->h->active;; e--) {
        const pst_meta *m = pst_meta_of(t, e);
        const pst_shard *s = m->shards + pst_directory_at(t, m->directory_bits, hash, tag);
        pst_probe c;
        if (s->table != seen && pst_probe_home(&c, s, t->heap, tag))
            __builtin_prefetch(c.line, 1);
        seen = s->table;
        if (e == t->h->floor)
            return;
    }
}

/* A slot that waits was last used three epochs ago, and so were its index entries: the row is
 * fetched some slots ahead of its turn, and the lines of the entries some after that. */
PST_PREFETCH void prefetch_next(const pst_table *t) {
    enum { ROW = 12, LINE = 6 };
    const pst_ring *r = pst_slot_ring(t);
    uint32_t left = r->sealed_tail[2] - r->head;
    if (left > ROW)
        pst_prefetch_row(t, pst_ring_at(t, PST_RING_SLOTS, r->head + ROW));
    if (left > LINE)
        prefetch_entries(t, pst_row(t, pst_ring_at(t, PST_RING_SLOTS, r->head + LINE)));
}

void pst_slot_take_named(pst_table *t, uint32_t *slot) {
    uint32_t reused = pst_ring_at(t, PST_RING_SLOTS, pst_slot_ring(t)->head);
    prefetch_next(t);
    pst_index_bury(t, pst_row_hash(t, pst_row(t, reused)), reused);
    (void)pst_ring_pop(t, PST_RING_SLOTS, slot);
    t->reused++;
}

/* Was the row touched, or dropped, in the window's last three epochs, the time that a name waits
 * (B1)? */
static int is_recent(const pst_table *t, uint32_t slot) {
    uint64_t header = pst_row(t, slot)[0];
    for (uint64_t k = 0; k < 3 && k <= t->h->active; k++)
        if (pst_header_stamp(header) == pst_stamp(t->h->active - k) << 8 ||
            pst_is_of_admission(header, t->h->active - k))
            return 1;
    return 0;
}

/* Is the row dead for good? Sealing takes care of those that died in the open epoch. */
static int has_died_before(const pst_table *t, uint32_t slot) {
    uint64_t header = pst_row(t, slot)[0];
    return !pst_is_live(header) && pst_header_stamp(header) != t->stamp &&
           !pst_is_of_admission(header, t->h->active);
}

/* Puts slots that the cut has dropped ahead of the names that still wait, so that they can be taken
 * now. It puts as many as there are waiting names, so each of those is passed over once for one
 * that is taken. */
static pst_status relist_before(pst_table *t, uint32_t *at) {
    enum { LEAST = 64 };
    pst_ring *r = pst_slot_ring(t);
    uint32_t head = r->head, waiting = r->tail - head, tail = r->tail, found = 0;
    uint32_t want = waiting < LEAST ? LEAST : waiting;
    pst_status s = PST_OK;
    for (; !s && *at < t->m->slots && found < want; ++*at)
        if (!pst_is_live(pst_row(t, *at)[0]) && !is_recent(t, *at)) {
            s = pst_ring_push(t, PST_RING_SLOTS, *at);
            found++;
        }
    uint32_t now = r->tail;
    for (uint32_t p = head; !s && p != tail; p++)
        s = pst_ring_push(t, PST_RING_SLOTS, pst_ring_at(t, PST_RING_SLOTS, p));
    for (uint32_t i = t->m->cut_at; !s && i < *at; i++)
        if (is_recent(t, i) && has_died_before(t, i))
            s = pst_ring_push(t, PST_RING_SLOTS, i);
    if (s) {
        pst_put32(&r->tail, tail);
        return s;
    }
    pst_put32(&r->head, tail);
    for (int k = 0; k < 3; k++)
        pst_put32(&r->sealed_tail[k], now);
    return PST_OK;
}

void pst_cut_end(pst_table *t) {
    const pst_ring *r = pst_slot_ring(t);
    pst_put32(&t->h->slots.surplus, 0);
    pst_put32(&t->h->slots.least, r->sealed_tail[2] - r->head);
    pst_put32(&t->m->cut, 0);
    pst_cut_phase(t, PST_CUT_NONE, 0);
}

/* Gives the cut up: more slots are wanted than lie below it. */
static void give_up_some(pst_table *t) {
    pst_meta *m = t->m;
    if (m->cut_phase == PST_CUT_NONE || (m->cut_phase == PST_CUT_TURN && !pst_cut_is_turned(t)))
        return;
    if (m->cut_phase != PST_CUT_RELIST)
        pst_cut_phase(t, PST_CUT_RELIST, m->cut);
    uint32_t at = m->cut_at;
    if (relist_before(t, &at))
        return;
    pst_put32(&m->cut_at, at);
    if (at == m->slots)
        pst_cut_end(t);
}

void pst_slot_take(pst_table *t, uint32_t *slot) {
    const pst_ring *r = pst_slot_ring(t);
    /* Inserts are undone newest first, fresh slots before reused ones: so after a fresh slot the
     * epoch takes no reusable one (U4). */
    if (r->head == r->sealed_tail[2] && t->m->slots == pst_meta_of(t, t->h->sealed)->slots)
        give_up_some(t);
    if (r->head != r->sealed_tail[2]) {
        pst_slot_take_named(t, slot);
        return;
    }
    *slot = t->m->slots;
    pst_put32(&t->m->slots, t->m->slots + 1);
}

pst_status pst_slot_free(pst_table *t, uint32_t slot) {
    const pst_meta *m = t->m;
    uint32_t from = m->cut_phase == PST_CUT_RELIST ? m->cut_at : m->cut;
    if (m->cut_phase != PST_CUT_NONE && slot >= from)
        return PST_OK;
    return pst_ring_push(t, PST_RING_SLOTS, slot);
}
