/* sst_guide_build.h: guides, as a writer puts them together block by block.
 *
 * Thread safety: a builder belongs to one thread at a time.
 *
 * Invariants
 *  GB1. Between two segments a builder holds 64 bytes per segment; within one, its entries and its
 *       hashes, which are at most PST_GUIDE_KEYS and those of one block more.
 *  GB2. Each block's first hash is noted, also where the block before has it: so every segment's
 *       filter has the hashes of all of its rows.
 */
#ifndef PST_SST_GUIDE_BUILD_H
#define PST_SST_GUIDE_BUILD_H

#include "base/buffer.h"
#include "guide/sst_guide.h"
#include "sst/sst_build.h"

typedef struct pst_guide_builder {
    pst_words hashes; /* of the open segment, and behind these of the block to come */
    size_t n_hashes;
    size_t n_in_segment; /* of those, what belongs to blocks that were added */
    pst_buffer segments; /* as in the tail */
    size_t n_segments;
    pst_buffer guide;       /* a segment's, as it is written */
    pst_guide_segment open; /* blocks 0: none */
    uint64_t last_hash;     /* of its last row */
    uint32_t stored;        /* its blocks' bytes, in units; of one block alone that may be more */
    uint8_t entries[PST_GUIDE_BLOCKS * PST_GUIDE_ENTRY_BYTES];
    pst_guide_bounds bounds[PST_MAX_KEYS];
} pst_guide_builder;

void pst_guide_builder_init(pst_guide_builder *b, const pst_schema *schema);
void pst_guide_builder_free(pst_guide_builder *b);
/* What it has allocated. */
size_t pst_guide_builder_bytes(const pst_guide_builder *b);

/* Makes room for n hashes. PST_NO_MEMORY. */
pst_status pst_guide_builder_reserve(pst_guide_builder *b, size_t n);
/* Notes the hash of the next row, the first one of its block or not. REQUIRES: room. */
static inline void pst_guide_builder_note(pst_guide_builder *b, uint64_t hash, int begins) {
    if (begins || b->n_hashes == 0 || b->hashes.words[b->n_hashes - 1] != hash)
        b->hashes.words[b->n_hashes++] = hash;
}

/* Takes the values of key columns of a block that is about to be finished into the bounds. */
void pst_guide_builder_bound(pst_guide_builder *b, const pst_schema *schema,
                             const pst_sst_builder *block);

/* Whether the open segment takes one block more, of such a size; if not, it is to be finished. */
int pst_guide_builder_takes(const pst_guide_builder *b, uint64_t stored, uint64_t raw);
/* Adds a block, of which all hashes were noted; `deletes` of its rows are such. REQUIRES: the segment
 * takes it. */
void pst_guide_builder_add(pst_guide_builder *b, const pst_guide_block *block, uint32_t deletes,
                           int32_t last_key_group, uint64_t last_hash);
/* Finishes the open segment: *size bytes are to be written where its blocks end, at `offset`. Valid
 * until the next call. REQUIRES: a block. PST_NO_MEMORY. */
pst_status pst_guide_builder_finish(pst_guide_builder *b, uint64_t offset, const uint8_t id[16],
                                    int32_t max_parallelism, size_t *size);
/* The bounds as the tail has them. */
void pst_guide_builder_put_bounds(const pst_guide_builder *b, int32_t n_keys, uint8_t *out);

#endif
