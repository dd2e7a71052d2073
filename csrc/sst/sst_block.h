/* sst_block.h: data blocks, from raw bytes to records. FORMAT.md describes every byte.
 *
 * sst_build.h makes them, and sst_shape.h says for both how columns lie.
 *
 * A raw block holds up to PST_SST_BLOCK_ROWS rows as columns in Arrow's layout. What a row carries
 * (put or delete, and which state columns) is its kind; a block lists its kinds once and, where it
 * has several, an index byte per row. A state column holds values for the rows that carry it only,
 * a validity bitmap only where some of them are null.
 *
 * Thread safety: a view belongs to one thread at a time.
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

/* Whether the rows of a block ascend by key group, hash and key; fills the key groups. `same`, which
 * is NULL in a file without elements, says of each row but the first whether only the last key
 * column tells it from the row before: both are of one row of the table. */
int pst_sst_rows_ascend(const pst_sst_view *v, const uint64_t *hash, int32_t max_parallelism,
                        int32_t *key_group, uint8_t *same);

/* The first row whose key group is at least `first`. */
uint32_t pst_sst_first_row(const int32_t *key_group, uint32_t rows, int32_t first);

#endif
