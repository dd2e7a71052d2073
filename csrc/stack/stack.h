/* stack.h: the files of a range, opened.
 *
 * Thread safety: a stack belongs to one thread at a time; what holds it is counted by any thread.
 *
 * Invariants
 *  ST1. Its files, their order, their guides and the key groups for which they count stay as they are
 *       as long as its owner or a table holds it.
 */
#ifndef PST_STACK_H
#define PST_STACK_H

#include "guide/sst_search.h"
#include "stack/member.h"

struct pst_stack {
    int32_t references;
    pst_reads *reads;
    pst_allowance room;
    pst_schema schema;
    int32_t max_parallelism;
    int32_t n_keys;     /* columns of a key, without the element */
    uint64_t all;       /* a bit per column that a row's record may carry, with lists and maps */
    uint64_t timers;    /* the bit of the column of timers, or 0 */
    uint32_t slice;     /* keys looked up at a time */
    pst_member **files; /* oldest first */
    uint8_t **groups; /* of each a bit per key group for which it counts; NULL: all of the file's */
    int32_t n;
    pst_stack_stats stats;
    pst_detail detail;
    /* Of keys that bases were asked for lately, how many they do not have. */
    uint32_t base_asked;
    uint32_t base_absent;
    /* What a search leaves for the next one. */
    pst_search block;
    pst_buffer memory;
    pst_buffer kept; /* bytes of the record that pst_stack_get made */
};

/* Who holds it lets go by pst_stack_close. */
static inline pst_stack *pst_stack_retain(pst_stack *st) {
    if (st)
        __atomic_add_fetch(&st->references, 1, __ATOMIC_RELAXED);
    return st;
}

static inline int pst_stack_counts(const pst_stack *st, int32_t file, int32_t key_group) {
    const uint8_t *groups = st->groups[file];
    return !groups || (groups[key_group >> 3] >> (key_group & 7) & 1);
}

/* Of the columns of which older files add nothing, once a row's or an element's record was found. */
static inline uint64_t pst_stack_covered(const pst_stack *st, uint64_t covered,
                                         const pst_record *r) {
    if (st->n_keys < st->schema.n_keys && !(r->key_nulls >> st->n_keys & 1))
        return covered; /* an element says nothing of others */
    if (r->op == PST_DELETE)
        return covered | (st->all & ~st->timers); /* each timer goes by a record of its own */
    covered |= r->changed;
    for (uint64_t left = r->changed & r->present; left; left &= left - 1)
        if (st->schema.states[__builtin_ctzll(left)].kind == PST_LIST)
            covered &= ~(left & -left); /* the list has older items from a number on */
    return covered;
}

#endif
