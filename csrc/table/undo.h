/* undo.h: before-images, and the way back.
 *
 * Purpose: the first touch of a row in an epoch saves the row's header and image; undoing an epoch
 * puts them back.
 *
 * Thread safety: the writer's alone. Readers follow records that a row's header names.
 *
 * Invariants
 *  U1. First touch: record complete -> count released -> release fence -> header -> release
 *      fence -> image, as relaxed stores. A header whose record is not counted counts as untouched, so a kill in
 *      between loses nothing.
 *  U2. Record i of epoch e lies at i * record_size in log e % 3 as
 *      {slot, header before, image before}. A log is overwritten from its start when epoch e + 3
 *      begins, after `floor` says so.
 *  U3. Undoing writes only values that the records and the target's meta hold, newest epoch
 *      first, newest record first; done again from the start after a kill it ends the same.
 *  U4. An insert has no record: the slots that an epoch took are the difference of its meta and
 *      its predecessor's, as far as their rows bear its stamp (SL1): reusable ones first, then fresh
 *      ones. Their index entries go back to empty, newest first, and their headers to zero.
 *  U5. Where a key's bytes have moved, {slot | PST_UNDO_KEY, second word of the reference before} stands
 *      among the records. No row's header names it, and none is written before the seal cannot fail any
 *      more: who goes over the records of an open epoch finds rows only.
 */
#ifndef PST_UNDO_H
#define PST_UNDO_H

#include <assert.h>

#include "table/row.h"

/* Guarantees room for n first touches and n inserts without further checks. */
pst_status pst_undo_reserve(pst_table *t, uint64_t n);

static inline uint64_t *pst_undo_record(const pst_table *t, uint8_t *log, uint64_t i) {
    return (uint64_t *)(log + i * t->lay.record_size);
}

/* Which states were present in the image that a record keeps. */
static inline uint64_t pst_undo_presence(const pst_table *t, const uint64_t *record) {
    return t->lay.wide ? record[2] : (record[1] >> 1) & 0x7F;
}

/* In the first word of a record of a key (U5). */
#define PST_UNDO_KEY (UINT64_C(1) << 32)

/* The log of an epoch. */
static inline uint8_t *pst_undo_log(const pst_table *t, uint64_t epoch) {
    return pst_space(&t->arena, PST_SPACE_UNDO + (int)(epoch % PST_UNDO_LOGS));
}

/* Bytes by which the log is brought into cache ahead of its end. */
enum { PST_UNDO_AHEAD = 1024 };

/* Counts the record that was just written, which is part of what undoing puts back from now on. */
static inline uint32_t pst_undo_count_one(pst_table *t) {
    uint32_t index = (uint32_t)t->undo_count++;
    pst_release64(&t->h->undo_count[t->h->active % PST_UNDO_LOGS], t->undo_count);
    PST_FENCE(__ATOMIC_RELEASE);
    return index;
}

static inline void pst_touch_first(pst_table *t, uint32_t slot, uint64_t *row) {
    assert(t->undo_count < t->undo_capacity);
    uint64_t header = row[0];
    uint64_t *record = pst_undo_record(t, t->undo, t->undo_count);
    pst_put64(record, slot);
    pst_put64(record + 1, header);
    pst_put_words(record + 2, row + t->lay.image_offset / 8, t->lay.image_words);
    __builtin_prefetch((const uint8_t *)record + PST_UNDO_AHEAD, 1);
    uint32_t index = pst_undo_count_one(t);
    pst_put64(row, pst_make_header((uint32_t)header, t->stamp, index));
    /* Who sees a word of the new image must find the new header when he looks again. */
    PST_FENCE(__ATOMIC_RELEASE);
}

/* After it the row may be changed. Room was reserved. */
static inline void pst_touch(pst_table *t, uint32_t slot, uint64_t *row) {
    if (pst_header_stamp(row[0]) != t->stamp)
        pst_touch_first(t, slot, row);
}

/* Another place for the bytes of a row's key, where they lie already. Room for a touch was reserved. */
static inline void pst_undo_set_key(pst_table *t, uint32_t slot, uint64_t *word, uint64_t to) {
    assert(t->undo_count < t->undo_capacity);
    uint64_t *record = pst_undo_record(t, t->undo, t->undo_count);
    pst_put64(record, slot | PST_UNDO_KEY);
    pst_put64(record + 1, *word);
    (void)pst_undo_count_one(t);
    pst_put64(word, to);
}

/* Undoes every epoch above h->sealed, which the caller has set to the target. Returns the number
 * of records put back. */
uint64_t pst_undo_to_sealed(pst_table *t);

#endif
