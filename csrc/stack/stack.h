/* stack.h: the files of a range, opened.
 *
 * Thread safety: a stack belongs to one thread at a time.
 *
 * Invariants
 *  ST1. Its files, their order and their guides stay as they are until it is closed.
 */
#ifndef PST_STACK_H
#define PST_STACK_H

#include "sst/sst_search.h"
#include "stack/member.h"

struct pst_stack {
    pst_reads *reads;
    pst_allowance room;
    pst_schema schema;
    int32_t max_parallelism;
    int32_t n_keys;    /* columns of a key, without the element */
    uint64_t all;      /* a bit per column that a row's record may carry, with lists and maps */
    uint64_t timers;   /* the bit of the column of timers, or 0 */
    uint32_t slice;    /* keys looked up at a time */
    pst_member *files; /* oldest first */
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

#endif
