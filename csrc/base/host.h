/* host.h: how much memory this process may use.
 *
 * Purpose: the number that default limits are taken from. A process in a nested control group is
 * killed when any group above it is full, so the smallest limit on the way up counts.
 *
 * Thread safety: functions without state; they read files.
 */
#ifndef PST_HOST_H
#define PST_HOST_H

#include "pystate.h"

/* A default for limits: three quarters of pst_memory_bytes. */
uint64_t pst_default_limit(void);

#endif
