/* nested.h: structs, arrays and maps as bytes.
 *
 * Thread safety: a pst_nested is immutable; a writer, a parser and its output belong to one thread.
 * Statuses and ownership are as `pystate.h` says.
 */
#ifndef PST_INTERFACE_NESTED_H
#define PST_INTERFACE_NESTED_H

#include <stddef.h>
#include <stdint.h>

#include "interface/values.h"

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif

#endif
