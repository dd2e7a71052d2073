/* sst_guide.h: guided files: what leads from a hash to the one small block that may have its rows.
 *
 * Purpose: whoever looks for single keys in a file needs to know where they would lie without
 * reading what lies there. A guided file (PST_SST_FEATURE_GUIDE) has small blocks in segments of at
 * most 256. Behind a segment's blocks lies its *guide*: entries, which are kept in memory (0.14 bytes
 * a row), and a filter, which is read where it pays. The tail has 64 bytes per segment. FORMAT.md
 * describes every byte.
 *
 * The index of a file without a guide says the same of larger blocks. So a guide is *made* of it, in
 * memory, whose entries are as if they had been written; its filters are made by whoever wants them.
 *
 * A *place* is a key group and a hash; files are sorted by places first.
 *
 * Thread safety: a pst_guide is immutable: any threads. The rest are pure functions.
 *
 * Invariants
 *  ST2. A guide never leads past a row: every row of a place lies in the blocks that
 *       pst_guide_blocks says, and its hash passes the filter of each segment with such a row.
 *  ST3. Nothing that a guide says lies outside of its file's part for blocks and guides, and blocks,
 *       entries and filters do not overlap. Entries and filters of a made guide lie nowhere.
 *  ST4. Entries and filters count only once their checksums held; what is checked once can be looked
 *       into without further checks, whoever wrote the file.
 *
 * Complexity: a segment and a block are found in O(log n); a filter's test is one cache line.
 */
#ifndef PST_SST_GUIDE_H
#define PST_SST_GUIDE_H

#include "base/coding.h"
#include "key/xxh64.h"
#include "sst/record.h"
#include "sst/sst_format.h"

enum {
    PST_GUIDE_BLOCKS = 256,  /* the most of a segment */
    PST_GUIDE_UNIT = 64,     /* sizes of blocks are multiples of it */
    PST_GUIDE_UNITS = 65535, /* the most of a segment's blocks as stored; above it, one block */
    PST_GUIDE_ROWS = 32767,  /* the most of a block */
    PST_GUIDE_KEYS = 131072, /* a segment of more hashes gets no further block */
    PST_GUIDE_SEGMENT_BYTES = 64, /* of the tail's index */
    PST_GUIDE_HEAD_BYTES = 16,    /* before the entries */
    PST_GUIDE_ENTRY_BYTES = 24,
    PST_GUIDE_LINE_BYTES = 64,
    PST_GUIDE_KEY_BITS = 12, /* of the filter, for each hash */
    PST_GUIDE_PROBES = 7,
    PST_GUIDE_TIMES_REF = 32 /* of the time index, for each of its blocks */
};

/* A made segment of more raw bytes has one block, so that a filter is soon made; tests have less. */
#ifndef PST_GUIDE_MADE
#define PST_GUIDE_MADE (1 << 20)
#endif

/* What the tail says of a segment. Blocks lie in [offset, guide), entries in [guide, filter), the
 * filter in [filter, end); the next segment begins at `end`, or behind times that follow it. */
typedef struct pst_guide_segment {
    uint64_t offset;
    uint64_t guide;
    uint64_t filter;
    uint64_t end;
    uint64_t checksum; /* of the entries */
    uint64_t first_hash;
    int32_t first_key_group;
    int32_t last_key_group;
    uint32_t puts;
    uint32_t deletes;
    uint32_t raw;      /* of all its blocks, in units */
    uint16_t blocks;   /* 1 to PST_GUIDE_BLOCKS */
    uint8_t continued; /* the segment before ends with rows of the first hash, too */
} pst_guide_segment;

/* The least and the largest value of a key column of integers, dates or timestamps; of any other the
 * least and largest int64_t. A value outside of them is in no row. */
typedef struct pst_guide_bounds {
    int64_t least;
    int64_t largest;
} pst_guide_bounds;

