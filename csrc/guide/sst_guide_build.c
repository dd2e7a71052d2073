#include "guide/sst_guide_build.h"

#include <string.h>

#include "base/mem.h"
#include "key/schema.h"
#include "sst/sst_shape.h"

/* Integers, dates and timestamps; a bool is one. */
static int is_bounded(pst_type type) {
    switch (type) {
    case PST_BOOL:
    case PST_INT8:
    case PST_INT16:
    case PST_INT32:
    case PST_INT64:
    case PST_DATE32:
    case PST_TIMESTAMP:
        return 1;
    case PST_FLOAT32:
    case PST_FLOAT64:
    case PST_DECIMAL:
    case PST_STRING:
    case PST_BINARY:
    case PST_OBJECT:
    case PST_FIXED:
    case PST_NESTED:
        break;
    }
    return 0;
}

void pst_guide_builder_init(pst_guide_builder *b, const pst_schema *schema) {
    memset(b, 0, sizeof *b);
    for (int32_t k = 0; k < schema->n_keys; k++)
        b->bounds[k] = is_bounded(schema->keys[k].type) ? (pst_guide_bounds){INT64_MAX, INT64_MIN}
                                                        : (pst_guide_bounds){INT64_MIN, INT64_MAX};
}

void pst_guide_builder_free(pst_guide_builder *b) {
    pst_free(b->hashes.words);
    pst_buffer_free(&b->segments);
    pst_buffer_free(&b->guide);
}

size_t pst_guide_builder_bytes(const pst_guide_builder *b) {
    return b->hashes.capacity * sizeof *b->hashes.words + b->segments.capacity + b->guide.capacity;
}

pst_status pst_guide_builder_reserve(pst_guide_builder *b, size_t n) {
    if (b->n_hashes + n <= b->hashes.capacity)
        return PST_OK;
    size_t capacity = b->hashes.capacity + b->hashes.capacity / 2;
    capacity = capacity < b->n_hashes + n ? b->n_hashes + n : capacity;
    capacity = capacity < 1024 ? 1024 : capacity;
    uint64_t *words = pst_realloc(b->hashes.words, capacity * sizeof *words);
    if (!words)
        return PST_NO_MEMORY;
    b->hashes.words = words;
    b->hashes.capacity = capacity;
    return PST_OK;
}

#define BOUND(type)                                                                                \
    do {                                                                                           \
        const type *values = (const type *)(const void *)c->values.data;                           \
        for (uint32_t i = 0; i < c->count; i++) {                                                  \
            least = values[i] < least ? values[i] : least;                                         \
            largest = values[i] > largest ? values[i] : largest;                                   \
        }                                                                                          \
    } while (0)

/* Null slots are zero, which may widen the bounds and does no harm. */
static pst_guide_bounds bounds_of(const pst_sst_growing *c, pst_guide_bounds bounds) {
    int64_t least = bounds.least, largest = bounds.largest;
    switch (c->shape) {
    case PST_SHAPE_BIT:
        least = least < 0 ? least : 0;
        largest = largest > 1 ? largest : 1;
        break;
    case PST_SHAPE_INT8:
        BOUND(int8_t);
        break;
    case PST_SHAPE_INT16:
        BOUND(int16_t);
        break;
    case PST_SHAPE_INT32:
        BOUND(int32_t);
        break;
    case PST_SHAPE_WORD64:
        BOUND(int64_t);
        break;
    case PST_SHAPE_WORD32:
    case PST_SHAPE_WORD128:
    case PST_SHAPE_BYTES:
        break;
    }
    return (pst_guide_bounds){least, largest};
}

void pst_guide_builder_bound(pst_guide_builder *b, const pst_schema *schema,
                             const pst_sst_builder *block) {
    for (int32_t k = 0; k < schema->n_keys; k++)
        if (is_bounded(schema->keys[k].type))
            b->bounds[k] = bounds_of(&block->columns[k], b->bounds[k]);
}

void pst_guide_builder_put_bounds(const pst_guide_builder *b, int32_t n_keys, uint8_t *out) {
    for (int32_t k = 0; k < n_keys; k++, out += PST_SST_BOUNDS_BYTES) {
        pst_put_u64(out, (uint64_t)b->bounds[k].least);
        pst_put_u64(out + 8, (uint64_t)b->bounds[k].largest);
    }
}

/* ---- segments -------------------------------------------------------------------------------- */

int pst_guide_builder_takes(const pst_guide_builder *b, uint64_t stored, uint64_t raw) {
    if (b->open.blocks == 0)
        return 1;
    int whole = b->open.blocks == 1 && b->open.raw > PST_GUIDE_UNITS; /* it is to be alone */
    return !whole && b->open.blocks < PST_GUIDE_BLOCKS && b->n_in_segment <= PST_GUIDE_KEYS &&
           raw / PST_GUIDE_UNIT <= PST_GUIDE_UNITS &&
           b->stored + stored / PST_GUIDE_UNIT <= PST_GUIDE_UNITS;
}

