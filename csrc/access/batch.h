/* batch.h: many keys at once.
 *
 * Purpose: hash each key once, look each up once, and then run columns over the rows. Work goes in
 * groups of PST_GROUP rows through stages: find the index line; find the row in it; where the line
 * was full, find the row in the next lines; for keys of bytes, find the block that holds the row's
 * key; use the row. Each stage prefetches for the next and runs a group ahead of it, so that the
 * misses of one overlap with the work of the others. The look-up is fused with the first operation
 * on the batch.
 *
 * Thread safety: as the table.
 *
 * Invariants
 *  M1. slots[i] for i < resolved is the row of key i, or PST_NONE where there was none. It may have
 *      been made meanwhile: unless the epoch has made no row since, whoever needs it looks again.
 *  M2. A batch whose generation is not the table's is PST_STALE.
 *  M3. Reading makes no row. Rows may have been admitted for it before, which is no change (R1); it
 *      raises their heat.
 *  M4. An operation that fails after it changed something poisons the table, unless it is one that
 *      says how far it came (PST_NO_ROOM), where the caller takes steps.
 *  M5. What one call sizes and another fills is filled as it was sized or not at all, and never
 *      beyond the capacity, which comes with the buffer (PST_CHANGED).
 *  M6. The caller may write to an operand's buffers meanwhile: an offset is loaded once and checked
 *      against the bytes that there are. Keys are looked at again later, and must not change.
 *  M7. Where rows lie below the table, all keys that it lacks are fetched before the first
 *      operation, which has changed nothing if that fails. From then on a key that was not found is
 *      absent, as M1 says. An operation that changes nothing may be done before, and once more if
 *      rows were fetched then.
 */
#ifndef PST_BATCH_H
#define PST_BATCH_H

#include "key/key.h"
#include "memory/handle.h"
#include "table/resident.h"
#include "table/slots.h"
#include "table/value.h"

enum { PST_GROUP = 32, PST_LINES = 4 * PST_GROUP };

struct pst_batch {
    pst_table *t;
    uint64_t generation;
    int64_t length;
    uint64_t made;    /* pst_rows_made before the first look-up; UINT64_MAX where there are ties */
    int64_t lined;    /* keys whose index line was found and prefetched */
    int64_t guessed;  /* keys whose slot was read from it, and the row prefetched */
    int64_t resolved; /* keys whose slot was compared */
    int64_t prepared; /* keys whose lists and maps were prefetched for one key at a time */
    uint64_t *hash;
    uint32_t *slots;
    const uint64_t *words; /* word keys, canonical; may be the caller's own array */
    uint64_t *own_words;
    pst_bytes *bytes; /* bytes keys */
    uint8_t *nulls;   /* a byte per row, or NULL */
    int mixed;        /* in the last group, some rows were touched for the first time, others not */
    int complete;     /* what it had not found was looked for below the table (M7) */
    int reading;      /* while rows are fetched: keys that do not exist stay without one */
    int of_rows;      /* made from rows of the table, whose keys can be read back */
    pst_buffer encoded;
    pst_charge charge;
    const uint64_t *lines[PST_LINES]; /* of key i: at i % PST_LINES */
    uint32_t tags[PST_LINES];         /* likewise */
    /* A queue of keys that may lie in a later line; their lines[] hold the next one. */
    int64_t moved[PST_LINES];
    uint64_t moved_head;
    uint64_t moved_tail;
};

static inline void pst_batch_key(const pst_batch *b, int64_t i, pst_key *key) {
    key->hash = b->hash[i];
    key->null = b->nulls ? b->nulls[i] : 0;
    if (b->words) {
        key->word = b->words[i];
        key->bytes = (pst_bytes){NULL, 0};
    } else {
        key->word = 0;
        key->bytes = b->bytes[i];
    }
}

/* Looks up the keys before `to` in groups, where that was not done yet. The slots found are in
 * cache. */
void pst_batch_resolve(pst_batch *b, int64_t to);
/* Looks for key i where the look-up of its group found none, and makes its row. */
pst_status pst_batch_make_row(pst_batch *b, int64_t i, uint32_t *slot);
/* The row of key i for writing, made if it is not there. REQUIRES: room was reserved. */
static inline pst_status pst_batch_row(pst_batch *b, int64_t i, uint32_t *slot) {
    *slot = b->slots[i];
    return *slot == PST_NONE ? pst_batch_make_row(b, i, slot) : PST_OK;
}
/* Looks up the group that begins at i; where an earlier operation did, prefetches its rows. */
void pst_batch_prepare(pst_batch *b, int64_t i);
/* For callers that take rows one by one, in order, and do work of their own in between: called with
 * the first row of each group. That group is looked up, and the rows of the next two groups are on
 * their way. */
