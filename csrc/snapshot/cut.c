#include "snapshot/cut.h"

#include "elements/timers.h"
#include "memory/alloc.h"
#include "memory/huge.h"
#include "memory/pins.h"
#include "memory/ring.h"
#include "memory/size_class.h"
#include "table/index.h"
#include "table/slots.h"
#include "table/undo.h"

#ifndef PST_PATIENCE
#define PST_PATIENCE 8 /* tests have less */
#endif

#ifndef PST_CUT_LOOKS
#define PST_CUT_LOOKS 4096 /* tests have less */
#endif

#ifndef PST_MOVED_TIMERS
#define PST_MOVED_TIMERS 256 /* tests have less */
#endif

#ifndef PST_TREE_ROOM
#define PST_TREE_ROOM (1 << 18) /* tests have too little */
#endif

#ifndef PST_CUT_LEAST
#define PST_CUT_LEAST 65536u /* bytes of rows that are worth a cut; tests have less */
#endif

enum {
    LOOKS = PST_CUT_LOOKS,          /* rows looked at per seal */
    MOVES = PST_CUT_LOOKS / 48,     /* rows moved per seal */
    TURNS = PST_CUT_LOOKS * 2,      /* names turned over per seal */
    MOST_TIMERS = PST_MOVED_TIMERS, /* collected per pass over a key group's */
    TIMED_MOVES = MOVES / 2,
    TREE_ROOM = PST_TREE_ROOM, /* bytes that moving their timers may take */
    PATIENCE = PST_PATIENCE,
    /* Epochs for which no cut goes below a row whose timers could not be moved for want of
     * memory. */
    PIN_EPOCHS = 64 * PST_PATIENCE
};

/* ---- moving rows ----------------------------------------------------------------------------- */

/* Copies a key's bytes, where they have a block. */
static pst_status copy_key(pst_table *t, const uint64_t *key, uint64_t ref[2]) {
    uint32_t granule, size;
    ref[0] = key[0];
    ref[1] = key[1];
    if (!pst_ref_is_block(ref))
        return PST_OK;
    size = pst_ref_size(ref);
    pst_status s = pst_block_alloc(t, pst_class_of(size), &granule);
    if (s)
        return s;
    pst_put_bytes(pst_block(t, granule), pst_ref_data(t->heap, key), size);
    ref[1] = pst_ref_moved(ref, granule);
    return PST_OK;
}

/* Moves a live row into the ring's next slot. On any status but PST_OK nothing has happened. */
static pst_status move_row(pst_table *t, uint32_t from) {
    const pst_row_layout *lay = &t->lay;
    uint64_t *row = pst_row(t, from), *old = row + lay->key_offset / 8;
    uint64_t hash = pst_row_hash(t, row), presence = pst_presence(lay, row), ref[2] = {0, 0};
    uint32_t to, flags = (uint32_t)row[0] & 0xFFu;
    pst_vacancy v;
    if (!pst_index_find_room(t, hash, &v)) {
        t->tight = 1;
        t->tight_hash = hash;
        return PST_NO_MEMORY;
    }
    pst_status s = pst_undo_reserve(t, 1);
    if (!s && lay->key_kind == PST_KEY_BYTES)
        s = copy_key(t, old + 1, ref);
    if (s)
        return s;
    pst_slot_take_named(t, &to);
    uint64_t *fresh = pst_row(t, to), *key = fresh + lay->key_offset / 8;
    pst_put64(key, old[0]);
    if (lay->key_kind == PST_KEY_BYTES) {
        pst_put64(key + 1, ref[0]);
        pst_put64(key + 2, ref[1]);
    }
    pst_put_words(fresh + lay->image_offset / 8, row + lay->image_offset / 8, lay->image_words);
    PST_FENCE(__ATOMIC_RELEASE);
    pst_put64(fresh, pst_make_header(flags, t->stamp, PST_NONE));
    pst_index_take(&v, to);
    pst_touch(t, from, row);
    if (presence)
        pst_row_set_presence(t, row, 0);
    pst_put64(&t->m->live, t->m->live + 1);
    return PST_OK;
}

/* May the ring's next slot be taken, and does it lie below the cut? */
static int has_slot(const pst_table *t) {
    const pst_ring *r = pst_slot_ring(t);
    return r->head != r->sealed_tail[2] && pst_ring_at(t, PST_RING_SLOTS, r->head) < t->m->cut;
}

