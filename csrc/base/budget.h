/* budget.h: one limit for all the memory of a process, and for the shared tables of its host.
 *
 * Purpose: tables, batches, gathered epochs, writers, readers and merges ask here before they grow.
 * What a process has of its own is charged. What shared tables take is counted from their files, as
 * any process of the host may have made them, and any may have been killed.
 *
 * Thread safety: any thread, without locks, so that a fork may come at any time.
 *
 * Invariants
 *  BU1. Growth of a table is granted only if the sum of what is charged and what was counted then
 *       stays at or below the limit. Buffers, and requests that make room, may bring the sum to the
 *       limit and an eighth; rings, which list freed memory, to twice the limit. The first `small`
 *       bytes of a charge are always granted.
 *  BU2. No request is refused on an old count: files are counted again first.
 *  BU3. A charge ends with the handle that made it. Shared files are never charged: when a table's
 *       file is gone its memory is free again, whoever was killed.
 *  BU4. A table with a limit of its own counts, and is bound by that alone. While one is open no
 *       buffer of the process is bound either: nobody knows which table a file is read or merged
 *       for. A table with a target is bound by the budget, and so are buffers.
 *  BU5. Between two counts a process is granted at most a sixty-fourth of what the first one left,
 *       so what other processes take meanwhile makes little difference. Counting is O(files of the
 *       homes).
 */
#ifndef PST_BUDGET_H
#define PST_BUDGET_H

#include "pystate.h"

typedef enum pst_memory {
    PST_PRIVATE, /* charged */
    PST_SHARED   /* counted from files */
} pst_memory;

/* What a request is for. */
typedef enum pst_need {
    PST_COUNTED, /* is not refused, and counts for others */
    PST_GROWTH,  /* of a table */
    PST_RELIEF,  /* a buffer, or what makes room in a table: a full one must be of use */
    PST_LISTING  /* a ring, of what was freed */
} pst_need;

#ifndef PST_LISTING_EIGHTHS
#define PST_LISTING_EIGHTHS 8u /* tests have less, to refuse it */
#endif

/* What a request may bring the sum to. */
static inline uint64_t pst_limit_for(uint64_t limit, pst_need need) {
    static const uint8_t eighths[] = {0, 0, 1, PST_LISTING_EIGHTHS};
    if (need == PST_COUNTED || limit > UINT64_MAX / 2)
        return UINT64_MAX;
    return limit + limit / 8 * eighths[need];
}

/* A default for limits: three quarters of pst_memory_bytes. */
uint64_t pst_default_limit(void);

/* Takes NULL. */
pst_budget *pst_budget_retain(pst_budget *b);
uint64_t pst_budget_limit(const pst_budget *b);

/* Makes all files count whose names end in .table or .guide, in the folder and `depth` levels of folders
 * below it; or one file of any name. PST_NO_MEMORY. */
pst_status pst_budget_add_home(pst_budget *b, const char *path, int32_t depth);

/* Asks for more memory before it is taken. PST_LIMIT. Without a budget everything is granted. */
pst_status pst_budget_take(pst_budget *b, pst_memory memory, uint64_t bytes, pst_need need);
/* Private memory that is free again. */
void pst_budget_drop(pst_budget *b, uint64_t bytes);
/* A table with a limit of its own comes (1) or goes (-1). */
void pst_budget_free_tables(pst_budget *b, int change);

/* What one owner of buffers has charged. */
typedef struct pst_charge {
    pst_budget *budget;
    uint64_t bytes;
    uint64_t small; /* the first bytes, which are counted and never refused */
} pst_charge;

/* `small` of a batch, an epoch and a writer: whatever others took, small ones work, and so room can
 * be made. */
#define PST_SMALL_BUFFER ((uint64_t)1 << 20)

pst_status pst_charge_grow(pst_charge *c, uint64_t bytes);

/* Raises the charge to `bytes` in all, before they are taken. PST_LIMIT. */
static inline pst_status pst_charge_raise(pst_charge *c, uint64_t bytes) {
    return __builtin_expect(bytes <= c->bytes || !c->budget, 1) ? PST_OK
                                                                : pst_charge_grow(c, bytes);
}

/* Gives back what was charged beyond `bytes`, of an owner that grows no more. */
static inline void pst_charge_trim(pst_charge *c, uint64_t bytes) {
    if (c->bytes <= bytes)
        return;
    pst_budget_drop(c->budget, c->bytes - bytes);
    c->bytes = bytes;
}

static inline void pst_charge_drop(pst_charge *c) {
    pst_budget_drop(c->budget, c->bytes);
    c->bytes = 0;
}

#endif
