/* stack.h: the files of a range of key groups, in which keys are looked up without a table.
 *
 * Thread safety: pst_reads: any thread. A pst_stack belongs to one thread at a time.
 * Statuses and ownership are as `pystate.h` says.
 */
#ifndef PST_INTERFACE_STACK_H
#define PST_INTERFACE_STACK_H

#include <stddef.h>
#include <stdint.h>

#include "interface/files.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- reads of a process ---------------------------------------------------------------------- */

/* Reads files for the stacks of a process, one search at a time: others wait. What it needs is made
 * with the first read. After a fork it begins anew in the child, if no search was running. */
typedef struct pst_reads pst_reads;

typedef struct pst_reads_options {
    uint64_t pool_bytes; /* of buffers; 0: 8 MiB */
    int32_t depth;       /* reads in flight at most; 0: 128 */
    int32_t threads;     /* where there is no io_uring; 0: 32 */
    int no_uring;        /* threads in any case */
    int no_direct;       /* through the page cache in any case */
    pst_budget *budget;  /* to which buffers are charged; NULL: none */
} pst_reads_options;

/* `options` NULL: as usual. PST_INVALID: one is out of range; PST_NO_MEMORY. */
pst_status pst_reads_create(const pst_reads_options *options, pst_reads **reads);
/* The owner lets go: it lives as long as stacks that use it. NULL is allowed. */
void pst_reads_release(pst_reads *r);

typedef struct pst_reads_stats {
    uint64_t reads;
    uint64_t bytes;       /* as read, pages around what was wanted included */
    uint64_t retried;     /* reads that one call did not end */
    uint32_t flight_most; /* in flight at a time */
    int uring;            /* 0: threads, or nothing was read yet */
} pst_reads_stats;
void pst_reads_get_stats(const pst_reads *r, pst_reads_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
