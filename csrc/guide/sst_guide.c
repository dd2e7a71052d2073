#include "guide/sst_guide.h"

#include <string.h>

#include "base/buffer.h"
#include "base/mem.h"
#include "key/schema.h"
#include "sst/sst_open.h"
#include "sst/sst_shape.h"

/* Offsets in an index entry. */
enum {
    S_OFFSET = 0,
    S_GUIDE = 8,
    S_CHECKSUM = 16,
    S_FIRST_HASH = 24,
    S_FIRST = 32,
    S_LAST = 36,
    S_PUTS = 40,
    S_DELETES = 44,
    S_RAW = 48,
    S_BLOCKS = 52,
    S_CONTINUED = 54,
    S_LINES = 56
};

/* Offsets in a block's entry. */
enum { E_HASH = 0, E_CHECKSUM = 8, E_END = 16, E_RAW = 18, E_ROWS = 20, E_KEY_GROUP = 22 };

/* In the rows: the block before ends with the first row's hash. Only made guides have a raw size of
 * nothing beside an end: the block is compressed, and with its padding as large as before. */
enum { CONTINUED = 0x8000, RAW_AS_STORED = 0 };

void pst_guide_put_segment(const pst_guide_segment *s, uint8_t out[PST_GUIDE_SEGMENT_BYTES]) {
    memset(out, 0, PST_GUIDE_SEGMENT_BYTES);
    pst_put_u64(out + S_OFFSET, s->offset);
    pst_put_u64(out + S_GUIDE, s->guide);
    pst_put_u64(out + S_CHECKSUM, s->checksum);
    pst_put_u64(out + S_FIRST_HASH, s->first_hash);
    pst_put_u32(out + S_FIRST, (uint32_t)s->first_key_group);
    pst_put_u32(out + S_LAST, (uint32_t)s->last_key_group);
    pst_put_u32(out + S_PUTS, s->puts);
    pst_put_u32(out + S_DELETES, s->deletes);
    pst_put_u32(out + S_RAW, s->raw);
    pst_put_u16(out + S_BLOCKS, s->blocks);
    out[S_CONTINUED] = s->continued;
    pst_put_u32(out + S_LINES, (uint32_t)(pst_guide_filter_size(s) / PST_GUIDE_LINE_BYTES));
}

/* What follows from the rest is set by lies_well. */
static void get_segment(const uint8_t *in, pst_guide_segment *s) {
    s->offset = pst_get_u64(in + S_OFFSET);
    s->guide = pst_get_u64(in + S_GUIDE);
    s->checksum = pst_get_u64(in + S_CHECKSUM);
    s->first_hash = pst_get_u64(in + S_FIRST_HASH);
    s->first_key_group = (int32_t)pst_get_u32(in + S_FIRST);
    s->last_key_group = (int32_t)pst_get_u32(in + S_LAST);
    s->puts = pst_get_u32(in + S_PUTS);
    s->deletes = pst_get_u32(in + S_DELETES);
    s->raw = pst_get_u32(in + S_RAW);
    s->blocks = pst_get_u16(in + S_BLOCKS);
    s->continued = in[S_CONTINUED];
}

void pst_guide_put_entry(const pst_guide_block *b, uint32_t end, uint32_t raw,
                         uint8_t out[PST_GUIDE_ENTRY_BYTES]) {
    pst_put_u64(out + E_HASH, b->first_hash);
    pst_put_u64(out + E_CHECKSUM, b->checksum);
    pst_put_u16(out + E_END, (uint16_t)end);
    pst_put_u16(out + E_RAW, (uint16_t)raw);
    pst_put_u16(out + E_ROWS, (uint16_t)(b->rows | (b->continued ? CONTINUED : 0u)));
    pst_put_u16(out + E_KEY_GROUP, (uint16_t)b->key_group);
}

/* ---- the tail -------------------------------------------------------------------------------- */

static uint64_t stored_units(const pst_guide_segment *s) {
    return (s->guide - s->offset) / PST_GUIDE_UNIT;
}

/* Whether a segment can lie from `begin` on and before `limit`; sets where its filter begins and
 * ends. */
