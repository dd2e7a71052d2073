/* pystate.h: the public face of the core.
 *
 * A table holds the keyed state of one operator for one range of key groups: a row per key, a
 * column per state. It lives in anonymous memory (home `heap`) or in a file that all processes of
 * a host map (home `shared`). One process writes at a time; sealed epochs are immutable names for
 * what the table held, and the last two of them can be undone. IMPL.md explains the design,
 * FORMAT.md the files.
 *
 * Thread safety: a pst_table and its pst_batch handles belong to one thread at a time (any
 * thread). A pst_sealed, a pst_sst_reader and a pst_reader are independent handles: each may be
 * used by one thread at a time, beside the writer.
 *
 * Statuses. Every function returns a pst_status unless it cannot fail, and PST_OK where it has done
 * what it says. It lists the others itself, or its section lists them for all of its functions.
 * Where one says "memory", the table had to grow: PST_LIMIT, PST_NO_SPACE, PST_NO_MEMORY, PST_IO,
 * or PST_TOO_LARGE for a table that is full. A write that fails after its arguments were checked
 * may leave the epoch half written: then all that reads or writes values says PST_POISONED until a
 * roll back. On a status other than PST_OK the outputs are untouched unless the function says
 * otherwise, and pst_table_detail (or the reader's counterpart) says where it happened.
 *
 * Ownership. What a function creates belongs to the caller, who gives it to the destroy, close or
 * release of the same name; these take NULL. Arguments are only read, and need not outlive the call
 * where nothing else is said. Pointers in results lead into memory of the handle that gave them,
 * and are valid as long as it says.
 */
#ifndef PYSTATE_H
#define PYSTATE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- statuses ------------------------------------------------------------------------------ */

/* Values are part of the contract: never renumbered, one meaning each. */
typedef enum pst_status {
    PST_OK = 0,
    PST_NOT_FOUND = 1,         /* no such key, value or end of iteration: not an error            */
    PST_NO_MEMORY = 2,         /* the allocator or the kernel refused memory                      */
    PST_NO_SPACE = 3,          /* the file system that holds a shared table is full               */
    PST_LIMIT = 4,             /* a table's or a budget's memory limit would be passed            */
    PST_ADDRESS_SPACE = 5,     /* the address range could not be reserved (RLIMIT_AS)             */
    PST_INVALID = 6,           /* an argument breaks the function's contract                      */
    PST_WRONG_TYPE = 7,        /* an array's type is not the column's                             */
    PST_OVERFLOW = 8,          /* integer overflow in add: the epoch can only be rolled back      */
    PST_WRONG_KEY_GROUP = 9,   /* a key does not belong to the table's range                      */
    PST_STALE = 10,            /* the batch outlived a seal or a roll back                        */
    PST_BUSY = 11,             /* another process holds the table's lock, or is rolling back      */
    PST_MISMATCH = 12,         /* a shared table of another schema, boot or format: discard it    */
    PST_SNAPSHOT_TOO_OLD = 13, /* the reader's epoch has left the undo window, or was undone      */
    PST_NO_UNDO = 14,          /* the epoch to roll back to is outside the undo window            */
    PST_CORRUPT = 15,          /* bytes that a checksum or a bound contradicts                    */
    PST_NEWER_FORMAT = 16,     /* a file of a later, incompatible format version                  */
    PST_IO = 17,               /* a system call failed; detail.sys_errno says which way           */
    PST_POISONED = 18,         /* a write failed half way: roll back before anything else         */
    PST_TOO_LARGE = 19,        /* a value or key above PST_MAX_BYTES, or a full table             */
    PST_CALLBACK = 20,         /* an I/O or codec callback failed; it keeps its own error         */
    PST_SCHEMA = 21,           /* a file's schema does not fit the table's                        */
    PST_CHANGED = 22,          /* what was sized has changed since: size it again                 */
} pst_status;

/* Where a status came from. Fields that do not apply are -1. */
typedef struct pst_detail {
    int64_t offset; /* in the file */
    int64_t row;    /* in the batch */
    int32_t column; /* state column, or key column for PST_WRONG_TYPE on keys */
    int32_t key_group;
    int32_t sys_errno;
} pst_detail;

/* A short text for a status, which lives for ever. */
const char *pst_status_name(pst_status s);

/* ---- types and schema ---------------------------------------------------------------------- */

/* Part of the file format: never renumbered. */
typedef enum pst_type {
    PST_BOOL = 1, /* in arrays: bit-packed as Arrow does; in cells: 0 or 1                  */
    PST_INT8 = 2,
    PST_INT16 = 3,
    PST_INT32 = 4,
    PST_INT64 = 5,
    PST_FLOAT32 = 6,
    PST_FLOAT64 = 7,
    PST_DATE32 = 8,    /* days since 1970-01-01, 32 bits                                         */
    PST_TIMESTAMP = 9, /* microseconds, 64 bits                                                  */
    PST_DECIMAL = 10,  /* 128 bits, little-endian two's complement, unscaled                     */
    PST_STRING = 11,   /* UTF-8, 32-bit offsets                                                  */
    PST_BINARY = 12,   /* bytes, 32-bit offsets                                                  */
    PST_OBJECT = 13,   /* pickled bytes; only a value, never a key                               */
    PST_FIXED = 14,    /* a struct of fixed-width fields, `width` bytes in the row; never a key  */
    PST_NESTED = 15,   /* structs, arrays and maps as bytes; never a key                         */
} pst_type;

/* What a state column holds per key. Part of the file format. */
typedef enum pst_kind {
    PST_VALUE = 0,  /* one value of `type`                                                       */
    PST_LIST = 1,   /* items of `type`, in order                                                 */
    PST_MAP = 2,    /* entries from `map_key` to `type`                                          */
    PST_TIME = 3,   /* hidden, PST_INT64: when the column before it was last written, in ms. Of  */
                    /* a list or map the elements bear the time and the row has no such field    */
    PST_TIMERS = 4, /* hidden, PST_INT32: how many timers the key has; at most one such column    */
} pst_kind;

enum {
    PST_MAX_KEYS = 16,   /* key columns                                              */
    PST_MAX_STATES = 64, /* state columns                                            */
    PST_MAX_BYTES = 256 * 1024 * 1024, /* one key or value                                        */
    PST_MAX_FIXED = 256 /* bytes of a struct in the row                             */
};

