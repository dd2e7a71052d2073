/* ttl.h: when a state expires.
 *
 * Purpose: the clock that a table is told, and what of a state it makes invisible. Times are
 * milliseconds since 1970; nothing here looks at a real clock.
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  X1. A value written at time w expires when its domain's clock has reached w + duration. For
 *      processing time that clock is the epoch's, for event time the watermark. Before the clock is
 *      known nothing expires; what was seen for the last time (X4) has expired for good. What was
 *      written before it was known does not expire until a sweep has given it a time. Times near
 *      the ends of the range do not wrap.
 *  X2. The time written is the epoch's processing time; or the row's event time, but at least the
 *      watermark. While the value stays the same its time moves only by `granularity` or more, so
 *      that neither reads nor equal writes fill the deltas. The items of a list move together. A
 *      write at an older event time than that of what it replaces leaves the newer one: rows come
 *      late and out of order, and what a newer one said stays for as long as that promised.
 *      With `ahead` (negative, too) the time written is another one: whoever wants what is stored
 *      to keep its expiry under another duration goes on with the first one and sets `ahead` to
 *      the difference. Then an equal write may move a time back (`goes_back`).
 *  X3. A sweep looks at a given number of rows and entries (a list counts with its row), and at
 *      four more for each row that its epoch made and each entry made since the last sweep; a row
 *      that was admitted is not made. So it keeps pace: where as much expires as is made, at most
 *      a quarter of all that is there waits to be removed. It does not see what lies below.
 *  X4. What has expired and is visible nevertheless (pst_ttl.lenient) is so until a reader has seen
 *      it: then a value or an entry has the time PST_SHOWN_TIME, which hides it from all readers,
 *      and elements that were walked over are removed, with those that a walk left out. A batch
 *      sees it at each place of the key. No write leaves that time.
 *  X5. Times are under undo and in files like any value. The settings belong to the process and may
 *      differ from run to run.
 */
#ifndef PST_TTL_H
#define PST_TTL_H

#include "table/row.h"

/* The time of what has expired and was read: before all times, so that it has expired for all. */
#define PST_SHOWN_TIME (INT64_MIN + 1)

static inline int pst_ttl_is_set(const pst_table *t, int32_t column) {
    return t->ttl[column].duration_ms > 0;
}

static inline int64_t pst_ttl_now(const pst_table *t, int32_t column) {
    return t->ttl[column].event_time ? t->clock.watermark_ms : t->clock.processing_ms;
}

/* The time that a write leaves. */
static inline int64_t pst_ttl_stamp_at(const pst_ttl *ttl, const pst_clock *c) {
    int64_t at = c->processing_ms, ahead = ttl->ahead_ms, stamp;
    if (ttl->event_time)
        at = c->event_ms > c->watermark_ms ? c->event_ms : c->watermark_ms;
    if (at == PST_NO_TIME)
        return at;
    if (__builtin_add_overflow(at, ahead, &stamp))
        stamp = ahead > 0 ? INT64_MAX : INT64_MIN;
    return stamp > PST_SHOWN_TIME ? stamp : PST_SHOWN_TIME + 1;
}

static inline int64_t pst_ttl_stamp(const pst_table *t, int32_t column) {
    return pst_ttl_stamp_at(&t->ttl[column], &t->clock);
}

static inline int pst_ttl_expired_at(const pst_ttl *ttl, const pst_clock *clock, int64_t written) {
    int64_t now = ttl->event_time ? clock->watermark_ms : clock->processing_ms;
    if (ttl->duration_ms <= 0 || written == PST_NO_TIME)
        return 0;
    if (written == PST_SHOWN_TIME)
        return 1;
    if (now == PST_NO_TIME || now < written)
        return 0;
    return (uint64_t)now - (uint64_t)written >= (uint64_t)ttl->duration_ms;
}