static int lies_well(pst_guide_segment *s, uint64_t begin, uint64_t limit, uint64_t lines) {
    if (s->offset != begin || s->guide <= begin || s->guide > limit || s->guide % PST_SST_ALIGN ||
        s->blocks == 0 || s->blocks > PST_GUIDE_BLOCKS || lines == 0)
        return 0;
    uint64_t entries = pst_guide_entries_bytes(s->blocks), stored = stored_units(s);
    if (entries > limit - s->guide || lines > (limit - s->guide - entries) / PST_GUIDE_LINE_BYTES)
        return 0;
    s->filter = s->guide + entries;
    s->end = s->filter + lines * PST_GUIDE_LINE_BYTES;
    return stored >= s->blocks && (s->blocks == 1 || stored <= PST_GUIDE_UNITS) &&
           s->raw / PST_SST_LZ4_RATIO <= stored;
}

/* Whether a segment follows the one before, NULL for the first one. */
static int follows(const pst_guide *g, const pst_guide_segment *before,
                   const pst_guide_segment *s) {
    uint64_t rows = (uint64_t)s->puts + s->deletes;
    if (s->first_key_group < g->info.first_key_group || s->first_key_group > s->last_key_group ||
        s->last_key_group > g->info.last_key_group || s->continued > 1 || rows < s->blocks ||
        rows > (uint64_t)s->blocks * PST_GUIDE_ROWS)
        return 0;
    if (!before)
        return !s->continued;
    return s->first_key_group >= before->last_key_group &&
           (!s->continued || s->first_key_group == before->last_key_group) &&
           pst_place_compare(before->first_key_group, before->first_hash, s->first_key_group,
                             s->first_hash) <= 0;
}

static int read_bounds(pst_guide *g, const uint8_t *properties, size_t size) {
    size_t length = 0, n = (size_t)g->schema.n_keys;
    const uint8_t *p = pst_sst_property_value(properties, size, PST_PROPERTY_BOUNDS, &length);
    if (!p || length != n * PST_SST_BOUNDS_BYTES)
        return 0;
    for (size_t k = 0; k < n; k++, p += PST_SST_BOUNDS_BYTES)
        g->bounds[k] = (pst_guide_bounds){(int64_t)pst_get_u64(p), (int64_t)pst_get_u64(p + 8)};
    return 1;
}

/* The time index lies between blocks and tail, its blocks between the segments. */
static int read_times(pst_guide *g, const uint8_t *properties, size_t size) {
    size_t length = 0;
    const uint8_t *p = pst_sst_property_value(properties, size, PST_PROPERTY_TIMES, &length);
    if (!(g->features & PST_SST_FEATURE_TIMES))
        return 1;
    if (!p || length != PST_SST_TIMES_BYTES)
        return 0;
    uint64_t offset = pst_get_u64(p), blocks = pst_get_u64(p + 8), end = g->data_end;
    g->timers = pst_get_u64(p + 16);
    g->times_checksum = pst_get_u64(p + 24);
    if (offset < g->data_offset || offset > end || offset % PST_SST_ALIGN || blocks > INT32_MAX ||
        pst_sst_align(blocks * PST_GUIDE_TIMES_REF) != end - offset)
        return 0;
    g->times_blocks = (uint32_t)blocks;
    g->data_end = offset;
    return 1;
}

/* Reads the segments, which lie from the file's first block on and before data_end. */
static int read_segments(pst_guide *g, const uint8_t *index, pst_sst_totals *totals) {
    uint64_t begin = g->data_offset;
    int gaps = (g->features & PST_SST_FEATURE_TIMES) != 0;
    for (uint32_t i = 0; i < g->n_segments; i++) {
        const uint8_t *entry = index + (size_t)i * PST_GUIDE_SEGMENT_BYTES;
        pst_guide_segment *s = &g->segments[i];
        get_segment(entry, s);
        /* Behind a guide there may be times. */
        if (gaps && s->offset >= begin && s->offset <= g->data_end &&
            s->offset % PST_SST_ALIGN == 0)
            begin = s->offset;
        if (!lies_well(s, begin, g->data_end, pst_get_u32(entry + S_LINES)) ||
            !follows(g, i ? s - 1 : NULL, s))
            return 0;
        begin = s->end;
        totals->puts += s->puts;
        totals->deletes += s->deletes;
        totals->raw += (uint64_t)s->raw * PST_GUIDE_UNIT;
        totals->stored += s->guide - s->offset;
    }
    return (gaps || begin == g->data_end) && (g->info.kind != PST_BASE || !totals->deletes);
}

