/* sealed.h: what an epoch changed, in memory of its own.
 *
 * Purpose: the after-images of changed columns. sealed.c gathers them from the table, in the pause
 * of a seal; delta.c sorts and writes them later, in any thread and without the table.
 *
 * Thread safety: a pst_sealed belongs to one thread at a time and never looks at its table. The
 * pool of buffers is shared by a table and its sealed epochs and has a lock.
 *
 * Invariants
 *  G1. A row is gathered only if it logically changed: before and after are compared, so what was
 *      touched and put back, or inserted and deleted, leaves nothing.
 *  G2. Records carry keys and values, never slots or granules.
 *  G3. Buffers are reused, so that in a steady state sealing faults no pages in. Those of a large
 *      epoch are offered to the kernel meanwhile, and freed where later epochs need little of them.
 *  G4. What is written to buffers is charged, in the pool too; what is only reserved is not.
 *  GW1. Where rows are to be whole (pst_table_set_whole_rows), the record of a row that is new, or
 *       whose values are short enough, carries each column that can have a value in a row's record:
 *       that of an absent value is null. In any other record a value goes with its time.
 *  GW2. A whole record carries a list, map or the timers, as null, where older files have nothing of
 *       them that counts; so whoever looks for a key from the newest file on can end at a record
 *       that carries all columns, and those of elements as null.
 */
#ifndef PST_SEALED_H
#define PST_SEALED_H

#include "snapshot/entries.h"

pst_status pst_sealed_gather(pst_table *t, const pst_lineage *lineage, pst_sealed **sealed);

/* Gathers rows of some key groups in full, as if they were all new; and, once there are no more
 * rows, the timers. Begins at *cursor, which is 0 first, and stops where the part is large.
 * PST_NOT_FOUND at the end. REQUIRES: nothing is written to the table until then. */
pst_status pst_sealed_part(pst_table *t, int32_t first_key_group, int32_t last_key_group,
                           uint64_t *cursor, pst_sealed **part);

#endif
