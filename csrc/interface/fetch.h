/* fetch.h: tables whose rows come from the files below them when they are needed.
 *
 * Thread safety: as the table; a stack that is set is used by the table's thread.
 * Statuses and ownership are as `pystate.h` says.
 */
#ifndef PST_INTERFACE_FETCH_H
#define PST_INTERFACE_FETCH_H

#include <stddef.h>
#include <stdint.h>

#include "interface/stack.h"
#include "interface/table.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From now on rows that are not in the table are looked for in these files, which hold all that its
 * last sealed epoch has; NULL: in none. A key group for which none of them counts has no rows. The
 * table holds the stack until another one is set or it is closed, also where its owner lets go.
 * `lineage` (NULL with no stack) is that of the epoch that the caller believes to be the last one. The
 * stack counts until an epoch is sealed under another lineage, or the table returns to another one:
 * after that it is set again, with the files of that epoch. Without one an operation on keys that a
 * table lacks is PST_NO_STACK, unless the table is whole. PST_STALE: the last sealed epoch is another
 * one. PST_INVALID: not attached; or the files are of another schema or max_parallelism. */
pst_status pst_table_set_stack(pst_table *t, pst_stack *stack, const pst_lineage *lineage);

/* `fits`: how many of `keys` more rows the table can take now, with their before-images; `leave`:
 * what is to leave (pst_table_leave), after the open epoch was sealed, so that all of them can. Both
 * are reckoned with rows as those that are here. PST_INVALID: not attached. */
pst_status pst_table_room(pst_table *t, uint64_t keys, uint64_t *fits, pst_room *leave);

/* Of a handle, since it was opened; of a table that is whole nothing is counted. */
typedef struct pst_fetch_stats {
    uint64_t asked;  /* keys of batches, and keys that were made current by themselves */
    uint64_t missed; /* different keys of these that were not here, and were looked up */
    uint64_t came;   /* of those, rows that the files had */
} pst_fetch_stats;
void pst_table_get_fetch_stats(const pst_table *t, pst_fetch_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