pst_status pst_guide_read_index(pst_guide *g, const pst_sst_footer *f, const uint8_t *tail) {
    pst_sst_totals totals = {0, 0, 0, 0};
    const uint8_t *properties = tail + f->blocks * PST_GUIDE_SEGMENT_BYTES;
    g->data_end = f->index_offset;
    if (f->blocks > INT32_MAX)
        return PST_CORRUPT;
    g->segments = pst_malloc(f->blocks * sizeof *g->segments);
    if (!g->segments)
        return PST_NO_MEMORY;
    g->n_segments = (uint32_t)f->blocks;
    if (!read_times(g, properties, f->properties_bytes) || !read_segments(g, tail, &totals) ||
        pst_sst_check_properties(properties, f->properties_bytes, &totals, &g->info.lineage) ||
        !read_bounds(g, properties, f->properties_bytes))
        return PST_CORRUPT;
    g->info.rows = totals.puts;
    g->info.tombstones = totals.deletes;
    g->info.raw_bytes = totals.raw;
    return PST_OK;
}

/* ---- guides that are made -------------------------------------------------------------------- */

/* How many of the blocks are a segment together. */
static size_t made_blocks(const pst_sst_ref *refs, size_t n) {
    uint64_t stored = 0, raw = 0;
    size_t i = 0;
    for (; i < n && i < PST_GUIDE_BLOCKS; i++) {
        stored += pst_sst_align(refs[i].stored) / PST_GUIDE_UNIT;
        raw += refs[i].raw;
        if (i && (raw > PST_GUIDE_MADE || stored > PST_GUIDE_UNITS))
            break;
    }
    return i;
}

static int can_be_made(const pst_guide *g, const pst_sst_ref *refs, size_t n) {
    if (g->info.max_parallelism > PST_SST_GUIDED_GROUPS)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (refs[i].puts + refs[i].deletes > PST_GUIDE_ROWS || refs[i].raw % PST_GUIDE_UNIT ||
            refs[i].raw < PST_SST_B_HEADER || refs[i].raw / PST_GUIDE_UNIT > UINT32_MAX ||
            (refs[i].codec == PST_CODEC_LZ4 && refs[i].raw > PST_GUIDE_MADE &&
             refs[i].raw == pst_sst_align(refs[i].stored)))
            return 0;
    return 1;
}

/* The segment of n blocks. That the one before ends with its first hash is not known, so it is said
 * wherever it can be. No row is above the first place behind the segment. */
static void make_segment(pst_guide_segment *s, const pst_sst_ref *refs, size_t n, int is_first,
                         int is_last, uint8_t *entries) {
    uint32_t end = 0;
    *s = (pst_guide_segment){
        .offset = refs[0].offset,
        .first_hash = refs[0].first_hash,
        .first_key_group = refs[0].first_key_group,
        .last_key_group = is_last ? refs[n - 1].last_key_group : refs[n].first_key_group,
        .blocks = (uint16_t)n,
        .continued = !is_first && refs[-1].last_key_group == refs[0].first_key_group};
    memset(entries, 0, pst_guide_entries_bytes((uint32_t)n));
    pst_put_u64(entries + 8, is_last ? UINT64_MAX : refs[n].first_hash);
    for (size_t i = 0; i < n; i++) {
        uint64_t stored = pst_sst_align(refs[i].stored), raw = refs[i].raw;
        pst_guide_block b = {.checksum = refs[i].checksum,
                             .first_hash = refs[i].first_hash,
                             .key_group = refs[i].first_key_group,
                             .rows = refs[i].puts + refs[i].deletes};
        b.continued = i ? refs[i - 1].last_key_group == b.key_group : s->continued;
        int fits = raw <= PST_GUIDE_MADE;
        int as_stored = refs[i].codec == PST_CODEC_LZ4 && raw == stored;
        end += (uint32_t)(stored / PST_GUIDE_UNIT);
        pst_guide_put_entry(&b, fits ? end : 0,
                            !fits || as_stored ? RAW_AS_STORED : (uint32_t)(raw / PST_GUIDE_UNIT),
                            entries + PST_GUIDE_HEAD_BYTES + i * PST_GUIDE_ENTRY_BYTES);
        s->puts += refs[i].puts;
        s->deletes += refs[i].deletes;
        s->raw += (uint32_t)(raw / PST_GUIDE_UNIT);
        s->guide = refs[i].offset + stored;
    }
    uint64_t bits = ((uint64_t)s->puts + s->deletes) * PST_GUIDE_KEY_BITS;
    s->filter = s->guide + pst_guide_entries_bytes(s->blocks);
    s->end = s->filter + (bits / (PST_GUIDE_LINE_BYTES * 8) + 1) * PST_GUIDE_LINE_BYTES;
}

