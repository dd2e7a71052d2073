/* resident.h: rows that come from the files below a table, and leave again.
 *
 * Purpose: a table may be a cache of sorted files. A row is admitted with what the files say of its
 * key, and may leave when the files have its last change. Neither is a change of the state, so
 * deltas know of neither.
 *
 * Thread safety: the writer's alone. Readers see what the invariants say.
 *
 * Invariants
 *  R1. An admitted row that its epoch has not touched has stamp 0 and, in the place of the undo
 *      index, the low half of that epoch. So it is untouched: its first touch writes a record with
 *      the files' image, against which gathering compares (G1), and before that it enters no delta.
 *      An epoch has *made* a row of its own stamp and of no undo index, and no other.
 *  R2. An admitted slot is one that the epoch took. Undoing the epoch takes the row out as it does
 *      with an insert (U4). Until the admission ends the row is an insert, so a kill in between
 *      takes it out, too, and one without a state at its end stays an insert that died.
 *  R3. What an admitted row names is not born in the open epoch (t->birth): lists, nodes and bytes
 *      that a record of its first touch names are not written to, and not taken again at once.
 *  R4. Where the meta's `whole` is 0, a key without a row may lie below: only who has asked the
 *      files may say that it is absent. Rows that die in an epoch are absent below once the files
 *      have its delta. REQUIRES of who admits: the files have the changes of all sealed epochs.
 *  R5. A reader of an epoch sees no row that a later epoch has admitted: its key may have had
 *      another row then. Both were right when the row was admitted, but not for ever.
 *  R6. Heat is a hint outside of epochs: any is good.
 *  R7. The row of an admission that left nothing counts as admitted, as the epoch has changed nothing
 *      by it, until something makes it live: then the epoch has made it. Which of the rows that are
 *      made come to life is not known, so until as many have as there were such rows each counts for
 *      one: an epoch is never taken for a clean one that has made a row, and by no more than these it
 *      seems to have changed more than it did.
 *
 * Complexity: admitting is making a row; heat O(1).
 */
#ifndef PST_RESIDENT_H
#define PST_RESIDENT_H

#include "table/value.h"

/* Does nothing lie below the table? Else PST_NONE means "not here", not "absent" (R4). */
static inline int pst_is_whole(const pst_table *t) {
    return t->m->whole != 0;
}

/* ---- horizons -------------------------------------------------------------------------------- */

/* The one before which all timers of earlier times are; of INT64_MAX, before which all are. */
static inline pst_horizon pst_horizon_at(int64_t time_ms) {
    return (pst_horizon){time_ms, time_ms == INT64_MAX ? PST_HORIZON_END : 0, 0, 0};
}

static inline void pst_horizon_store(pst_horizon *at, pst_horizon to) {
    pst_put64(&at->time, (uint64_t)to.time);
    pst_put64(&at->key_group, to.key_group);
    pst_put64(&at->hash, to.hash);
    pst_put64(&at->inner, to.inner);
}

static inline int pst_horizon_is_end(const pst_horizon *h) {
    return h->key_group == PST_HORIZON_END;
}

/* May a timer of that time be before it? Which of those of its own time are is not looked at. */
static inline int pst_horizon_is_after(const pst_horizon *h, int64_t time_ms) {
    return time_ms < h->time || (time_ms == h->time && (h->key_group || h->hash || h->inner));
}

/* ---- rows that come -------------------------------------------------------------------------- */

/* Begins the admission of a key: makes its row, without a state, in a slot that it takes. Then the
 * row is filled: by pst_row_put or, where all are words, as loading does; with lists, maps and
 * timers by pst_admission_* of elements/admit.h instead of this. Several rows may be filled at a
 * time; nothing else may be done to them or to the table's rows before each admission has ended, with
 * one of the two below or by the epoch's undoing.
 *
 * `here`: the key has a row already, also one that died in the open epoch; *slot is that one, and it
 * is to be left alone. In any epoch, at any time outside of an operation on a batch; slots that
 * batches found stay as they are, and a key that they did not find is looked for again (M1).
 * REQUIRES: room for a touch and a row was reserved (pst_undo_reserve), for each row that has not
 * ended; the hash is the one under which the index has the key (pst_key_spread). What pst_row_make
 * says; then nothing has changed. Whoever knows the next keys calls pst_index_prefetch ahead. */
pst_status pst_admit_begin(pst_table *t, const pst_key *key, uint32_t *slot, int *here);
/* Ends it. 0: the row has no state, so the key does not exist, neither here nor below. */
int pst_admit_end(pst_table *t, uint32_t slot);
/* Ends it without a row, after a failure: what the row has is freed, and the key may be admitted
 * again. REQUIRES: it has no timers. */
void pst_admit_drop(pst_table *t, uint32_t slot);

/* ---- rows that leave ------------------------------------------------------------------------- */

/* The row dies in the open epoch without being a change of it; what it has is freed. The epoch must
 * be sealed without a delta, or undone. REQUIRES: room for a touch was reserved; the row lives, has
 * not been touched in the open epoch, and has no timers. After anything but PST_OK the epoch can
 * only be rolled back. */
pst_status pst_expel(pst_table *t, uint32_t slot);

/* ---- heat ------------------------------------------------------------------------------------ */

enum { PST_HEAT_MOST = 3, PST_HEAT_SLOTS = 4 }; /* two bits a slot, four slots a byte */

/* Gives the slots of a table room for heat, if rows lie below. Memory: then later rows stay without,
 * and it is not asked for again before there are more. Part of admitting and leaving. */
pst_status pst_heat_reserve(pst_table *t);

/* A batch or a key has found the row. */
static inline void pst_heat(pst_table *t, uint32_t slot) {
    if (slot >= t->heat_slots)
        return;
    uint8_t *at = t->heat + slot / PST_HEAT_SLOTS;
    uint32_t shift = slot % PST_HEAT_SLOTS * 2, now = pst_get8(at);
    uint32_t more = (now >> shift & PST_HEAT_MOST) != PST_HEAT_MOST;
    /* Without a branch, which would wait for a line that is in nobody's cache. */
    pst_put8(at, (uint8_t)(now + (more << shift)));
}

static inline void pst_heat_set(pst_table *t, uint32_t slot, uint32_t heat) {
    if (slot >= t->heat_slots)
        return;
    uint8_t *at = t->heat + slot / PST_HEAT_SLOTS;
    uint32_t shift = slot % PST_HEAT_SLOTS * 2;
    pst_put8(at, (uint8_t)((pst_get8(at) & ~((uint32_t)PST_HEAT_MOST << shift)) | heat << shift));
}

/* The heat of a slot, and then one less. */
static inline uint32_t pst_heat_lower(pst_table *t, uint32_t slot) {
    if (slot >= t->heat_slots)
        return 0;
    uint8_t *at = t->heat + slot / PST_HEAT_SLOTS;
    uint32_t shift = slot % PST_HEAT_SLOTS * 2, now = pst_get8(at);
    uint32_t heat = now >> shift & PST_HEAT_MOST;
    if (heat)
        pst_put8(at, (uint8_t)(now - (1u << shift)));
    return heat;
}

#endif
