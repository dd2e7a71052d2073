/* timer_batch.h: what registering, deleting and firing timers check. */
#ifndef PST_TIMER_BATCH_H
#define PST_TIMER_BATCH_H

#include "access/batch.h"
#include "elements/timers.h"

/* PST_INVALID, PST_POISONED. */
pst_status pst_check_timers(const pst_table *t, pst_domain domain);
/* Whether these are the times of the batch's keys, also PST_STALE and PST_WRONG_TYPE. */
pst_status pst_check_times(const pst_batch *b, pst_domain domain, const pst_array *times);

#endif
