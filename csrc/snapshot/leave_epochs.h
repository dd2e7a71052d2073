/* leave_epochs.h: rows leave a table, in epochs of their own.
 *
 * Thread safety: as the table.
 */
#ifndef PST_LEAVE_EPOCHS_H
#define PST_LEAVE_EPOCHS_H

#include "memory/handle.h"

/* As pst_table_leave, for whoever has what leaves elsewhere than in a stack. */
pst_status pst_leave_epochs(pst_table *t, const pst_room *wanted, pst_room *left);

#endif