typedef struct pst_column {
    const char *name; /* UTF-8, NUL-terminated; copied by whoever keeps the schema */
    pst_type type;
    uint8_t precision; /* decimals, else 0 */
    uint8_t scale;
    /* The value that `add` starts from where the state is absent; fixed-width types only. */
    uint8_t has_default;
    uint64_t default_word[2]; /* as in pst_cell.word */
    uint8_t kind;             /* pst_kind */
    uint8_t map_key; /* pst_type of a map's keys, not OBJECT; with its precision and scale */
    uint8_t map_precision;
    uint8_t map_scale;
    uint16_t width;  /* PST_FIXED: bytes, a multiple of 8 up to PST_MAX_FIXED */
    const char *ddl; /* NULL, or the declared type, for whoever reads the schema from a file */
} pst_column;

/* The key's last columns may be a namespace: they tell rows of one key apart, and take no part in
 * the hash, so that all of them lie in one key group. */
typedef struct pst_schema {
    int32_t n_keys;
    int32_t n_states;
    const pst_column *keys;
    const pst_column *states;
    int32_t n_hashed; /* key columns that are hashed; 0: all */
} pst_schema;

static inline int32_t pst_schema_hashed(const pst_schema *s) {
    return s->n_hashed ? s->n_hashed : s->n_keys;
}

/* Bytes that somebody else owns. */
typedef struct pst_bytes {
    const uint8_t *data;
    uint32_t size;
} pst_bytes;

/* One value outside a table. Fixed-width types use `word`: integers, dates and timestamps are
 * sign-extended into word[0], floats are their bits (32 bits for float), decimals both words.
 * STRING and all types after it use `bytes`. */
typedef struct pst_cell {
    uint64_t word[2];
    pst_bytes bytes;
} pst_cell;

/* A column of values in Arrow's layout, owned by the caller. Row i is at physical `offset + i`. */
typedef struct pst_array {
    pst_type type;
    int64_t length;
    int64_t offset;
    const uint8_t *validity; /* LSB-first bitmap, or NULL: no nulls */
    const void *values;      /* fixed-width values, bits for BOOL, or the bytes' data */
    const int32_t *offsets;  /* STRING, BINARY, OBJECT and NESTED: length + offset + 1 entries */
    uint32_t width;          /* FIXED: bytes of a value */
    /* Where there are offsets: bytes of `values`. A value that would lie outside counts as empty,
     * so that whoever writes to the buffers meanwhile changes values and nothing else. */
    int64_t values_bytes;
} pst_array;

/* Where values of variable width are copied to, in two calls. The first, with `data` NULL, sizes:
 * it fills `offsets` (length + 1, from 0) and `valid`. The second copies offsets[length] bytes. It
 * writes nothing behind `capacity`, and says PST_CHANGED where a value is not what was sized. */
typedef struct pst_bytes_out {
    int32_t *offsets;
    uint8_t *valid;
    uint8_t *data;
    uint64_t capacity; /* bytes of `data` */
} pst_bytes_out;

/* ---- hash and key groups ------------------------------------------------------------------- */

/* hash[i] = xxhash64(columns of row i) as Spark SQL computes it: seed 42, columns chained, a null
 * leaves the seed unchanged, -0.0 and NaN canonical. O(rows). PST_WRONG_TYPE for types that are
 * never keys; PST_INVALID for columns of different lengths. `precision` of a decimal column decides
 * between Spark's two forms (<= 18: the unscaled long, else the big-endian two's complement
 * bytes). */
pst_status pst_hash(const pst_array *columns, const uint8_t *precision, int32_t n_columns,
                    uint64_t *hash);

/* pmod(hash, max_parallelism), hash taken as signed. */
int32_t pst_key_group(uint64_t hash, int32_t max_parallelism);
/* The range that owns a key group: kg * parallelism / max_parallelism. */
int32_t pst_range_of(int32_t key_group, int32_t max_parallelism, int32_t parallelism);
/* Inclusive ends of range i. */
void pst_range_bounds(int32_t i, int32_t max_parallelism, int32_t parallelism, int32_t *first,
                      int32_t *last);

/* ---- memory ---------------------------------------------------------------------------------- */

/* One limit for what a process takes, and what the shared tables of its host take. It binds tables
 * without a limit of their own, and the buffers of batches, sealed epochs, files and merges. A
 * table with its own limit is bound by that alone, and counts for the others; while there is one,
 * buffers are counted but not bound. Buffers, seals, and whatever clears, removes or fires may pass
 * a limit by an eighth: a table that is full can be read, emptied and written. Any thread. */
typedef struct pst_budget pst_budget;

/* The memory that this process may use: the machine's, or that of its control group or a group
 * above it if less; versions 1 and 2. `proc` and `cgroups`: where they are looked for, NULL as
 * usual. */
uint64_t pst_memory_bytes(const char *proc, const char *cgroups);

/* `limit_bytes` 0: three quarters of pst_memory_bytes. PST_NO_MEMORY. */
pst_status pst_budget_create(uint64_t limit_bytes, pst_budget **budget);
/* The owner lets go: it lives as long as what was made with it. NULL is allowed. */
void pst_budget_release(pst_budget *b);

typedef struct pst_budget_stats {
    uint64_t limit_bytes;
    uint64_t private_bytes; /* heap tables and buffers of this process */
    uint64_t shared_bytes;  /* shared tables of all processes, in the homes that this one uses */
} pst_budget_stats;
/* Counts the files of shared tables. */
void pst_budget_get_stats(pst_budget *b, pst_budget_stats *stats);

/* What a PST_LIMIT was about. */
typedef struct pst_refusal {
    uint64_t asked_bytes;
    uint64_t private_bytes; /* as in pst_budget_stats; of a table's own limit, what the table had */
    uint64_t shared_bytes;
    uint64_t limit_bytes;
    int own; /* the table's own limit */
} pst_refusal;
/* The last one of the budget, by whatever thread. */
void pst_budget_refusal(const pst_budget *b, pst_refusal *refusal);

/* ---- table --------------------------------------------------------------------------------- */

typedef struct pst_table pst_table;
typedef struct pst_batch pst_batch;
typedef struct pst_sealed pst_sealed;
typedef struct pst_reader pst_reader;

/* The name of a sealed epoch. `id` all zero: the empty table before its first seal. */
typedef struct pst_lineage {
    uint8_t id[16];     /* attempt uuid = id of the epoch's delta file */
    uint8_t parent[16]; /* the id that it was built on                 */
    uint64_t epoch;     /* the coordinator's number                    */
    uint64_t query;     /* fingerprint of (query id, operator uid, range) */
} pst_lineage;

/* Who may use a shared table. Differences make it PST_MISMATCH. */
typedef struct pst_identity {
    uint8_t boot_id[16];
    uint64_t pid_namespace;
    uint32_t owner_pid;   /* the executor JVM, or the process itself */
    uint64_t owner_start; /* its start time in clock ticks since boot */
    uint8_t application[32];
} pst_identity;

