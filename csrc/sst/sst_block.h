/* sst_block.h: data blocks, from records to raw bytes and back. FORMAT.md describes every byte.
 *
 * sst_build.c builds blocks, sst_block.c reads them, and sst_shape.h says for both how columns lie.
 *
 * A raw block holds up to PST_SST_BLOCK_ROWS rows as columns in Arrow's layout. What a row carries
 * (put or delete, and which state columns) is its kind; a block lists its kinds once and, where it
 * has several, an index byte per row. A state column holds values for the rows that carry it only,
 * a validity bitmap only where some of them are null.
 *
 * Thread safety: a builder or a view belongs to one thread at a time.
 *
 * Invariants
 *  1. Buffers start at multiples of PST_SST_ALIGN within the block, in the order kinds of rows,
 *     then per column validity, offsets, values; sizes follow from the block's own header, so the
 *     writer and the reader lay a block out with one function.
 *  2. pst_sst_view_open accepts a block only where every later access stays inside it: counts add
 *     up, kinds exist, offsets ascend. Reading rows then needs no checks. The cells that come out
 *     are what a writer could have put in: keys canonical, structs of their width, bytes of a size
 *     that a table takes.
 *  3. A row costs the columns that it carries, never the number of columns of the schema.
 *  4. A builder whose call failed for memory may hold half a row: it can only be freed.
 */
#ifndef PST_SST_BLOCK_H
#define PST_SST_BLOCK_H

#include "pystate.h"
#include "sst/sst_format.h"

enum { PST_SST_MAX_COLUMNS = PST_MAX_KEYS + PST_MAX_STATES };

typedef struct pst_sst_kind {
    uint64_t changed;
    uint32_t rows;
    pst_record_op op;
} pst_sst_kind;

/* ---- building -------------------------------------------------------------------------------- */

typedef struct pst_sst_buffer {
    uint8_t *data;
    size_t capacity;
} pst_sst_buffer;

typedef struct pst_sst_growing {
    pst_sst_shape shape;
    uint32_t count; /* values, nulls included */
    uint32_t room;  /* fixed width: values that fit without growing; BYTES: offsets */
    uint32_t nulls;
    uint64_t bytes;          /* of a BYTES column's data */
    pst_sst_buffer validity; /* in use once nulls > 0 */
    pst_sst_buffer offsets;
    pst_sst_buffer values;
} pst_sst_growing;

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
    uint64_t payload;                         /* bytes of keys and values so far */
    uint64_t row_size;                        /* of the row last measured */
    uint64_t kind_width[PST_SST_BLOCK_KINDS]; /* of its fixed-width state columns together */
    pst_sst_kind kinds[PST_SST_BLOCK_KINDS];
    uint16_t kind_slots[2 * PST_SST_BLOCK_KINDS]; /* open addressing: kind + 1 */
    pst_sst_buffer row_kinds;
    pst_sst_buffer raw;
    pst_sst_growing columns[PST_SST_MAX_COLUMNS];
} pst_sst_builder;

/* The schema must be valid. */
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

/* Grows to at least `size` bytes, keeping the contents. */
pst_status pst_sst_grow(pst_sst_buffer *b, size_t size);

static inline pst_status pst_sst_reserve(pst_sst_buffer *b, size_t size) {
    return size <= b->capacity ? PST_OK : pst_sst_grow(b, size);
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct pst_sst_values {
    pst_sst_shape shape;
    uint32_t count;
    uint32_t next; /* the value that the next row to carry the column has */
    uint64_t bytes;
    const uint8_t *validity; /* NULL: no nulls */
    const int32_t *offsets;
    const uint8_t *values;
} pst_sst_values;

typedef struct pst_sst_view {
    const pst_schema *schema;
    uint32_t rows;
    uint32_t deletes;
    uint32_t n_kinds;
    uint32_t row; /* the next one to read */
    pst_sst_kind kinds[PST_SST_BLOCK_KINDS];
    const uint8_t *row_kinds; /* NULL: one kind */
    pst_sst_values columns[PST_SST_MAX_COLUMNS];
} pst_sst_view;

static inline int pst_sst_has_value(const pst_sst_values *c, uint32_t i) {
    return !c->validity || (c->validity[i >> 3] >> (i & 7) & 1);
}

/* Value i; bytes are valid as long as the block. REQUIRES: it is there. */
void pst_sst_value(const pst_sst_values *c, uint32_t i, pst_cell *cell);

/* The values of a column of the shape WORD64. */
static inline const uint64_t *pst_sst_words(const pst_sst_values *c) {
    return (const uint64_t *)(const void *)c->values;
}

/* Views a raw block, standing before row 0. `raw` is aligned as malloc does and must outlive the
 * view, as must the schema. PST_CORRUPT. */
pst_status pst_sst_view_open(pst_sst_view *v, const pst_schema *schema, const uint8_t *raw,
                             size_t size);
/* hash[i] of every row's key. */
pst_status pst_sst_view_hash(const pst_sst_view *v, uint64_t *hash);
/* As pst_key_compare the keys of two rows. */
int pst_sst_view_compare(const pst_sst_view *v, uint32_t a, uint32_t b);
/* The key of a row; bytes are valid as long as the block. */
void pst_sst_view_key(const pst_sst_view *v, uint32_t row, pst_cell *key, uint32_t *nulls);
/* Moves from row v->row on to row `row` <= v->rows. */
void pst_sst_view_skip(pst_sst_view *v, uint32_t row);
/* Reads row v->row but for hash and key group, and moves on. REQUIRES: v->row < v->rows. */
void pst_sst_view_next(pst_sst_view *v, pst_record *record);

/* ---- from block to block --------------------------------------------------------------------- */

/* How many of n rows of a view, which all put the same columns, fit as rows that put `changed`; 0
 * where the block must be finished first. State k takes the view's state at[k]. */
uint32_t pst_sst_builder_measure_view(pst_sst_builder *b, const pst_sst_view *v, uint32_t from,
                                      uint32_t n, const int32_t *at, uint64_t changed);
/* Adds n rows that were just measured. REQUIRES: they fit. PST_NO_MEMORY. */
pst_status pst_sst_builder_add_view(pst_sst_builder *b, const pst_sst_view *v, uint32_t from,
                                    uint32_t n, const int32_t *at);

#endif
