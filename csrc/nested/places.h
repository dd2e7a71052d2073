/* places.h: columns of structs whose values have a constant width, field by field.
 *
 * Thread safety: pure functions.
 */
#ifndef PST_NESTED_PLACES_H
#define PST_NESTED_PLACES_H

#include "nested/types.h"

/* Writes the rows' bytes into an empty buffer; see pst_nested_encode. PST_WRONG_TYPE: *row is
 * refused. */
pst_status pst_places_encode(const pst_nested *nested, const pst_nested_array *arrays, int64_t rows,
                             pst_growing *out, int64_t *row, const char **fault);

/* Fills the columns from values that were checked; `slots` is row 0. Bit offset + i of `validity`
 * (NULL: no nulls) is row i's. PST_NO_MEMORY; columns are then as far as they were filled. */
pst_status pst_places_decode(const pst_nested *nested, const uint8_t *validity, int64_t offset,
                             const uint8_t *slots, int64_t rows, pst_nested_column *columns);

#endif
