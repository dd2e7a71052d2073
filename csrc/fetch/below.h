/* below.h: the stack of files below a table.
 *
 * Thread safety: as the table.
 */
#ifndef PST_BELOW_H
#define PST_BELOW_H

#include "memory/handle.h"

/* Lets go of the stack, and closes what was opened of it. */
void pst_below_drop(pst_table *t);

#endif
