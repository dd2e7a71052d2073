/* budget.h: one limit for all the memory of a process, and for the shared tables of its host.
 *
 * Purpose: tables, batches, gathered epochs, writers, readers and merges ask here before they grow.
 * What a process has of its own is charged. What shared tables take is counted from their files, as
 * any process of the host may have made them, and any may have been killed.
 *
 * Thread safety: any thread, without locks, so that a fork may come at any time.
 *
 * Invariants
 *  BU1. A table's growth is granted only if with it what is charged and what was counted stay at or
 *       below the limit; buffers and what makes room, if they stay below that and an eighth; what
 *       lists freed memory, below twice the limit. What `small` says is granted always.
 *  BU2. Nobody is refused by an old count: files are counted afresh first.
 *  BU3. A charge goes with the handle that made it. Files are in no books: with a table's file what it
 *       took is free again, whoever was killed.
 *  BU4. A table with a limit of its own counts, and is bound by that alone. While one is open no buffer
 *       of the process is bound either: nobody knows which table a file is read or merged for.
 *  BU5. Between two counts a process is granted at most a sixty-fourth of what the first one left, so
 *       that what others do meanwhile matters little. Counting is O(files of the homes).
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

/* Takes NULL. */
pst_budget *pst_budget_retain(pst_budget *b);
uint64_t pst_budget_limit(const pst_budget *b);

/* Files whose names end in .table count, in a folder and so many levels of folders below it; or one
 * file of any name. PST_NO_MEMORY. */
pst_status pst_budget_add_home(pst_budget *b, const char *path, int32_t depth);

/* Asks for more, before it is taken. PST_LIMIT. Without a budget everything is granted. */
pst_status pst_budget_take(pst_budget *b, pst_memory memory, uint64_t bytes, pst_need need);
/* Private memory that is free again. */
void pst_budget_drop(pst_budget *b, uint64_t bytes);
/* A table with a limit of its own comes (1) or goes (-1). */
void pst_budget_free_tables(pst_budget *b, int change);

/* What one owner of buffers has charged. */
typedef struct pst_charge {
    pst_budget *budget;
    uint64_t bytes;
    uint64_t small; /* the first so many are only counted */
} pst_charge;

/* Of a batch, an epoch and a writer: whatever others took, small ones work, and so room can be made. */
#define PST_SMALL_BUFFER ((uint64_t)1 << 20)

pst_status pst_charge_grow(pst_charge *c, uint64_t bytes);

/* Charges at least so much in all, before it is taken. PST_LIMIT. */
static inline pst_status pst_charge_raise(pst_charge *c, uint64_t bytes) {
    return __builtin_expect(bytes <= c->bytes || !c->budget, 1) ? PST_OK
                                                                : pst_charge_grow(c, bytes);
}

static inline void pst_charge_drop(pst_charge *c) {
    pst_budget_drop(c->budget, c->bytes);
    c->bytes = 0;
}

#endif
