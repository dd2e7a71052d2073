/* sst_times_build.h: time indexes, as a writer puts them together.
 *
 * Thread safety: a builder belongs to one thread at a time.
 *
 * Invariants
 *  TB1. A builder holds the timers of one run, at most PST_TIMES_RUN and those of one segment more,
 *       twice while they are sorted, and 32 bytes for each 1024 of all.
 */
#ifndef PST_SST_TIMES_BUILD_H
#define PST_SST_TIMES_BUILD_H

#include "base/buffer.h"
#include "guide/sst_times.h"
#include "sst/sst_block.h"

/* A run is written once it has so many timers. */
#ifndef PST_TIMES_RUN
#define PST_TIMES_RUN 262144u
#endif

typedef struct pst_times_list {
    pst_buffer timers; /* of one domain: time and hash */
    size_t n;
    size_t written; /* of the run, once it is sorted */
} pst_times_list;

typedef struct pst_times_builder {
    pst_times_list lists[2]; /* of a domain each */
    pst_buffer spare;
    pst_buffer hashes;
    pst_buffer block;
    pst_buffer index;
    uint32_t n_blocks;
    uint64_t n_timers; /* in blocks */
    pst_sst_view view;
} pst_times_builder;

void pst_times_builder_free(pst_times_builder *b);
/* What it has allocated. */
size_t pst_times_builder_bytes(const pst_times_builder *b);

/* Takes the timers of a raw block that was just built. PST_NO_MEMORY. */
pst_status pst_times_builder_take(pst_times_builder *b, const pst_schema *schema,
                                  const uint8_t *raw, size_t size);
int pst_times_builder_is_full(const pst_times_builder *b);
/* Sorts what was taken since the last run. PST_NO_MEMORY. */
pst_status pst_times_builder_sort(pst_times_builder *b);
/* Puts the next block of the sorted run together, which is to be written at `offset`: *size bytes of
 * b->block, 0 at the end of the run. PST_NO_MEMORY. */
pst_status pst_times_builder_block(pst_times_builder *b, uint64_t offset, const uint8_t id[16],
                                   size_t *size);
/* The index of blocks, *size bytes of b->index. PST_NO_MEMORY. */
pst_status pst_times_builder_index(pst_times_builder *b, size_t *size);

#endif
