/* reshape.h: values of one type as values of another, a whole column at a time.
 *
 * A struct's fields are matched by their caller; what has no source is null, or as in a value that
 * fills it. Nested values go through Arrow columns: they are decoded, scalars are widened, and the
 * columns of the new type are encoded.
 *
 * Thread safety: a pst_reshape is immutable.
 */
#ifndef PST_NESTED_RESHAPE_H
#define PST_NESTED_RESHAPE_H

#include "pystate.h"

typedef struct pst_reshape pst_reshape;

/* `from` as in pst_evolution. PST_SCHEMA, PST_INVALID, PST_NO_MEMORY. */
pst_status pst_reshape_create(const pst_nested_type *from_types, int32_t n_from,
                              const pst_nested_type *to_types, int32_t n_to, const int32_t *from,
                              pst_reshape **reshape);
/* Gives fields without a source the content that they have in a value of the new type; once.
 * PST_CORRUPT: it is no such value. PST_INVALID: scalars have no fields. PST_NO_MEMORY. */
pst_status pst_reshape_fill(pst_reshape *r, const uint8_t *value, uint32_t size);
void pst_reshape_destroy(pst_reshape *r); /* or NULL */

/* The pst_type and the width of values; the width is 0 where it varies. */
typedef struct pst_value_shape {
    pst_type type;
    uint32_t width;
} pst_value_shape;

pst_value_shape pst_reshape_takes(const pst_reshape *r);
pst_value_shape pst_reshape_gives(const pst_reshape *r);

/* Converts n values that lie one after the other; `ends` has n + 1 offsets where their width
 * varies. The caller frees `out`, in which widths that do not vary have no offsets. PST_CORRUPT,
 * PST_OVERFLOW, PST_TOO_LARGE, PST_NO_MEMORY. */
pst_status pst_reshape_run(const pst_reshape *r, const uint8_t *data, uint64_t bytes,
                           const int32_t *ends, int64_t n, pst_nested_rows *out);

#endif
