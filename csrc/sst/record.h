/* record.h: what the records of a file may say, and which elements are not taken from it.
 *
 * Purpose: a checksum tells that bytes are as they were written, not that a writer of this core
 * wrote them. Whoever applies or merges records trusts a column's cell to be what the column's kind
 * says. These are the rules that make that safe. The file's schema alone decides them.
 *
 * Thread safety: pure functions over their arguments.
 *
 * Invariants
 *  RC1. A sound record's cells are what their columns say: a list's marker in a row has eight
 *       bytes, an element carries its own state's column, and beside it at most that column's time.
 *       Only of a map, and where the file says so, is that a null: an entry without a value.
 *  RC2. A sound put names a key that the state can have: of the right size and in canonical form. A
 *       delete names any: the state may have been another one of the name.
 *
 * Complexity: O(columns that the record carries).
 */
#ifndef PST_RECORD_H
#define PST_RECORD_H

#include "pystate.h"

typedef struct pst_record_rules {
    const pst_schema *schema;
    int has_element;
    uint64_t in_rows;  /* a bit per column of which a row's record may have a value */
    uint64_t lists;    /* a bit per list */
    uint64_t elements; /* a bit per list, map or column of timers */
    uint64_t nullable; /* a bit per map whose entries may have no value */
    uint32_t ids[PST_MAX_STATES];
} pst_record_rules;

/* The schema must be valid and outlive the rules. PST_CORRUPT: no file has such columns. */
pst_status pst_record_rules_make(const pst_schema *schema, int null_entries,
                                 pst_record_rules *rules);
/* Whether an element of at least an id's size names an entry that a map with such keys can have. */
int pst_map_key_is_sound(pst_type type, pst_bytes element);
int pst_record_is_sound(const pst_record_rules *rules, const pst_record *record);

/* ---- elements that are not taken ------------------------------------------------------------- */

/* The lists, maps and timers of a file that are not taken from it. An element names its state by
 * the id alone, under which the taker may have another state of the same name. */
typedef struct pst_dropped {
    uint32_t ids[PST_MAX_STATES];
    int32_t n;
} pst_dropped;

/* `columns` and their number as in pst_table_load. */
void pst_dropped_note(pst_dropped *d, const pst_schema *from, const int32_t *columns, int32_t n);
int pst_dropped_has(const pst_dropped *d, pst_bytes element);

#endif