typedef struct pst_table_options {
    int32_t max_parallelism;
    int32_t first_key_group; /* inclusive */
    int32_t last_key_group;  /* inclusive */
    uint64_t limit_bytes;    /* of committed memory; 0: the budget's, or without one        */
    pst_budget *budget;      /* three quarters of pst_memory_bytes                          */
    const char *path;        /* shared: the table's file; NULL: heap                        */
    /* Shared: a folder, and how many levels of folders below it, where all files that end in .table
     * are counted together; or a file that is counted alone. NULL: not counted. */
    const char *home;
    int32_t home_depth;
    const pst_identity *identity; /* shared only */
    int32_t lock_timeout_ms;      /* shared only: how long to wait for the lock               */
    int32_t create;               /* shared only: make the file if it is not there           */
} pst_table_options;

/* Creates a heap table, or creates or attaches a shared one under its exclusive lock. An attached
 * table that its last owner left in the middle of an epoch or of a roll back is recovered to its
 * last sealed epoch first. `created` (may be NULL) tells whether the table is new and empty.
 * `detail` may be NULL. PST_INVALID: the schema or an option is out of range; with a column in the
 * detail, files could not tell that one from one before it. PST_BUSY: the lock was not to be had in
 * time. PST_MISMATCH: the file is another's and is left as it is. PST_NOT_FOUND: there is no file,
 * and create == 0. PST_ADDRESS_SPACE, PST_NO_SPACE, PST_LIMIT, PST_NO_MEMORY, PST_IO; PST_CORRUPT:
 * the file's header contradicts itself. The schema is copied; the budget is kept for as long as the
 * table lives. */
pst_status pst_table_open(const pst_schema *schema, const pst_table_options *options,
                          pst_table **table, int *created, pst_detail *detail);

/* Releases the lock, keeping the mapping so that pst_table_attach is warm. An unsealed epoch is
 * rolled back first. No other call but attach and close is valid until then. PST_INVALID: a heap
 * table, or one that is not attached. */
pst_status pst_table_detach(pst_table *t);
/* Takes the lock again, and recovers like open. PST_INVALID: a heap table, or one that is attached.
 * PST_BUSY as open; PST_MISMATCH if the file was replaced meanwhile (close and open again); PST_IO,
 * PST_NO_MEMORY, PST_CORRUPT. On any of them the table stays detached. */
pst_status pst_table_attach(pst_table *t, int32_t lock_timeout_ms);

/* Unmaps and frees. An unsealed epoch of a heap table is lost; of a shared one, undone by the next
 * attach. Batches must be destroyed first. NULL is allowed. */
void pst_table_close(pst_table *t);

/* A forked child's copy: frees the handle and closes the descriptor without unlocking. NULL is
 * allowed. */
void pst_table_abandon(pst_table *t);

/* Where the last call that failed did so: valid until the next call on the table. */
const pst_detail *pst_table_detail(const pst_table *t);

typedef struct pst_table_stats {
    uint64_t keys;        /* live rows                                              */
    uint64_t slots;       /* rows ever taken (live, dead and reusable)              */
    uint64_t row_bytes;   /* committed for rows                                     */
    uint64_t index_bytes; /* in use by the index                                    */
    uint64_t block_bytes; /* in use or reusable for their size: bytes, index pages  */
    uint64_t undo_bytes;  /* committed for undo logs                                */
    uint64_t ring_bytes;  /* committed for rings of reusable memory                 */
    uint64_t meta_bytes;
    uint64_t committed_bytes;   /* all of the above as taken from the system              */
    uint64_t changed_rows;      /* rows touched in the open epoch                         */
    uint64_t recovered_records; /* undo records replayed by the last attach or open     */
    uint64_t recovery_ns;
    uint32_t row_size;
} pst_table_stats;
void pst_table_get_stats(const pst_table *t, pst_table_stats *stats);
/* After a PST_LIMIT. */
void pst_table_refusal(const pst_table *t, pst_refusal *refusal);

/* ---- time to live ---------------------------------------------------------------------------- */

#define PST_NO_TIME INT64_MIN

/* Milliseconds since 1970; PST_NO_TIME where unknown. */
typedef struct pst_clock {
    int64_t processing_ms;
    int64_t watermark_ms;
    int64_t event_ms; /* of the row at hand */
} pst_clock;

typedef struct pst_ttl {
    int64_t duration_ms;    /* 0: nothing expires */
    int64_t granularity_ms; /* a time that moved by less is not written again */
    uint8_t event_time;     /* else processing time */
    uint8_t on_read;        /* reading counts as use: of a value, an entry, or all elements */
    uint8_t lenient;        /* what has expired is visible until it is taken away */
} pst_ttl;

/* How column's values (the elements of a list or map) expire. The column after it must be of kind
 * PST_TIME, and no duration negative, else PST_INVALID. Holds for this handle until it is
 * closed. */
pst_status pst_table_set_ttl(pst_table *t, int32_t column, const pst_ttl *ttl);
/* What TTL takes for now. A fresh handle knows no time: nothing expires. */
void pst_table_set_clock(pst_table *t, const pst_clock *clock);
/* Removes what has expired, in the open epoch, though nothing touched it. It looks at `budget` rows
 * and map entries, and at four more for each row that the epoch made and each entry made since the
 * last call; later calls go on from there. `removed` (may be NULL) counts values and elements, also
 * where this fails. PST_INVALID: not attached. PST_POISONED; PST_CORRUPT in a map. Memory: the rest
 * waits, and the epoch goes on unless the table says that it is poisoned. */
pst_status pst_table_expire(pst_table *t, uint64_t budget, uint64_t *removed);

/* ---- epochs -------------------------------------------------------------------------------- */

/* Seals the open epoch under `lineage` and opens the next one. O(rows changed). `sealed` (may be
 * NULL: no delta wanted) receives the after-images of the changed columns. On failure nothing is
 * sealed. Batches made before become stale. PST_INVALID: not attached. PST_POISONED; PST_CORRUPT in
 * a list or map; memory, after which the same may be tried again unless the table is poisoned. */
pst_status pst_table_seal(pst_table *t, const pst_lineage *lineage, pst_sealed **sealed);

/* The lineage of the sealed epoch `back` before the last one: 0, 1 or 2, else PST_INVALID.
 * PST_NO_UNDO where the window does not reach. */
pst_status pst_table_lineage(const pst_table *t, int32_t back, pst_lineage *lineage);