/* Whether readers do not see what was written then. */
static inline int pst_ttl_hides_at(const pst_ttl *ttl, const pst_clock *clock, int64_t written) {
    return (!ttl->lenient || written == PST_SHOWN_TIME) && pst_ttl_expired_at(ttl, clock, written);
}

static inline int pst_ttl_expired(const pst_table *t, int32_t column, int64_t written) {
    return pst_ttl_expired_at(&t->ttl[column], &t->clock, written);
}

static inline int pst_ttl_hides(const pst_table *t, int32_t column, int64_t written) {
    return pst_ttl_hides_at(&t->ttl[column], &t->clock, written);
}

/* The time that a write leaves in place of what was written then. */
static inline int64_t pst_ttl_rewritten(const pst_table *t, int32_t column, int64_t written) {
    const pst_ttl *ttl = &t->ttl[column];
    int64_t stamp = pst_ttl_stamp(t, column);
    int stays = ttl->event_time && !ttl->goes_back && stamp != PST_NO_TIME && stamp < written;
    return stays ? written : stamp;
}

/* Does reading change what is there, or a write look at the time that it had? */
static inline int pst_ttl_looks_back(const pst_table *t, int32_t column) {
    const pst_ttl *ttl = &t->ttl[column];
    return ttl->on_read || ttl->lenient || (ttl->event_time && !ttl->goes_back);
}

/* Is `written` old enough that writing or reading the value again must be noted? */
static inline int pst_ttl_is_stale(const pst_table *t, int32_t column, int64_t written) {
    int64_t stamp = pst_ttl_stamp(t, column);
    if (written == PST_NO_TIME || stamp == PST_NO_TIME)
        return stamp != PST_NO_TIME;
    if (stamp < written)
        return t->ttl[column].goes_back;
    return stamp > written &&
           (uint64_t)stamp - (uint64_t)written >= (uint64_t)t->ttl[column].granularity_ms;
}

/* The time that reading leaves to a value or an entry that was visible. */
static inline int64_t pst_ttl_read(const pst_table *t, int32_t column, int64_t written) {
    if (t->ttl[column].lenient && pst_ttl_expired(t, column, written))
        return PST_SHOWN_TIME;
    if (t->ttl[column].on_read && pst_ttl_is_stale(t, column, written))
        return pst_ttl_stamp(t, column);
    return written;
}

/* The latest time whose values have expired, or PST_NO_TIME. */
static inline int64_t pst_ttl_horizon(const pst_table *t, int32_t column) {
    int64_t now = pst_ttl_now(t, column), before;
    if (!pst_ttl_is_set(t, column) || now == PST_NO_TIME ||
        __builtin_sub_overflow(now, t->ttl[column].duration_ms, &before))
        return PST_NO_TIME;
    return before;
}

/* When a present value of a column with a time was written. */
static inline int64_t pst_row_time(const pst_table *t, const uint64_t *row, int32_t i) {
    int32_t time = t->lay.fields[i].time;
    if (!(pst_presence(&t->lay, row) >> time & 1))
        return PST_NO_TIME;
    return (int64_t)pst_get64((const uint8_t *)row + t->lay.fields[time].offset);
}

/* Is the present value i of the row out of sight? */
static inline int pst_row_hides(const pst_table *t, const uint64_t *row, int32_t i) {
    return t->lay.fields[i].time >= 0 && pst_ttl_hides(t, i, pst_row_time(t, row, i));
}

/* A sweep under way: where it is, and how many rows and elements it may still look at. */
typedef struct pst_sweep {
    pst_sweep_place at;
    uint64_t left;
    uint64_t removed;
} pst_sweep;

static inline void pst_sweep_look(pst_sweep *s, uint64_t n) {
    s->left -= n < s->left ? n : s->left;
}

/* Notes that the value of a touched row was written now, in place of what it was written before. */
void pst_row_stamp(pst_table *t, uint64_t *row, int32_t i);
/* Notes that it was read, where reading counts as use or ends what is visible. */
pst_status pst_row_refresh(pst_table *t, uint32_t slot, int32_t i);

#endif
