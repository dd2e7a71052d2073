/* lock.h: the exclusive lock of a shared table's file.
 *
 * Purpose: flock on a descriptor of its own. POSIX record locks would vanish when any descriptor
 * of the file is closed; flock lives with the open file, so a forked child's copy of the
 * descriptor would keep it held: pthread_atfork closes those.
 *
 * Thread safety: all functions. The registry of descriptors is the core's one mutable global,
 * since a fork handler has no argument.
 *
 * Invariants
 *  F1. A lock is never stolen: whoever does not get it in time is told PST_BUSY.
 *  F2. A forked child holds none of its parent's descriptors.
 *  F3. Where the holder of a lock makes the table anew, nobody else has the lock in between.
 */
#ifndef PST_LOCK_H
#define PST_LOCK_H

#include "pystate.h"

/* Waits up to timeout_ms. PST_BUSY, PST_IO (errno). */
pst_status pst_lock_take(int fd, int32_t timeout_ms);
void pst_lock_release(int fd);
/* Whether nobody holds the lock. The caller must not hold it. The lock is shared for a moment, in
 * which somebody who does not wait at all fails to get it. */
int pst_lock_is_free(int fd);

/* Remembers a descriptor to close in forked children. Returns its place, -1 when out of memory. */
int pst_lock_register(int fd);
/* The descriptor at a place; -1 in a child where it was closed. */
int pst_lock_descriptor(int place);
/* Forgets and closes it; in a child where that was done already it does nothing. */
void pst_lock_close(int place);

#endif