void pst_guide_builder_add(pst_guide_builder *b, const pst_guide_block *block, uint32_t deletes,
                           int32_t last_key_group, uint64_t last_hash) {
    pst_guide_segment *s = &b->open;
    uint64_t raw = block->raw / PST_GUIDE_UNIT;
    if (s->blocks == 0) {
        *s = (pst_guide_segment){.offset = block->offset,
                                 .first_hash = block->first_hash,
                                 .first_key_group = block->key_group,
                                 .continued = block->continued != 0};
        b->stored = 0;
    }
    b->stored += (uint32_t)(block->stored / PST_GUIDE_UNIT);
    /* Sizes that do not fit are in the tail's entry of the segment, which is the block's alone. */
    int fits = b->stored <= PST_GUIDE_UNITS && raw <= PST_GUIDE_UNITS;
    pst_guide_put_entry(block, fits ? b->stored : 0, fits ? (uint32_t)raw : 0,
                        b->entries + (size_t)s->blocks * PST_GUIDE_ENTRY_BYTES);
    s->blocks++;
    s->puts += block->rows - deletes;
    s->deletes += deletes;
    s->raw += (uint32_t)raw;
    s->last_key_group = last_key_group;
    b->last_hash = last_hash;
    b->n_in_segment = b->n_hashes;
}

enum { LINE_BITS = 8 * PST_GUIDE_LINE_BYTES };

/* A line's bits as bytes of 0 or 1, which take a store each. They are cleared. */
static void pack_line(uint8_t *flags, uint8_t *line) {
    for (int i = 0; i < PST_GUIDE_LINE_BYTES; i++)
        line[i] = (uint8_t)(pst_get_u64(flags + 8 * i) * UINT64_C(0x0102040810204080) >> 56);
    memset(flags, 0, LINE_BITS);
}

/* Hashes ascend, but begin again with each key group. So the next one's line is the last one's, or
 * soon comes after that: nothing is divided, and a line is made at once. */
static void fill_filter(const pst_guide_builder *b, const uint8_t *entries, uint8_t *filter,
                        int32_t max_parallelism) {
    uint8_t flags[LINE_BITS] = {0};
    pst_guide_scale c = pst_guide_scale_of(&b->open, entries);
    uint64_t end = c.steps; /* where the next line begins, in steps times lines */
    for (size_t i = 0; i < b->n_in_segment; i++) {
        uint64_t hash = b->hashes.words[i], probes = pst_guide_probes(hash);
        int32_t key_group = pst_key_group(hash, max_parallelism);
        uint64_t at = pst_guide_step(&c, key_group, hash) * c.lines;
        for (; at >= end; end += c.steps, filter += PST_GUIDE_LINE_BYTES)
            pack_line(flags, filter);
        for (int k = 0; k < PST_GUIDE_PROBES; k++, probes >>= 9)
            flags[probes & (LINE_BITS - 1)] = 1;
    }
    if (b->n_in_segment)
        pack_line(flags, filter);
}

pst_status pst_guide_builder_finish(pst_guide_builder *b, uint64_t offset, const uint8_t id[16],
                                    int32_t max_parallelism, size_t *size) {
    pst_guide_segment *s = &b->open;
    uint64_t bits = (uint64_t)b->n_in_segment * PST_GUIDE_KEY_BITS;
    size_t lines = (size_t)((bits + PST_GUIDE_LINE_BYTES * 8 - 1) / (PST_GUIDE_LINE_BYTES * 8));
    size_t entries_size = pst_guide_entries_bytes(s->blocks);
    *size = entries_size + lines * PST_GUIDE_LINE_BYTES;
    pst_status st = pst_buffer_reserve(&b->guide, *size);
    if (!st)
        st = pst_buffer_reserve(&b->segments, (b->n_segments + 1) * PST_GUIDE_SEGMENT_BYTES);
    if (st)
        return st;
    uint8_t *entries = b->guide.data, *filter = entries + entries_size;
    memset(entries, 0, *size);
    memcpy(entries + PST_GUIDE_HEAD_BYTES, b->entries, (size_t)s->blocks * PST_GUIDE_ENTRY_BYTES);
    pst_put_u64(entries + 8, b->last_hash);
    s->guide = offset;
    s->filter = offset + entries_size;
    s->end = offset + *size;
    fill_filter(b, entries, filter, max_parallelism);
    uint64_t seed = pst_sst_seed(id, s->filter);
    pst_put_u64(entries, pst_xxh64(filter, pst_guide_filter_size(s), seed));
    s->checksum = pst_xxh64(entries, entries_size, pst_sst_seed(id, offset));
    pst_guide_put_segment(s, b->segments.data + b->n_segments * PST_GUIDE_SEGMENT_BYTES);
    b->n_segments++;
    b->n_hashes -= b->n_in_segment;
    memmove(b->hashes.words, b->hashes.words + b->n_in_segment,
            b->n_hashes * sizeof *b->hashes.words);
    b->n_in_segment = 0;
    s->blocks = 0;
    return PST_OK;
}