/* A guided file but for its rows. */
typedef struct pst_guide {
    pst_file_info info;
    pst_schema schema;
    pst_record_rules rules; /* of that schema */
    uint64_t features;
    uint64_t data_offset;
    uint64_t data_end; /* what is behind it is the time index, and the tail */
    uint64_t timers;   /* of the time index */
    uint64_t times_checksum;
    uint32_t times_blocks;
    uint32_t n_segments;
    pst_guide_segment *segments;
    pst_guide_bounds bounds[PST_MAX_KEYS];
    uint8_t *made; /* entries of all segments, one after the other; NULL: they are in the file */
    size_t made_bytes;
} pst_guide;

/* Reads header, schema and tail, and verifies them. PST_SCHEMA: a file without a guide; else as
 * pst_sst_reader_open, and `io` is not kept. The memory, some 72 bytes a segment, is not charged. */
pst_status pst_guide_open(const pst_io *io, uint64_t file_bytes, pst_guide **guide,
                          pst_detail *detail);
/* The same of a file with a guide or without one, which gets one that is made. PST_SCHEMA: none can be
 * made, as a block has more rows than an entry can say, or there are more key groups. The memory, with
 * 24 bytes a block, is not charged. */
pst_status pst_guide_open_any(const pst_io *io, uint64_t file_bytes, pst_guide **guide,
                              pst_detail *detail);
void pst_guide_close(pst_guide *g);

/* Checks a verified tail, and fills segments, bounds and totals of a guide that has the rest; the
 * segments are the guide's also after a failure. PST_CORRUPT, PST_NO_MEMORY. */
pst_status pst_guide_read_index(pst_guide *g, const pst_sst_footer *footer, const uint8_t *tail);

/* Whether every value of the key is within the bounds of its column; `key` has a cell for each of
 * the first `n` key columns. 0: the file has no such key. */
int pst_guide_is_within(const pst_guide *g, const pst_cell *key, uint32_t nulls, int32_t n);

/* ---- segments -------------------------------------------------------------------------------- */

static inline int pst_place_compare(int32_t a_group, uint64_t a_hash, int32_t b_group,
                                    uint64_t b_hash) {
    if (a_group != b_group)
        return a_group < b_group ? -1 : 1;
    return (a_hash > b_hash) - (a_hash < b_hash);
}

/* The first segment that may have rows of a place, and how many (*n, 0 where none has): more than
 * one only where rows of one hash (elements, or keys with namespaces) go on in the next one. */
uint32_t pst_guide_segments(const pst_guide *g, int32_t key_group, uint64_t hash, uint32_t *n);

static inline size_t pst_guide_entries_size(const pst_guide_segment *s) {
    return s->filter - s->guide;
}

static inline size_t pst_guide_filter_size(const pst_guide_segment *s) {
    return s->end - s->filter;
}

/* Checks a segment's entries, read from [guide, filter): checksum, order, sizes. PST_CORRUPT. All
 * below REQUIRES entries, or a filter, that were checked; they may be kept as they are. */
pst_status pst_guide_check_entries(const pst_guide *g, uint32_t segment, const uint8_t *entries);
/* Checks a segment's filter, read from [filter, end). PST_CORRUPT. */
pst_status pst_guide_check_filter(const pst_guide *g, uint32_t segment, const uint8_t *entries,
                                  const uint8_t *filter);

/* ---- blocks of a segment --------------------------------------------------------------------- */

typedef struct pst_guide_block {
    uint64_t offset;
    uint64_t stored; /* with its padding, a multiple of PST_GUIDE_UNIT */
    uint64_t raw;
    uint64_t checksum;
    uint64_t first_hash;
    int32_t key_group; /* of the first row */
    uint32_t rows;
    int continued; /* the block before ends with rows of the first hash, too */
    int packed;    /* it is compressed */
} pst_guide_block;

