/* below.h: the stack of files below a table.
 *
 * Thread safety: as the table.
 */
#ifndef PST_BELOW_H
#define PST_BELOW_H

#include "memory/handle.h"

/* Whether there is a stack, as the last sealed epoch left the table (FE1). */
int pst_below_is_current(const pst_table *t);
/* Closes what was opened of the stack. */
void pst_below_drop(pst_table *t);

#endif