/* Undoes the open epoch, and then `back` sealed ones (0, 1 or 2). Killed at any point, the next
 * attach completes it. O(rows changed). PST_NO_UNDO where the window does not reach; PST_INVALID:
 * not attached, or `back` is negative. Nothing else fails. */
pst_status pst_table_rollback(pst_table *t, int32_t back);

/* 1 while the open epoch has touched anything. */
int pst_table_dirty(const pst_table *t);

/* ---- batches ------------------------------------------------------------------------------- */

/* Statuses of all functions of a batch: PST_STALE after a seal or a roll back; PST_POISONED;
 * PST_INVALID where there is no such column, it is of another kind, or lengths differ;
 * PST_WRONG_TYPE where it is of another type. Memory, where rows are written to, or reading them
 * counts as use (pst_ttl.on_read). A batch is destroyed before its table is closed. */

/* Hashes the keys and checks them against the table's range; rows are looked up on first use. The
 * key arrays must live, and stay as they are, as long as the batch, which is valid until the next
 * seal or roll back. PST_WRONG_KEY_GROUP names the row and its key group in the detail,
 * PST_WRONG_TYPE the key column. PST_INVALID: not attached, or columns of different lengths.
 * PST_TOO_LARGE: a key. PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_batch_create(pst_table *t, const pst_array *keys, pst_batch **batch);
void pst_batch_destroy(pst_batch *b);
int64_t pst_batch_length(const pst_batch *b);
/* The first row with the same key as row i, which is i itself if none comes before it, to first[i].
 * O(rows), without a look at the table. PST_TOO_LARGE above 2^31 - 1 rows. PST_NO_MEMORY,
 * PST_LIMIT. */
pst_status pst_batch_first(pst_batch *b, int32_t *first);

/* Copies a fixed-width column: values[i] in the type's own width (BOOL: one byte each); valid[i]
 * (a byte each) is 0 where the key or the state is absent, and values[i] is then zero. */
pst_status pst_batch_get(pst_batch *b, int32_t column, void *values, uint8_t *valid);
/* Several columns so, with one visit to each row. */
typedef struct pst_get {
    int32_t column;
    void *values;
    uint8_t *valid;
} pst_get;
pst_status pst_batch_get_all(pst_batch *b, int32_t n, const pst_get *gets);
/* Variable width. PST_TOO_LARGE above 2^31 - 1 bytes in all; PST_CHANGED as pst_bytes_out says. */
pst_status pst_batch_get_bytes(pst_batch *b, int32_t column, const pst_bytes_out *out);
/* Stores a value per key, the last of a repeated key wins; a null clears. `values->length` is the
 * batch's, or 1 for a scalar for every key. A key whose last state is cleared ceases to exist.
 * PST_TOO_LARGE: a value. */
pst_status pst_batch_put(pst_batch *b, int32_t column, const pst_array *values);

typedef enum pst_op { PST_ADD = 1, PST_MIN = 2, PST_MAX = 3 } pst_op;
/* Reads, modifies and writes per row, in order; a repeated key sees its earlier rows. Nulls are
 * skipped; an absent state counts as its default (else zero) for ADD and as the identity for MIN
 * and MAX. Integers, dates and timestamps overflow with PST_OVERFLOW (the row in the detail; the
 * table is then poisoned); decimals too, by precision. NaN is larger than any float, as in Spark.
 * The array's type must be the column's; length as in put. PST_WRONG_TYPE for bool, string,
 * binary, object. */
pst_status pst_batch_apply(pst_batch *b, int32_t column, pst_op op, const pst_array *values);
/* Several such steps, of columns that differ, with one visit to each row instead of one per step.
 * `fresh`, a byte per key unless it is NULL: 1 where the first step gave the row its first value,
 * which of a repeated key is said once. PST_INVALID: no step or more than PST_MAX_STATES; with
 * `fresh`, a first step whose values have a validity or whose column has times to live. */
typedef struct pst_step {
    int32_t column;
    pst_op op;
    pst_array values;
} pst_step;
pst_status pst_batch_apply_all(pst_batch *b, int32_t n, const pst_step *steps, uint8_t *fresh);

/* Clears one column, or with column == -1 deletes the keys altogether. PST_CORRUPT in a list or
 * map. */
pst_status pst_batch_clear(pst_batch *b, int32_t column);

/* The rows touched in the open epoch and alive, as a batch whose keys need no look-up: from
 * *cursor (0 first) at most `most` of them. PST_NOT_FOUND at the end. Keys that are written while
 * iterating may or may not be seen. PST_INVALID: not attached, or `most` is no number of rows.
 * PST_POISONED, PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_batch_changed(pst_table *t, uint64_t *cursor, int64_t most, pst_batch **batch);
/* The same over all live rows, in slot order. Sealing may move rows into other slots, so a walk
 * over several epochs may meet a row twice or never, unless pst_table_keep_rows keeps them where
 * they are. */
pst_status pst_batch_all(pst_table *t, uint64_t *cursor, int64_t most, pst_batch **batch);
/* Says whether sealing leaves rows in their slots. As long as it does the table gets no fewer
 * slots. */
void pst_table_keep_rows(pst_table *t, int keep);
/* A key column of the batch's rows, in the forms of pst_batch_get and pst_batch_get_bytes. Only for
 * batches that were not made of keys (pst_batch_create: PST_INVALID). PST_CORRUPT: no key. */
pst_status pst_batch_get_key(pst_batch *b, int32_t key_column, void *values, uint8_t *valid);
pst_status pst_batch_get_key_bytes(pst_batch *b, int32_t key_column, const pst_bytes_out *out);

/* ---- one key ------------------------------------------------------------------------------- */

/* Makes the key of batch row i current, or the single key given as cells (nulls: a bit per key
 * column), whose bytes are copied. The current key survives until the next set, seal or roll back.
 * PST_INVALID: not attached, no such row, or the batch is another table's. PST_STALE and
 * PST_POISONED of the batch. PST_WRONG_KEY_GROUP, with the group in the detail; PST_TOO_LARGE: the
 * key; PST_NO_MEMORY. */
pst_status pst_key_set_row(pst_table *t, pst_batch *b, int64_t i);
pst_status pst_key_set(pst_table *t, const pst_cell *key, uint32_t nulls);
/* For a table with one non-decimal fixed-width key column, else PST_INVALID: the canonical word,
 * never null. PST_WRONG_KEY_GROUP. */
pst_status pst_key_set_word(pst_table *t, uint64_t word);

