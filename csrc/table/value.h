/* value.h: rows and their cells.
 *
 * Purpose: making a row, setting and clearing a state in it, reading one out.
 *
 * Thread safety: the writer's alone.
 *
 * Invariants
 *  V1. A row is written completely, key and header, before the index names it.
 *  V2. A state's bits are meaningful only while its presence bit is set; padding and absent
 *      references are not.
 *  V3. A block that the before-image refers to is never written or freed at once, only pushed to
 *      its ring; a block born in the open epoch may be overwritten in place.
 *  V4. The caller has reserved room with pst_undo_reserve and has touched the row.
 */
#ifndef PST_VALUE_H
#define PST_VALUE_H

#include "table/index.h"
#include "table/undo.h"

/* The key's row. Where it has none, takes a slot and makes one, no state present. Room in the undo log
 * and for a row was reserved; room in the index is taken here. */
pst_status pst_row_make(pst_table *t, const pst_key *key, uint32_t *slot);

/* The hash under which the index has a row. */
uint64_t pst_row_hash(const pst_table *t, const uint64_t *row);

/* Stores a value (PST_VALUE, PST_TIME) and marks it present. PST_TOO_LARGE; PST_WRONG_TYPE for a
 * struct of another width. */
pst_status pst_row_put(pst_table *t, uint64_t *row, int32_t i, const pst_cell *cell);
/* The same with touch and time; an equal value that is young enough leaves the row as it is. Room
 * for a touch was reserved. */
pst_status pst_state_put(pst_table *t, uint32_t slot, int32_t i, const pst_cell *cell);
/* Clears a state, with its time and elements. */
pst_status pst_row_clear(pst_table *t, uint64_t *row, int32_t i);
/* Clears every state: the key ceases to exist, unless it has timers. */
pst_status pst_row_delete(pst_table *t, uint64_t *row);

/* Frees the key's block of a dead row. */
pst_status pst_row_free_key(pst_table *t, const uint64_t *row);

static inline void *pst_field_at(const pst_row_layout *lay, uint64_t *row, int32_t i) {
    return (uint8_t *)row + lay->fields[i].offset;
}

static inline int pst_row_has(const pst_row_layout *lay, const uint64_t *row, int32_t i) {
    return (int)(pst_presence(lay, row) >> i & 1);
}

static inline void pst_row_set_presence(pst_table *t, uint64_t *row, uint64_t presence) {
    uint64_t header = row[0];
    int was = pst_is_live(header);
    uint32_t flags = (uint32_t)header & PST_FLAG_NULL_KEY;
    if (t->lay.wide) {
        pst_put64(row + t->lay.image_offset / 8, presence);
        flags |= presence ? PST_FLAG_LIVE : 0;
    } else {
        flags |= (uint32_t)presence << 1;
    }
    pst_put64(row, (header & ~UINT64_C(0xFF)) | flags);
    if (was == (presence != 0))
        return;
    pst_put64(&t->m->live, presence ? t->m->live + 1 : t->m->live - 1);
    if (!presence)
        t->deaths = 1;
}

static inline void pst_row_mark(pst_table *t, uint64_t *row, int32_t i) {
    uint64_t presence = pst_presence(&t->lay, row);
    if (!(presence >> i & 1))
        pst_row_set_presence(t, row, presence | UINT64_C(1) << i);
}

/* A fixed-width value, canonical words as in pst_cell. */
static inline void pst_field_store(const pst_field *f, uint64_t *row, const uint64_t word[2]) {
    uint8_t *at = (uint8_t *)row + f->offset;
    switch (f->width) {
    case 1:
        pst_put8(at, (uint8_t)word[0]);
        break;
    case 2:
        pst_put16(at, (uint16_t)word[0]);
        break;
    case 4:
        pst_put32(at, (uint32_t)word[0]);
        break;
    case 8:
        pst_put64(at, word[0]);
        break;
    default:
        pst_put64(at, word[0]);
        pst_put64(at + 8, word[1]);
    }
}

/* Its inverse, sign-extending integers; for bytes the reference itself. */
static inline void pst_field_load(const pst_field *f, const uint64_t *row, uint64_t word[2]) {
    const uint8_t *at = (const uint8_t *)row + f->offset;
    word[1] = 0;
    switch (f->width) {
    case 1:
        word[0] = (uint64_t)(int64_t)(int8_t)pst_get8(at);
        break;
    case 2:
        word[0] = (uint64_t)(int64_t)(int16_t)pst_get16(at);
        break;
    case 4:
        word[0] =
            f->type == PST_FLOAT32 ? pst_get32(at) : (uint64_t)(int64_t)(int32_t)pst_get32(at);
        break;
    case 8:
        word[0] = pst_get64(at);
        break;
    default:
        word[0] = pst_get64(at);
        word[1] = pst_get64(at + 8);
    }
}

/* A present value as a cell; bytes point into the heap or the row. */
static inline void pst_field_cell(const pst_field *f, const uint64_t *row, const uint8_t *heap,
                                  pst_cell *cell) {
    if (f->type == PST_FIXED) {
        cell->bytes = (pst_bytes){(const uint8_t *)row + f->offset, f->width};
        return;
    }
    if (!f->is_bytes) {
        pst_field_load(f, row, cell->word);
        return;
    }
    const uint64_t *ref = (const uint64_t *)((const uint8_t *)row + f->offset);
    cell->bytes = (pst_bytes){pst_ref_data(heap, ref), pst_ref_size(ref)};
}

#endif
