/* files.h: what leaves a table and comes back: records, files, and readers beside the writer.
 *
 * Thread safety: a pst_sealed, a pst_sst_reader, a pst_sst_writer and a pst_reader are independent
 * handles: each may be used by one thread at a time, beside the writer of the table.
 * Statuses and ownership are as `pystate.h` says.
 */
#ifndef PST_INTERFACE_FILES_H
#define PST_INTERFACE_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "interface/access.h"
#include "interface/table.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- records: rows outside a table ---------------------------------------------------------- */

typedef enum pst_record_op {
    PST_PUT = 1,   /* the columns in `changed` take the cells' values (or become null)  */
    PST_DELETE = 2 /* the key ceases to exist                                           */
} pst_record_op;

/* Files of an operator with lists, maps or timers have one key column more, the element, not hashed
 * and null for the row itself. A row's record then carries its values. For a list or map column in
 * `changed` it says that what older files hold of it is void (null), or begins at an item (a list
 * whose head went). Each entry, run of items and timer is a record of its own: see FORMAT.md. */
#define PST_ELEMENT_COLUMN "#element"

/* One row as files and iterations carry it. All bytes belong to the producer and are valid until
 * its next step. `key`: one cell per key column. `changed`: a bit per state column that the record
 * carries; `present`: which of those are not null; cells elsewhere are undefined. */
typedef struct pst_record {
    uint64_t hash;
    int32_t key_group;
    pst_record_op op;
    uint32_t key_nulls;
    uint64_t changed;
    uint64_t present;
    pst_cell key[PST_MAX_KEYS];
    pst_cell cells[PST_MAX_STATES];
} pst_record;

/* Visits the live rows of the table as of now, in slot order: pass *cursor = 0 first. Writing to
 * the table in between is allowed; a row written meanwhile may or may not be seen. The record's
 * bytes are valid until the next write. PST_NOT_FOUND at the end; PST_CORRUPT: the row has no
 * key. */
pst_status pst_table_next(pst_table *t, uint64_t *cursor, pst_record *record);

/* The schema of the files of a table's operator, which the caller destroys. PST_NO_MEMORY.
 * PST_TOO_LARGE: no key column is left for the element. */
pst_status pst_file_schema_create(const pst_schema *schema, pst_schema **file);
void pst_file_schema_destroy(pst_schema *file);

/* Applies a record to the open epoch, with the element column where the table's files have one.
 * `columns[i]` is the table's column for the record's column i, or -1 to drop it; NULL: the
 * identity. The record's hash is trusted, and that each cell is of its column's type. PST_INVALID:
 * not attached, a column is not the table's, or is there twice. PST_NOT_HERE: rows lie in files
 * below the table, and what the record changes may be one of them. PST_POISONED. PST_WRONG_KEY_GROUP.
 * PST_CORRUPT: an element that its state cannot have. PST_TOO_LARGE: key or value; PST_WRONG_TYPE:
 * a struct of another width; memory. */
pst_status pst_table_apply(pst_table *t, const pst_record *record, const int32_t *columns,
                           int32_t n_columns);

/* ---- sealed epochs -> delta files ------------------------------------------------------------ */

/* Independent of the table: lives until destroyed, also after the table was closed, usable from any
 * one thread. */
void pst_sealed_destroy(pst_sealed *s);
uint64_t pst_sealed_rows(const pst_sealed *s);
/* Bytes of keys and changed columns, with which benchmarks compare the size of a file. */
uint64_t pst_sealed_bytes(const pst_sealed *s);
/* Valid as long as the sealed epoch. */
const pst_lineage *pst_sealed_lineage(const pst_sealed *s);

/* A column of rows outside of a file, in Arrow's layout. */
typedef struct pst_block_column {
    uint32_t count;
    uint32_t nulls;
    const uint8_t *validity; /* NULL: no nulls */
    const int32_t *offsets;  /* count + 1 entries; NULL where values have one width, or are none */
    const uint8_t *values;   /* NULL: no bytes, or offsets alone, of lists or maps */
    uint64_t values_bytes;
} pst_block_column;