/* PST_INVALID without a current key, or for a column of another kind. PST_POISONED. PST_NOT_FOUND:
 * absent. PST_TOO_LARGE: the value; PST_WRONG_TYPE: a struct of another width. Memory, where one is
 * written, or reading counts as use. `cell->bytes` that was read is valid until the next write to
 * the table; what is put is copied. */
pst_status pst_value_get(pst_table *t, int32_t column, pst_cell *cell);
pst_status pst_value_put(pst_table *t, int32_t column, const pst_cell *cell);
/* -1: the whole key. PST_INVALID without a current key or column; PST_POISONED; PST_CORRUPT in a
 * list or map; memory. */
pst_status pst_value_clear(pst_table *t, int32_t column);

/* ---- lists and maps -------------------------------------------------------------------------- */

/* Statuses of all functions here: PST_INVALID without a current key, or for a column of another
 * kind; PST_POISONED; PST_CORRUPT where the chunks or nodes contradict themselves; memory, where
 * something is written, or reading counts as use (pst_ttl.on_read). Those of batches also say what
 * all of a batch say, a null with its row. Cells that come out are valid until the next write to
 * the table; what goes in is copied. */

/* Of the current key. What has expired is neither seen nor counted, and goes when its list or map
 * is written to. PST_TOO_LARGE: an item; PST_WRONG_TYPE: a struct of another width. */
pst_status pst_list_add(pst_table *t, int32_t column, const pst_cell *item);
/* Appends the items of key `from` (cells and nulls as for pst_key_set), each with its time; that
 * key has no list then. Nothing happens if it has none, or is the current key. PST_WRONG_KEY_GROUP:
 * that key; PST_NO_MEMORY. */
pst_status pst_list_take(pst_table *t, int32_t column, const pst_cell *from, uint32_t nulls);
/* PST_NOT_FOUND where there is no such entry. */
pst_status pst_map_get(pst_table *t, int32_t column, const pst_cell *key, pst_cell *value);
/* PST_TOO_LARGE: key or value; PST_WRONG_TYPE: a struct of another width. */
pst_status pst_map_put(pst_table *t, int32_t column, const pst_cell *key, const pst_cell *value);
/* PST_NOT_FOUND where there is no such entry. */
pst_status pst_map_remove(pst_table *t, int32_t column, const pst_cell *key);
/* Elements that a reader sees; with TTL O(elements). */
pst_status pst_elements_count(pst_table *t, int32_t column, uint64_t *count);

/* A walk over a list's items in order, or a map's entries in the order of their keys' bits. Valid
 * until the next write to the table. */
typedef struct pst_elements pst_elements;
/* For walks of that table, before which it is destroyed. PST_NO_MEMORY. */
pst_status pst_elements_create(pst_table *t, pst_elements **elements);
void pst_elements_destroy(pst_elements *e);
/* Of the current key, as a reader; or of the key of batch row i: PST_STALE. */
pst_status pst_elements_start(pst_elements *e, int32_t column);
pst_status pst_elements_start_row(pst_elements *e, pst_batch *b, int64_t i, int32_t column);
/* `key` is filled for maps. PST_NOT_FOUND at the end; PST_CORRUPT. */
pst_status pst_elements_next(pst_elements *e, pst_cell *key, pst_cell *value);
/* Items of a list that lie side by side in the table: `count` of the `left` that the walk has not
 * passed yet, of the column's width and at its alignment. */
typedef struct pst_run {
    const void *items;
    uint64_t count;
    uint64_t left;
} pst_run;
/* PST_NOT_FOUND at the end, with `left` 0. PST_INVALID where each has to be looked at: entries of
 * maps, items of variable width, and those that may be hidden by their age. PST_CORRUPT. */
pst_status pst_elements_next_run(pst_elements *e, pst_run *run);

/* Items to the lists of the batch's keys, in row order; one per row. PST_INVALID: a null, with its
 * row, before anything is written. PST_STALE, PST_WRONG_TYPE; PST_TOO_LARGE: an item. */
pst_status pst_batch_list_append(pst_batch *b, int32_t column, const pst_array *items);
/* items[offsets[i] .. offsets[i + 1]) to the list of key i. Statuses as pst_batch_list_append;
 * PST_INVALID also where offsets fall or pass the items. */
pst_status pst_batch_list_append_many(pst_batch *b, int32_t column, const int32_t *offsets,
                                      const pst_array *items);
/* offsets[length + 1]: where each list or map begins in one run of all that a reader sees, with
 * which reading them begins (pst_ttl.on_read). PST_STALE. */
pst_status pst_batch_element_offsets(pst_batch *b, int32_t column, int64_t *offsets);
/* Items of fixed width as that run, offsets as just counted, to `capacity` bytes at `values`.
 * PST_INVALID for variable width; PST_CHANGED where a list has not as many items as were counted,
 * or they would not fit. PST_STALE. */
pst_status pst_batch_list_copy(pst_batch *b, int32_t column, const int64_t *offsets, void *values,
                               uint64_t capacity);

/* Entry (keys[i]) of the map of key i; in row order. Null keys and values are PST_INVALID with
 * their row, before anything is written. get as pst_batch_get, get_bytes as pst_batch_get_bytes,
 * with PST_TOO_LARGE and PST_CHANGED as there. PST_STALE, PST_WRONG_TYPE; PST_TOO_LARGE: a key or
 * value. */
pst_status pst_batch_map_put(pst_batch *b, int32_t column, const pst_array *keys,
                             const pst_array *values);
pst_status pst_batch_map_remove(pst_batch *b, int32_t column, const pst_array *keys);
pst_status pst_batch_map_get(pst_batch *b, int32_t column, const pst_array *keys, void *values,
                             uint8_t *valid);
pst_status pst_batch_map_get_bytes(pst_batch *b, int32_t column, const pst_array *keys,
                                   const pst_bytes_out *out);

/* ---- aggregates ------------------------------------------------------------------------------ */

/* Statuses of all that add or merge: PST_INVALID without a current key, for another kind of column,
 * or for a shape that there is not; PST_WRONG_TYPE where shape, column and values do not fit each
 * other; PST_OVERFLOW: a sum above 128 bits; PST_CORRUPT: bytes that are no accumulator of the
 * shape; PST_POISONED; memory. Of batches PST_STALE, and the row in the detail. */

/* Part of the file format: never renumbered. */
typedef enum pst_agg_kind {
    PST_AGG_MEAN = 1,
    PST_AGG_VARIANCE = 2,
    PST_AGG_FIRST = 3,
    PST_AGG_LAST = 4,
    PST_AGG_TOP_K = 5,
    PST_AGG_DISTINCT = 6,
} pst_agg_kind;

