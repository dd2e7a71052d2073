#include "elements/timers.h"

#include <stdlib.h>

#include "base/mem.h"
#include "table/undo.h"

const pst_tree_shape pst_timer_shape = {.key_words = 2};

static int32_t group_of_row(const pst_table *t, const uint64_t *row) {
    return pst_group_of(t, pst_row_hash(t, row));
}

/* Stores a row's presence, and counts it where that sets its timers apart (TM4). */
static void set_presence(pst_table *t, uint64_t *row, uint64_t presence) {
    uint64_t before = pst_presence(&t->lay, row);
    int apart = pst_timers_are_apart(&t->lay, presence);
    int more = apart - pst_timers_are_apart(&t->lay, before);
    if (more)
        pst_put32(&t->m->timed_apart, t->m->timed_apart + (uint32_t)more);
    if (presence != before)
        pst_row_set_presence(t, row, presence);
}

/* What the row counts: twice its timers, and whether what their words lack adds up to something. */
static uint32_t count_of(const pst_table *t, uint64_t *row) {
    int32_t i = t->lay.timers;
    return pst_row_has(&t->lay, row, i) ? pst_get32(pst_field_at(&t->lay, row, i)) : 0;
}

/* A single timer whose word is whole is in its column. */
static void mark(pst_table *t, uint64_t *row, uint32_t now) {
    uint64_t presence = pst_presence(&t->lay, row) & ~t->lay.timed;
    if (now)
        presence |= UINT64_C(1) << t->lay.timers;
    if (now == 2)
        presence |= t->lay.timed;
    set_presence(t, row, presence);
}

/* Adds `by` to the row's count of timers: this one was registered or deleted. */
static void count(pst_table *t, uint32_t slot, int32_t by, pst_domain domain, int64_t time_ms) {
    uint64_t *row = pst_row(t, slot), word = pst_timer_pack(domain, time_ms);
    pst_touch(t, slot, row);
    uint32_t before = count_of(t, row), now = before + 2 * (uint32_t)by;
    now ^= pst_timer_packed_time(word) != time_ms;
    pst_put32(pst_field_at(&t->lay, row, t->lay.timers), now);
    if (t->lay.timer >= 0) {
        void *field = pst_field_at(&t->lay, row, t->lay.timer);
        pst_put64(field, (before ? pst_get64(field) : 0) ^ word);
    }
    mark(t, row, now);
}

/* Writes to a tree as the open epoch does, also where the row is one that is being admitted (R3): the
 * tree is not the row's alone. */
static pst_status write_tree(pst_table *t, pst_tree_root *root, const pst_tree_entry *e, int put) {
    uint32_t birth = t->birth;
    t->birth = (uint32_t)t->h->active;
    pst_status s = put ? pst_tree_put(t, &pst_timer_shape, root, e)
                       : pst_tree_remove(t, &pst_timer_shape, root, e);
    t->birth = birth;
    return s;
}

/* A timer that is due already. Those of rows that come were registered before. */
static void count_missed(pst_table *t, pst_domain domain, int64_t time_ms) {
    t->timers_missed += time_ms <= t->due_until[domain] &&
                        t->due_generation[domain] == t->generation &&
                        t->birth == (uint32_t)t->h->active;
}

pst_status pst_timer_add(pst_table *t, uint32_t slot, pst_domain domain, int64_t time_ms) {
    pst_tree_root *at = pst_timer_root(t, t->m, group_of_row(t, pst_row(t, slot)), domain);
    pst_tree_root root = *at;
    pst_tree_entry e = {.key = {pst_timer_word(time_ms), slot}};
    pst_status s = write_tree(t, &root, &e, 1);
    int fresh = root.count != at->count;
    pst_timer_store_root(at, root); /* also where it was refused memory (TR7) */
    if (s || !fresh)
        return s;
    count(t, slot, 1, domain, time_ms);
    count_missed(t, domain, time_ms);
    return PST_OK;
}

pst_status pst_timer_remove(pst_table *t, uint32_t slot, pst_domain domain, int64_t time_ms) {
    pst_tree_root *at = pst_timer_root(t, t->m, group_of_row(t, pst_row(t, slot)), domain);
    pst_tree_root root = *at;
    pst_tree_entry e = {.key = {pst_timer_word(time_ms), slot}};
    pst_status s = write_tree(t, &root, &e, 0);
    if (s)
        return s;
    pst_timer_store_root(at, root);
    count(t, slot, -1, domain, time_ms);
    return PST_OK;
}

