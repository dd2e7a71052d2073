#include "elements/leave.h"

#include "base/mem.h"
#include "elements/timers.h"
#include "memory/size_class.h"
#include "table/resident.h"
#include "table/roots.h"
#include "table/ttl.h"

enum { AHEAD = 16, COUNTED = 64 };

#ifndef PST_LEAVE_LIST
#define PST_LEAVE_LIST ((uint64_t)256 << 10) /* bytes of a list that is long; tests have less */
#endif

static const pst_domain domains[] = {PST_EVENT, PST_PROCESSING};

void pst_leaving_begin(const pst_table *t, const pst_room *wanted, pst_leaving *l) {
    *l = (pst_leaving){.wanted = *wanted, .looks = (PST_HEAT_MOST + UINT64_C(3)) * t->m->slots};
}

void pst_leaving_end(pst_leaving *l) {
    pst_free(l->crowd.rows);
    pst_free(l->crowd.listed);
    pst_free(l->crowd.going);
    l->crowd = (pst_crowd){.refused = 1};
}

/* With those that wait. */
static int is_enough(const pst_leaving *l) {
    const pst_room *waiting = &l->crowd.waiting;
    return l->left.rows + waiting->rows >= l->wanted.rows &&
           l->left.bytes + waiting->bytes >= l->wanted.bytes;
}

int pst_leaving_is_done(const pst_leaving *l) {
    return l->crowd.at == l->crowd.n && (!l->looks || is_enough(l));
}

static int has_bit(const uint64_t *bits, uint32_t slot) {
    return (int)(bits[slot / 64] >> slot % 64 & 1);
}

static void set_bit(uint64_t *bits, uint32_t slot) {
    bits[slot / 64] |= UINT64_C(1) << slot % 64;
}

static void clear_bit(uint64_t *bits, uint32_t slot) {
    bits[slot / 64] &= ~(UINT64_C(1) << slot % 64);
}

/* Of a row, without what its states have in blocks. */
static uint64_t row_bytes(const pst_table *t, uint32_t slot) {
    const uint64_t *ref = pst_row(t, slot) + t->lay.key_offset / 8 + 1;
    uint64_t bytes = t->lay.row_size + PST_ENTRY_SHARE;
    if (t->lay.key_kind == PST_KEY_BYTES && pst_ref_is_block(ref))
        bytes += pst_class_size(pst_class_of(pst_ref_size(ref)));
    return bytes;
}

/* ---- who may leave --------------------------------------------------------------------------- */

