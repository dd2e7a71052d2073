#include "elements/leave.h"

#include "base/mem.h"
#include "elements/timers.h"
#include "memory/size_class.h"
#include "table/resident.h"

enum { AHEAD = 16, COUNTED = 64 };

static const pst_domain domains[] = {PST_EVENT, PST_PROCESSING};

void pst_leaving_begin(const pst_table *t, const pst_room *wanted, pst_leaving *l) {
    *l = (pst_leaving){.wanted = *wanted, .looks = (PST_HEAT_MOST + UINT64_C(3)) * t->m->slots};
}

int pst_leaving_is_done(const pst_leaving *l) {
    return !l->looks || (l->left.rows >= l->wanted.rows && l->left.bytes >= l->wanted.bytes);
}

/* The rows of an epoch with several timers, whose times only the trees know. */
typedef struct crowd {
    uint64_t *stay;  /* a bit per slot: it has a timer before a horizon; NULL: not looked for */
    uint64_t *leave; /* likewise: it is one of `slots` */
    uint32_t *slots;
    uint32_t n;
    int refused; /* there is no memory for these: they stay */
} crowd;

static int has_bit(const uint64_t *bits, uint32_t slot) {
    return (int)(bits[slot / 64] >> slot % 64 & 1);
}

static void set_bit(uint64_t *bits, uint32_t slot) {
    bits[slot / 64] |= UINT64_C(1) << slot % 64;
}

/* ---- who may leave --------------------------------------------------------------------------- */

static int is_timeless(const pst_table *t, pst_domain domain) {
    return pst_horizon_is_end(&t->m->horizon[domain]);
}

/* Marks the rows of timers before the horizons (DK2), which come first in their trees. Of a domain
 * whose horizon is at the end of all time, these are all. */
static pst_status mark_staying(pst_table *t, uint64_t *stay) {
    for (int32_t g = t->first_key_group; g <= t->last_key_group; g++)
        for (int d = 0; d < 2; d++) {
            pst_tree_root root = *pst_timer_root(t, t->m, g, domains[d]);
            const pst_horizon *h = &t->m->horizon[domains[d]];
            int all = is_timeless(t, domains[d]);
            pst_tree_cursor c;
            pst_tree_entry e;
            pst_status s;
            if (!root.count)
                continue;
            pst_tree_seek(&c, t->heap, pst_heap_bytes(t), &pst_timer_shape, root, NULL);
            while (!(s = pst_tree_next(&c, &e)) &&
                   (all || pst_horizon_is_after(h, pst_timer_time(e.key[0]))))
                set_bit(stay, (uint32_t)e.key[1]);
            if (s && s != PST_NOT_FOUND)
                return s;
        }
    return PST_OK;
}

static pst_status begin_crowd(pst_table *t, crowd *c) {
    size_t words = (size_t)t->m->slots / 64 + 1;
    c->stay = pst_calloc(words, sizeof *c->stay);
    c->leave = pst_calloc(words, sizeof *c->leave);
    c->slots = pst_malloc(PST_LEAVE_MOST * sizeof *c->slots);
    c->refused = !c->stay || !c->leave || !c->slots;
    return c->refused ? PST_OK : mark_staying(t, c->stay);
}

static void end_crowd(crowd *c) {
    pst_free(c->stay);
    pst_free(c->leave);
    pst_free(c->slots);
}

/* Was the row admitted, or touched, since the hand began its last round? */
static int is_fresh(const pst_table *t, const uint64_t *row) {
    uint64_t header = row[0], since = t->h->active - t->h->hand_before;
    uint32_t stamp = pst_header_stamp(header) >> 8, now = t->stamp >> 8,
             by = (uint32_t)(header >> 32);
    if (!stamp)
        return by != PST_NONE && (uint32_t)t->h->active - by <= since;
    uint64_t age = now >= stamp ? now - stamp : now + PST_STAMP_PERIOD - stamp;
    return age <= since;
}

static void begin_round(pst_header *h) {
    pst_put64(&h->hand_before, h->hand_began);
    pst_put64(&h->hand_began, h->active);
}

/* Has the row been used since the hand last came by? If so it has one more turn. */
static int is_warm(pst_table *t, uint32_t slot) {
    return pst_heat_lower(t, slot) || is_fresh(t, pst_row(t, slot));
}

/* ---- leaving --------------------------------------------------------------------------------- */

/* Lets the row leave, if it may; *rows counts it. One with several timers does when all were found. */
static pst_status leave(pst_table *t, crowd *c, uint32_t slot, uint32_t *rows) {
    const pst_row_layout *lay = &t->lay;
    uint64_t *row = pst_row(t, slot);
    uint32_t timers = pst_timer_count(t, slot);
    pst_status s = PST_OK;
    if (timers && is_timeless(t, PST_EVENT) && is_timeless(t, PST_PROCESSING))
        return PST_OK;
    if (timers == 1 && lay->timer >= 0 && pst_row_has(lay, row, lay->timer)) {
        uint64_t word = pst_get64(pst_field_at(lay, row, lay->timer));
        pst_domain domain = pst_timer_packed_domain(word);
        int64_t time_ms = pst_timer_packed_time(word);
        if (is_timeless(t, domain) || pst_horizon_is_after(&t->m->horizon[domain], time_ms))
            return PST_OK;
        s = pst_undo_reserve(t, 1);
        if (!s)
            s = pst_timer_remove(t, slot, domain, time_ms);
    } else if (timers) {
        if (!c->stay && !c->refused)
            s = begin_crowd(t, c);
        if (s || c->refused || has_bit(c->stay, slot) || has_bit(c->leave, slot))
            return s;
        set_bit(c->leave, slot);
        c->slots[c->n++] = slot;
        ++*rows;
        return PST_OK;
    } else {
        s = pst_undo_reserve(t, 1);
    }
    ++*rows;
    return s ? s : pst_expel(t, slot);
}

