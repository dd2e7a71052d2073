/* sst_search.h: rows of wanted keys in one stored block of a guided file.
 *
 * Purpose: a block that was read by itself, by whatever means, is verified, decompressed by the
 * core and searched. Only rows on the way to the wanted ones are hashed.
 *
 * Thread safety: a pst_search belongs to one thread at a time; its guide may be shared.
 *
 * Invariants
 *  SE1. Nothing is read of a block whose checksum does not hold.
 *  SE2. Nothing outside of the block's buffers is read, whatever it says and whoever wrote it; in a
 *       block that no writer has made, rows may not be found.
 *  SE3. Records that come out are sound (record.h), their keys canonical.
 *
 * Complexity: a block costs what its checksum and LZ4 cost; a key O(log log rows) hashes, O(log rows)
 * at worst.
 */
#ifndef PST_SST_SEARCH_H
#define PST_SST_SEARCH_H

#include "base/buffer.h"
#include "guide/sst_guide.h"
#include "sst/sst_block.h"

typedef struct pst_wanted {
    uint64_t hash;
    int32_t key_group;
    uint32_t nulls;
    const pst_cell *key; /* the key's columns, all but the element; NULL: any key of the place */
} pst_wanted;

typedef struct pst_search {
    const pst_guide *guide;
    pst_sst_view view;
    pst_buffer raw;
    uint32_t row;      /* rows before it come before the place that was wanted last */
    int32_t row_group; /* no row from there on is below this place */
    uint64_t row_hash;
    int32_t last_group; /* no row is above this place */
    uint64_t last_hash;
} pst_search;

/* Zeroes are an empty one. */
void pst_search_free(pst_search *s);

/* Opens a block: `stored` has block->stored bytes, is aligned as malloc does, and must live as long
 * as the block is searched, as must the guide. The last place is one that no row of the block is
 * above: the first one of the next block, or the last one of the segment. PST_CORRUPT,
 * PST_NO_MEMORY. */
pst_status pst_search_open(pst_search *s, const pst_guide *guide, const pst_guide_block *block,
                           int32_t last_key_group, uint64_t last_hash, const uint8_t *stored);

/* The same in two steps, so that what is unpacked can be kept: what a stored block holds, once its
 * checksum held, into `raw`, of block->raw bytes; and a block of which that was done, whose bytes must
 * live as long as it is searched. PST_CORRUPT. */
pst_status pst_search_unpack(const pst_guide *guide, const pst_guide_block *block,
                             const uint8_t *stored, uint8_t *raw);
pst_status pst_search_open_raw(pst_search *s, const pst_guide *guide, const pst_guide_block *block,
                               int32_t last_key_group, uint64_t last_hash, const uint8_t *raw);

/* The rows of a key, *n of them from the one that is returned on; 0 where there are none. In files
 * with elements these are the row's own record, if there is one, and its elements. Wanted keys of
 * one block must come in ascending places; those of one place in any order. */
uint32_t pst_search_find(pst_search *s, const pst_wanted *wanted, uint32_t *n);

/* Reads a row of the open block; bytes are valid as long as that. PST_CORRUPT: it is not sound. */
pst_status pst_search_record(pst_search *s, uint32_t row, pst_record *record);

#endif