static pst_status make_segments(pst_guide *g, const pst_sst_ref *refs, size_t n) {
    uint32_t segments = 0;
    for (size_t i = 0, blocks; i < n; i += blocks, segments++) {
        blocks = made_blocks(refs + i, n - i);
        g->made_bytes += pst_guide_entries_bytes((uint32_t)blocks);
    }
    g->segments = pst_malloc(segments * sizeof *g->segments);
    g->made = pst_malloc(g->made_bytes + 1);
    if (!g->segments || !g->made)
        return PST_NO_MEMORY;
    uint8_t *entries = g->made;
    for (size_t i = 0, blocks; i < n; i += blocks) {
        blocks = made_blocks(refs + i, n - i);
        make_segment(&g->segments[g->n_segments++], refs + i, blocks, i == 0, i + blocks == n,
                     entries);
        entries += pst_guide_entries_bytes((uint32_t)blocks);
    }
    return PST_OK;
}

static pst_status make_guide(pst_guide *g, const pst_sst_footer *f, const uint8_t *tail) {
    if (f->blocks > INT32_MAX)
        return PST_CORRUPT;
    pst_sst_ref *refs = pst_malloc((f->blocks + 1) * sizeof *refs);
    if (!refs)
        return PST_NO_MEMORY;
    for (int32_t k = 0; k < g->schema.n_keys; k++)
        g->bounds[k] = (pst_guide_bounds){INT64_MIN, INT64_MAX};
    g->data_end = f->index_offset;
    pst_status s = pst_sst_read_refs(&g->info, g->data_offset, f, tail, refs);
    if (!s && !can_be_made(g, refs, f->blocks))
        s = PST_SCHEMA;
    if (!s)
        s = make_segments(g, refs, f->blocks);
    pst_free(refs);
    return s;
}

/* ---- opening --------------------------------------------------------------------------------- */

static pst_status open_guide(const pst_io *io, uint64_t file_bytes, int any, pst_guide **guide,
                             pst_detail *detail) {
    if (detail)
        *detail = pst_sst_nowhere();
    if (!io->read_at)
        return PST_INVALID;
    pst_guide *g = pst_calloc(1, sizeof *g);
    if (!g)
        return PST_NO_MEMORY;
    pst_sst_head head;
    pst_sst_footer footer;
    pst_buffer scratch = {NULL, 0, 0};
    memset(&head, 0, sizeof head);
    pst_status s = pst_sst_read_head(io, file_bytes, &scratch, &head, &footer);
    int guided = (head.features & PST_SST_FEATURE_GUIDE) != 0;
    if (!s && !guided && !any)
        s = PST_SCHEMA;
    if (!s)
        s = pst_sst_read_tail(io, &head, &footer, &scratch);
    g->info = head.info;
    g->schema = head.schema;
    g->rules = head.rules;
    g->rules.schema = &g->schema;
    g->features = head.features;
    g->data_offset = head.data_offset;
    if (!s)
        s = guided ? pst_guide_read_index(g, &footer, scratch.data)
                   : make_guide(g, &footer, scratch.data);
    if (s == PST_CORRUPT && head.detail.offset < 0)
        s = pst_sst_fail_at(&head, s, footer.index_offset);
    pst_buffer_free(&scratch);
    if (s && detail)
        *detail = head.detail;
    if (s)
        pst_guide_close(g);
    else
        *guide = g;
    return s;
}

pst_status pst_guide_open(const pst_io *io, uint64_t file_bytes, pst_guide **guide,
                          pst_detail *detail) {
    return open_guide(io, file_bytes, 0, guide, detail);
}

pst_status pst_guide_open_any(const pst_io *io, uint64_t file_bytes, pst_guide **guide,
                              pst_detail *detail) {
    return open_guide(io, file_bytes, 1, guide, detail);
}

void pst_guide_close(pst_guide *g) {
    if (!g)
        return;
    pst_free(g->made);
    pst_schema_clear(&g->schema);
    pst_free(g->segments);
    pst_free(g);
}

int pst_guide_is_within(const pst_guide *g, const pst_cell *key, uint32_t nulls, int32_t n) {
    for (int32_t k = 0; k < n; k++) {
        int64_t value = (int64_t)key[k].word[0];
        pst_guide_bounds b = g->bounds[k];
        if (b.least == INT64_MIN && b.largest == INT64_MAX)
            continue;
        if (!(nulls >> k & 1) && (value < b.least || value > b.largest))
            return 0;
    }
    return 1;
}

