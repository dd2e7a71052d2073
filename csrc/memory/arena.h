/* arena.h: one reserved address range cut into spaces that grow by being committed.
 *
 * Purpose: memory for a table, anonymous (heap) or a sparse file mapped by many processes
 * (shared). The base address never moves, so an offset stays a pointer for as long as the arena
 * is mapped.
 *
 * Thread safety: growing belongs to the writer. A reader process may call pst_arena_refresh on its
 * own arena. Readers in the writer's process only touch what was committed before they began.
 *
 * Invariants
 *  A1. [base, base + total) is reserved once, without access; what is committed is mapped at its
 *      fixed offset and never unmapped before pst_arena_unmap.
 *  A2. A shared page is mapped only after posix_fallocate gave it, in pieces of at most 16 MB: a
 *      full file system is PST_NO_SPACE, never SIGBUS. A call that a signal interrupts is tried
 *      again.
 *  A3. header->committed[space] is stored after the pages are there.
 *  A4. The sum of committed bytes stays at or below `limit`; where room is made (`clearing`), below
 *      the limit and an eighth; for rings, which list what was freed, below twice the limit. Of an
 *      arena that the budget binds `limit` is a target: what makes room may pass it. The
 *      budget is asked before bytes are taken. Bytes of the heap that are given back, or unmapped,
 *      are charged no longer.
 *  A5. When memory is given back, header->committed is lowered first, and then the system takes the
 *      pages. They are requested again before they are written to (A2). Their addresses stay
 *      mapped.
 *  A6. A new table reserves at most a sixty-fourth of the addresses that the tables of its process
 *      have left, so that the next ones find room whatever the limit is.
 */
#ifndef PST_ARENA_H
#define PST_ARENA_H

#include "base/budget.h"
#include "memory/layout.h"

/* The most bytes of one kind of memory that an epoch gives back, so that no seal takes long for
 * it. */
#define PST_GIVE_BACK ((uint64_t)8 << 20)

/* The least that a large space reserves. */
#define PST_LEAST_RESERVE ((uint64_t)4 << 20)

typedef struct pst_arena {
    uint8_t *base;
    uint64_t total;
    uint64_t start[PST_SPACES + 1]; /* offsets; the last one is `total` */
    uint64_t mapped[PST_SPACES];    /* bytes that this process can touch */
    uint64_t committed_total;       /* as of the last look */
    uint64_t limit;                 /* of its own, or a target; UINT64_MAX: neither */
    pst_budget *budget;
    int bound;        /* by the budget */
    int clearing;     /* what is done now makes room */
    uint64_t passed;  /* bytes beyond the limit that it was granted */
    uint64_t refused; /* bytes that `limit` refused last; 0 where it was the budget */
    int fd;           /* -1: heap */
    int last_errno;
} pst_arena;

/* Size of space `space` of a table with this header size and reserve. */
uint64_t pst_space_size(int space, uint64_t head_bytes, uint64_t reserve);

/* How much each large space of a new table reserves: `want`, or less where the addresses are scarce
 * (A6). RLIMIT_AS, which spark.executor.pyspark.memory sets, counts. */
uint64_t pst_arena_reserve(uint64_t want);

/* Reserves the range and maps the head space (head_bytes, a multiple of the page size), which it
 * commits if `create`. */
pst_status pst_arena_map(pst_arena *a, int fd, uint64_t head_bytes, uint64_t reserve,
                         uint64_t limit, int create);
void pst_arena_unmap(pst_arena *a);

/* From now on the arena asks this budget. `bound`: the budget limits it, as it has no limit of its
 * own. `fresh`: what is committed already is charged now; else its file has been counted.
 * PST_LIMIT. */
pst_status pst_arena_join(pst_arena *a, pst_budget *budget, int bound, int fresh);

/* Makes at least `need` bytes of a space usable, growing by a thirty-second (64 KB to 16 MB) at a
 * time; what makes room passes the limit by little more than it needs. PST_NO_SPACE, PST_LIMIT,
 * PST_NO_MEMORY, PST_TOO_LARGE. */
pst_status pst_arena_commit(pst_arena *a, int space, uint64_t need);

/* Would `bytes` more be granted now? For work that can wait, so that others come first when memory
 * is short. */
int pst_arena_has_room(pst_arena *a, uint64_t bytes);

/* Gives all but the first `keep` bytes of a space back to the system; nothing may refer to the
 * rest. Where the system cannot do that, nothing changes. */
void pst_arena_give_back(pst_arena *a, int space, uint64_t keep);

/* Gives back a piece inside a space, which still counts in header->committed. Returns 0 or an
 * errno. pst_arena_fill requests it again. */
int pst_arena_drop(pst_arena *a, int space, uint64_t at, uint64_t size);
pst_status pst_arena_fill(pst_arena *a, int space, uint64_t at, uint64_t size);

/* Tells the system that the huge page of this place has all its pages again. */
void pst_arena_whole(const pst_arena *a, int space, uint64_t at);

/* The status for an errno of posix_fallocate: PST_NO_SPACE or PST_IO. */
pst_status pst_space_status(int err);

/* Maps what another process has committed meanwhile. */
pst_status pst_arena_refresh(pst_arena *a);

static inline pst_header *pst_arena_header(const pst_arena *a) {
    return (pst_header *)a->base;
}

static inline uint8_t *pst_space(const pst_arena *a, int space) {
    return a->base + a->start[space];
}

#endif