static inline const uint8_t *pst_guide_entry(const uint8_t *entries, uint32_t block) {
    return entries + PST_GUIDE_HEAD_BYTES + (size_t)block * PST_GUIDE_ENTRY_BYTES;
}

/* The hash of the segment's last row, whose key group is last_key_group. */
static inline uint64_t pst_guide_last_hash(const uint8_t *entries) {
    return pst_get_u64(entries + 8);
}

/* Block 0 to blocks - 1 of the segment. O(1). */
pst_guide_block pst_guide_block_at(const pst_guide_segment *s, const uint8_t *entries,
                                   uint32_t block);
/* The first block of the segment that may have rows of a place, and how many (*n, 0 where none
 * has). */
uint32_t pst_guide_blocks(const pst_guide_segment *s, const uint8_t *entries, int32_t key_group,
                          uint64_t hash, uint32_t *n);

/* ---- the filter ------------------------------------------------------------------------------ */

/* How the lines of a segment's filter are shared out to places: the first to the first ones, and so
 * on. So the lines of ascending places ascend. */
typedef struct pst_guide_scale {
    uint64_t first_hash;
    int32_t first_key_group;
    unsigned shift;
    uint64_t steps; /* to which a step of a place is compared */
    uint64_t lines;
} pst_guide_scale;
pst_guide_scale pst_guide_scale_of(const pst_guide_segment *s, const uint8_t *entries);
/* The place's line is the whole part of step * lines / steps. REQUIRES: the place is not outside of
 * the segment's first and last one. */
uint64_t pst_guide_step(const pst_guide_scale *c, int32_t key_group, uint64_t hash);

/* Nine bits of it for each probe. Hashes of one line have their first bits in common, and those of
 * one key group the last ones. */
static inline uint64_t pst_guide_probes(uint64_t hash) {
    return pst_xxh64_avalanche(hash);
}

/* Whether the line, of PST_GUIDE_LINE_BYTES, has the hash. */
static inline int pst_guide_line_has(const uint8_t *line, uint64_t hash) {
    enum { FIRST = 4 }; /* all of which hardly any hash passes that is not there */
    uint64_t probes = pst_guide_probes(hash);
    uint32_t bits = 1;
    for (int i = 0; i < FIRST; i++, probes >>= 9)
        bits &= (uint32_t)line[(probes & 511) >> 3] >> (probes & 7);
    if (!bits)
        return 0;
    for (int i = FIRST; i < PST_GUIDE_PROBES; i++, probes >>= 9)
        bits &= (uint32_t)line[(probes & 511) >> 3] >> (probes & 7);
    return (int)bits;
}

/* 0: the segment has no row of the place; outside of its first and last place that is known without
 * a look into the filter. */
int pst_guide_may_have(const pst_guide_segment *s, const uint8_t *entries, const uint8_t *filter,
                       int32_t key_group, uint64_t hash);
/* Adds a hash to the filter of a segment that is made; at first it is all zeros. PST_CORRUPT: the place is
 * outside of the segment's first and last one. */
pst_status pst_guide_filter_add(const pst_guide_scale *c, const pst_guide_segment *s,
                                const uint8_t *entries, uint8_t *filter, int32_t key_group,
                                uint64_t hash);

/* ---- as bytes -------------------------------------------------------------------------------- */

static inline size_t pst_guide_entries_bytes(uint32_t blocks) {
    return (size_t)pst_sst_align(PST_GUIDE_HEAD_BYTES + (uint64_t)blocks * PST_GUIDE_ENTRY_BYTES);
}

void pst_guide_put_segment(const pst_guide_segment *s, uint8_t out[PST_GUIDE_SEGMENT_BYTES]);
/* `end` and `filter` are set where the other parts say so: the latter follows from the former. */
void pst_guide_put_entry(const pst_guide_block *b, uint32_t end, uint32_t raw,
                         uint8_t out[PST_GUIDE_ENTRY_BYTES]);

#endif
