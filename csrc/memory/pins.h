/* pins.h: which epochs readers of a table hold.
 *
 * Purpose: a note in the header that a reader is there, with the process that it is of; one of a
 * process that has gone counts as none.
 *
 * Thread safety: all functions, among processes too.
 */
#ifndef PST_PINS_H
#define PST_PINS_H

#include "memory/layout.h"

/* The place of the new pin; -1: none was free. */
int pst_pin_take(pst_header *h, uint64_t epoch);

/* Whether a living process holds a reader of an epoch that is gone. That reader will notice before
 * it looks at the table again, but may be in the middle of a look. */
int pst_reader_lags(const pst_header *h);

#endif
