/* pystate.h: the public face of the core.
 *
 * A table holds the keyed state of one operator for one range of key groups: a row per key, a
 * column per state. It lives in anonymous memory (home `heap`) or in a file that all processes of
 * a host map (home `shared`). One process writes at a time; sealed epochs are immutable names for
 * what the table held, and the last two of them can be undone. IMPL.md explains the design,
 * FORMAT.md the files.
 *
 * Thread safety: a pst_table and its pst_batch handles belong to one thread at a time (any
 * thread). A pst_sealed, a pst_sst_reader and a pst_reader are independent handles: each may be
 * used by one thread at a time, beside the writer.
 *
 * Statuses. Every function returns a pst_status unless it cannot fail, and PST_OK where it has done
 * what it says. It lists the others itself, or its section lists them for all of its functions.
 * Where one says "memory", the table had to grow: PST_LIMIT, PST_NO_SPACE, PST_NO_MEMORY, PST_IO,
 * or PST_TOO_LARGE for a table that is full. A write that fails after its arguments were checked
 * may leave the epoch half written: then all that reads or writes values says PST_POISONED until a
 * roll back. On a status other than PST_OK the outputs are untouched unless the function says
 * otherwise, and pst_table_detail (or the reader's counterpart) says where it happened.
 *
 * Ownership. What a function creates belongs to the caller, who gives it to the destroy, close or
 * release of the same name; these take NULL. Arguments are only read, and need not outlive the call
 * where nothing else is said. Pointers in results lead into memory of the handle that gave them,
 * and are valid as long as it says.
 */
#ifndef PYSTATE_H
#define PYSTATE_H

#include "interface/access.h"
#include "interface/fetch.h"
#include "interface/files.h"
#include "interface/lookup.h"
#include "interface/nested.h"
#include "interface/stack.h"
#include "interface/table.h"
#include "interface/values.h"

#endif
