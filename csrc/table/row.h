/* row.h: what the words of a row mean.
 *
 * Purpose: the small inline steps that all who look at rows take: finding one, its header, its key
 * group, which states it has, and the cells of their values.
 *
 * Thread safety: as who calls; loads and stores are those of store.h.
 *
 * Invariants
 *  V2. A state's bits are meaningful only while its presence bit is set; padding and absent
 *      references are not. A presence word is meaningful only while the header says that the row
 *      lives: undoing an insert resets the header alone.
 */
#ifndef PST_ROW_H
#define PST_ROW_H

#include "memory/handle.h"
#include "memory/reference.h"

static inline uint64_t *pst_row(const pst_table *t, uint32_t slot) {
    return (uint64_t *)(t->rows + (uint64_t)slot * t->lay.row_size);
}

/* Prefetches a row, on both cache lines where it lies across two. */
PST_PREFETCH void pst_prefetch_row(const pst_table *t, uint32_t slot) {
    const uint64_t *row = pst_row(t, slot);
    __builtin_prefetch(row, 1, 2);
    __builtin_prefetch((const uint8_t *)row + t->lay.row_size - 1, 1, 2);
}

/* The stamp of a header word, still shifted. */
static inline uint32_t pst_header_stamp(uint64_t header) {
    return (uint32_t)header & 0xFFFFFF00u;
}

static inline uint64_t pst_make_header(uint32_t flags, uint32_t shifted_stamp, uint32_t undo) {
    return (uint64_t)undo << 32 | shifted_stamp | (flags & 0xFFu);
}

static inline int pst_is_live(uint64_t header) {
    return ((uint32_t)header & 0xFEu) != 0;
}

static inline uint64_t pst_presence(const pst_row_layout *lay, const uint64_t *row) {
    if (!lay->wide)
        return (row[0] >> 1) & 0x7F;
    return row[lay->image_offset / 8];
}

/* Has the open epoch made the row? A row that it has admitted, or touched, it has not (R1). */
static inline int pst_row_is_made(const pst_table *t, const uint64_t *row) {
    return row[0] >> 8 == ((uint64_t)PST_NONE << 24 | t->stamp >> 8);
}

/* Does the header say that the epoch admitted the row, which has not been touched since? One that
 * does not live was dropped. */
static inline int pst_is_of_admission(uint64_t header, uint64_t epoch) {
    return !pst_header_stamp(header) && header >> 32 == (uint32_t)epoch && header;
}

static inline int pst_is_admitted(uint64_t header, uint64_t epoch) {
    return pst_is_of_admission(header, epoch) && pst_is_live(header);
}

static inline int pst_groups_are_masked(const pst_table *t) {
    return t->group_mask || t->max_parallelism == 1;
}

static inline int32_t pst_group_of(const pst_table *t, uint64_t hash) {
    if (pst_groups_are_masked(t))
        return (int32_t)(hash & t->group_mask);
    return pst_key_group(hash, t->max_parallelism);
}

/* PST_WRONG_KEY_GROUP, with the group in the detail, where the table does not have the hash's key
 * group. */
static inline pst_status pst_check_group(pst_table *t, uint64_t hash) {
    int32_t group = pst_group_of(t, hash);
    if (group >= t->first_key_group && group <= t->last_key_group)
        return PST_OK;
    t->current.generation = 0;
    t->detail.row = -1;
    t->detail.key_group = group;
    return PST_WRONG_KEY_GROUP;
}

/* The hash under which the index has a row. */
uint64_t pst_row_hash(const pst_table *t, const uint64_t *row);

static inline void *pst_field_at(const pst_row_layout *lay, uint64_t *row, int32_t i) {
    return (uint8_t *)row + lay->fields[i].offset;
}

static inline int pst_row_has(const pst_row_layout *lay, const uint64_t *row, int32_t i) {
    return (int)(pst_presence(lay, row) >> i & 1);
}

/* A row that the open epoch has made comes to life. If admissions came to nothing, it may be the row
 * of one of these, which then is the epoch's own (R7). */
static inline void pst_row_note_birth(pst_table *t, const uint64_t *row) {
    if (!t->vain || t->filling || !pst_row_is_made(t, row))
        return;
    t->vain--;
    t->admitted--;
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
    if (presence)
        pst_row_note_birth(t, row);
    else
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
