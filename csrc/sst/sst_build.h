/* sst_build.h: data blocks from records, from rows of words, and from rows of other blocks; and the
 * columns that they are built of, also for rows that go to no file.
 *
 * Thread safety: a builder belongs to one thread at a time.
 *
 * Invariants, beside those of sst_block.h
 *  4. A builder or column whose call failed for memory may hold half a row: it can only be freed.
 */
#ifndef PST_SST_BUILD_H
#define PST_SST_BUILD_H

#include "base/buffer.h"
#include "sst/sst_block.h"

/* ---- columns --------------------------------------------------------------------------------- */

typedef struct pst_sst_growing {
    pst_sst_shape shape;
    uint32_t count; /* values, nulls included */
    uint32_t room;  /* fixed width: values that fit without growing; BYTES: offsets */
    uint32_t nulls;
    uint64_t bytes;      /* of a BYTES column's data */
    pst_buffer validity; /* in use once nulls > 0 */
    pst_buffer offsets;
    pst_buffer values;
} pst_sst_growing;

/* Makes room for one more value; of BYTES, for its offset. PST_NO_MEMORY. */
pst_status pst_sst_grow_column(pst_sst_growing *c);
/* Appends a value, or a null. PST_NO_MEMORY. */
pst_status pst_sst_append(pst_sst_growing *c, const pst_cell *cell, int valid);
pst_status pst_sst_append_nulls(pst_sst_growing *c, uint32_t n);
/* Appends n values of a view's column of the same shape. PST_NO_MEMORY. */
pst_status pst_sst_append_view(pst_sst_growing *c, const pst_sst_values *v, uint32_t from,
                               uint32_t n);
void pst_sst_growing_free(pst_sst_growing *c);

/* ---- blocks ---------------------------------------------------------------------------------- */

typedef struct pst_sst_builder {
    int32_t n_keys;
    int32_t n_states;
    uint32_t key_bytes_mask;   /* key columns of variable width */
    uint64_t state_bytes_mask; /* state columns of variable width */
    uint64_t key_width;        /* of the fixed-width key columns together */
    uint32_t rows;
    uint32_t deletes;
    uint32_t n_kinds;
    uint32_t kind;                            /* of the row last added or measured */
    uint64_t target;                          /* of the payload; a larger row is alone */
    uint32_t most_rows;                       /* at most PST_SST_BLOCK_ROWS */
    uint64_t payload;                         /* bytes of keys and values so far */
    uint64_t row_size;                        /* of the row last measured */
    uint64_t kind_width[PST_SST_BLOCK_KINDS]; /* of its fixed-width state columns together */
    pst_sst_kind kinds[PST_SST_BLOCK_KINDS];
    uint16_t kind_slots[2 * PST_SST_BLOCK_KINDS]; /* open addressing: kind + 1 */
    pst_buffer row_kinds;
    pst_buffer raw;
    pst_sst_growing columns[PST_SST_MAX_COLUMNS];
} pst_sst_builder;

/* The schema must be valid. Blocks are of PST_SST_BLOCK_TARGET bytes and PST_SST_BLOCK_ROWS rows, as
 * long as the builder's owner sets no other target and most_rows. */
void pst_sst_builder_init(pst_sst_builder *b, const pst_schema *schema);
void pst_sst_builder_free(pst_sst_builder *b);

/* Measures a record of the schema's columns, taking `changed` for its own mask. *fits is 0 where
 * the block, which is then not empty, must be finished before the record. PST_TOO_LARGE: a key or
 * value above PST_MAX_BYTES. */
pst_status pst_sst_builder_measure(pst_sst_builder *b, const pst_record *record, uint64_t changed,
                                   int *fits);
/* Adds the record just measured. REQUIRES: it fits. PST_NO_MEMORY. */
pst_status pst_sst_builder_add(pst_sst_builder *b, const pst_record *record);
/* How many of the rows from `from` on fit: 0 where the block must be finished first.
 * PST_TOO_LARGE. */
pst_status pst_sst_builder_measure_rows(pst_sst_builder *b, const pst_rows *rows, uint32_t from,
                                        uint64_t changed, uint32_t *fit);
/* Adds n rows that were just measured. REQUIRES: they fit. PST_NO_MEMORY. */
pst_status pst_sst_builder_add_rows(pst_sst_builder *b, const pst_rows *rows, uint32_t from,
                                    uint32_t n);
/* The key of the last row; bytes are valid until the next call. REQUIRES: a row. */
void pst_sst_builder_last_key(const pst_sst_builder *b, pst_cell *key, uint32_t *nulls);
/* Lays the rows out as a raw block, valid until the next call, and starts an empty one. *size is a
 * multiple of PST_SST_ALIGN. REQUIRES: a row. PST_NO_MEMORY. */
pst_status pst_sst_builder_finish(pst_sst_builder *b, const uint8_t **raw, size_t *size);

/* How many of n rows of a view, which all put the same columns, fit as rows that put `changed`; 0
 * where the block must be finished first. State k takes the view's state at[k]. */
uint32_t pst_sst_builder_measure_view(pst_sst_builder *b, const pst_sst_view *v, uint32_t from,
                                      uint32_t n, const int32_t *at, uint64_t changed);
/* Adds n rows that were just measured. REQUIRES: they fit. PST_NO_MEMORY. */
pst_status pst_sst_builder_add_view(pst_sst_builder *b, const pst_sst_view *v, uint32_t from,
                                    uint32_t n, const int32_t *at);

#endif