void pst_batch_prepare_rows(pst_batch *b, int64_t i);
/* Looks for key i where the look-up of its group found none. */
uint32_t pst_batch_find_row(pst_batch *b, int64_t i);
/* The row of key i, or PST_NONE. */
static inline uint32_t pst_batch_slot(pst_batch *b, int64_t i) {
    uint32_t slot = b->slots[i];
    return slot == PST_NONE && b->made != pst_rows_made(b->t) ? pst_batch_find_row(b, i) : slot;
}

/* Allocates the hashes and slots of n keys as one block. Systems take back memory that was freed in
 * several pieces, and then each batch would fault all its pages in. PST_NO_MEMORY. */
pst_status pst_batch_allocate(pst_batch *b, size_t n);
/* An empty batch for up to `most` rows of the table. PST_INVALID, PST_POISONED, PST_NO_MEMORY. */
pst_status pst_batch_of_rows(pst_table *t, int64_t most, pst_batch **batch);
/* Adds a row and its key; they count as resolved once the caller says so. */
void pst_batch_take_row(pst_batch *b, uint32_t slot);

/* PST_STALE, PST_POISONED or PST_OK. */
pst_status pst_batch_usable(const pst_batch *b);
/* Looks up all keys, and fetches the rows of those that are not here. What pst_fetch says; the
 * detail's row is then as it says. */
pst_status pst_batch_complete(pst_batch *b);
/* To be called before rows of the batch are looked at: pst_batch_usable, and where rows lie below
 * the table, once, pst_batch_complete. */
static inline pst_status pst_batch_ready(pst_batch *b) {
    pst_status s = pst_batch_usable(b);
    return s || b->complete || pst_is_whole(b->t) ? s : pst_batch_complete(b);
}

/* Sizes or fills value i, at *total. PST_TOO_LARGE; PST_CHANGED. */
static inline pst_status pst_out_value(const pst_bytes_out *out, int64_t i, int present,
                                       pst_bytes value, int64_t *total) {
    if (!out->data) {
        out->offsets[i] = (int32_t)*total;
        out->valid[i] = (uint8_t)present;
        *total += value.size;
        return *total > INT32_MAX ? PST_TOO_LARGE : PST_OK;
    }
    if (out->valid[i] != present || out->offsets[i] != *total ||
        out->offsets[i + 1] != *total + value.size || (uint64_t)*total + value.size > out->capacity)
        return PST_CHANGED;
    if (value.size)
        memcpy(out->data + *total, value.data, value.size);
    *total += value.size;
    return PST_OK;
}

/* After the last value. */
static inline pst_status pst_out_end(const pst_bytes_out *out, int64_t length, int64_t total) {
    if (!out->data)
        out->offsets[length] = (int32_t)total;
    return PST_OK;
}

/* A single element of an array as a cell. */
void pst_array_cell(const pst_array *a, int64_t i, pst_cell *cell);

/* Prefetches words of an array that is read in order, for a whole group some groups ahead of word
 * i: among so many other lines the processor does not follow such arrays. */
PST_PREFETCH void pst_prefetch_words(const void *words, int64_t i, int64_t length) {
    enum { AHEAD = 4 * PST_GROUP, LINE_WORDS = 8 };
    const uint64_t *at = (const uint64_t *)words + i + AHEAD;
    if (i + AHEAD + PST_GROUP > length)
        return;
    for (int k = 0; k < PST_GROUP; k += LINE_WORDS)
        __builtin_prefetch(at + k);
}

/* The same for the elements of an array, if they are words. */
PST_PREFETCH void pst_array_prefetch(const pst_array *a, int64_t i) {
    if (a->type == PST_INT64 || a->type == PST_FLOAT64 || a->type == PST_TIMESTAMP)
        pst_prefetch_words((const uint64_t *)a->values + a->offset, i, a->length);
}

static inline int pst_array_is_null(const pst_array *a, int64_t i) {
    if (!a->validity)
        return 0;
    int64_t at = a->offset + i;
    return !(a->validity[at >> 3] >> (at & 7) & 1);
}

#endif