/* I/O and codec of the files. Every callback returns 0, or another value on failure, which ends the
 * call with PST_CALLBACK. Callbacks may be NULL where a direction is not used. Buffers are charged
 * to `budget`: PST_LIMIT. Where it is NULL a sealed epoch is charged to its table's budget, and all
 * else to none. */
typedef struct pst_io {
    void *ctx;
    int (*write)(void *ctx, const void *data, size_t size);              /* append */
    int (*read_at)(void *ctx, uint64_t offset, void *data, size_t size); /* all of it or failure */
    /* Compresses into dst (capacity *dst_size); sets *dst_size, or 0 where that does not pay. */
    int (*compress)(void *ctx, const void *src, size_t size, void *dst, size_t *dst_size);
    int (*decompress)(void *ctx, const void *src, size_t size, void *dst, size_t dst_size);
    /* Takes rows as pst_gather puts them together; their memory is its own again when it returns. */
    int (*block)(void *ctx, uint32_t rows, const pst_block_column *columns, int32_t n);
    pst_budget *budget;
} pst_io;

typedef enum pst_file_kind { PST_DELTA = 1, PST_BASE = 2 } pst_file_kind;

typedef struct pst_file_info {
    pst_file_kind kind;
    pst_lineage lineage;
    int32_t max_parallelism;
    int32_t first_key_group;
    int32_t last_key_group;
    uint64_t rows;       /* puts */
    uint64_t tombstones; /* deletes */
    uint64_t raw_bytes;  /* of all data blocks before compression */
    uint64_t file_bytes;
    uint64_t checksum; /* XXH64 of the whole file, what a manifest records */
    int null_entries;  /* entries of maps may have no value, which older versions cannot read */
    uint32_t
        block_bytes; /* 0, or of a guided file, 4096 to 65536: the keys and values of a block */
} pst_file_info;

/* From now on pst_sealed_write makes files with blocks of that size, as in pst_file_info. */
void pst_sealed_guide(pst_sealed *s, uint32_t block_bytes);

/* Sorts the sealed rows by (key group, hash, key) and writes them as a delta file. It may be called
 * again after a failure. PST_CALLBACK, PST_NO_MEMORY, PST_LIMIT; PST_INVALID: nothing to write
 * with; PST_TOO_LARGE: a block, or more rows than can be sorted; PST_CORRUPT: what was gathered
 * contradicts itself. */
pst_status pst_sealed_write(pst_sealed *s, const pst_io *io, pst_file_info *info);

/* ---- files ----------------------------------------------------------------------------------- */

typedef struct pst_sst_writer pst_sst_writer;
typedef struct pst_sst_reader pst_sst_reader;

/* Statuses of writing: PST_CALLBACK, PST_NO_MEMORY, PST_LIMIT; PST_INVALID for what breaks the
 * order or the range, or after the end; PST_TOO_LARGE: a record that no block holds. After any of
 * these but PST_INVALID a writer says the same again and can only be destroyed. `io` is copied;
 * what its ctx names, and its budget, must live as long as the writer or reader. */

/* Writes a file record by record; records must come sorted by (key group, hash, key bytes). `info`
 * gives kind, lineage, max_parallelism, key-group range, null_entries and block_bytes, PST_INVALID
 * where they or the schema are out of range; a guided file has at most 65536 key groups. Entries
 * without a value are PST_INVALID where null_entries is 0; a merge has them where one of its sources
 * may. One block is buffered, of a guided file also the hashes of 256 blocks. The schema is
 * copied. */
pst_status pst_sst_writer_create(const pst_schema *schema, const pst_file_info *info,
                                 const pst_io *io, pst_sst_writer **writer);
pst_status pst_sst_writer_add(pst_sst_writer *w, const pst_record *record);

/* Rows of one kind, each in words of its own. Of row i, the key is at words[i][key_at] and state k
 * at words[i][at[k]]; bytes are {offset, size} into `bytes`. PST_BYTES_SLACK more bytes can be read
 * behind the last of these. Masks are as of a record. With `keys`, which is NULL otherwise, keys[i]
 * has the key's columns, each a word, and PST_ELEMENT_WORDS where the last column is an element: its
 * bytes, at most sixteen, as two big-endian numbers filled up with zeros, and 1 + their number, or
 * thrice 0 for null. */