int pst_timer_is_there(const pst_table *t, pst_meta *m, int32_t key_group, const pst_timer *timer) {
    pst_tree_entry e = {.key = {timer->word, timer->slot}};
    pst_tree_root root = *pst_timer_root(t, m, key_group, timer->domain);
    return root.count && !pst_tree_find(t->heap, pst_heap_bytes(t), &pst_timer_shape, root, &e);
}

/* ---- rows that come from files --------------------------------------------------------------- */

pst_status pst_timers_note_admitted(pst_table *t, const pst_timer *timers, uint32_t n) {
    pst_buffer *b = &t->admitted_timers;
    size_t bytes = n * sizeof *timers;
    if (b->size + bytes > b->capacity) {
        size_t capacity = 2 * b->capacity + bytes;
        pst_status s = pst_charge_raise(&t->admitted_charge, capacity);
        if (s)
            return s;
        uint8_t *grown = pst_realloc(b->data, capacity);
        if (!grown)
            return PST_NO_MEMORY;
        b->data = grown;
        b->capacity = capacity;
    }
    if (n)
        memcpy(b->data + b->size, timers, bytes);
    b->size += bytes;
    return PST_OK;
}

static int by_timer(const void *a, const void *b) {
    return pst_timer_compare(a, b);
}

void pst_timers_sort_admitted(pst_table *t) {
    size_t n = t->admitted_timers.size / sizeof(pst_timer);
    if (n)
        qsort(t->admitted_timers.data, n, sizeof(pst_timer), by_timer);
}

/* ---- in the row ------------------------------------------------------------------------------ */

/* Takes the timer of the word `before` away, which makes room. Where it cannot be there are two, and a
 * removal may be half done. */
static pst_status remove_before(pst_table *t, uint32_t slot, uint64_t before) {
    int clearing = t->arena.clearing;
    t->arena.clearing = 1;
    pst_status s =
        pst_timer_remove(t, slot, pst_timer_packed_domain(before), pst_timer_packed_time(before));
    t->arena.clearing = clearing;
    return s == PST_NOT_FOUND ? s : pst_poison(t, s);
}

pst_status pst_timer_replace(pst_table *t, uint32_t slot, const uint64_t *word) {
    uint64_t *row = pst_row(t, slot), before = 0;
    int had = pst_row_has(&t->lay, row, t->lay.timer);
    if (had)
        before = pst_get64(pst_field_at(&t->lay, row, t->lay.timer));
    if (had && word && *word == before)
        return PST_OK;
    pst_status s = PST_OK;
    if (word)
        s = pst_timer_add(t, slot, pst_timer_packed_domain(*word), pst_timer_packed_time(*word));
    if (!s && had)
        s = remove_before(t, slot, before);
    /* It may have been there as an element, alone. */
    if (!s && word) {
        pst_touch(t, slot, row);
        mark(t, row, count_of(t, row));
    }
    return s == PST_NOT_FOUND ? PST_CORRUPT : s;
}

void pst_timer_set_apart(pst_table *t, uint32_t slot) {
    uint64_t *row = pst_row(t, slot);
    if (!pst_row_has(&t->lay, row, t->lay.timer))
        return;
    pst_touch(t, slot, row);
    set_presence(t, row, pst_presence(&t->lay, row) & ~(UINT64_C(1) << t->lay.timer));
}

/* ---- many ------------------------------------------------------------------------------------ */

/* Brings the rows of a run into cache, and reserves for their touches. */
static pst_status prepare_run(pst_table *t, const uint64_t (*timers)[2], uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        pst_prefetch_row(t, (uint32_t)timers[i][1]);
    return pst_undo_reserve(t, n);
}