/* Moves a row with its n timers, which are all that it has. */
static pst_status move_timed(pst_table *t, const pst_timer *timers, int n) {
    int32_t group = pst_group_of(t, pst_row_hash(t, pst_row(t, timers->slot)));
    uint32_t to = pst_ring_at(t, PST_RING_SLOTS, pst_slot_ring(t)->head);
    pst_status s = move_row(t, timers->slot);
    return s ? s : pst_poison(t, pst_timers_move(t, group, timers, n, to));
}

/* Moves those rows all of whose timers are in `timers`. Returns how many. */
static int move_complete(pst_table *t, const pst_timer *timers, int n) {
    int moved = 0;
    for (int i = 0, end; i < n && moved < TIMED_MOVES; i = end) {
        for (end = i + 1; end < n && timers[end].slot == timers[i].slot; end++)
            ;
        if ((uint32_t)(end - i) != pst_timer_count(t, timers[i].slot))
            continue;
        if (!has_slot(t) || move_timed(t, timers + i, end - i))
            break;
        moved++;
    }
    return moved;
}

/* Moves a row that has timers, with others of its key group. When timers are due is known only by
 * looking through the group's trees. PST_NOT_FOUND: the row stays, since its timers cannot be found
 * in bounded time. */
static pst_status move_with_timers(pst_table *t, uint32_t slot, int *moved) {
    pst_timer timers[MOST_TIMERS];
    int32_t group = pst_group_of(t, pst_row_hash(t, pst_row(t, slot)));
    /* A tree cannot undo a change for which memory was refused half way. */
    if (!pst_arena_has_room(&t->arena, TREE_ROOM))
        return PST_NO_MEMORY;
    int n = pst_timers_of_rows(t, group, t->m->cut, t->m->slots, timers, MOST_TIMERS);
    if (n > 0)
        *moved += move_complete(t, timers, n);
    if (n < 0 || *moved || t->poisoned)
        return n < 0 ? PST_NOT_FOUND : PST_OK;
    n = pst_timers_of_rows(t, group, slot, slot + 1, timers, MOST_TIMERS);
    if (n < 0 || (uint32_t)n != pst_timer_count(t, slot))
        return PST_NOT_FOUND;
    *moved += move_complete(t, timers, n);
    return PST_OK;
}

/* Has the row, or its key group, more timers than are looked through? */
static int has_many_timers(const pst_table *t, uint32_t slot) {
    if (slot >= t->m->slots || !pst_is_live(pst_row(t, slot)[0]) || !pst_timer_count(t, slot))
        return 0;
    int32_t group = pst_group_of(t, pst_row_hash(t, pst_row(t, slot)));
    return pst_timer_count(t, slot) > MOST_TIMERS || pst_timers_are_many(t, group);
}

/* The row stays where it is, so the cut goes no further down. */
static void pin(pst_table *t, uint32_t slot) {
    pst_put32(&t->h->slots.pinned, slot + 1);
    pst_put32(&t->h->slots.until, (uint32_t)t->m->epoch + (t->poisoned ? PIN_EPOCHS : 0));
    pst_cut_phase(t, PST_CUT_RELIST, t->m->cut);
}

/* Moves rows from `at` down. Returns where it stopped. */
static uint32_t move_some(pst_table *t, uint32_t at, int *moved) {
    pst_meta *m = t->m;
    for (uint32_t looks = LOOKS; looks && at > m->cut && *moved < MOVES; looks--, at--) {
        uint32_t slot = at - 1;
        if (!pst_is_live(pst_row(t, slot)[0]))
            continue;
        if (!has_slot(t)) {
            /* If no names are on their way there will never be one. */
            if (pst_slot_ring(t)->head == pst_slot_ring(t)->tail)
                pst_cut_phase(t, PST_CUT_RELIST, m->cut);
            break;
        }
        if (!pst_timer_count(t, slot)) {
            if (move_row(t, slot))
                break;
            ++*moved;
            continue;
        }
        /* One such pass is work enough for a seal. */
        if (!*moved && (move_with_timers(t, slot, moved) == PST_NOT_FOUND || t->poisoned))
            pin(t, slot);
        break;
    }
    return at;
}

int pst_cut_move(pst_table *t) {
    pst_meta *m = t->m;
    int moved = 0;
    if (m->cut_phase != PST_CUT_MOVE || t->keeps_rows)
        return 0;
    if (t->h->slots.pinned > m->cut) {
        /* A failed move poisoned the epoch, and undoing that epoch also undid giving the cut up. */
        pst_cut_phase(t, PST_CUT_RELIST, m->cut);
        return 0;
    }
    uint32_t at = move_some(t, m->cut_at, &moved);
    if (m->cut_phase != PST_CUT_MOVE)
        return moved;
    if (at > m->cut)
        pst_put32(&m->cut_at, at);
    else
        pst_cut_phase(t, PST_CUT_PURGE, 0);
    return moved;
}

