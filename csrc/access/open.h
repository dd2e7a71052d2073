/* open.h: tables that others open.
 *
 * Thread safety: a handle belongs to one thread at a time.
 */
#ifndef PST_OPEN_H
#define PST_OPEN_H

#include "memory/handle.h"

/* A handle that only maps a shared table's file, for readers: no lock, no open epoch. The schema
 * must be the table's; its key groups are taken from the file. */
pst_status pst_table_map_view(const pst_schema *schema, const char *path, pst_table **view,
                              pst_detail *detail);

#endif
