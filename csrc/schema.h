/* schema.h: owned copies of schemas.
 *
 * Thread safety: pure functions over their arguments.
 *
 * Invariants
 *  C1. A copy is valid (pst_schema_check) and owns its names; it outlives what it was made from.
 */
#ifndef PST_SCHEMA_H
#define PST_SCHEMA_H

#include "pystate.h"

/* PST_INVALID: counts, names or types out of range. */
pst_status pst_schema_check(const pst_schema *schema);
/* Whether the last key column is the element (PST_ELEMENT_COLUMN). */
int pst_schema_has_element(const pst_schema *schema);

pst_status pst_schema_copy(const pst_schema *from, pst_schema *to);
void pst_schema_clear(pst_schema *schema);

/* Whether version 1 of the file format can say all of it: values of the first thirteen types under
 * a key without a namespace. */
int pst_schema_is_plain(const pst_schema *schema);

/* Bytes of a value of that type in an array; 0 where its cells are bytes. BOOL: 1. */
uint32_t pst_type_width(pst_type type);

/* A fingerprint of names, types and order. */
uint64_t pst_schema_fingerprint(const pst_schema *schema);

#endif
