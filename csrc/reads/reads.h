/* reads.h: many reads of files at a time.
 *
 * Purpose: a disk answers five times as many reads where many wait at once, and the page cache
 * costs half of them. So reads go past it, from one pool of a process, by io_uring where the kernel
 * has it and lets us, else by threads.
 *
 * Thread safety: whoever is between pst_reads_enter and pst_reads_leave; others wait in enter.
 *
 * Invariants
 *  RE1. No more reads are in flight, and no more memory is theirs, than the options say; but those
 *       larger than an eighth of the pool have memory of their own, which is charged: together as
 *       much as the pool, or a single one of any size.
 *  RE2. When pst_reads_leave returns nothing is in flight.
 *  RE3. A forked child uses neither ring, threads nor memory of its parent: it begins anew, and what
 *       the parent reads never lands in it. That holds whatever a thread of the parent was doing
 *       when the child was forked.
 *  RE4. Where one kind is refused at first use the other one is taken, without the caller's notice.
 *  RE5. Whoever waits for reads by threads, or for his turn, has paused: what reads may need what he
 *       holds.
 *
 * Complexity: O(1) per read, and a system call for several.
 */
#ifndef PST_READS_H
#define PST_READS_H

#include "base/budget.h"
#include "reads/read.h"

typedef struct pst_arrival {
    uint64_t tag;
    uint8_t *data; /* what was asked for, until pst_reads_give */
    int sys_errno; /* 0, or why it is not there */
    uint32_t slot;
    uint32_t mark; /* for pst_read_again */
} pst_arrival;

/* What read_costs.h keeps here. */
typedef struct pst_read_costs {
    uint32_t gap; /* 0: not measured */
    int64_t measured_ns;
} pst_read_costs;

pst_read_costs *pst_reads_costs(pst_reads *r);

/* Takes NULL. */
pst_reads *pst_reads_retain(pst_reads *r);

/* Whether threads read in any case, which call pst_read_run. */
int pst_reads_by_threads(const pst_reads *r);
/* From now on the file is read past the page cache, where it and the options allow that; in any case
 * without reading ahead. What is read through it goes again, unless the options want it so. */
void pst_reads_make_direct(const pst_reads *r, pst_read_file *file);

/* Waits until no other thread has it. PST_INVALID: this thread has it; PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_reads_enter(pst_reads *r);
/* Gives all buffers back, and waits for what is in flight. */
void pst_reads_leave(pst_reads *r);

/* Starts a read. PST_BUSY: take what has arrived first; PST_NO_MEMORY, PST_LIMIT: the buffer of a
 * large one. */
pst_status pst_reads_start(pst_reads *r, pst_read_file *file, uint64_t offset, size_t size,
                           uint64_t tag);
/* Whether any is in flight. */
int pst_reads_pending(const pst_reads *r);
/* The next one that is over, in whatever order. REQUIRES: pst_reads_pending. */
void pst_reads_next(pst_reads *r, pst_arrival *arrival);
/* Its buffer is free again. */
void pst_reads_give(pst_reads *r, const pst_arrival *arrival);

/* Whose it says that it is; tests alone have it. */
int32_t *pst_reads_pid(pst_reads *r);

#endif
