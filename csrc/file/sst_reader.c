#include <string.h>

#include "base/budget.h"
#include "base/buffer.h"
#include "base/coding.h"
#include "base/mem.h"
#include "file/sst_reader.h"
#include "guide/sst_guide.h"
#include "key/hash.h"
#include "key/schema.h"
#include "key/xxh64.h"
#include "sst/record.h"
#include "sst/sst_block.h"
#include "sst/sst_format.h"
#include "sst/sst_open.h"
#include "sst/sst_unpack.h"

/* Invariants:
 *  1. Bytes are used only after the checksum over them held.
 *  2. No allocation is larger than what the file's own size bounds.
 *  3. A block is read only if its key groups meet the range.
 *  4. After a failure the reader stands still: every next repeats the status until a seek.
 *  5. Records come in their order, no key twice, and sound (record.h). So whoever merges files gets
 *     what a writer takes, and whoever applies a record may take its cells for what they say. */
struct pst_sst_reader {
    pst_io io;
    pst_charge charge; /* of the index and a block */
    pst_sst_head head;
    pst_schema shown; /* as converted; without conversions it has no columns */
    pst_sst_conversion *conversions;
    int32_t n_conversions;
    pst_sst_ref *refs; /* of all blocks; of a guided file, of a segment's */
    size_t n_refs;
    size_t next_ref;       /* the block to read once the current one is exhausted */
    pst_guide *guide;      /* NULL: a file without one. Its schema is the head's */
    uint32_t next_segment; /* whose blocks follow those of `refs` */
    uint64_t segment_hash; /* of the last row of those */
    int32_t first_key_group;
    int32_t last_key_group;
    uint64_t first_hash; /* of the first key group, and of the last one */
    uint64_t last_hash;
    pst_status failed;
    pst_buffer stored;
    pst_buffer raw;
    pst_buffer hashes;     /* uint64_t per row of the block */
    pst_buffer key_groups; /* int32_t per row of the block */
    pst_buffer same;       /* in a file with elements: as in pst_stretch */
    uint32_t first_row;    /* of the block that was wanted */
    pst_sst_view block;    /* exhausted: block.row == block.rows */
    /* The last key of the block before, where that was read and the hash goes on in the next
     * one. */
    int tied;
    pst_cell tied_key[PST_MAX_KEYS];
    uint32_t tied_nulls;
    pst_buffer tied_bytes;
};

static pst_status fail_at(pst_sst_reader *r, pst_status s, uint64_t offset) {
    return pst_sst_fail_at(&r->head, s, offset);
}

static pst_status read_at(pst_sst_reader *r, uint64_t offset, void *data, size_t size) {
    return pst_sst_read_at(&r->io, &r->head, offset, data, size);
}

/* ---- opening --------------------------------------------------------------------------------- */

static pst_status read_blocks(pst_sst_reader *r, const pst_sst_footer *f) {
    r->refs = pst_malloc(f->blocks * sizeof *r->refs);
    if (!r->refs)
        return PST_NO_MEMORY;
    r->n_refs = f->blocks;
    pst_status s =
        pst_sst_read_refs(&r->head.info, r->head.data_offset, f, r->stored.data, r->refs);
    return s ? fail_at(r, s, f->index_offset) : PST_OK;
}

static pst_status read_segments(pst_sst_reader *r, const pst_sst_footer *f) {
    pst_guide *g = r->guide = pst_calloc(1, sizeof *g);
    r->refs = g ? pst_malloc(PST_GUIDE_BLOCKS * sizeof *r->refs) : NULL;
    if (!r->refs)
        return PST_NO_MEMORY;
    g->info = r->head.info;
    g->schema = r->head.schema;
    g->features = r->head.features;
    g->data_offset = r->head.data_offset;
    pst_status s = pst_guide_read_index(g, f, r->stored.data);
    r->head.info = g->info;
    return s == PST_CORRUPT ? fail_at(r, s, f->index_offset) : s;
}

/* What is kept of the index. */
static uint64_t index_bytes(const pst_sst_reader *r) {
    if (r->guide)
        return r->guide->n_segments * sizeof *r->guide->segments +
               PST_GUIDE_BLOCKS * sizeof *r->refs;
    return r->n_refs * sizeof *r->refs;
}