/* Takes the timers of the leaving rows out of a tree. They are found first and removed afterwards,
 * some at a time: a cursor does not outlive a write. */
static pst_status remove_timers(pst_table *t, const crowd *c, int32_t group, pst_domain domain) {
    uint64_t found[PST_TREE_RUN][2];
    pst_tree_entry e, from = {.key = {0, 0}};
    pst_status s = PST_OK, ended = PST_OK;
    while (!s && !ended) {
        pst_tree_root root = *pst_timer_root(t, t->m, group, domain);
        pst_tree_cursor at;
        uint32_t n = 0;
        if (!root.count)
            return PST_OK;
        pst_tree_seek(&at, t->heap, pst_heap_bytes(t), &pst_timer_shape, root, &from);
        while (n < PST_TREE_RUN && !(ended = pst_tree_next(&at, &e)))
            if (has_bit(c->leave, (uint32_t)e.key[1])) {
                found[n][0] = e.key[0];
                found[n++][1] = e.key[1];
                from = e;
            }
        s = pst_timers_remove(t, group, domain, (const uint64_t (*)[2])found, n);
    }
    return s ? s : ended == PST_NOT_FOUND ? PST_OK : ended;
}

static pst_status leave_crowd(pst_table *t, const crowd *c) {
    pst_status s = PST_OK;
    for (int32_t g = t->first_key_group; !s && c->n && g <= t->last_key_group; g++)
        for (int d = 0; !s && d < 2; d++)
            s = remove_timers(t, c, g, domains[d]);
    for (uint32_t i = 0; !s && i < c->n; i++) {
        s = pst_undo_reserve(t, 1);
        if (!s)
            s = pst_expel(t, c->slots[i]);
    }
    return s;
}

/* Bytes of blocks that rings name. Trees of timers take some of these. */
static uint64_t listed_bytes(const pst_table *t) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < PST_CLASSES; c++)
        bytes += (t->m->rings[c].tail - t->m->rings[c].head) * pst_class_size(c);
    return bytes;
}

static uint64_t more_listed(const pst_table *t, uint64_t before) {
    uint64_t now = t->lay.has_blocks ? listed_bytes(t) : 0;
    return now > before ? now - before : 0;
}

/* Of a row, without what its states have in blocks. */
static uint64_t row_bytes(const pst_table *t, uint32_t slot) {
    const uint64_t *ref = pst_row(t, slot) + t->lay.key_offset / 8 + 1;
    uint64_t bytes = t->lay.row_size + PST_ENTRY_SHARE;
    if (t->lay.key_kind == PST_KEY_BYTES && pst_ref_is_block(ref))
        bytes += pst_class_size(pst_class_of(pst_ref_size(ref)));
    return bytes;
}

static pst_status go_round(pst_table *t, pst_leaving *l, crowd *c, uint32_t *rows) {
    uint64_t slots = t->m->slots, at = t->h->hand < slots ? t->h->hand : 0;
    uint64_t bytes = l->left.bytes, before = listed_bytes(t);
    pst_status s = PST_OK;
    for (; !s && *rows < PST_LEAVE_MOST && !pst_leaving_is_done(l); l->looks--) {
        uint32_t slot = (uint32_t)at, already = *rows;
        if (!slot)
            begin_round(t->h);
        at = at + 1 == slots ? 0 : at + 1;
        if (slot + AHEAD < slots)
            pst_prefetch_row(t, slot + AHEAD);
        if (!pst_is_live(pst_row(t, slot)[0]) || is_warm(t, slot))
            continue;
        s = leave(t, c, slot, rows);
        if (*rows == already)
            continue;
        l->left.rows++;
        bytes += row_bytes(t, slot);
        /* Counting what lists and maps were is dear. */
        if (!t->lay.has_blocks || *rows % COUNTED == 0)
            l->left.bytes = bytes + more_listed(t, before);
    }
    l->left.bytes = bytes + more_listed(t, before);
    pst_put64(&t->h->hand, at);
    return s;
}

pst_status pst_leave_some(pst_table *t, pst_leaving *l, uint32_t *rows) {
    crowd c = {.n = 0};
    *rows = 0;
    if (t->keeps_rows || !t->m->slots)
        l->looks = 0;
    (void)pst_heat_reserve(t);
    pst_clearing(t);
    pst_status s = go_round(t, l, &c, rows);
    if (!s)
        s = leave_crowd(t, &c);
    if (!s && *rows)
        pst_put32(&t->m->whole, 0);
    end_crowd(&c);
    return pst_poison(t, pst_cleared(t, s));
}

/* ---- horizons -------------------------------------------------------------------------------- */

pst_status pst_table_set_horizon(pst_table *t, pst_domain domain, int64_t time_ms) {
    if (!t->attached || (domain != PST_EVENT && domain != PST_PROCESSING))
        return PST_INVALID;
    pst_horizon_store(&t->m->horizon[domain], pst_horizon_at(time_ms));
    return PST_OK;
}

int64_t pst_table_horizon(const pst_table *t, pst_domain domain) {
    return t->m->horizon[domain].time;
}
