/* sst_reader.h: what a file says of rows before they are read.
 *
 * It also says how a column is converted when its block is read, so that all who read the file see
 * another type.
 *
 * Thread safety: as the reader.
 */
#ifndef PST_SST_READER_H
#define PST_SST_READER_H

#include "sst/sst_block.h"

typedef struct pst_ahead {
    const uint64_t *hash; /* of the row last read and of those after it in its block */
    uint32_t rows;        /* how many those are */
    const uint8_t *same;  /* of the same rows, in a file with elements: pst_sst_rows_ascend */
    const pst_sst_view *view;
    int begins; /* the row last read is the first one read of its block */
} pst_ahead;

/* Valid until the next row is read. REQUIRES: pst_sst_reader_next returned PST_OK last. */
pst_ahead pst_sst_reader_ahead(const pst_sst_reader *r);

/* Rows in their order. */
typedef struct pst_stretch {
    const pst_sst_view *view;
    const uint64_t *hash; /* of row `first` and those after it */
    const int32_t *key_group;
    const uint8_t *same; /* in a file with elements: pst_sst_rows_ascend */
    uint32_t first;
    uint32_t rows;
} pst_stretch;

/* After a seek: of its first key group only rows of this hash or a larger one are read, and of its
 * last one those up to `last_hash`. Blocks without such rows are not. */
void pst_sst_reader_narrow(pst_sst_reader *r, uint64_t first_hash, uint64_t last_hash);

/* Reads the rest of a block at once, if all of its rows put the same columns and none is an
 * element: their values are those at the same places of the view's columns. Otherwise part->rows is
 * 0, and the next row is to be read by itself. Valid until the next row is read. Statuses as
 * pst_sst_reader_next. */
pst_status pst_sst_reader_stretch(pst_sst_reader *r, pst_stretch *part);

/* The block that the next row is in, if all of its rows put the same columns and none is an
 * element; else, and where its rows have all been read, NULL. */
const pst_sst_view *pst_sst_reader_stretch_columns(const pst_sst_reader *r);

/* The next rows of the block, of any kind, up to the first one that does not come before the key
 * group and hash; the next block is not read for them. part->rows is 0 where fewer than `least` do.
 * The values of the first of them are those at `next` of the view's columns. Elements are not known
 * to be sound (record.h). They are still to be read, or to be skipped. */
void pst_sst_reader_stretch_before(pst_sst_reader *r, int32_t key_group, uint64_t hash,
                                   uint32_t least, pst_stretch *part);
/* Moves behind the first rows of such a stretch. */
void pst_sst_reader_skip(pst_sst_reader *r, uint32_t rows);

/* Moves behind the next n rows of the block, which put the same columns as the row last read and are
 * of the seeked range. */
void pst_sst_reader_pass(pst_sst_reader *r, uint32_t n);

/* About how many rows a key group of the seeked range has, by the file's index alone: the rows of a
 * block are taken to be spread evenly from its first hash to that of the next. O(log blocks). */
uint64_t pst_sst_reader_estimate(const pst_sst_reader *r, int32_t key_group);

/* Told of bytes [begin, end) of a file; a status other than PST_OK ends the telling. */
typedef pst_status (*pst_sst_bytes)(void *ctx, uint64_t begin, uint64_t end);

/* Tells where the blocks lie that may have rows of a place, by the index; or, with `entries`, where
 * the entries lie that lead to them in a guided file, which are read to tell the blocks. It ends any
 * reading. O(log blocks). Statuses as pst_sst_reader_next, and those of `tell`. */
pst_status pst_sst_reader_where(pst_sst_reader *r, int32_t key_group, uint64_t hash, int entries,
                                pst_sst_bytes tell, void *ctx);

typedef struct pst_sst_conversion {
    int32_t column; /* of the schema's states */
    pst_column to;  /* its names are copied */
    /* Replaces a column's values, as many, by those in buffers of `ctx`, which live until the next
     * call. The rows of the view are all still to be read. */
    pst_status (*run)(void *ctx, const pst_sst_view *view, pst_sst_values *values);
    void (*destroy)(void *ctx);
    void *ctx;
} pst_sst_conversion;

/* From now on these columns are read as they are converted. Takes the conversions over, whatever it
 * returns; they are destroyed with the reader. PST_INVALID: it has some already; PST_NO_MEMORY. */
pst_status pst_sst_reader_convert(pst_sst_reader *r, const pst_sst_conversion *conversions,
                                  int32_t n);

#endif
