/* schema.h: owned copies of schemas, and what the table and the file layer must agree about where
 * an operator has lists, maps or timers.
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
/* The same of a column that is a value. */
pst_status pst_column_check(const pst_column *column);
/* Whether cells of one mean the same in the other. */
int pst_column_same_type(const pst_column *a, const pst_column *b);
/* Whether column i, when the one before it was written, goes where that one goes: next to it. */
static inline int pst_time_follows(const int32_t *columns, int32_t i) {
    return !columns || columns[i] < 0 || (columns[i - 1] >= 0 && columns[i] == columns[i - 1] + 1);
}
/* Is there a column for a key's only timer? */
int pst_schema_has_timer(const pst_schema *schema);
/* Whether the last key column is the element (PST_ELEMENT_COLUMN). */
int pst_schema_has_element(const pst_schema *schema);

/* As pst_file_schema_create; with `element` also where no state needs that column. */
pst_status pst_schema_in_files(const pst_schema *schema, int element, pst_schema **file);

pst_status pst_schema_copy(const pst_schema *from, pst_schema *to);
void pst_schema_clear(pst_schema *schema);

/* Whether version 1 of the file format can say all of it: values of the first thirteen types under
 * a key without a namespace. */
int pst_schema_is_plain(const pst_schema *schema);

/* Bytes of a value of that type in an array; 0 where its cells are bytes. BOOL: 1. */
uint32_t pst_type_width(pst_type type);

/* A fingerprint of names, types and order. */
uint64_t pst_schema_fingerprint(const pst_schema *schema);

/* The element column of a file's key, which FORMAT.md describes: bytes of a state's id, and of the
 * elements of lists and timers with it. */
enum { PST_ELEMENT_ID = 4, PST_ELEMENT_RUN = 12, PST_ELEMENT_TIMER = 13 };

/* The id of timers. */
#define PST_TIMERS_ID 0u

/* The id of a list or map: a hash of its name, so that it means the same whatever else there is. */
uint32_t pst_collection_id(const char *name);

#endif