typedef struct pst_agg_shape {
    uint8_t kind;       /* pst_agg_kind */
    uint8_t type;       /* pst_type of the values; those after DECIMAL are bytes */
    uint16_t parameter; /* TOP_K: k; DISTINCT: precision; else 0 */
} pst_agg_shape;

/* Bytes of a fixed accumulator, the width of its column of type PST_FIXED; 0: its column is
 * PST_BINARY. PST_WRONG_TYPE: the kind does not take the type; PST_INVALID: kind or parameter. */
pst_status pst_aggregate_width(const pst_agg_shape *shape, uint32_t *width);
/* Adds a value per key to the accumulators of a column; in row order, nulls are skipped. */
pst_status pst_batch_aggregate(pst_batch *b, int32_t column, const pst_agg_shape *shape,
                               const pst_array *values);
/* Merges an accumulator of the same shape into each key's: an array of PST_FIXED of that width, or
 * of PST_BINARY; in row order, nulls and empty ones are skipped. */
pst_status pst_batch_merge(pst_batch *b, int32_t column, const pst_agg_shape *shape,
                           const pst_array *accumulators);
/* To the current key's: a value, or another accumulator of the same shape. */
pst_status pst_aggregate_add(pst_table *t, int32_t column, const pst_agg_shape *shape,
                             const pst_cell *value);
pst_status pst_aggregate_merge(pst_table *t, int32_t column, const pst_agg_shape *shape,
                               pst_bytes from);

/* ---- timers ---------------------------------------------------------------------------------- */

/* Statuses of all functions here: PST_INVALID for a table without a column of kind PST_TIMERS, one
 * that is not attached, another domain, without a current key, or where a batch and its times do
 * not fit; PST_POISONED; PST_CORRUPT where the trees of timers contradict themselves; PST_STALE of
 * batches; memory, where something is written. */

typedef enum pst_domain { PST_EVENT = 0, PST_PROCESSING = 1 } pst_domain;

/* Of the current key. Registering one that is there, and deleting one that is not, does nothing. */
pst_status pst_timer_register(pst_table *t, pst_domain domain, int64_t time_ms);
pst_status pst_timer_delete(pst_table *t, pst_domain domain, int64_t time_ms);
/* One per key of the batch; times are PST_INT64, else PST_WRONG_TYPE; nulls are skipped. */
pst_status pst_batch_timer_register(pst_batch *b, pst_domain domain, const pst_array *times);
pst_status pst_batch_timer_delete(pst_batch *b, pst_domain domain, const pst_array *times);

/* The earliest one. PST_NOT_FOUND where there is none. */
pst_status pst_timer_next(const pst_table *t, pst_domain domain, int64_t *time_ms);
/* Up to `most` timers that are due at `until_ms`, as a batch of their keys and their times; those
 * of a key come in order, and all of a key group before the next. They stay registered. `times_ms`
 * has room for `most`, and is written to also where this fails. PST_NOT_FOUND where none is due;
 * PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_timers_due(pst_table *t, pst_domain domain, int64_t until_ms, int64_t most,
                          int64_t *times_ms, pst_batch **batch);
/* Takes timer i of that batch away and makes its key current. PST_NOT_FOUND: it was deleted.
 * PST_INVALID: a batch that was not made by pst_timers_due, or has no such row. */
pst_status pst_timer_fire(pst_batch *b, int64_t i, pst_domain domain, int64_t time_ms);
/* Takes all of them away. */
pst_status pst_timers_fire_all(pst_batch *b, pst_domain domain, const int64_t *times_ms);
/* Counts timers registered since pst_timers_due that were due then. If it has grown, what was
 * handed out may no longer be in order. */
uint64_t pst_timers_missed(const pst_table *t);

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
 * not attached, a column is not the table's, or is there twice. PST_POISONED. PST_WRONG_KEY_GROUP.
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
} pst_file_info;

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
 * gives kind, lineage, max_parallelism and key-group range, PST_INVALID where they or the schema
 * are out of range. One block is buffered. The schema is copied. */
pst_status pst_sst_writer_create(const pst_schema *schema, const pst_file_info *info,
                                 const pst_io *io, pst_sst_writer **writer);
pst_status pst_sst_writer_add(pst_sst_writer *w, const pst_record *record);

/* Rows of one kind, each in words of its own. Of row i, the key is at words[i][key_at] and state k
 * at words[i][at[k]]; bytes are {offset, size} into `bytes`. PST_BYTES_SLACK more bytes can be read
 * behind the last of these. Masks are as of a record. With `keys`, which is NULL otherwise, keys[i] has
 * the key's columns, each a word, and PST_ELEMENT_WORDS where the last column is an element: its
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
 * pst_table_apply. PST_POISONED, and what the reader and applying a record say; where some were
 * applied by then the epoch is poisoned. */
pst_status pst_table_load(pst_table *t, pst_sst_reader *r, const int32_t *columns,
                          int32_t n_columns, uint64_t *rows);

/* Puts all rows and timers of some key groups, as another table has them, into the open epoch of a
 * table, which has none of those keys; `rows` (may be NULL) counts the records. Both tables have
 * one schema. PST_INVALID: not attached; a table does not have the key groups; or `from` has an
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

/* Merges files, oldest first, into the rows that a table with that schema would have: to io->block
 * go the columns of the key, then of each state: of a value that; of a list where each one ends, and
 * the items; of a map where each one ends, the keys and the values. Keys that have none of the
 * states are left out. A batch has at most 65536 rows or, of several rows, some 4 MB. `columns` as
 * in pst_merge, but the schema is a table's. PST_INVALID: timers or times to live in the schema, no
 * `block`; PST_TOO_LARGE: a column of one row alone has more than 2^31 - 1 elements or bytes;
 * PST_CORRUPT: a run of items does not follow the one before; PST_LIMIT, PST_CALLBACK; and what
 * pst_merge says of readers. */
pst_status pst_gather(pst_sst_reader *const *readers, const int32_t *const *columns, int32_t n,
                      const pst_schema *schema, int32_t max_parallelism, int32_t first_key_group,
                      int32_t last_key_group, const pst_io *io);

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
 * has no row. PST_WRONG_KEY_GROUP; PST_TOO_LARGE: the key. */
pst_status pst_reader_get(pst_reader *r, const pst_cell *key, uint32_t nulls, pst_record *record);
/* Live rows as of the pinned epoch, in slot order; the record is valid until the next call.
 * PST_NOT_FOUND at the end. After PST_BUSY the cursor stands where it was. */
pst_status pst_reader_next(pst_reader *r, uint64_t *cursor, pst_record *record);

/* ---- nested values --------------------------------------------------------------------------- */

