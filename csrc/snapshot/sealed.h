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
 */
#ifndef PST_SEALED_H
#define PST_SEALED_H

#include "base/budget.h"
#include "base/buffer.h"
#include "base/key.h"
#include "base/pool.h"
#include "base/schema.h"
#include "elements/collections.h"
#include "memory/handle.h"
#include "memory/huge.h"

/* Entries in gathering order, each `key part | info | cells of changed present columns`:
 * a word key is its word, a bytes key {hash, offset, size}; cells are one word, or two for
 * decimals and for bytes {offset, size}. Offsets point into `bytes`. */
struct pst_sealed {
    pst_pool *pool;
    pst_words entries;
    size_t n_words;
    pst_buffer bytes;
    pst_buffer scratch; /* for what is put together before it is kept */
    pst_charge charge;  /* of entries and bytes */
    uint64_t rows;
    uint64_t logical_bytes;
    pst_lineage lineage;
    pst_schema *schema; /* of the file */
    pst_huge huge;      /* pages of a shared table's file, for the thread that writes */
    pst_key_kind key_kind;
    int wide;
    int tied;         /* words of bytes keys may be hashes of their own, see index.h */
    int null_entries; /* there is an entry of a map without a value */
    int32_t max_parallelism;
    int32_t first_key_group;
    int32_t last_key_group;
    uint32_t block_bytes; /* of the file, as in pst_file_info */
};

/* The info word: bit 0 delete, bit 1 null key, then for up to seven states changed << 8 and
 * present << 16. Wide rows have both masks in the next two words. */
enum { PST_INFO_DELETE = 1, PST_INFO_NULL = 2 };

/* Whether a cell takes two words of an entry. */
static inline int pst_is_wide_value(pst_type type) {
    return type == PST_DECIMAL || !pst_type_width(type);
}

pst_status pst_sealed_gather(pst_table *t, const pst_lineage *lineage, pst_sealed **sealed);

/* Gathers rows of some key groups in full, as if they were all new; and, once there are no more
 * rows, the timers. Begins at *cursor, which is 0 first, and stops where the part is large.
 * PST_NOT_FOUND at the end. REQUIRES: nothing is written to the table until then. */
pst_status pst_sealed_part(pst_table *t, int32_t first_key_group, int32_t last_key_group,
                           uint64_t *cursor, pst_sealed **part);

#endif
