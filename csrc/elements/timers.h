/* timers.h: timers of keys, in order of their times.
 *
 * Purpose: per key group and domain a tree of (time, slot) whose root lies in the meta. A timer's
 * key is the row that it belongs to; a row counts its timers in a column of its own, so that it
 * lives as long as one of them does. In files most timers are no records of their own: where a key
 * has one timer alone, the row's record bears it, in a column beside the count.
 *
 * Thread safety: as the table.
 *
 * Invariants
 *  TM1. A root of the open epoch's meta names exactly the timers of the open epoch. An epoch is
 *       undone by taking its predecessor's meta, and what that meta's trees hold is immutable while
 *       it can be returned to.
 *  TM2. A row's count, present where it is not zero, is the number of entries in the trees that
 *       name the row. So its slot is not reused while a timer refers to it.
 *  TM3. Registering what is there and deleting what is not change nothing.
 *  TM4. Column PST_TIMER of a row is present if the row has one timer, and then is that timer. Else
 *       its timers are apart: elements in files, and the meta counts such rows. So are a timer that
 *       was restored from an element, until its row's timers change, and one whose time has no 63
 *       bits.
 *  TM5. In the row's field there are the timers of the row, joined by exclusive or, whether it is
 *       present or not; so where one is left it is known which. The count's lowest bit does the
 *       same for what a word cannot hold.
 */
#ifndef PST_TIMERS_H
#define PST_TIMERS_H

#include "elements/collections.h"

extern const pst_tree_shape pst_timer_shape;

/* Bytes that the roots take at the end of a meta. */
static inline uint64_t pst_timer_roots_bytes(const pst_row_layout *lay, uint32_t groups) {
    return lay->timers < 0 ? 0 : (uint64_t)groups * 2 * sizeof(pst_tree_root);
}

static inline pst_tree_root *pst_timer_root(const pst_table *t, pst_meta *m, int32_t key_group,
                                            pst_domain domain) {
    pst_tree_root *roots = (pst_tree_root *)(void *)(m->shards + t->h->shards);
    return roots + 2 * (key_group - t->first_key_group) + domain;
}

static inline void pst_timer_store_root(pst_tree_root *at, pst_tree_root root) {
    uint64_t word;
    memcpy(&word, &root, sizeof word);
    PST_FENCE(__ATOMIC_RELEASE);
    pst_put64(at, word);
}

/* Times compare as signed numbers, the tree's words as unsigned ones. */
static inline uint64_t pst_timer_word(int64_t time_ms) {
    return (uint64_t)time_ms ^ (UINT64_C(1) << 63);
}

static inline int64_t pst_timer_time(uint64_t word) {
    return (int64_t)(word ^ (UINT64_C(1) << 63));
}

/* ---- in the row ------------------------------------------------------------------------------ */

/* A timer as one word. It is no timer's where the time has no 63 bits. */
static inline uint64_t pst_timer_pack(pst_domain domain, int64_t time_ms) {
    return (uint64_t)time_ms << 1 | (uint64_t)domain;
}

static inline pst_domain pst_timer_packed_domain(uint64_t word) {
    return (pst_domain)(word & 1);
}

static inline int64_t pst_timer_packed_time(uint64_t word) {
    return (int64_t)word >> 1;
}

/* Is the word that timer's? The word of a time that has no 63 bits is another timer's. */
static inline int pst_timer_is_packed(uint64_t word, pst_domain domain, int64_t time_ms) {
    return pst_timer_packed_domain(word) == domain && pst_timer_packed_time(word) == time_ms;
}

/* Does a row with these states have timers that are elements in files? */
static inline int pst_timers_are_apart(const pst_row_layout *lay, uint64_t presence) {
    return (presence >> lay->timers & 1) && !(lay->timer >= 0 && (presence >> lay->timer & 1));
}

/* Gives a row the timer that a file's record of it bears, in place of the one before; NULL for
 * none. REQUIRES: room for a touch was reserved. */
pst_status pst_timer_replace(pst_table *t, uint32_t slot, const uint64_t *word);
/* The row's timers are elements of a file that has no column for them (TM4). REQUIRES: room for
 * a touch was reserved. */
void pst_timer_set_apart(pst_table *t, uint32_t slot);

/* ---- rows that move (cut.h) ------------------------------------------------------------------ */

typedef struct pst_timer {
    uint64_t word; /* pst_timer_word of its time */
    uint32_t slot;
    pst_domain domain;
} pst_timer;

static inline int pst_timer_compare(const pst_timer *a, const pst_timer *b) {
    if (a->slot != b->slot)
        return a->slot < b->slot ? -1 : 1;
    if (a->domain != b->domain)
        return a->domain < b->domain ? -1 : 1;
    return (a->word > b->word) - (a->word < b->word);
}

/* Is the timer in the trees of that meta? */
int pst_timer_is_there(const pst_table *t, pst_meta *m, int32_t key_group, const pst_timer *timer);

/* A group with more timers than this is not looked through. */
enum { PST_TIMERS_MOST = 1 << 14 };

int pst_timers_are_many(const pst_table *t, int32_t key_group);

/* The timers of the rows first .. last - 1 of one key group, ordered by slot; the earliest ones
 * where there are more than `most`. Returns how many; -1 where the group has too many to look
 * through. */
int pst_timers_of_rows(const pst_table *t, int32_t key_group, uint32_t first, uint32_t last,
                       pst_timer *timers, int most);
/* How many timers the row has. */
uint32_t pst_timer_count(const pst_table *t, uint32_t slot);
/* Gives `n` timers, all that a row has, to the row `to`, to which that row has moved with its
 * count. After anything but PST_OK the epoch can only be rolled back. */
pst_status pst_timers_move(pst_table *t, int32_t key_group, const pst_timer *timers, int n,
                           uint32_t to);

/* ---- rows that come from files (admit.h) ----------------------------------------------------- */

/* Notes timers that are elements in files, of rows that the open epoch admits: it has them before
 * and after. PST_LIMIT, PST_NO_MEMORY. */
pst_status pst_timers_note_admitted(pst_table *t, const pst_timer *timers, uint32_t n);
static inline const pst_timer *pst_timers_admitted(const pst_table *t, size_t *n) {
    *n = t->admitted_timers.size / sizeof(pst_timer);
    return (const pst_timer *)(const void *)t->admitted_timers.data;
}
/* Orders them by pst_timer_compare. */
void pst_timers_sort_admitted(pst_table *t);

/* ---- one timer ------------------------------------------------------------------------------- */

/* REQUIRES: room for a touch was reserved. */
pst_status pst_timer_add(pst_table *t, uint32_t slot, pst_domain domain, int64_t time_ms);
/* PST_NOT_FOUND. */
pst_status pst_timer_remove(pst_table *t, uint32_t slot, pst_domain domain, int64_t time_ms);

/* ---- many of one key group ------------------------------------------------------------------- */

/* A timer as its tree has it: pst_timer_word of its time, and its row. In any order; fast where
 * they ascend. Room for the touches is reserved here. */
pst_status pst_timers_add(pst_table *t, int32_t key_group, pst_domain domain,
                          const uint64_t (*timers)[2], uint32_t n);
/* What is not there is passed over. */
pst_status pst_timers_remove(pst_table *t, int32_t key_group, pst_domain domain,
                             const uint64_t (*timers)[2], uint32_t n);

#endif