/* A table holds structs, arrays and maps as bytes, of type PST_FIXED or PST_NESTED. This section
 * turns values into these bytes and back, one value at a time or a column at once. FORMAT.md
 * describes the bytes. Equal values have equal bytes. A reader accepts only what a writer would
 * have written, so it may be given bytes of any origin: at worst it returns PST_CORRUPT. Nothing
 * here needs a table. */

typedef enum pst_nested_kind {
    PST_NESTED_SCALAR = 0, /* bool to binary                                                     */
    PST_NESTED_STRUCT = 1, /* a child for each field, at least one                               */
    PST_NESTED_ARRAY = 2,  /* one child: the elements                                            */
    PST_NESTED_MAP = 3,    /* two children: the keys, scalars that are never null; the values    */
} pst_nested_kind;

enum { PST_NESTED_LEVELS = 32 }; /* of structs, arrays and maps within each other, at most */

/* One type of a tree in preorder: each type comes before its children. */
typedef struct pst_nested_type {
    uint8_t kind;      /* pst_nested_kind                            */
    uint8_t type;      /* of a scalar: PST_BOOL to PST_BINARY        */
    uint8_t precision; /* of a decimal: 1 to 38                      */
    uint32_t n_children;
    uint8_t scale; /* of a decimal                               */
} pst_nested_type;

/* A tree of types. It is immutable, so any number of threads may use it. It must outlive the
 * writers and parsers that were opened with it. Functions name a type by its number in preorder;
 * the root is number 0. */
typedef struct pst_nested pst_nested;

/* Copies `types`; the caller destroys *nested. PST_INVALID: the types are not one tree whose root
 * is a struct, an array or a map, or the tree has more levels than PST_NESTED_LEVELS.
 * PST_NO_MEMORY. */
pst_status pst_nested_create(const pst_nested_type *types, int32_t n_types, pst_nested **nested);
/* `nested` may be NULL. */
void pst_nested_destroy(pst_nested *nested);
/* The width of values in bytes where all have the same (PST_FIXED), or 0 (PST_NESTED). */
uint32_t pst_nested_width(const pst_nested *nested);
/* Where type `i` lies in values that all have the same width. *bit is the number of its validity
 * bit, -1 for the root. *at is the offset of the scalar, -1 for a struct. PST_INVALID: there is no
 * type `i`, or the width of values varies. */
pst_status pst_nested_place(const pst_nested *nested, int32_t i, int32_t *bit, int32_t *at);

/* Why a function of this section returned PST_CORRUPT or PST_WRONG_TYPE. */
typedef struct pst_nested_fault {
    const char *what; /* a constant text; it completes "the bytes are", or "the row has" */
    int64_t row;      /* of the column, or -1 */
    uint64_t at;      /* bytes of the value that were read */
    uint64_t size;    /* bytes of the value */
} pst_nested_fault;

/* Checks whether the bytes are a value of the tree's type. PST_CORRUPT: they are not; `fault`,
 * which may be NULL, says why. */
pst_status pst_nested_check(const pst_nested *nested, const void *data, size_t size,
                            pst_nested_fault *fault);

/* -- Writing one value, part by part. A writer belongs to one thread. After a function has failed,
 * the writer can only be closed. */

/* Bytes that grow: first in the caller's room, then in memory of their own. */
typedef struct pst_growing {
    uint8_t *data;
    size_t size;
    size_t capacity;
    size_t limit;  /* `size` never passes it; 0: it was refused for that */
    uint8_t *heap; /* NULL, or `data`, which then comes from malloc */
} pst_growing;

/* Private: a map's key in a form that is quick to compare. */
typedef struct pst_nested_key {
    uint64_t rank[2];
    const uint8_t *bytes;
    uint32_t size;
    uint32_t index;
} pst_nested_key;

typedef struct pst_nested_writer {
    pst_growing out; /* the value's bytes, valid until the writer is closed */
    /* Private. */
    const pst_nested *nested;
    pst_nested_key *keys; /* of all maps that are begun, those of the innermost last */
    size_t n_keys;
    size_t capacity;
} pst_nested_writer;

/* Private: a struct, an array or a map that was begun. */
typedef struct pst_nested_open {
    size_t bits;  /* offset of its validity bits */
    size_t end;   /* offset behind them */
    size_t first; /* a map's first one of the writer's keys */
    uint64_t n;   /* children */
    int has_bits;
} pst_nested_open;

/* `room`, `capacity` bytes, must live as long as the writer. It may be NULL with a capacity of
 * 0. */
void pst_nested_writer_open(pst_nested_writer *w, const pst_nested *nested, void *room,
                            size_t capacity);
/* Private: what pst_nested_writer_close does where there is something to free. */
void pst_nested_writer_free(pst_nested_writer *w);
static inline void pst_nested_writer_close(pst_nested_writer *w) {
    if (w->out.heap || w->keys)
        pst_nested_writer_free(w);
}

/* The parts are put in the order of their bytes: a struct, then its fields that are not null; an
 * array, then its elements; a map, then all its keys, then pst_nested_put_keys, then its values.
 * What is not put is null. A part is of type `i`, and it is child number `at` of the part `in` that
 * was begun; the root has no such part, and `in` is NULL. All functions return PST_INVALID where
 * type `i` is not of the function's kind or `in` has no such child, and PST_NO_MEMORY. */

/* REQUIRES: the cell holds a value of the type: integers in its range, strings in UTF-8.
 * PST_INVALID, as above, and for a decimal of too many digits. PST_NO_MEMORY. */
pst_status pst_nested_put_scalar(pst_nested_writer *w, int32_t i, const pst_nested_open *in,
                                 uint64_t at, const pst_cell *cell);
/* Does the same for n consecutive children of one type. PST_INVALID, PST_NO_MEMORY. */
pst_status pst_nested_put_scalars(pst_nested_writer *w, int32_t i, const pst_nested_open *in,
                                  uint64_t at, uint64_t n, const pst_cell *cells);
/* PST_INVALID, PST_NO_MEMORY. */
pst_status pst_nested_put_struct(pst_nested_writer *w, int32_t i, const pst_nested_open *in,
                                 uint64_t at, pst_nested_open *open);
/* `nulls` says whether any of the n elements is null. REQUIRES: it is true. PST_INVALID,
 * PST_NO_MEMORY. */
pst_status pst_nested_put_array(pst_nested_writer *w, int32_t i, const pst_nested_open *in,
                                uint64_t at, uint64_t n, int nulls, pst_nested_open *open);
