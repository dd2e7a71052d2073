/* sst_times.h: the time index of a guided file: which keys its timers are of, in the order of time.
 *
 * Purpose: whoever keeps only some rows in memory must learn which others have timers that are due.
 * A file with timers (PST_SST_FEATURE_TIMES) says so in order, as hints: a timer that a later file
 * deletes or moves stays in the index of the earlier one, and the row decides.
 *
 * The index lies in runs, each sorted, between the segments; a cursor merges them. FORMAT.md describes
 * every byte.
 *
 * Thread safety: a pst_times belongs to one thread at a time.
 *
 * Invariants
 *  TX1. Every timer that a record of the file bears is in the index, once.
 *  TX2. Bytes are used only after the checksum over them held; nothing outside of the file's part for
 *       blocks is read.
 *
 * Complexity: 32 bytes of memory for each 1024 timers; of each run at most one block, about 10 KB, is
 * in memory, from where the cursor has come to its first timer on. Where many blocks begin at the
 * time from which on a run is wanted, its first one is found by O(log blocks) reads.
 */
#ifndef PST_SST_TIMES_H
#define PST_SST_TIMES_H

#include "guide/sst_guide.h"

enum {
    PST_TIMES_BLOCK = 1024,   /* the most timers of a block */
    PST_TIMES_ENTRY_MOST = 18 /* bytes of a timer */
};

typedef struct pst_times pst_times;

typedef struct pst_timer_hint {
    int64_t time;
    uint64_t hash;
    int32_t key_group;
    int32_t domain; /* 0 event time, 1 processing time */
} pst_timer_hint;

/* Reads and verifies the index of blocks; `io` is copied, and the guide must outlive it. Its memory is
 * not charged. PST_NOT_FOUND: the file has no time index; PST_CORRUPT, PST_CALLBACK, PST_NO_MEMORY. */
pst_status pst_times_open(const pst_io *io, const pst_guide *guide, pst_times **times);
void pst_times_close(pst_times *t);

/* Stands before the first timer of `from`'s domain that is not before it: by time, key group and
 * hash. Reads nothing. */
void pst_times_seek(pst_times *t, const pst_timer_hint *from);
/* The next timer of the domain, in the order of time, key group and hash. PST_NOT_FOUND at the end.
 * PST_CORRUPT, PST_CALLBACK, PST_NO_MEMORY, which it repeats until a seek. */
pst_status pst_times_next(pst_times *t, pst_timer_hint *hint);

/* Where a cursor has just been put, each run that may have the first timer wants a block, and
 * pst_times_next reads these one after the other. Whoever can read many at a time asks all runs, and
 * gives them what they want, until none wants any more. */
typedef struct pst_times_read {
    uint64_t offset;
    size_t size;
} pst_times_read;

uint32_t pst_times_runs(const pst_times *t);
int pst_times_wants(const pst_times *t, uint32_t run, pst_times_read *read);
/* The bytes that the run wants. PST_CORRUPT, PST_NO_MEMORY, which pst_times_next repeats. */
pst_status pst_times_give(pst_times *t, uint32_t run, const uint8_t *data);

#endif
