/* sst_reader.h: what a file says of rows before they are read.
 *
 * Thread safety: as the reader.
 */
#ifndef PST_SST_READER_H
#define PST_SST_READER_H

#include "sst/sst_block.h"

typedef struct pst_ahead {
    const uint64_t *hash; /* of the row last read and of those after it in its block */
    uint32_t rows;        /* how many those are */
    int begins;           /* the row last read is the first one read of its block */
} pst_ahead;

/* Valid until the next row is read. REQUIRES: pst_sst_reader_next returned PST_OK last. */
pst_ahead pst_sst_reader_ahead(const pst_sst_reader *r);

/* Rows in their order that put the same columns: their values are those at the same places of the
 * view's columns. */
typedef struct pst_stretch {
    const pst_sst_view *view;
    const uint64_t *hash; /* of row `first` and those after it */
    uint32_t first;
    uint32_t rows;
} pst_stretch;

/* Reads the rest of a block at once, if all of its rows put the same columns and none is an
 * element. Otherwise part->rows is 0, and the next row is to be read by itself. Valid until the
 * next row is read. Statuses as pst_sst_reader_next. */
pst_status pst_sst_reader_stretch(pst_sst_reader *r, pst_stretch *part);

/* About how many rows a key group of the seeked range has, by the file's index alone: a block of
 * several groups counts for each of them alike. O(log blocks). */
uint64_t pst_sst_reader_estimate(const pst_sst_reader *r, int32_t key_group);

#endif
