/* uring.h: the kernel's queue of asynchronous reads, by its own system calls.
 *
 * Purpose: one call starts many reads and waits for some. Structures and numbers are the kernel's;
 * they stand here because the headers of old systems, on which wheels are built, lack them.
 *
 * Thread safety: one thread at a time.
 *
 * Invariants
 *  UR1. No more reads are in flight than the queue was made for, so no completion is ever dropped.
 *  UR2. A forked child neither uses nor unmaps the parent's queue: its memory is not inherited.
 */
#ifndef PST_URING_H
#define PST_URING_H

#include "pystate.h"

typedef struct pst_uring {
    int fd;
    uint32_t queued; /* not yet told to the kernel */
    uint32_t *sq_tail;
    uint32_t sq_mask;
    uint32_t *sq_array;
    uint8_t *entries;
    uint32_t *cq_head;
    uint32_t *cq_tail;
    uint32_t cq_mask;
    uint8_t *completions;
    void *maps[3];
    size_t sizes[3];
} pst_uring;

/* For up to `depth` reads at a time. PST_IO: the kernel, or a filter of system calls, refuses, or
 * cannot read so; errno is *sys_errno. */
pst_status pst_uring_open(pst_uring *u, uint32_t depth, int *sys_errno);
void pst_uring_close(pst_uring *u);
/* The same in a forked child. */
void pst_uring_forget(pst_uring *u);

/* Queues a read. REQUIRES: fewer than `depth` are queued or in flight. */
void pst_uring_queue(pst_uring *u, int fd, uint64_t offset, void *data, uint32_t size, void *tag);
/* Tells the kernel of what is queued, and waits for `wait` completions. 0, or an errno. */
int pst_uring_enter(pst_uring *u, uint32_t wait);
/* Takes what was queued and not taken by the kernel back, newest first: its tag, or NULL. */
void *pst_uring_unqueue(pst_uring *u);
/* The next completion's tag and result, or NULL. */
void *pst_uring_next(pst_uring *u, int32_t *result);

#endif