/* ---- the other phases ------------------------------------------------------------------------ */

/* Begins a cut, if for a while a third of the slots was more than any epoch wanted. */
static void consider(pst_table *t) {
    pst_slot_hints *hints = &t->h->slots;
    pst_meta *m = t->m;
    const pst_ring *r = pst_slot_ring(t);
    uint32_t left = r->sealed_tail[2] - r->head;
    if (left < hints->least)
        pst_put32(&hints->least, left);
    if (m->epoch % PATIENCE)
        return;
    pst_put32(&hints->surplus, hints->least);
    pst_put32(&hints->least, left);
    if (hints->surplus < m->slots / 3)
        return;
    if (hints->pinned && !has_many_timers(t, hints->pinned - 1) &&
        (int32_t)((uint32_t)m->epoch - hints->until) > 0)
        pst_put32(&hints->pinned, 0);
    uint32_t needed = m->slots - hints->surplus, cut = needed + needed / 8 + 1;
    if (cut < hints->pinned)
        cut = hints->pinned;
    if (cut >= m->slots || m->slots - cut < m->slots / 8 ||
        (uint64_t)(m->slots - cut) * t->lay.row_size < PST_CUT_LEAST)
        return;
    pst_put32(&m->cut, cut);
    pst_cut_phase(t, PST_CUT_TURN, r->tail);
}

/* Drops names above the cut, and moves others to the end of the ring. */
static void turn(pst_table *t) {
    pst_ring *r = pst_slot_ring(t);
    /* Names that are turned over cannot be taken for three epochs, so some stay. */
    uint32_t some = (r->sealed_tail[2] - r->head) / 8 + 1;
    for (uint32_t turns = TURNS; turns && some && r->head != r->sealed_tail[2]; turns--) {
        if (pst_cut_is_turned(t))
            break;
        uint32_t slot = pst_ring_at(t, PST_RING_SLOTS, r->head);
        if (slot < t->m->cut) {
            if (pst_ring_push(t, PST_RING_SLOTS, slot))
                return;
            some--;
        }
        pst_put32(&r->head, r->head + 1);
    }
    if (pst_cut_is_turned(t))
        pst_cut_phase(t, PST_CUT_MOVE, t->m->slots);
}

static void lower(pst_table *t) {
    if ((int32_t)((uint32_t)t->h->floor - t->m->cut_at) < 0)
        return;
    pst_put32(&t->m->slots, t->m->cut);
    pst_cut_end(t);
}

/* Names that the cut has dropped; slots of rows that died in the open epoch are among them. */
static void relist(pst_table *t) {
    pst_meta *m = t->m;
    uint32_t at = m->cut_at;
    for (uint32_t looks = LOOKS; looks && at < m->slots; looks--, at++)
        if (!pst_is_live(pst_row(t, at)[0]) && pst_ring_push(t, PST_RING_SLOTS, at))
            break;
    pst_put32(&m->cut_at, at);
    if (at == m->slots)
        pst_cut_end(t);
}

/* Gives back pages in which no epoch of the window has rows, except what growth commits ahead. */
static void give_back(pst_table *t) {
    pst_header *h = t->h;
    uint64_t have = h->committed[PST_SPACE_ROWS], slots = 0;
    for (uint64_t e = h->active;; e--) {
        const pst_meta *m = pst_meta_of(t, e);
        if (m->slots > slots)
            slots = m->slots;
        if (e == h->floor)
            break;
    }
    uint64_t keep = slots * t->lay.row_size;
    keep += keep / 8 + PST_CUT_LEAST;
    if (have <= keep || pst_reader_lags(h))
        return;
    if (have > PST_GIVE_BACK && have - PST_GIVE_BACK > keep)
        keep = have - PST_GIVE_BACK;
    pst_arena_give_back(&t->arena, PST_SPACE_ROWS, keep);
    if (h->huge_rows > keep)
        pst_put64(&h->huge_rows, keep / PST_HUGE_PAGE * PST_HUGE_PAGE);
}

void pst_cut_tidy(pst_table *t) {
    switch (t->m->cut_phase) {
    case PST_CUT_NONE:
        consider(t);
        break;
    case PST_CUT_TURN:
        turn(t);
        break;
    case PST_CUT_WAIT:
        lower(t);
        break;
    case PST_CUT_RELIST:
        relist(t);
        break;
    default: /* pst_cut_move and pst_index_tidy go on */
        break;
    }
    give_back(t);
}
