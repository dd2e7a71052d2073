/* read_threads.h: reads by threads, where the kernel's queue is not to be had.
 *
 * Thread safety: one thread at a time; its own threads touch only reads that were queued.
 *
 * Invariants
 *  RT1. Threads are started when there is more to read than idle ones, and end with the handle.
 *       They take no signals.
 *  RT2. Where no thread can be started, whoever waits reads.
 *  RT3. A forked child, which has none of them, forgets the handle (pst_read_threads_forget).
 */
#ifndef PST_READ_THREADS_H
#define PST_READ_THREADS_H

#include "reads/read.h"

typedef struct pst_read_threads pst_read_threads;

/* At most so many. PST_NO_MEMORY. */
pst_status pst_read_threads_create(int32_t most, pst_read_threads **threads);
/* REQUIRES: nothing is queued or in flight. NULL is allowed. */
void pst_read_threads_destroy(pst_read_threads *t);
/* Frees the memory of the handle in a forked child. NULL is allowed. */
void pst_read_threads_forget(pst_read_threads *t);

void pst_read_threads_queue(pst_read_threads *t, pst_read *r);
/* A read that is over. REQUIRES: some are queued or in flight. */
pst_read *pst_read_threads_next(pst_read_threads *t);

#endif
