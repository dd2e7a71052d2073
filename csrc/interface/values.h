/* values.h: statuses, types and values: what all of the core speaks.
 *
 * Thread safety: plain data, and functions without state.
 * Statuses and ownership are as `pystate.h` says.
 */
#ifndef PST_INTERFACE_VALUES_H
#define PST_INTERFACE_VALUES_H

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
    PST_STALE = 10,            /* a batch, or files below, from before a seal or a roll back      */
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
    PST_NO_STACK = 23,         /* rows lie below the table, and no stack of files says which      */
    PST_NO_ROOM = 24,          /* rows, or what is put, do not fit: take fewer, or seal first     */
    PST_NOT_HERE = 25,         /* not in the table, or memory; it may lie in files, or nowhere    */
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
    PST_TIMER = 5,  /* hidden, PST_INT64, behind that column: the key's timer, if it has just one */
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

#ifdef __cplusplus
}
#endif

#endif
