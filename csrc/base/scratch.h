/* scratch.h: memory of batches, used again.
 *
 * A batch needs some hundred kilobytes for as long as an operation takes. The C library would
 * return them to the system after each operation, and the next one would fault every page in again:
 * 0.5 to 0.8 ns a row of a batch of 65 536. So a block that is dropped is kept for the next request
 * of any table.
 *
 * Thread safety: all functions may be called from any thread.
 *
 * Invariants
 *  SC1. At most PST_SCRATCH_KEPT blocks of at most PST_SCRATCH_MOST bytes are kept by a process.
 *  SC2. A block has one owner: a thread that takes it out of its place leaves NULL there.
 */
#ifndef PST_SCRATCH_H
#define PST_SCRATCH_H

#include "pystate.h"

enum { PST_SCRATCH_KEPT = 4, PST_SCRATCH_LEAST = 1 << 14, PST_SCRATCH_MOST = 1 << 20 };

#endif