static int is_timeless(const pst_table *t, pst_domain domain) {
    return pst_horizon_is_end(&t->m->horizon[domain]);
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

/* Does what the entries of a map take come to so many bytes? Those of the first ones stand for all. */
static int has_bytes(const pst_table *t, const uint64_t *row, int32_t i, uint64_t bytes) {
    enum { SOME = 64 };
    const pst_tree_shape *shape = &t->collections[i].map;
    pst_tree_root root = pst_row_map(t, row, i);
    uint64_t words = (uint64_t)shape->key_words + shape->value_words + shape->timed, n = 0,
             more = 0;
    pst_tree_cursor c;
    pst_tree_entry e;
    if (root.count < SOME)
        return 0;
    if (!shape->key_is_ref && !shape->value_is_ref)
        return root.count * words * 8 >= bytes;
    pst_tree_seek(&c, t->heap, pst_heap_bytes(t), shape, root, NULL);
    for (; n < SOME && !pst_tree_next(&c, &e); n++)
        more += (shape->key_is_ref ? e.key_bytes.size : 0) +
                (shape->value_is_ref && !e.is_null ? e.value_bytes.size : 0);
    return root.count * (words * 8 + more / SOME) >= bytes;
}

/* A map that is whole comes back without its entries only where they take much of the table. */
static uint64_t large_map(const pst_table *t, const uint64_t *row, int32_t i) {
    enum { SHARE = 16 };
    uint64_t share = t->arena.limit / SHARE;
    return pst_row_map_is_below(t, row, i) || share < PST_LEAVE_LIST ? PST_LEAVE_LIST : share;
}

/* Has it a list or map that comes back without its elements? */
static int has_long(const pst_table *t, const uint64_t *row) {
    for (int32_t i = 0; i < t->lay.n_states; i++) {
        uint8_t kind = t->lay.fields[i].kind;
        if (kind == PST_MAP && !pst_ttl_looks_back(t, i) &&
            has_bytes(t, row, i, large_map(t, row, i)))
            return 1;
        if (kind != PST_LIST)
            continue;
        pst_list l = pst_row_list(t, row, i);
        if (pst_list_has_bytes(t, &l, PST_LEAVE_LIST))
            return 1;
    }
    return 0;
}

/* Has the row been used since the hand last came by? If so it has one more turn. */
static int is_warm(pst_table *t, uint32_t slot) {
    const uint64_t *row = pst_row(t, slot);
    int is_used = pst_heat_lower(t, slot) || is_fresh(t, row);
    return is_used && !(t->lay.has_elements && has_long(t, row));
}

/* ---- leaving --------------------------------------------------------------------------------- */

static int32_t group_of(const pst_table *t, uint32_t slot) {
    return pst_group_of(t, pst_row_hash(t, pst_row(t, slot)));
}

/* ---- rows with several timers ---------------------------------------------------------------- */

static int begin_crowd(const pst_table *t, pst_crowd *c) {
    size_t words = (size_t)t->m->slots / 64 + 1;
    c->listed = pst_calloc(words, sizeof *c->listed);
    c->going = pst_calloc(words, sizeof *c->going);
    c->slots = t->m->slots;
    c->most = c->slots / 8 < PST_LEAVE_CROWD ? PST_LEAVE_CROWD : c->slots / 8;
    return c->listed && c->going;
}

/* Notes that the row is to leave with others. Without memory such rows stay. */
static void join_crowd(const pst_table *t, pst_crowd *c, uint32_t slot) {
    if (!c->refused && !c->listed)
        c->refused = !begin_crowd(t, c);
    if (c->refused || slot >= c->slots || has_bit(c->listed, slot))
        return;
    if (c->n == c->room) {
        uint32_t room = c->room ? 2 * c->room : 64;
        uint64_t *grown = pst_realloc(c->rows, room * sizeof *grown);
        if (!grown)
            return;
        c->rows = grown;
        c->room = room;
    }
    set_bit(c->listed, slot);
    c->rows[c->n++] = (uint64_t)group_of(t, slot) << 32 | slot;
    c->waiting.rows++;
    c->waiting.bytes += row_bytes(t, slot);
}

static int by_number(const void *x, const void *y) {
    const uint64_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

/* Those of a group's rows that have timers before the horizon stay (DK2). These come first in their
 * tree; of a domain whose horizon is at the end of all time they are all. */
static pst_status keep_early(const pst_table *t, pst_leaving *l, int32_t group, pst_domain domain) {
    pst_crowd *c = &l->crowd;
    const pst_horizon *h = &t->m->horizon[domain];
    pst_tree_root root = *pst_timer_root(t, t->m, group, domain);
    int all = is_timeless(t, domain);
    pst_tree_cursor at;
    pst_tree_entry e;
    pst_status s = PST_OK;
    if (!root.count)
        return PST_OK;
    pst_tree_seek(&at, t->heap, pst_heap_bytes(t), &pst_timer_shape, root, NULL);
    while (!(s = pst_tree_next(&at, &e)) &&
           (all || pst_horizon_is_after(h, pst_timer_time(e.key[0])))) {
        l->walked++;
        if ((uint32_t)e.key[1] < c->slots)
            clear_bit(c->going, (uint32_t)e.key[1]);
    }
    return s == PST_NOT_FOUND ? PST_OK : s;
}

/* Takes the timers of the rows that go out of a tree, until *left are found. They are found first
 * and removed afterwards, some at a time: a cursor does not outlive a write. */
static pst_status remove_timers(pst_table *t, pst_leaving *l, int32_t group, pst_domain domain,
                                uint64_t *left) {
    const pst_crowd *c = &l->crowd;
    uint64_t found[PST_TREE_RUN][2];
    pst_tree_entry e, from = {.key = {pst_timer_word(t->m->horizon[domain].time), 0}};
    pst_status s = PST_OK, ended = PST_OK;
    while (!s && !ended && *left) {
        pst_tree_root root = *pst_timer_root(t, t->m, group, domain);
        pst_tree_cursor at;
        uint32_t n = 0;
        if (!root.count)
            return PST_OK;
        pst_tree_seek(&at, t->heap, pst_heap_bytes(t), &pst_timer_shape, root, &from);
        while (n < PST_TREE_RUN && n < *left && !(ended = pst_tree_next(&at, &e))) {
            l->walked++;
            if ((uint32_t)e.key[1] < c->slots && has_bit(c->going, (uint32_t)e.key[1])) {
                found[n][0] = e.key[0];
                found[n++][1] = e.key[1];
                from = e;
            }
        }
        *left -= n;
        s = pst_timers_remove(t, group, domain, (const uint64_t (*)[2])found, n);
    }
    return s ? s : ended == PST_NOT_FOUND ? PST_OK : ended;
}

/* Lets those of n rows of a key group leave that may. */
static pst_status leave_group(pst_table *t, pst_leaving *l, const uint64_t *rows, uint32_t n,
                              uint32_t *left) {
    pst_crowd *c = &l->crowd;
    int32_t group = (int32_t)(rows[0] >> 32);
    uint64_t timers = 0;
    pst_status s = PST_OK;
    for (int d = 0; !s && d < 2; d++)
        s = keep_early(t, l, group, domains[d]);
    for (uint32_t i = 0; i < n; i++)
        timers += has_bit(c->going, (uint32_t)rows[i]) ? pst_timer_count(t, (uint32_t)rows[i]) : 0;
    for (int d = 0; !s && d < 2; d++)
        s = remove_timers(t, l, group, domains[d], &timers);
    if (!s && timers)
        s = PST_CORRUPT;
    for (uint32_t i = 0; !s && i < n; i++) {
        uint32_t slot = (uint32_t)rows[i];
        if (!has_bit(c->going, slot))
            continue;
        clear_bit(c->going, slot);
        l->left.rows++;
        l->left.bytes += row_bytes(t, slot);
        ++*left;
        s = pst_undo_reserve(t, 1);
        if (!s)
            s = pst_expel(t, slot);
    }
    return s;
}

/* Is the row still the one that was to leave, or one that may? Slots were perhaps cut meanwhile. */
static int may_go(const pst_table *t, uint64_t row) {
    uint32_t slot = (uint32_t)row;
    return slot < t->m->slots && pst_is_live(pst_row(t, slot)[0]) &&
           !is_fresh(t, pst_row(t, slot)) && pst_timer_count(t, slot) &&
           group_of(t, slot) == (int32_t)(row >> 32);
}

/* Lets rows of the crowd leave, at most as many as an epoch takes. */
static pst_status leave_crowd(pst_table *t, pst_leaving *l, uint32_t *left) {
    pst_crowd *c = &l->crowd;
    pst_status s = PST_OK;
    if (!c->at && c->n)
        qsort(c->rows, c->n, sizeof *c->rows, by_number);
    while (!s && c->at < c->n && *left < PST_LEAVE_MOST) {
        uint32_t from = c->at, most = PST_LEAVE_MOST - *left;
        for (; c->at < c->n && c->at - from < most; c->at++) {
            uint64_t row = c->rows[c->at];
            if (row >> 32 != c->rows[from] >> 32)
                break;
            clear_bit(c->listed, (uint32_t)row);
            if (may_go(t, row))
                set_bit(c->going, (uint32_t)row);
        }
        s = leave_group(t, l, c->rows + from, c->at - from, left);
    }
    if (c->at == c->n) {
        c->at = c->n = 0;
        c->waiting = (pst_room){0, 0};
    }
    return s;
}

/* ---- leaving --------------------------------------------------------------------------------- */

/* Lets the row leave, if it may; *rows counts it. One with several timers waits for others. */
static pst_status leave(pst_table *t, pst_crowd *c, uint32_t slot, uint32_t *rows) {
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
        if (pst_horizon_is_end(&t->m->horizon[domain]) ||
            pst_horizon_is_after(&t->m->horizon[domain], time_ms))
            return PST_OK;
        s = pst_undo_reserve(t, 1);
        if (!s)
            s = pst_timer_remove(t, slot, domain, time_ms);
    } else if (timers) {
        join_crowd(t, c, slot);
        return PST_OK;
    } else {
        s = pst_undo_reserve(t, 1);
    }
    ++*rows;
    return s ? s : pst_expel(t, slot);
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

static pst_status go_round(pst_table *t, pst_leaving *l, uint32_t *rows) {
    uint64_t slots = t->m->slots, at = t->h->hand < slots ? t->h->hand : 0;
    uint64_t bytes = l->left.bytes, before = listed_bytes(t);
    pst_crowd *c = &l->crowd;
    pst_status s = PST_OK;
    for (; !s && *rows < PST_LEAVE_MOST && l->looks && !is_enough(l); l->looks--) {
        uint32_t slot = (uint32_t)at, already = *rows;
        if (c->n && c->n >= c->most)
            break;
        if (!slot)
            begin_round(t->h);
        at = at + 1 == slots ? 0 : at + 1;
        if (slot + AHEAD < slots)
            pst_prefetch_row(t, slot + AHEAD);
        if (!pst_is_live(pst_row(t, slot)[0]) || is_warm(t, slot))
            continue;
        s = pst_undo_reserve(t, 1);
        if (s == PST_LIMIT && already) {
            s = PST_OK; /* when those have left, their records go, and others can */
            break;
        }
        if (!s)
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

/* The hand goes on, unless a crowd is on its way out; when it has come to the end, or enough wait, a
 * crowd begins to leave. */
static pst_status leave_some(pst_table *t, pst_leaving *l, uint32_t *rows) {
    pst_crowd *c = &l->crowd;
    pst_status s = PST_OK;
    if (!c->at)
        s = go_round(t, l, rows);
    if (s || !c->n || (!c->at && *rows == PST_LEAVE_MOST))
        return s;
    uint64_t before = listed_bytes(t);
    s = leave_crowd(t, l, rows);
    l->left.bytes += more_listed(t, before);
    return s;
}

pst_status pst_leave_some(pst_table *t, pst_leaving *l, uint32_t *rows) {
    pst_status s = PST_OK;
    *rows = 0;
    if (t->keeps_rows || !t->m->slots)
        l->looks = 0;
    (void)pst_heat_reserve(t);
    t->rows_leave = 1;
    pst_clearing(t);
    while (!s && !*rows && !pst_leaving_is_done(l))
        s = leave_some(t, l, rows);
    if (!s && *rows)
        pst_put32(&t->m->whole, 0);
    return pst_poison(t, pst_cleared(t, s));
}

/* ---- horizons -------------------------------------------------------------------------------- */

pst_status pst_table_set_horizon(pst_table *t, pst_domain domain, int64_t time_ms) {
    if (!t->attached || (domain != PST_EVENT && domain != PST_PROCESSING))
        return PST_INVALID;
    pst_horizon_store(&t->m->horizon[domain], pst_horizon_at(time_ms));
    return PST_OK;
}

pst_status pst_table_set_passed(pst_table *t, pst_domain domain, const pst_timers_place *place) {
    pst_status s = pst_table_set_horizon(t, domain, place->time_ms);
    if (s || place->time_ms == INT64_MAX)
        return s;
    if (place->key_group >= (uint64_t)t->max_parallelism)
        return PST_INVALID;
    pst_horizon at = {place->time_ms, place->key_group, place->hash, 0};
    pst_horizon_store(&t->m->horizon[domain], at);
    return PST_OK;
}

int64_t pst_table_horizon(const pst_table *t, pst_domain domain) {
    return t->m->horizon[domain].time;
}
