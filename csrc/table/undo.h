/* undo.h: before-images, and the way back.
 *
 * Purpose: the first touch of a row in an epoch saves the row's header and image; undoing an epoch
 * puts them back.
 *
 * Thread safety: the writer's alone. Readers follow records that a row's header names.
 *
 * Invariants
 *  U1. A first touch goes in this order: the record is complete; its count is released; a release
 *      fence; the header; a release fence; the image, by relaxed stores. A header whose record is
 *      not counted counts as untouched, so a kill in between loses nothing.
 *  U2. Record i of epoch e lies at i * record_size in log e % 3 as
 *      {slot, header before, image before}. A log is overwritten from its start when epoch e + 3
 *      begins, after `floor` says so.
 *  U3. Undoing writes only values that the records and the target's meta hold, newest epoch first
 *      and newest record first. After a kill it runs again from the start and ends the same.
 *  U4. An insert has no record. The slots that an epoch took are the difference between its meta
 *      and its predecessor's, as far as their rows bear its stamp (SL1), or it admitted them (R1):
 *      reusable ones first, then fresh ones. Undoing turns their index entries to empty, newest
 *      first, and their headers to zero. An admitted row that was touched is first untouched by
 *      its record.
 *  U5. Where a key's bytes have moved, the record is {slot | PST_UNDO_KEY, second word of the
 *      reference before}. No row's header names it. It is written only when the seal can no longer
 *      fail, so whoever walks the records of an open epoch finds rows only.
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

/* A column's words in a row's image. */
static inline const uint64_t *pst_image_field(const pst_row_layout *lay, const uint64_t *image,
                                              int32_t i) {
    return image + (lay->fields[i].offset - lay->image_offset) / 8;
}

/* Set in the first word of a record of a key (U5). */
#define PST_UNDO_KEY (UINT64_C(1) << 32)

/* The log of an epoch. */
static inline uint8_t *pst_undo_log(const pst_table *t, uint64_t epoch) {
    return pst_space(&t->arena, PST_SPACE_UNDO + (int)(epoch % PST_UNDO_LOGS));
}

/* How far ahead of its end the log is prefetched, in bytes. */
enum { PST_UNDO_AHEAD = 1024 };

/* Counts the record that was just written, if n is 1. From now on undoing puts it back. */
static inline uint32_t pst_undo_count_some(pst_table *t, uint64_t n) {
    uint32_t index = (uint32_t)t->undo_count;
    t->undo_count += n;
    pst_release64(&t->h->undo_count[t->h->active % PST_UNDO_LOGS], t->undo_count);
    PST_FENCE(__ATOMIC_RELEASE);
    return index;
}

/* Touches a row without a branch, for the first time or, where `first` is 0, once more: then the
 * record stays uncounted and the header is stored as it was. */
static inline void pst_touch_as(pst_table *t, uint32_t slot, uint64_t *row, uint64_t first) {
    assert(t->undo_count < t->undo_capacity);
    uint64_t header = row[0];
    uint64_t *record = pst_undo_record(t, t->undo, t->undo_count);
    pst_put64(record, slot);
    pst_put64(record + 1, header);
    pst_put_words(record + 2, row + t->lay.image_offset / 8, t->lay.image_words);
    __builtin_prefetch((const uint8_t *)record + PST_UNDO_AHEAD, 1);
    uint32_t index = pst_undo_count_some(t, first);
    uint64_t made = pst_make_header((uint32_t)header, t->stamp, index);
    pst_put64(row, header ^ ((header ^ made) & (0 - first)));
    /* A reader that sees a word of the new image must find the new header on its second look. */
    PST_FENCE(__ATOMIC_RELEASE);
}

static inline void pst_touch_first(pst_table *t, uint32_t slot, uint64_t *row) {
    pst_touch_as(t, slot, row, 1);
}

/* Afterwards the row may be changed. REQUIRES: room was reserved. */
static inline void pst_touch(pst_table *t, uint32_t slot, uint64_t *row) {
    if (pst_header_stamp(row[0]) != t->stamp)
        pst_touch_first(t, slot, row);
}

/* Gives a row's key bytes another place, where they have been copied to. REQUIRES: room for a touch
 * was reserved. */
static inline void pst_undo_set_key(pst_table *t, uint32_t slot, uint64_t *word, uint64_t to) {
    assert(t->undo_count < t->undo_capacity);
    uint64_t *record = pst_undo_record(t, t->undo, t->undo_count);
    pst_put64(record, slot | PST_UNDO_KEY);
    pst_put64(record + 1, *word);
    (void)pst_undo_count_some(t, 1);
    pst_put64(word, to);
}

/* Undoes every epoch above h->sealed, which the caller has set to the target. Returns the number
 * of records put back. */
uint64_t pst_undo_to_sealed(pst_table *t);

#endif