static pst_status read_file(pst_sst_reader *r, uint64_t file_bytes) {
    pst_sst_footer f;
    pst_status s = pst_sst_read_head(&r->io, file_bytes, &r->stored, &r->head, &f);
    if (!s)
        s = pst_charge_raise(&r->charge, file_bytes - PST_SST_FOOTER_BYTES - f.index_offset +
                                             f.blocks * sizeof *r->refs);
    if (!s)
        s = pst_sst_read_tail(&r->io, &r->head, &f, &r->stored);
    if (s)
        return s;
    return r->head.features & PST_SST_FEATURE_GUIDE ? read_segments(r, &f) : read_blocks(r, &f);
}

pst_status pst_sst_reader_open(const pst_io *io, uint64_t file_bytes, pst_sst_reader **reader,
                               pst_detail *detail) {
    if (detail)
        *detail = pst_sst_nowhere();
    if (!io->read_at)
        return PST_INVALID;
    pst_sst_reader *r = pst_calloc(1, sizeof *r);
    if (!r)
        return PST_NO_MEMORY;
    r->io = *io;
    r->charge.budget = pst_budget_retain(io->budget);
    r->head.detail = pst_sst_nowhere();
    pst_status s = read_file(r, file_bytes);
    if (s) {
        if (detail)
            *detail = r->head.detail;
        pst_sst_reader_close(r);
        return s;
    }
    r->first_key_group = r->head.info.first_key_group;
    r->last_key_group = r->head.info.last_key_group;
    r->last_hash = UINT64_MAX;
    *reader = r;
    return PST_OK;
}

void pst_sst_reader_close(pst_sst_reader *r) {
    if (!r)
        return;
    for (int32_t i = 0; i < r->n_conversions; i++)
        r->conversions[i].destroy(r->conversions[i].ctx);
    pst_free(r->conversions);
    if (r->shown.n_keys)
        pst_schema_clear(&r->shown);
    pst_schema_clear(&r->head.schema);
    pst_free(r->refs);
    if (r->guide)
        pst_free(r->guide->segments);
    pst_free(r->guide);
    pst_free(r->stored.data);
    pst_free(r->raw.data);
    pst_free(r->hashes.data);
    pst_free(r->key_groups.data);
    pst_free(r->same.data);
    pst_free(r->tied_bytes.data);
    pst_charge_drop(&r->charge);
    pst_budget_release(r->charge.budget);
    pst_free(r);
}

const pst_file_info *pst_sst_reader_info(const pst_sst_reader *r) {
    return &r->head.info;
}
const pst_schema *pst_sst_reader_schema(const pst_sst_reader *r) {
    return r->shown.n_keys ? &r->shown : &r->head.schema;
}
const pst_detail *pst_sst_reader_detail(const pst_sst_reader *r) {
    return &r->head.detail;
}

/* ---- conversions ----------------------------------------------------------------------------- */

pst_status pst_sst_reader_convert(pst_sst_reader *r, const pst_sst_conversion *conversions,
                                  int32_t n) {
    pst_column states[PST_MAX_STATES];
    pst_schema changed = r->head.schema;
    pst_status s = r->n_conversions ? PST_INVALID : PST_OK;
    pst_sst_conversion *own = s ? NULL : pst_malloc((size_t)n * sizeof *own);
    if (!own) {
        for (int32_t i = 0; i < n; i++)
            conversions[i].destroy(conversions[i].ctx);
        return s ? s : PST_NO_MEMORY;
    }
    memcpy(own, conversions, (size_t)n * sizeof *own);
    r->conversions = own;
    r->n_conversions = n;
    memcpy(states, changed.states, (size_t)changed.n_states * sizeof *states);
    for (int32_t i = 0; i < n; i++) {
        states[own[i].column] = own[i].to;
        states[own[i].column].name = changed.states[own[i].column].name;
    }
    changed.states = states;
    return pst_schema_copy(&changed, &r->shown);
}

