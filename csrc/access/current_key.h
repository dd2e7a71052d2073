/* current_key.h: the current key.
 *
 * Thread safety: as the table.
 */
#ifndef PST_CURRENT_KEY_H
#define PST_CURRENT_KEY_H

#include "memory/handle.h"

/* The row of the current key, or PST_NONE; with `make` it is made, and room for a touch is there.
 * PST_INVALID without a current key. */
pst_status pst_current_row(pst_table *t, int make, uint32_t *slot);

#endif