uint32_t pst_guide_segments(const pst_guide *g, int32_t key_group, uint64_t hash, uint32_t *n) {
    uint32_t low = 0, high = g->n_segments;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const pst_guide_segment *s = &g->segments[middle];
        if (pst_place_compare(s->first_key_group, s->first_hash, key_group, hash) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    *n = 0;
    if (low == 0 || g->segments[low - 1].last_key_group < key_group)
        return low;
    uint32_t first = low - 1;
    while (g->segments[first].continued && g->segments[first].first_hash == hash &&
           g->segments[first].first_key_group == key_group)
        first--;
    *n = low - first;
    return first;
}

/* ---- entries --------------------------------------------------------------------------------- */

static int group_at(const uint8_t *entry) {
    return pst_get_u16(entry + E_KEY_GROUP);
}

/* Of a segment with one block the tail says its sizes, so that they need not fit into the entry. */
static int sizes_are_whole(const pst_guide_segment *s, const uint8_t *entries) {
    uint32_t before = 0;
    uint64_t raw = 0;
    if (s->blocks == 1)
        return stored_units(s) <= s->raw;
    for (uint32_t i = 0; i < s->blocks; i++) {
        const uint8_t *entry = pst_guide_entry(entries, i);
        uint32_t end = pst_get_u16(entry + E_END), r = pst_get_u16(entry + E_RAW);
        if (end <= before || r < end - before || r / PST_SST_LZ4_RATIO > end - before)
            return 0;
        before = end;
        raw += r;
    }
    return before == stored_units(s) && raw == s->raw;
}

static int places_ascend(const pst_guide *g, const pst_guide_segment *s, const uint8_t *entries) {
    int32_t group = s->first_key_group;
    uint64_t hash = s->first_hash, rows = 0;
    for (uint32_t i = 0; i < s->blocks; i++) {
        const uint8_t *entry = pst_guide_entry(entries, i);
        int32_t own_group = group_at(entry);
        uint64_t own_hash = pst_get_u64(entry + E_HASH);
        uint32_t n = pst_get_u16(entry + E_ROWS);
        int d = pst_place_compare(group, hash, own_group, own_hash);
        if (d > 0 || (i == 0 && (d != 0 || (n & CONTINUED) != (s->continued ? CONTINUED : 0u))) ||
            (n & PST_GUIDE_ROWS) == 0 ||
            pst_key_group(own_hash, g->info.max_parallelism) != own_group)
            return 0;
        group = own_group;
        hash = own_hash;
        rows += n & PST_GUIDE_ROWS;
    }
    return rows == (uint64_t)s->puts + s->deletes &&
           pst_place_compare(group, hash, s->last_key_group, pst_guide_last_hash(entries)) <= 0;
}

pst_status pst_guide_check_entries(const pst_guide *g, uint32_t segment, const uint8_t *entries) {
    const pst_guide_segment *s = &g->segments[segment];
    uint64_t seed = pst_sst_seed(g->info.lineage.id, s->guide);
    if (pst_xxh64(entries, pst_guide_entries_size(s), seed) != s->checksum ||
        !sizes_are_whole(s, entries) || !places_ascend(g, s, entries))
        return PST_CORRUPT;
    return PST_OK;
}

pst_status pst_guide_check_filter(const pst_guide *g, uint32_t segment, const uint8_t *entries,
                                  const uint8_t *filter) {
    const pst_guide_segment *s = &g->segments[segment];
    uint64_t seed = pst_sst_seed(g->info.lineage.id, s->filter);
    return pst_xxh64(filter, pst_guide_filter_size(s), seed) == pst_get_u64(entries) ? PST_OK
                                                                                     : PST_CORRUPT;
}

pst_guide_block pst_guide_block_at(const pst_guide_segment *s, const uint8_t *entries,
                                   uint32_t block) {
    const uint8_t *entry = pst_guide_entry(entries, block);
    uint32_t rows = pst_get_u16(entry + E_ROWS);
    pst_guide_block b = {s->offset,
                         s->guide - s->offset,
                         (uint64_t)s->raw * PST_GUIDE_UNIT,
                         pst_get_u64(entry + E_CHECKSUM),
                         pst_get_u64(entry + E_HASH),
                         group_at(entry),
                         rows & PST_GUIDE_ROWS,
                         (rows & CONTINUED) != 0,
                         0};
    uint32_t end = pst_get_u16(entry + E_END), raw = pst_get_u16(entry + E_RAW);
    if (s->blocks > 1) {
        uint32_t before = block ? pst_get_u16(entry - PST_GUIDE_ENTRY_BYTES + E_END) : 0;
        b.offset += (uint64_t)before * PST_GUIDE_UNIT;
        b.stored = (uint64_t)(end - before) * PST_GUIDE_UNIT;
        b.raw = raw == RAW_AS_STORED ? b.stored : (uint64_t)raw * PST_GUIDE_UNIT;
    }
    b.packed = b.stored != b.raw || (end && raw == RAW_AS_STORED);
    return b;
}

/* Compares the place with the first one of a block. */
static int compare_to(const uint8_t *entry, int32_t key_group, uint64_t hash) {
    return pst_place_compare(group_at(entry), pst_get_u64(entry + E_HASH), key_group, hash);
}

static int is_outside(const pst_guide_segment *s, const uint8_t *entries, int32_t key_group,
                      uint64_t hash) {
    return pst_place_compare(key_group, hash, s->first_key_group, s->first_hash) < 0 ||
           pst_place_compare(key_group, hash, s->last_key_group, pst_guide_last_hash(entries)) > 0;
}

uint32_t pst_guide_blocks(const pst_guide_segment *s, const uint8_t *entries, int32_t key_group,
                          uint64_t hash, uint32_t *n) {
    uint32_t low = 0, high = s->blocks;
    *n = 0;
    if (is_outside(s, entries, key_group, hash))
        return 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (compare_to(pst_guide_entry(entries, middle), key_group, hash) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    uint32_t first = low - 1;
    while (first > 0 && compare_to(pst_guide_entry(entries, first), key_group, hash) == 0 &&
           pst_get_u16(pst_guide_entry(entries, first) + E_ROWS) & CONTINUED)
        first--;
    *n = low - first;
    return first;
}

/* ---- the filter ------------------------------------------------------------------------------ */

typedef unsigned __int128 place;

static place as_place(int32_t key_group, uint64_t hash) {
    return (place)(uint32_t)key_group << 64 | hash;
}

pst_guide_scale pst_guide_scale_of(const pst_guide_segment *s, const uint8_t *entries) {
    place first = as_place(s->first_key_group, s->first_hash);
    place span = as_place(s->last_key_group, pst_guide_last_hash(entries)) - first;
    uint64_t high = (uint64_t)(span >> 64), low = (uint64_t)span;
    /* Places are compared by the first 32 bits of their distance. */
    unsigned bits = high  ? 128 - (unsigned)__builtin_clzll(high)
                    : low ? 64 - (unsigned)__builtin_clzll(low)
                          : 0;
    unsigned shift = bits > 32 ? bits - 32 : 0;
    return (pst_guide_scale){.first_hash = s->first_hash,
                             .first_key_group = s->first_key_group,
                             .shift = shift,
                             .steps = (uint64_t)(span >> shift) + 1,
                             .lines = pst_guide_filter_size(s) / PST_GUIDE_LINE_BYTES};
}

uint64_t pst_guide_step(const pst_guide_scale *c, int32_t key_group, uint64_t hash) {
    place first = as_place(c->first_key_group, c->first_hash);
    return (uint64_t)((as_place(key_group, hash) - first) >> c->shift);
}

static size_t line_of(const pst_guide_segment *s, const uint8_t *entries, int32_t key_group,
                      uint64_t hash) {
    pst_guide_scale c = pst_guide_scale_of(s, entries);
    uint64_t step = pst_guide_step(&c, key_group, hash);
    return (size_t)(step * c.lines / c.steps) * PST_GUIDE_LINE_BYTES;
}

int pst_guide_may_have(const pst_guide_segment *s, const uint8_t *entries, const uint8_t *filter,
                       int32_t key_group, uint64_t hash) {
    if (is_outside(s, entries, key_group, hash))
        return 0;
    return pst_guide_line_has(filter + line_of(s, entries, key_group, hash), hash);
}

pst_status pst_guide_filter_add(const pst_guide_scale *c, const pst_guide_segment *s,
                                const uint8_t *entries, uint8_t *filter, int32_t key_group,
                                uint64_t hash) {
    if (is_outside(s, entries, key_group, hash))
        return PST_CORRUPT;
    uint64_t probes = pst_guide_probes(hash);
    uint8_t *line = filter + (size_t)(pst_guide_step(c, key_group, hash) * c->lines / c->steps) *
                                 PST_GUIDE_LINE_BYTES;
    for (int i = 0; i < PST_GUIDE_PROBES; i++, probes >>= 9)
        line[(probes & 511) >> 3] |= (uint8_t)(1u << (probes & 7));
    return PST_OK;
}