/* The block was checked as it was written. */
static pst_status convert_block(pst_sst_reader *r, const pst_sst_ref *ref) {
    for (int32_t i = 0; i < r->n_conversions; i++) {
        pst_sst_conversion *c = &r->conversions[i];
        pst_sst_values *values = &r->block.columns[r->head.schema.n_keys + c->column];
        pst_status s = values->count ? c->run(c->ctx, &r->block, values) : PST_OK;
        if (s)
            return s == PST_CORRUPT ? fail_at(r, s, ref->offset) : s;
    }
    return PST_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int is_before(int32_t key_group, uint64_t hash, int32_t other_group, uint64_t other_hash) {
    return key_group < other_group || (key_group == other_group && hash < other_hash);
}

/* The first block that may have rows of the key group and hash, or later ones: the next one begins
 * with that, or behind it. */
static size_t first_ref(const pst_sst_reader *r, int32_t key_group, uint64_t hash) {
    size_t low = 0, high = r->n_refs;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const pst_sst_ref *next = middle + 1 < r->n_refs ? &r->refs[middle + 1] : NULL;
        if (r->refs[middle].last_key_group < key_group ||
            (next && is_before(next->first_key_group, next->first_hash, key_group, hash)))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint32_t first_segment(const pst_sst_reader *r, int32_t key_group, uint64_t hash) {
    const pst_guide_segment *segments = r->guide->segments;
    uint32_t low = 0, high = r->guide->n_segments;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const pst_guide_segment *next =
            middle + 1 < r->guide->n_segments ? &segments[middle + 1] : NULL;
        if (segments[middle].last_key_group < key_group ||
            (next && is_before(next->first_key_group, next->first_hash, key_group, hash)))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Stands before the first block of the range. */
static void begin_range(pst_sst_reader *r) {
    if (r->guide) {
        r->next_segment = first_segment(r, r->first_key_group, r->first_hash);
        r->n_refs = 0;
    }
    r->next_ref = first_ref(r, r->first_key_group, r->first_hash);
}

pst_status pst_sst_reader_seek(pst_sst_reader *r, int32_t first_key_group, int32_t last_key_group) {
    if (first_key_group < 0 || first_key_group > last_key_group)
        return PST_INVALID;
    r->first_key_group = first_key_group;
    r->last_key_group = last_key_group;
    r->first_hash = 0;
    r->last_hash = UINT64_MAX;
    begin_range(r);
    r->failed = PST_OK;
    r->tied = 0;
    r->block.row = r->block.rows = 0;
    return PST_OK;
}

void pst_sst_reader_narrow(pst_sst_reader *r, uint64_t first_hash, uint64_t last_hash) {
    r->first_hash = first_hash;
    r->last_hash = last_hash;
    begin_range(r);
}

/* A place in the order of a file's rows: the key group, and how far in it the hash is. */
static double place_of(int32_t key_group, uint64_t hash) {
    return key_group + (double)hash * 0x1p-64;
}

static double begin_of(const pst_sst_reader *r, size_t part) {
    return r->guide ? place_of(r->guide->segments[part].first_key_group,
                               r->guide->segments[part].first_hash)
                    : place_of(r->refs[part].first_key_group, r->refs[part].first_hash);
}

/* The share of a key group in a block, or a segment: its rows are spread evenly from its first one
 * to that of the next. */
static double share_of(const pst_sst_reader *r, size_t part, size_t n, int32_t last,
                       int32_t key_group) {
    double begin = begin_of(r, part), end = last + 1.0;
    if (part + 1 < n && begin_of(r, part + 1) < end)
        end = begin_of(r, part + 1);
    double low = begin > key_group ? begin : key_group;
    double high = end < key_group + 1.0 ? end : key_group + 1.0;
    return end <= begin ? 1 : high <= low ? 0 : (high - low) / (end - begin);
}

uint64_t pst_sst_reader_estimate(const pst_sst_reader *r, int32_t key_group) {
    double rows = 0;
    if (key_group < r->first_key_group || key_group > r->last_key_group)
        return 0;
    size_t n = r->guide ? r->guide->n_segments : r->n_refs;
    for (size_t i = r->guide ? first_segment(r, key_group, 0) : first_ref(r, key_group, 0); i < n;
         i++) {
        const pst_guide_segment *segment = r->guide ? &r->guide->segments[i] : NULL;
        const pst_sst_ref *ref = r->guide ? NULL : &r->refs[i];
        if ((ref ? ref->first_key_group : segment->first_key_group) > key_group)
            break;
        int32_t last = ref ? ref->last_key_group : segment->last_key_group;
        rows += share_of(r, i, n, last, key_group) * (ref ? ref->puts : segment->puts);
    }
    return (uint64_t)(rows + 0.5);
}

void pst_sst_reader_spread(const pst_sst_reader *r, int32_t first, int32_t n, double *puts,
                           double *deletes, double *bytes) {
    size_t parts = r->guide ? r->guide->n_segments : r->n_refs;
    for (size_t i = 0; i < parts; i++) {
        const pst_guide_segment *segment = r->guide ? &r->guide->segments[i] : NULL;
        const pst_sst_ref *ref = r->guide ? NULL : &r->refs[i];
        int32_t low = ref ? ref->first_key_group : segment->first_key_group;
        int32_t high = ref ? ref->last_key_group : segment->last_key_group;
        for (int32_t g = low > first ? low : first; g <= high && g - first < n; g++) {
            double share = share_of(r, i, parts, high, g);
            puts[g - first] += share * (ref ? ref->puts : segment->puts);
            deletes[g - first] += share * (ref ? ref->deletes : segment->deletes);
            bytes[g - first] +=
                share * (double)(ref ? ref->stored : segment->guide - segment->offset);
        }
    }
}

/* Whether there are blocks behind those of `refs`, and where the first of them begins. */
static int has_more(const pst_sst_reader *r, pst_sst_ref *next) {
    if (!r->guide || r->next_segment == r->guide->n_segments)
        return 0;
    const pst_guide_segment *segment = &r->guide->segments[r->next_segment];
    next->first_key_group = segment->first_key_group;
    next->first_hash = segment->first_hash;
    next->offset = segment->offset;
    return 1;
}

/* Reads the entries of the next segment. Where a block ends is known of the last one; the others end
 * at or before the place where the next one begins. */
static pst_status load_segment(pst_sst_reader *r) {
    const pst_guide_segment *segment = &r->guide->segments[r->next_segment];
    size_t size = pst_guide_entries_size(segment);
    pst_status s = pst_buffer_reserve(&r->stored, size);
    if (!s)
        s = read_at(r, segment->guide, r->stored.data, size);
    if (s)
        return s;
    const uint8_t *entries = r->stored.data;
    if (pst_guide_check_entries(r->guide, r->next_segment, entries))
        return fail_at(r, PST_CORRUPT, segment->guide);
    for (uint32_t i = segment->blocks; i-- > 0;) {
        pst_guide_block b = pst_guide_block_at(segment, entries, i);
        int last = i + 1 == segment->blocks;
        r->refs[i] = (pst_sst_ref){.offset = b.offset,
                                   .stored = b.stored,
                                   .raw = b.raw,
                                   .checksum = b.checksum,
                                   .first_hash = b.first_hash,
                                   .first_key_group = b.key_group,
                                   .last_key_group = last ? segment->last_key_group
                                                          : r->refs[i + 1].first_key_group,
                                   .puts = b.rows,
                                   .codec = b.packed ? PST_CODEC_LZ4 : PST_CODEC_RAW};
    }
    r->segment_hash = pst_guide_last_hash(entries);
    r->n_refs = segment->blocks;
    r->next_segment++;
    r->next_ref = first_ref(r, r->first_key_group, r->first_hash);
    return PST_OK;
}

/* Of the blocks at hand. */
static pst_status tell_blocks(const pst_sst_reader *r, int32_t key_group, uint64_t hash,
                              pst_sst_bytes tell, void *ctx) {
    size_t first = first_ref(r, key_group, hash), i = first;
    while (i < r->n_refs &&
           !is_before(key_group, hash, r->refs[i].first_key_group, r->refs[i].first_hash))
        i++;
    return i == first
               ? PST_OK
               : tell(ctx, r->refs[first].offset, r->refs[i - 1].offset + r->refs[i - 1].stored);
}

pst_status pst_sst_reader_where(pst_sst_reader *r, int32_t key_group, uint64_t hash, int entries,
                                pst_sst_bytes tell, void *ctx) {
    pst_status s = PST_OK;
    r->block.row = r->block.rows = 0;
    if (!r->guide)
        return entries ? PST_OK : tell_blocks(r, key_group, hash, tell, ctx);
    uint32_t n, first = pst_guide_segments(r->guide, key_group, hash, &n);
    for (uint32_t i = first; !s && i < first + n; i++) {
        const pst_guide_segment *segment = &r->guide->segments[i];
        if (entries) {
            s = tell(ctx, segment->guide, segment->filter);
            continue;
        }
        if (!r->n_refs || r->next_segment != i + 1) {
            r->next_segment = i;
            s = load_segment(r);
        }
        if (!s)
            s = tell_blocks(r, key_group, hash, tell, ctx);
    }
    return s;
}

/* Reads the block's stored bytes; *raw is then its raw bytes. */
static pst_status fetch(pst_sst_reader *r, const pst_sst_ref *ref, const uint8_t **raw) {
    size_t padded = pst_sst_align(ref->stored);
    uint64_t rows = ref->puts + ref->deletes;
    /* Twice its raw size where the codec has a copy, and a hash, a key group and a byte per row.
     * Converted values are kept as such, as Arrow columns of both types, and once more as they are
     * put together. */
    uint64_t copies = r->n_conversions ? 8 : 2;
    pst_status s =
        pst_charge_raise(&r->charge, index_bytes(r) + padded + copies * ref->raw + rows * 13);
    if (!s)
        s = pst_buffer_reserve(&r->stored, padded);
    if (s)
        return s;
    s = read_at(r, ref->offset, r->stored.data, padded);
    if (s)
        return s;
    uint64_t seed = pst_sst_seed(r->head.info.lineage.id, ref->offset);
    if (pst_xxh64(r->stored.data, padded, seed) != ref->checksum)
        return fail_at(r, PST_CORRUPT, ref->offset);
    *raw = r->stored.data;
    if (ref->codec == PST_CODEC_RAW)
        return PST_OK;
    if (!r->guide && !r->io.decompress)
        return PST_INVALID;
    s = pst_buffer_reserve(&r->raw, ref->raw);
    if (s)
        return s;
    *raw = r->raw.data;
    /* Of a guided file's block only the size with its padding is known. */
    if (r->guide) {
        size_t taken = pst_sst_unpack(r->stored.data, padded, r->raw.data, ref->raw);
        return pst_sst_align(taken) == padded ? PST_OK : fail_at(r, PST_CORRUPT, ref->offset);
    }
    if (r->io.decompress(r->io.ctx, r->stored.data, ref->stored, r->raw.data, ref->raw) != 0)
        return fail_at(r, PST_CALLBACK, ref->offset);
    return PST_OK;
}

static uint64_t *hashes_of(pst_sst_reader *r) {
    return (uint64_t *)(void *)r->hashes.data;
}

static int32_t *key_groups_of(pst_sst_reader *r) {
    return (int32_t *)(void *)r->key_groups.data;
}

/* Does the first row come after the last one of the block before, if that has its hash? */
static int follows_tied(const pst_sst_reader *r) {
    pst_cell key[PST_MAX_KEYS];
    uint32_t nulls;
    if (!r->tied)
        return 1;
    pst_sst_view_key(&r->block, 0, key, &nulls);
    return pst_key_compare(r->head.schema.keys, r->head.schema.n_keys, r->tied_key, r->tied_nulls,
                           key, nulls) < 0;
}

/* Whether a block ends as the index says. keep_last_key compares it with the next one. */
static int ends_well(const pst_sst_reader *r, const pst_sst_ref *ref, int32_t key_group,
                     uint64_t hash) {
    if (!r->guide)
        return key_group == ref->last_key_group;
    if (ref + 1 < r->refs + r->n_refs)
        return key_group <= ref->last_key_group;
    return key_group == ref->last_key_group && hash == r->segment_hash;
}

/* Hashes the block's keys and checks their order against the index. */
static pst_status hash_block(pst_sst_reader *r, const pst_sst_ref *ref) {
    uint32_t rows = r->block.rows;
    uint8_t *same = NULL;
    pst_status s = pst_buffer_reserve(&r->hashes, (size_t)rows * sizeof(uint64_t));
    if (!s)
        s = pst_buffer_reserve(&r->key_groups, (size_t)rows * sizeof(int32_t));
    if (!s && r->head.rules.has_element) {
        s = pst_buffer_reserve(&r->same, rows);
        same = r->same.data;
    }
    if (!s)
        s = pst_sst_view_hash(&r->block, hashes_of(r));
    if (s)
        return s;
    const uint64_t *hash = hashes_of(r);
    int32_t *key_group = key_groups_of(r);
    if (!follows_tied(r) ||
        !pst_sst_rows_ascend(&r->block, hash, r->head.info.max_parallelism, key_group, same) ||
        hash[0] != ref->first_hash || key_group[0] != ref->first_key_group ||
        !ends_well(r, ref, key_group[rows - 1], hash[rows - 1]))
        return fail_at(r, PST_CORRUPT, ref->offset);
    return PST_OK;
}

/* Compares the block's end with the next one's beginning, and keeps the last key where that must be
 * compared too. */
static pst_status keep_last_key(pst_sst_reader *r, const pst_sst_ref *ref) {
    pst_sst_ref next;
    uint32_t last = r->block.rows - 1;
    uint64_t hash = hashes_of(r)[last];
    size_t size = 0;
    int more = 1;
    r->tied = 0;
    if (ref + 1 < r->refs + r->n_refs)
        next = ref[1];
    else
        more = has_more(r, &next);
    if (!more || next.first_key_group != key_groups_of(r)[last] || next.first_hash > hash)
        return PST_OK;
    if (next.first_hash < hash)
        return fail_at(r, PST_CORRUPT, next.offset);
    pst_sst_view_key(&r->block, last, r->tied_key, &r->tied_nulls);
    for (int32_t i = 0; i < r->head.schema.n_keys; i++)
        if (r->head.schema.keys[i].type >= PST_STRING && !(r->tied_nulls >> i & 1))
            size += r->tied_key[i].bytes.size;
    pst_status s = pst_buffer_reserve(&r->tied_bytes, size);
    if (s)
        return s;
    uint8_t *to = r->tied_bytes.data;
    for (int32_t i = 0; i < r->head.schema.n_keys; i++) {
        pst_bytes *key = &r->tied_key[i].bytes;
        if (r->head.schema.keys[i].type < PST_STRING || r->tied_nulls >> i & 1 || !key->size)
            continue;
        key->data = memcpy(to, key->data, key->size);
        to += key->size;
    }
    r->tied = 1;
    return PST_OK;
}

/* A guided file does not say of each block how many of its rows are deletes. */
static int has_rows(const pst_sst_reader *r, const pst_sst_ref *ref) {
    if (r->guide)
        return r->block.rows == ref->puts &&
               (r->head.info.kind != PST_BASE || r->block.deletes == 0);
    return r->block.deletes == ref->deletes && r->block.rows - r->block.deletes == ref->puts;
}

/* The first row of the block that is of this key group and hash, or behind them. */
static uint32_t row_not_before(pst_sst_reader *r, int32_t key_group, uint64_t hash) {
    uint32_t low = pst_sst_first_row(key_groups_of(r), r->block.rows, key_group);
    uint32_t high = r->block.rows;
    while (hash && low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (is_before(key_groups_of(r)[middle], hashes_of(r)[middle], key_group, hash))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int is_behind(const pst_sst_reader *r, int32_t key_group, uint64_t hash) {
    return is_before(r->last_key_group, r->last_hash, key_group, hash);
}

static pst_status load_block(pst_sst_reader *r) {
    const pst_sst_ref *ref = &r->refs[r->next_ref];
    const uint8_t *raw = NULL;
    r->block.row = r->block.rows = 0;
    pst_status s = fetch(r, ref, &raw);
    if (s)
        return s;
    if (pst_sst_view_open(&r->block, &r->head.schema, raw, ref->raw) || !has_rows(r, ref))
        return fail_at(r, PST_CORRUPT, ref->offset);
    s = hash_block(r, ref);
    if (!s)
        s = keep_last_key(r, ref);
    if (!s && r->n_conversions)
        s = convert_block(r, ref);
    if (s)
        return s;
    r->next_ref++;
    r->first_row = row_not_before(r, r->first_key_group, r->first_hash);
    pst_sst_view_skip(&r->block, r->first_row);
    return PST_OK;
}

/* Stands before a row of the seeked range. */
static pst_status find_row(pst_sst_reader *r) {
    while (r->block.row >= r->block.rows) {
        if (r->failed)
            return r->failed;
        if (r->next_ref < r->n_refs) {
            const pst_sst_ref *ref = &r->refs[r->next_ref];
            if (is_behind(r, ref->first_key_group, ref->first_hash))
                return PST_NOT_FOUND;
            r->failed = load_block(r);
        } else {
            pst_sst_ref next;
            if (!has_more(r, &next) || is_behind(r, next.first_key_group, next.first_hash))
                return PST_NOT_FOUND;
            r->failed = load_segment(r);
        }
        if (r->failed) {
            r->block.row = r->block.rows = 0;
            return r->failed;
        }
    }
    uint32_t row = r->block.row;
    return is_behind(r, key_groups_of(r)[row], hashes_of(r)[row]) ? PST_NOT_FOUND : PST_OK;
}

pst_status pst_sst_reader_next(pst_sst_reader *r, pst_record *record) {
    pst_status s = find_row(r);
    if (s)
        return s;
    record->hash = hashes_of(r)[r->block.row];
    record->key_group = key_groups_of(r)[r->block.row];
    pst_sst_view_next(&r->block, record);
    if (!r->head.rules.has_element || pst_record_is_sound(&r->head.rules, record))
        return PST_OK;
    r->block.row = r->block.rows = 0;
    return r->failed = fail_at(r, PST_CORRUPT, r->refs[r->next_ref - 1].offset);
}

/* The rows of the block up to `end`. */
static pst_stretch stretch_to(pst_sst_reader *r, uint32_t end) {
    uint32_t row = r->block.row;
    return (pst_stretch){&r->block,
                         hashes_of(r) + row,
                         key_groups_of(r) + row,
                         r->head.rules.has_element ? r->same.data + row : NULL,
                         row,
                         end - row};
}

static int has_stretch(const pst_sst_reader *r) {
    return !r->head.rules.has_element && r->block.n_kinds == 1 && !r->block.deletes;
}

/* Where the block's rows of the seeked range end. */
static uint32_t end_of_range(pst_sst_reader *r) {
    if (r->last_hash != UINT64_MAX)
        return row_not_before(r, r->last_key_group, r->last_hash + 1);
    return r->last_key_group < r->head.info.last_key_group
               ? row_not_before(r, r->last_key_group + 1, 0)
               : r->block.rows;
}

pst_status pst_sst_reader_stretch(pst_sst_reader *r, pst_stretch *part) {
    pst_status s = find_row(r);
    *part = (pst_stretch){.view = &r->block};
    if (!s && has_stretch(r)) {
        *part = stretch_to(r, end_of_range(r));
        pst_sst_reader_skip(r, part->rows);
    }
    return s;
}

const pst_sst_view *pst_sst_reader_stretch_columns(const pst_sst_reader *r) {
    return has_stretch(r) && r->block.row < r->block.rows ? &r->block : NULL;
}

static int comes_before(pst_sst_reader *r, uint32_t row, int32_t key_group, uint64_t hash) {
    int32_t group = key_groups_of(r)[row];
    return group < key_group || (group == key_group && hashes_of(r)[row] < hash);
}

void pst_sst_reader_stretch_before(pst_sst_reader *r, int32_t key_group, uint64_t hash,
                                   uint32_t least, pst_stretch *part) {
    uint32_t row = r->block.row, step = least;
    *part = (pst_stretch){.view = &r->block};
    /* Most often the next row of another file is near. */
    if (row + least > r->block.rows || !comes_before(r, row + least - 1, key_group, hash))
        return;
    uint32_t low = row + least, high = end_of_range(r);
    if (low > high)
        return;
    while (low + step < high && comes_before(r, low + step, key_group, hash)) {
        low += step + 1;
        step *= 2;
    }
    high = low + step < high ? low + step : high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (comes_before(r, middle, key_group, hash))
            low = middle + 1;
        else
            high = middle;
    }
    *part = stretch_to(r, low);
}

void pst_sst_reader_skip(pst_sst_reader *r, uint32_t rows) {
    pst_sst_view_skip(&r->block, r->block.row + rows);
}

void pst_sst_reader_pass(pst_sst_reader *r, uint32_t n) {
    pst_sst_view *v = &r->block;
    uint64_t left = v->kinds[v->row_kinds ? v->row_kinds[v->row - 1] : 0].changed;
    for (; left; left &= left - 1)
        v->columns[r->head.schema.n_keys + __builtin_ctzll(left)].next += n;
    v->row += n;
}

pst_ahead pst_sst_reader_ahead(const pst_sst_reader *r) {
    uint32_t row = r->block.row - 1;
    const uint64_t *hash = (const uint64_t *)(const void *)r->hashes.data;
    const uint8_t *same = r->head.rules.has_element ? r->same.data + row : NULL;
    return (pst_ahead){hash + row, r->block.rows - row, same, &r->block, row == r->first_row};
}
