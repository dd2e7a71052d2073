/* said.h: what the files of a stack say of wanted keys, put together as rows.
 *
 * Thread safety: plain memory of one thread.
 *
 * Invariants
 *  SY1. What comes out is what a merge of the files has of these keys: their records are kept file by
 *       file and in its order, and all of a key's are there before any is merged.
 *
 * Complexity: O(bytes) to keep; a merge of n keys' records O(records log files + files).
 */
#ifndef PST_SAID_H
#define PST_SAID_H

#include "fetch/parts.h"
#include "snapshot/merge.h"
#include "stack/stack.h"

typedef struct pst_said {
    pst_parts parts;
    uint32_t *last; /* of each key, 1 + the part that was kept last; 0: none */
} pst_said;

/* Of n keys. It is to be freed in any case. PST_NO_MEMORY. */
pst_status pst_said_init(pst_said *x, const pst_stack *st, uint32_t n);
void pst_said_free(pst_said *x);

/* Keeps a record of a key, newest file first, and of one file in its order. Statuses of
 * pst_parts_add. */
pst_status pst_said_add(pst_said *x, uint32_t key, int32_t file, const pst_record *r);
/* Merges what was kept of the keys from `from` to before `end`, which ascend, into the sink, of so
 * many files. Statuses of pst_merge_records. */
pst_status pst_said_merge(const pst_said *x, uint32_t from, uint32_t end, int32_t files,
                          const pst_sink *sink);
/* Forgets what was kept of those keys, which is all. */
void pst_said_clear(pst_said *x, uint32_t from, uint32_t end);

#endif
