/* dropped.h: the elements of a file that are not taken from it.
 *
 * Thread safety: pure functions over their arguments.
 */
#ifndef PST_DROPPED_H
#define PST_DROPPED_H

#include "pystate.h"

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
