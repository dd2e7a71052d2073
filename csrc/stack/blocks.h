/* blocks.h: blocks of files that were read, verified and decompressed, for whoever needs them next.
 *
 * Purpose: who looks single keys up in files spends most of the time on reading and unpacking a block
 * of which one row is wanted. So blocks stay in memory that is bounded, those that were used last.
 * A block is named by what is in it, and not by its file: by the seed of its checksum, which file and
 * place make, and the checksum. So files may be opened anew, and blocks stay.
 *
 * Thread safety: any thread.
 *
 * Invariants
 *  BL1. What is kept is at most as much as was said; what somebody holds beside it goes when he lets
 *       go. All of it is charged.
 *  BL2. A block that is held stays as it is, whoever needs room.
 *  BL3. The lock is held for a few words, never for a read or a decompression.
 *
 * Complexity: O(1).
 */
#ifndef PST_BLOCKS_H
#define PST_BLOCKS_H

#include "pystate.h"

typedef struct pst_kept_block pst_kept_block;

typedef struct pst_block_name {
    uint64_t seed;
    uint64_t checksum;
    uint64_t size; /* raw bytes */
} pst_block_name;

/* Holds a block; NULL: it is not here. */
pst_kept_block *pst_blocks_take(pst_blocks *b, const pst_block_name *name);
/* Holds a new one, which is to be filled. PST_NO_MEMORY; PST_LIMIT, once nothing is kept that could
 * make way. */
pst_status pst_blocks_make(pst_blocks *b, const pst_block_name *name, pst_kept_block **made);
/* Keeps one that has been filled, unless it is here by now; the caller still holds it. He wants up to so
 * many of that size: where these are half of what may be kept, they would push out what others use, and
 * are hardly wanted again before they make way themselves. So it is not kept then. */
void pst_blocks_keep(pst_blocks *b, pst_kept_block *block, uint64_t wanted);
/* Lets go. NULL is allowed. */
void pst_blocks_drop(pst_blocks *b, pst_kept_block *block);

/* Its bytes, aligned as malloc does. */
uint8_t *pst_block_bytes(pst_kept_block *block);

pst_blocks *pst_blocks_retain(pst_blocks *b);

#endif