enum { PST_ELEMENT_WORDS = 3 };

typedef struct pst_rows {
    const uint64_t *const *words;
    const uint64_t *const *keys;
    const uint64_t *hash;
    const uint8_t *bytes;
    uint32_t n;
    pst_record_op op;
    uint64_t changed;
    uint64_t present;
    uint8_t key_at;
    uint8_t at[PST_MAX_STATES];
} pst_rows;

enum { PST_BYTES_SLACK = 48 };

/* As pst_sst_writer_add of each row, column by column. REQUIRES: `keys`, or one key column that is
 * not null, no two hashes equal, and none equal to that of the row before. */
pst_status pst_sst_writer_add_rows(pst_sst_writer *w, const pst_rows *rows);
/* Writes index, properties and footer, and fills `info` (all fields). What is not finished is no
 * file. */
pst_status pst_sst_writer_finish(pst_sst_writer *w, pst_file_info *info);
void pst_sst_writer_destroy(pst_sst_writer *w);

/* XXH64 (seed 0) of the whole file, as pst_file_info has it. PST_CALLBACK, PST_NO_MEMORY. */
pst_status pst_file_checksum(const pst_io *io, uint64_t file_bytes, uint64_t *checksum);

/* Opens a file: footer, header, schema and index are read and verified. PST_CORRUPT, with the
 * offset in the detail; PST_NEWER_FORMAT, PST_CALLBACK, PST_NO_MEMORY, PST_LIMIT; PST_INVALID:
 * nothing to read with. */
pst_status pst_sst_reader_open(const pst_io *io, uint64_t file_bytes, pst_sst_reader **reader,
                               pst_detail *detail);
void pst_sst_reader_close(pst_sst_reader *r);
/* All valid as long as the reader. */
const pst_file_info *pst_sst_reader_info(const pst_sst_reader *r);
/* The schema as written, or as pst_sst_reader_evolve made it; owned by the reader. */
const pst_schema *pst_sst_reader_schema(const pst_sst_reader *r);
const pst_detail *pst_sst_reader_detail(const pst_sst_reader *r);
/* What each of n key groups from `first` on has by the file's index alone: adds to `puts`, `deletes`
 * and `bytes` (as stored, compressed). A block of several groups counts for each of them alike; so
 * does a segment of a guided file. It reads nothing. O(blocks + groups of each block). */
void pst_sst_reader_spread(const pst_sst_reader *r, int32_t first, int32_t n, double *puts,
                           double *deletes, double *bytes);
/* Positions before the first record of the inclusive range; reads only blocks that meet it.
 * PST_INVALID: no range. */
pst_status pst_sst_reader_seek(pst_sst_reader *r, int32_t first_key_group, int32_t last_key_group);
/* PST_NOT_FOUND at the end of the range. The record is valid until the next call. PST_CORRUPT,
 * PST_CALLBACK, PST_NO_MEMORY, PST_LIMIT; PST_INVALID: a compressed block, and nothing to read it
 * with. */
pst_status pst_sst_reader_next(pst_sst_reader *r, pst_record *record);

/* Applies all records of the seeked range to the open epoch of the table. `columns` as in
 * pst_table_apply; NULL where n_columns is all that the file has. `rows` (may be NULL) counts them.
 * PST_SCHEMA: the key or a column that is taken is not of the table's type, or a time is taken
 * without its value; nothing was applied. PST_INVALID: not attached, or columns as in
 * pst_table_apply. PST_NOT_HERE as there. PST_POISONED, and what the reader and applying a record say; where some were
 * applied by then the epoch is poisoned. */
pst_status pst_table_load(pst_table *t, pst_sst_reader *r, const int32_t *columns,
                          int32_t n_columns, uint64_t *rows);