pst_status pst_timers_add(pst_table *t, int32_t key_group, pst_domain domain,
                          const uint64_t (*timers)[2], uint32_t n) {
    pst_tree_root *at = pst_timer_root(t, t->m, key_group, domain);
    for (uint32_t from = 0, done; from < n; from += done) {
        uint32_t most = n - from < PST_TREE_RUN ? n - from : PST_TREE_RUN;
        pst_tree_root root = *at;
        uint64_t fresh = 0;
        done = 0;
        pst_status s = prepare_run(t, timers + from, most);
        if (!s)
            s = pst_tree_put_run(t, &pst_timer_shape, &root, timers + from, most, &done, &fresh);
        pst_timer_store_root(at, root);
        for (uint32_t i = 0; i < done; i++) {
            if (!(fresh >> i & 1))
                continue;
            int64_t time_ms = pst_timer_time(timers[from + i][0]);
            count(t, (uint32_t)timers[from + i][1], 1, domain, time_ms);
            count_missed(t, domain, time_ms);
        }
        if (s)
            return s;
    }
    return PST_OK;
}

pst_status pst_timers_remove(pst_table *t, int32_t key_group, pst_domain domain,
                             const uint64_t (*timers)[2], uint32_t n) {
    pst_tree_root *at = pst_timer_root(t, t->m, key_group, domain);
    for (uint32_t from = 0, done; from < n; from += done) {
        uint32_t most = n - from < PST_TREE_RUN ? n - from : PST_TREE_RUN;
        pst_tree_root root = *at;
        pst_status s = prepare_run(t, timers + from, most);
        if (!s)
            s = pst_tree_remove_run(t, &pst_timer_shape, &root, timers + from, most, &done);
        if (s == PST_NOT_FOUND) {
            done = 1;
            continue;
        }
        if (s)
            return s;
        pst_timer_store_root(at, root);
        for (uint32_t i = 0; i < done; i++)
            count(t, (uint32_t)timers[from + i][1], -1, domain,
                  pst_timer_time(timers[from + i][0]));
    }
    return PST_OK;
}

/* ---- timers that go with their rows into other slots ----------------------------------------- */

static int by_slot(const void *a, const void *b) {
    const pst_timer *x = a, *y = b;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

static const pst_domain domains[] = {PST_EVENT, PST_PROCESSING};

int pst_timers_are_many(const pst_table *t, int32_t key_group) {
    uint64_t all = 0;
    for (int d = 0; d < 2; d++)
        all += pst_timer_root(t, t->m, key_group, domains[d])->count;
    return all > PST_TIMERS_MOST;
}

int pst_timers_of_rows(const pst_table *t, int32_t key_group, uint32_t first, uint32_t last,
                       pst_timer *timers, int most) {
    int n = 0;
    if (pst_timers_are_many(t, key_group))
        return -1;
    for (int d = 0; d < 2 && n < most; d++) {
        pst_tree_root root = *pst_timer_root(t, t->m, key_group, domains[d]);
        pst_tree_cursor c;
        pst_tree_entry e;
        if (!root.count)
            continue;
        pst_tree_seek(&c, t->heap, pst_heap_bytes(t), &pst_timer_shape, root, NULL);
        while (n < most && pst_tree_next(&c, &e) == PST_OK) {
            uint32_t slot = (uint32_t)e.key[1];
            if (slot >= first && slot < last)
                timers[n++] = (pst_timer){e.key[0], slot, domains[d]};
        }
    }
    qsort(timers, (size_t)n, sizeof *timers, by_slot);
    return n;
}

uint32_t pst_timer_count(const pst_table *t, uint32_t slot) {
    const pst_row_layout *lay = &t->lay;
    uint64_t *row = pst_row(t, slot);
    if (lay->timers < 0 || !pst_row_has(lay, row, lay->timers))
        return 0;
    return pst_get32(pst_field_at(lay, row, lay->timers)) / 2;
}

pst_status pst_timers_move(pst_table *t, int32_t key_group, const pst_timer *timers, int n,
                           uint32_t to) {
    pst_status s = PST_OK;
    for (int i = 0; i < n && !s; i++) {
        pst_tree_root *at = pst_timer_root(t, t->m, key_group, timers[i].domain), root = *at;
        pst_tree_entry e = {.key = {timers[i].word, timers[i].slot}};
        s = pst_tree_remove(t, &pst_timer_shape, &root, &e);
        e.key[1] = to;
        if (!s)
            s = pst_tree_put(t, &pst_timer_shape, &root, &e);
        if (!s)
            pst_timer_store_root(at, root);
    }
    return s;
}