/* `nulls` says the same of the values of the n entries. PST_INVALID, PST_NO_MEMORY. */
pst_status pst_nested_put_map(pst_nested_writer *w, int32_t i, const pst_nested_open *in,
                              uint64_t at, uint64_t n, int nulls, pst_nested_open *open);
/* Sorts the keys of map `i`, all n of which were put. The values follow in the order of the sorted
 * keys. PST_WRONG_TYPE: two keys are equal; *same is the number of the later one. PST_INVALID:
 * there are not n keys. PST_NO_MEMORY. */
pst_status pst_nested_put_keys(pst_nested_writer *w, int32_t i, const pst_nested_open *open,
                               uint64_t *same);
/* The number, in the order in which keys were put, of the entry whose value is child `at`.
 * REQUIRES: at < n, and pst_nested_put_keys returned PST_OK. */
uint64_t pst_nested_entry_at(const pst_nested_writer *w, const pst_nested_open *open, uint64_t at);
/* Call it after a map's values. */
void pst_nested_end_map(pst_nested_writer *w, const pst_nested_open *open);

/* -- Reading one value, part by part. A parser belongs to one thread. It allocates nothing and is
 * not closed. */

typedef struct pst_nested_parser { /* private */
    const uint8_t *data;
    const uint8_t *at;
    const uint8_t *end;
    const pst_nested *nested;
    const char *fault;
    int by_number; /* values have one width: each type but the root has a validity bit */
    int has_key;
    pst_nested_key key; /* the last one that was read, where has_key */
} pst_nested_parser;

/* The bytes must live, and must not change, as long as the parser is used. PST_CORRUPT: values have
 * one width, and these bytes are none; such a value is checked here as a whole. */
pst_status pst_nested_parser_open(pst_nested_parser *p, const pst_nested *nested, const void *data,
                                  size_t size);
/* Call it after the last part. PST_CORRUPT: there are more bytes. */
pst_status pst_nested_parser_finish(pst_nested_parser *p);
/* Says why a function of the parser returned PST_CORRUPT. */
void pst_nested_parser_fault(const pst_nested_parser *p, pst_nested_fault *fault);

/* The parts are taken in the order in which a writer puts them; a map's keys are in the order of
 * their values. All functions return PST_INVALID where type `i` is not of the function's kind, and
 * PST_CORRUPT where the bytes are not such a part. */

/* Fills `word` or `bytes` of the cell. `bytes` points into the parser's bytes; a string's are
 * UTF-8. PST_INVALID, PST_CORRUPT. */
pst_status pst_nested_take_scalar(pst_nested_parser *p, int32_t i, pst_cell *cell);
/* Does the same for n consecutive parts of one type. PST_INVALID, PST_CORRUPT. */
pst_status pst_nested_take_scalars(pst_nested_parser *p, int32_t i, uint64_t n, pst_cell *cells);
/* `bits` is for pst_nested_is_valid and lives as long as the bytes. PST_INVALID, PST_CORRUPT. */
pst_status pst_nested_take_struct(pst_nested_parser *p, int32_t i, const uint8_t **bits);
/* An array or a map: n elements or entries, at most eight for each byte that is left. *bits, as for
 * a struct, is NULL where no element or value is null. PST_INVALID, PST_CORRUPT. */
pst_status pst_nested_take_array(pst_nested_parser *p, int32_t i, uint64_t *n,
                                 const uint8_t **bits);
/* Whether child number `at`, of type `i`, is not null, so that its part comes next. */
static inline int pst_nested_is_valid(const pst_nested_parser *p, int32_t i, const uint8_t *bits,
                                      uint64_t at) {
    uint64_t bit = p->by_number ? (uint64_t)i - 1 : at;
    return !bits || (bits[bit >> 3] >> (bit & 7) & 1);
}

/* -- Columns. */

/* An Arrow array of one type of the tree, owned by the caller. Row i is at physical `offset + i`. A
 * function that reads it stays within what it says, even if somebody writes to the buffers
 * meanwhile. */
typedef struct pst_nested_array {
    int64_t length;
    int64_t offset;
    const uint8_t *validity; /* LSB-first bitmap, or NULL: no nulls */
    const void *values;      /* of scalars, as in pst_array */
    int64_t values_bytes;
    const int32_t *offsets; /* strings, binaries, arrays and maps: length + offset + 1 entries */
    int64_t first;          /* arrays and maps: the offset that means row 0 of the children */
} pst_nested_array;

/* The bytes of a column's rows. The caller frees both blocks with free(). */
typedef struct pst_nested_rows {
    int32_t *offsets; /* rows + 1 entries, from 0; NULL where values have one width */
    uint8_t *data;
    uint64_t data_bytes;
} pst_nested_rows;

/* Encodes the first `rows` rows. There is an array for each type in preorder. A null row has no
 * bytes, or where values have one width, zeros. PST_INVALID: an array is shorter than that, or its
 * `values` than its length. PST_WRONG_TYPE: a row holds what the type does not allow, it takes more
 * than PST_MAX_BYTES, or all rows take more than 2^31 - 1; `fault` says which. PST_NO_MEMORY. */
pst_status pst_nested_encode(const pst_nested *nested, const pst_nested_array *arrays, int64_t rows,
                             pst_nested_rows *out, pst_nested_fault *fault);

/* An Arrow array of one type of the tree. The caller frees its blocks with free(). */
typedef struct pst_nested_column {
    int64_t length;
    int64_t nulls;
    uint8_t *validity; /* a bitmap; NULL: no nulls */
    uint8_t *values;   /* of scalars, as in pst_array; else NULL */
    int32_t *offsets;  /* strings, binaries, arrays and maps: length + 1 entries; else NULL */
    uint64_t values_bytes;
} pst_nested_column;

/* Decodes a column of bytes into a column for each type in preorder. The bytes may be of any
 * origin, but must not change meanwhile. PST_INVALID: `stored` is not of type PST_NESTED, or where
 * values have one width, of type PST_FIXED and this width, or has fewer values than rows.
 * PST_CORRUPT: a row is no value of the type, or the rows do not fit into arrays of 32-bit offsets;
 * `fault` says which. PST_NO_MEMORY. Unless it returns PST_OK, there is nothing to free. */
pst_status pst_nested_decode(const pst_nested *nested, const pst_array *stored,
                             pst_nested_column *columns, pst_nested_fault *fault);

/* ---- memory of operands ---------------------------------------------------------------------- */

/* Memory of any content, aligned to a cache line, for the time of one operation. What is dropped is
 * kept for the next request. NULL: refused. Any thread. */
void *pst_scratch_take(size_t size);
void pst_scratch_drop(void *block); /* or NULL */

#ifdef __cplusplus
}
#endif

#endif