/* Brings the rows of a table that is not whole up to date with a file that others made: applies what
 * the reader has of keys that have a row, and passes over all others, which are looked for below. A
 * horizon goes back to before the timers of these. The deltas since the table's last sealed epoch are
 * given one after the other, in an open epoch that has done nothing else; sealed under the lineage of
 * the last one, the table is what its files say then. `rows` (may be NULL) counts the records.
 * PST_INVALID: not attached, or whole; or a list's items expire, whose numbers others may have begun
 * anew. PST_SCHEMA: the file's columns are not the table's own. PST_POISONED; else as pst_table_load. */
pst_status pst_table_refresh(pst_table *t, pst_sst_reader *r, uint64_t *rows);

/* Puts all rows and timers of some key groups, as another table has them, into the open epoch of a
 * table, which has none of those keys; `rows` (may be NULL) counts the records. Both tables have
 * one schema. PST_NOT_HERE: rows of `from` lie in files below it. PST_INVALID: not attached; a table does not have the key groups; or `from` has an
 * open epoch. PST_SCHEMA; PST_POISONED; memory. If some rows were put by then the epoch is
 * poisoned. */
pst_status pst_table_copy(pst_table *to, pst_table *from, int32_t first_key_group,
                          int32_t last_key_group, uint64_t *rows);

/* A state of a file, and what it becomes. Both types are trees in preorder as in pst_nested_create,
 * or one scalar. Of a list they are the items' type, of a map the values'. Without any types the
 * values stay as they are. */
typedef struct pst_evolution {
    int32_t column;       /* of the file's states */
    const pst_column *to; /* as in a file's schema; its name is not looked at */
    const struct pst_nested_type *from_types;
    int32_t n_from;
    const struct pst_nested_type *to_types;
    int32_t n_to;
    /* For each of the latter, which of the former it is made of; -1: null. A struct's field is made
     * of a field of the struct that its own is made of, an element of an element. Scalars may be
     * wider: see pst_widens. */
    const int32_t *from;
    /* A value of the new type, or NULL: fields that are made of nothing are as in it, unless they
     * are within arrays or maps that are made of something. It is read by the call. */
    const uint8_t *fill;
    uint32_t fill_bytes;
} pst_evolution;

/* Whether every value of a scalar type has exactly one of another type, in the same order: integers
 * as wider ones, as floats and decimals that hold all their digits, floats as doubles, dates as the
 * timestamp of their midnight in UTC, decimals with more digits on both sides of the point; and
 * each type itself. */
int pst_widens(const struct pst_nested_type *from, const struct pst_nested_type *to);

/* From now on the reader gives these states as they become, and its schema says so; keys of maps
 * are as the new column says, which must have the same bytes in files. Blocks are converted when
 * they are read: PST_OVERFLOW then says that a date is beyond all timestamps, PST_TOO_LARGE that a
 * value is, and PST_CORRUPT what a file's bytes are. Once at most, before the first record is read.
 * PST_SCHEMA: it cannot become that; PST_INVALID: no such column, or no such trees; PST_NO_MEMORY.
 * After a failure the reader can only be closed. */
pst_status pst_sst_reader_evolve(pst_sst_reader *r, const pst_evolution *evolutions, int32_t n);

/* Merges files, oldest first, into one writer (PST_BASE drops tombstones and cleared columns). All
 * must have the schema that the writer was made with, or a prefix mapping in columns[f] (NULL:
 * identity), else PST_SCHEMA. The writer may have a multiple of a file's key groups, which are then
 * split; PST_SCHEMA for any other number. The readers are seeked by the call to the writer's range.
 * PST_INVALID: no readers; a column is not the writer's; the writer's range meets two parts of one
 * key group; and what readers and the writer say. */
pst_status pst_merge(pst_sst_reader *const *readers, const int32_t *const *columns, int32_t n,
                     pst_sst_writer *writer);

/* What has expired, for merges: as a table with these settings, one for each state of the schema, is
 * told that it is so late. A setting of zeros: nothing of the state expires. */
typedef struct pst_expiry {
    const pst_ttl *ttl;
    pst_clock clock;
} pst_expiry;

/* As pst_merge into a base, without values, entries of maps and leading items of lists that no reader
 * sees any more, and without rows of which nothing is left; rows with timers stay. Of what can still
 * be seen (pst_ttl.lenient), and of a list's run one item of which can be seen, nothing is left out.
 * What has no time gets the one that a sweep would give it: it was written when its state did not
 * expire, or before the clock was known. Where neither is the case the file is that of pst_merge. The clock of the newest merged epoch gives the same file whenever it is asked for. A table whose deltas are to be merged behind such a base
 * must have pst_table_set_whole_rows, of a byte at least: what is put again may differ from what has
 * expired in its time alone. PST_INVALID: a delta; a state without a time expires. */
pst_status pst_merge_expiring(pst_sst_reader *const *readers, const int32_t *const *columns,
                              int32_t n, const pst_expiry *expiry, pst_sst_writer *writer);

/* A part of a range of key groups: of the first one only keys whose hash is `first` at least, and of
 * the last one only those up to `last`. So key groups of any size can be read in parts, as keys of
 * one hash, with all that they have, are in one of them. */
typedef struct pst_hashes {
    uint64_t first;
    uint64_t last;
} pst_hashes;

/* Merges files, oldest first, into the rows that a table with that schema would have: to io->block
 * go the columns of the key, then of each state: of a value that; of a list where each one ends, and
 * the items; of a map where each one ends, the keys and the values. Times and timers have no columns.
 * With `expiry`, which may be NULL, nothing is there that a reader of such a table would not see; what
 * is to be seen once after it has expired (pst_ttl.lenient) is there, and stays to be seen. Keys that
 * have none of the states, timers apart, are left out. `hashes` may be NULL: all. A batch has at most 65536 rows or, of several
 * rows, some 4 MB. `columns` as in pst_merge, but the schema is a table's. PST_INVALID: no `block`; a
 * state without a time expires; PST_TOO_LARGE: a column of one row alone has more than 2^31 - 1
 * elements or bytes; PST_CORRUPT: a run of items does not follow the one before; PST_LIMIT,
 * PST_CALLBACK; and what pst_merge says of readers. */
pst_status pst_gather(pst_sst_reader *const *readers, const int32_t *const *columns, int32_t n,
                      const pst_schema *schema, const pst_expiry *expiry, int32_t max_parallelism,
                      int32_t first_key_group, int32_t last_key_group, const pst_hashes *hashes,
                      const pst_io *io);

/* ---- readers of the last sealed epoch -------------------------------------------------------- */

/* Statuses of all readers' calls. PST_BUSY: rows have been moving for six seconds, or whoever moved
 * them is gone; in that case the next attach ends it, and a reader that is opened after that works.
 * PST_SNAPSHOT_TOO_OLD: the pinned epoch is gone for good. PST_NO_MEMORY. */

/* Pins the last sealed epoch of a table, in this process (table != NULL, which must outlive the
 * reader) or of a shared table's file (path != NULL; the schema must be the table's). Never blocks
 * the writer. Of a file: PST_NOT_FOUND; PST_MISMATCH: it is another table's; PST_INVALID: no
 * schema; PST_CORRUPT: its header contradicts itself; PST_ADDRESS_SPACE, PST_IO. */
pst_status pst_reader_open(pst_table *table, const pst_schema *schema, const char *path,
                           pst_reader **reader, pst_detail *detail);
void pst_reader_close(pst_reader *r);
/* Valid as long as the reader. */
const pst_lineage *pst_reader_lineage(const pst_reader *r);
/* One key as of the pinned epoch; the record is valid until the next call. PST_NOT_FOUND where it
 * has no row. PST_NOT_HERE in its place where rows lie below the table (pst_table_set_whole): the
 * files of the epoch know the key, or nobody does. PST_WRONG_KEY_GROUP; PST_TOO_LARGE: the key. */
pst_status pst_reader_get(pst_reader *r, const pst_cell *key, uint32_t nulls, pst_record *record);
/* Live rows as of the pinned epoch, in slot order; the record is valid until the next call.
 * PST_NOT_FOUND at the end; PST_NOT_HERE in its place where rows lie below the table, of which none
 * were visited: those that were are all that were in the table in that epoch. After PST_BUSY the cursor stands where it was. */
pst_status pst_reader_next(pst_reader *r, uint64_t *cursor, pst_record *record);

#ifdef __cplusplus
}
#endif

#endif
