#include <assert.h>
#include <string.h>

#include "base/budget.h"
#include "base/coding.h"
#include "base/mem.h"
#include "file/sst_writer.h"
#include "guide/sst_guide_build.h"
#include "guide/sst_times_build.h"
#include "key/hash.h"
#include "key/schema.h"
#include "key/xxh64.h"
#include "sst/sst_build.h"
#include "sst/sst_format.h"
#include "sst/sst_shape.h"

struct pst_sst_writer {
    pst_io io;
    pst_charge charge;
    pst_file_info info;
    pst_schema schema;
    uint64_t states_mask;
    uint64_t maps;   /* a bit per map */
    uint64_t offset; /* written so far */
    pst_xxh64_state sum;
    pst_sst_totals totals;
    pst_status failed; /* what every later call returns */
    int finished;
    uint64_t last_hash;
    int32_t last_key_group; /* -1: no record yet */
    int32_t block_key_group;
    uint64_t block_hash;      /* of the block's first record */
    int block_continued;      /* it has the hash of the record before it */
    pst_guide_builder *guide; /* NULL: a file without one */
    pst_times_builder *times; /* NULL: a file without a guide or without timers */
    pst_sst_ref *refs;
    size_t n_refs;
    size_t refs_capacity;
    pst_buffer packed;
    pst_sst_builder block;
};

static pst_status fail(pst_sst_writer *w, pst_status s) {
    w->failed = s;
    return s;
}

static pst_status emit(pst_sst_writer *w, const void *data, size_t size) {
    if (w->io.write(w->io.ctx, data, size) != 0)
        return PST_CALLBACK;
    pst_xxh64_update(&w->sum, data, size);
    w->offset += size;
    return PST_OK;
}

static int is_guided(const pst_sst_writer *w) {
    return w->info.block_bytes != 0;
}

static pst_status write_head(pst_sst_writer *w) {
    uint32_t schema_bytes = pst_sst_schema_bytes(&w->schema);
    if (schema_bytes == 0)
        return PST_INVALID;
    pst_sst_header h = {w->info.kind,
                        w->info.lineage,
                        w->info.max_parallelism,
                        w->info.first_key_group,
                        w->info.last_key_group,
                        schema_bytes,
                        pst_sst_features(&w->schema, w->info.null_entries) |
                            (is_guided(w) ? PST_SST_FEATURE_GUIDE : 0) |
                            (w->times ? PST_SST_FEATURE_TIMES : 0),
                        w->info.block_bytes};
    pst_status s = pst_buffer_reserve(&w->packed, PST_SST_HEADER_BYTES + (size_t)schema_bytes);
    if (s)
        return s;
    pst_sst_put_header(&h, w->packed.data);
    pst_sst_put_schema(&w->schema, h.lineage.id, w->packed.data + PST_SST_HEADER_BYTES,
                       schema_bytes);
    return emit(w, w->packed.data, PST_SST_HEADER_BYTES + (size_t)schema_bytes);
}

static int blocks_are_valid(const pst_file_info *info) {
    return info->block_bytes == 0 || (info->block_bytes >= PST_SST_LEAST_BLOCK &&
                                      info->block_bytes <= PST_SST_LARGEST_BLOCK &&
                                      info->max_parallelism <= PST_SST_GUIDED_GROUPS);
}

static pst_status begin_guide(pst_sst_writer *w) {
    w->guide = pst_malloc(sizeof *w->guide);
    if (!w->guide)
        return PST_NO_MEMORY;
    pst_guide_builder_init(w->guide, &w->schema);
    w->block.target = w->info.block_bytes;
    w->block.most_rows = PST_GUIDE_ROWS;
    int32_t i = w->schema.n_states - 1;
    while (i >= 0 && w->schema.states[i].kind != PST_TIMERS)
        i--;
    w->times = i < 0 ? NULL : pst_calloc(1, sizeof *w->times);
    return i < 0 || w->times ? PST_OK : PST_NO_MEMORY;
}

pst_status pst_sst_writer_create(const pst_schema *schema, const pst_file_info *info,
                                 const pst_io *io, pst_sst_writer **writer) {
    if (!io->write || pst_schema_check(schema) ||
        (info->kind != PST_DELTA && info->kind != PST_BASE) || info->first_key_group < 0 ||
        info->first_key_group > info->last_key_group ||
        info->last_key_group >= info->max_parallelism || !blocks_are_valid(info))
        return PST_INVALID;
    pst_sst_writer *w = pst_calloc(1, sizeof *w);
    if (!w)
        return PST_NO_MEMORY;
    w->io = *io;
    w->charge = (pst_charge){pst_budget_retain(io->budget), 0, PST_SMALL_BUFFER};
    w->info = *info;
    w->last_key_group = -1;
    w->states_mask = schema->n_states < 64 ? (UINT64_C(1) << schema->n_states) - 1 : ~UINT64_C(0);
    for (int32_t i = 0; i < schema->n_states; i++)
        w->maps |= (uint64_t)(schema->states[i].kind == PST_MAP) << i;
    pst_xxh64_init(&w->sum, 0);
    pst_status s = pst_schema_copy(schema, &w->schema);
    if (!s) {
        pst_sst_builder_init(&w->block, &w->schema);
        s = is_guided(w) ? begin_guide(w) : PST_OK;
    }
    if (!s) {
        s = write_head(w);
    }
    if (s) {
        pst_sst_writer_destroy(w);
        return s;
    }
    *writer = w;
    return PST_OK;
}

void pst_sst_writer_destroy(pst_sst_writer *w) {
    if (!w)
        return;
    pst_sst_builder_free(&w->block);
    if (w->guide)
        pst_guide_builder_free(w->guide);
    pst_free(w->guide);
    if (w->times)
        pst_times_builder_free(w->times);
    pst_free(w->times);
    pst_schema_clear(&w->schema);
    pst_free(w->packed.data);
    pst_free(w->refs);
    pst_charge_drop(&w->charge);
    pst_budget_release(w->charge.budget);
    pst_free(w);
}

static pst_status reserve_ref(pst_sst_writer *w) {
    if (w->n_refs < w->refs_capacity)
        return PST_OK;
    size_t capacity = w->refs_capacity ? w->refs_capacity * 2 : 16;
    pst_sst_ref *refs = pst_realloc(w->refs, capacity * sizeof *refs);
    if (!refs)
        return PST_NO_MEMORY;
    w->refs = refs;
    w->refs_capacity = capacity;
    return PST_OK;
}

/* Compresses where that saves at least a sixteenth; in a guided file, where sizes are rounded up, at
 * least one step of them, too. On success *data and *size are what to store, zeros up to the
 * alignment behind it. */
static pst_status pack(pst_sst_writer *w, const uint8_t **data, size_t *size,
                       pst_sst_codec *codec) {
    *codec = PST_CODEC_RAW;
    if (!w->io.compress || *size > PST_SST_LZ4_MAX_INPUT)
        return PST_OK;
    size_t limit = *size - *size / 16, packed = limit;
    pst_status s = pst_buffer_reserve(&w->packed, limit + PST_SST_ALIGN);
    if (s)
        return s;
    if (w->io.compress(w->io.ctx, *data, *size, w->packed.data, &packed) != 0)
        return PST_CALLBACK;
    if (packed == 0 || packed > limit || (is_guided(w) && pst_sst_align(packed) == *size))
        return PST_OK;
    memset(w->packed.data + packed, 0, pst_sst_align(packed) - packed);
    *data = w->packed.data;
    *size = packed;
    *codec = PST_CODEC_LZ4;
    return PST_OK;
}

static pst_status flush_segment(pst_sst_writer *w) {
    size_t size;
    pst_status s = pst_guide_builder_finish(w->guide, w->offset, w->info.lineage.id,
                                            w->info.max_parallelism, &size);
    return s ? s : emit(w, w->guide->guide.data, size);
}

/* Writes the timers that were taken as a run. */
static pst_status flush_times(pst_sst_writer *w) {
    size_t size = 1;
    pst_status s = pst_times_builder_sort(w->times);
    while (!s && size) {
        s = pst_times_builder_block(w->times, w->offset, w->info.lineage.id, &size);
        if (!s && size)
            s = emit(w, w->times->block.data, size);
    }
    return s;
}

/* Writes a finished block, and notes where. */
static pst_status store_block(pst_sst_writer *w, pst_sst_ref *ref, const uint8_t *data) {
    size_t padded = pst_sst_align(ref->stored);
    pst_status s = PST_OK;
    if (is_guided(w) && !pst_guide_builder_takes(w->guide, padded, ref->raw))
        s = flush_segment(w);
    if (!s && w->times && w->guide->open.blocks == 0 && pst_times_builder_is_full(w->times))
        s = flush_times(w);
    if (s)
        return s;
    ref->offset = w->offset;
    ref->checksum = pst_xxh64(data, padded, pst_sst_seed(w->info.lineage.id, w->offset));
    s = emit(w, data, padded);
    if (s)
        return s;
    if (is_guided(w)) {
        pst_guide_block block = {ref->offset,
                                 padded,
                                 ref->raw,
                                 ref->checksum,
                                 ref->first_hash,
                                 ref->first_key_group,
                                 ref->puts + ref->deletes,
                                 w->block_continued,
                                 ref->codec == PST_CODEC_LZ4};
        pst_guide_builder_add(w->guide, &block, ref->deletes, w->last_key_group, w->last_hash);
    } else {
        w->refs[w->n_refs++] = *ref;
    }
    w->totals.puts += ref->puts;
    w->totals.deletes += ref->deletes;
    w->totals.raw += ref->raw;
    w->totals.stored += padded;
    return PST_OK;
}

static pst_status flush_block(pst_sst_writer *w) {
    pst_status s = is_guided(w) ? PST_OK : reserve_ref(w);
    if (s)
        return s;
    pst_sst_ref ref = {.puts = w->block.rows - w->block.deletes,
                       .deletes = w->block.deletes,
                       .first_hash = w->block_hash,
                       .first_key_group = w->block_key_group,
                       .last_key_group = w->last_key_group};
    const uint8_t *data;
    size_t size;
    if (is_guided(w))
        pst_guide_builder_bound(w->guide, &w->schema, &w->block);
    s = pst_sst_builder_finish(&w->block, &data, &size);
    if (s)
        return s;
    ref.raw = size;
    if (w->times)
        s = pst_times_builder_take(w->times, &w->schema, data, size);
    if (s)
        return s;
    s = pack(w, &data, &size, &ref.codec);
    if (s)
        return s;
    ref.stored = size;
    return store_block(w, &ref, data);
}

/* PST_INVALID unless the record fits the schema and the range and comes after the last one. */
static pst_status check_record(const pst_sst_writer *w, const pst_record *r) {
    if ((r->op != PST_PUT && r->op != PST_DELETE) ||
        (r->op == PST_DELETE && w->info.kind == PST_BASE) || (r->changed & ~w->states_mask) ||
        r->key_nulls >> w->schema.n_keys || r->key_group < w->info.first_key_group ||
        r->key_group > w->info.last_key_group || r->key_group < w->last_key_group ||
        r->key_group != pst_key_group(r->hash, w->info.max_parallelism))
        return PST_INVALID;
    assert(r->hash ==
           pst_hash_key(w->schema.keys, pst_schema_hashed(&w->schema), r->key, r->key_nulls));
    if (r->key_group > w->last_key_group)
        return PST_OK;
    if (r->hash != w->last_hash)
        return r->hash > w->last_hash ? PST_OK : PST_INVALID;
    pst_cell last[PST_MAX_KEYS];
    uint32_t nulls;
    pst_sst_builder_last_key(&w->block, last, &nulls);
    int order =
        pst_key_compare(w->schema.keys, w->schema.n_keys, last, nulls, r->key, r->key_nulls);
    return order < 0 ? PST_OK : PST_INVALID;
}

/* Charges for the block with the rows just measured four times: for its columns, as it is laid out,
 * compressed, and in the codec's copy. */
static inline pst_status charge(pst_sst_writer *w) {
    return pst_charge_raise(&w->charge, 4 * (w->block.payload + w->block.row_size) +
                                            w->refs_capacity * sizeof *w->refs +
                                            (w->guide ? pst_guide_builder_bytes(w->guide) : 0) +
                                            (w->times ? pst_times_builder_bytes(w->times) : 0));
}

/* The next `n` rows go into the block, and this is the first of them. */
static pst_status begin_rows(pst_sst_writer *w, int32_t key_group, uint64_t hash, uint32_t n) {
    if (w->block.rows == 0) {
        w->block_continued = key_group == w->last_key_group && hash == w->last_hash;
        w->block_key_group = key_group;
        w->block_hash = hash;
    }
    pst_status s = w->guide ? pst_guide_builder_reserve(w->guide, n) : PST_OK;
    return s ? s : charge(w);
}

static inline void note_hashes(pst_sst_writer *w, const uint64_t *hash, uint32_t n) {
    int begins = w->block.rows == 0;
    for (uint32_t i = 0; w->guide && i < n; i++, begins = 0)
        pst_guide_builder_note(w->guide, hash[i], begins);
}

/* The columns of the record that are stored: a base has no nulls but those of entries without a
 * value, a tombstone no columns. */
static uint64_t stored_columns(const pst_sst_writer *w, pst_record_op op, uint64_t changed,
                               uint64_t present, int is_element) {
    if (op == PST_DELETE)
        return 0;
    return w->info.kind == PST_BASE ? changed & (present | (is_element ? w->maps : 0)) : changed;
}

static int is_element(const pst_sst_writer *w, const pst_record *r) {
    return w->maps && !(r->key_nulls >> (w->schema.n_keys - 1) & 1);
}

pst_status pst_sst_writer_add(pst_sst_writer *w, const pst_record *record) {
    if (w->failed || w->finished)
        return w->failed ? w->failed : PST_INVALID;
    int fits, element = is_element(w, record);
    uint64_t changed = stored_columns(w, record->op, record->changed, record->present, element);
    pst_status s = check_record(w, record);
    if (!s && element && !w->info.null_entries && record->op == PST_PUT &&
        (record->changed & ~record->present & w->maps))
        s = PST_INVALID;
    if (!s)
        s = pst_sst_builder_measure(&w->block, record, changed, &fits);
    if (s)
        return s; /* nothing has changed yet */
    if (!fits) {
        s = flush_block(w);
        if (!s)
            s = pst_sst_builder_measure(&w->block, record, changed, &fits);
    }
    if (!s)
        s = begin_rows(w, record->key_group, record->hash, 1);
    if (!s) {
        note_hashes(w, &record->hash, 1);
        s = pst_sst_builder_add(&w->block, record);
    }
    if (s)
        return fail(w, s);
    w->last_key_group = record->key_group;
    w->last_hash = record->hash;
    return PST_OK;
}

pst_status pst_sst_writer_add_stretch(pst_sst_writer *w, const pst_stretch *part, const int32_t *at,
                                      uint64_t changed) {
    uint32_t last = part->rows - 1;
    if (w->failed || w->finished)
        return w->failed ? w->failed : PST_INVALID;
    if (!part->rows || part->key_group[0] < w->info.first_key_group ||
        part->key_group[last] > w->info.last_key_group || part->key_group[0] < w->last_key_group ||
        (part->key_group[0] == w->last_key_group && part->hash[0] < w->last_hash))
        return PST_INVALID;
    for (uint32_t i = 0, n; i < part->rows; i += n) {
        uint32_t from = part->first + i, left = part->rows - i;
        pst_status s = PST_OK;
        n = pst_sst_builder_measure_view(&w->block, part->view, from, left, at, changed);
        if (!n) {
            s = flush_block(w);
            n = s ? 0
                  : pst_sst_builder_measure_view(&w->block, part->view, from, left, at, changed);
        }
        if (!s)
            s = begin_rows(w, part->key_group[i], part->hash[i], n);
        if (!s) {
            note_hashes(w, part->hash + i, n);
            s = pst_sst_builder_add_view(&w->block, part->view, from, n, at);
        }
        if (s)
            return fail(w, s);
        w->last_key_group = part->key_group[i + n - 1];
        w->last_hash = part->hash[i + n - 1];
    }
    return PST_OK;
}

static int32_t group_of(const pst_sst_writer *w, const pst_rows *rows, uint32_t i) {
    return pst_key_group(rows->hash[i], w->info.max_parallelism);
}

/* Whether the key of row i comes after the one before, which has the same hash. */
static int key_ascends(const pst_sst_writer *w, const pst_rows *rows, uint32_t i) {
    if (!rows->keys)
        return 0;
    const uint64_t *key = rows->keys[i];
    int32_t element = w->block.key_bytes_mask != 0, columns = w->schema.n_keys - element;
    if (i) {
        const uint64_t *before = rows->keys[i - 1];
        for (int32_t c = 0; c < columns + element * PST_ELEMENT_WORDS; c++)
            if (key[c] != before[c])
                return key[c] > before[c];
        return 0;
    }
    uint8_t bytes[16];
    pst_cell last[PST_MAX_KEYS], now[PST_MAX_KEYS];
    uint32_t nulls, now_nulls = 0;
    pst_sst_builder_last_key(&w->block, last, &nulls);
    for (int32_t c = 0; c < columns; c++)
        now[c] = (pst_cell){{key[c], 0}, {NULL, 0}};
    if (element && key[columns + 2]) {
        pst_put_big(bytes, key[columns], 8);
        pst_put_big(bytes + 8, key[columns + 1], 8);
        now[columns].bytes = (pst_bytes){bytes, (uint32_t)key[columns + 2] - 1};
    } else if (element) {
        now_nulls = 1u << columns;
    }
    return pst_key_compare(w->schema.keys, w->schema.n_keys, last, nulls, now, now_nulls) < 0;
}

/* As check_record, of all rows. */
static pst_status check_rows(const pst_sst_writer *w, const pst_rows *rows) {
    if ((rows->op != PST_PUT && rows->op != PST_DELETE) ||
        (rows->op == PST_DELETE && w->info.kind == PST_BASE) || (rows->changed & ~w->states_mask) ||
        (!rows->keys && w->schema.n_keys != 1))
        return PST_INVALID;
    int32_t group = w->last_key_group;
    uint64_t hash = w->last_hash;
    for (uint32_t i = 0; i < rows->n; i++) {
        int32_t next = group_of(w, rows, i);
        if (next < group || (next == group && rows->hash[i] <= hash &&
                             (rows->hash[i] < hash || !key_ascends(w, rows, i))))
            return PST_INVALID;
        group = next;
        hash = rows->hash[i];
    }
    return group_of(w, rows, 0) < w->info.first_key_group || group > w->info.last_key_group
               ? PST_INVALID
               : PST_OK;
}

pst_status pst_sst_writer_add_rows(pst_sst_writer *w, const pst_rows *rows) {
    if (w->failed || w->finished)
        return w->failed ? w->failed : PST_INVALID;
    pst_status s = rows->n ? check_rows(w, rows) : PST_OK;
    if (s)
        return s;
    uint64_t changed = stored_columns(w, rows->op, rows->changed, rows->present, 0);
    for (uint32_t from = 0, n; from < rows->n; from += n) {
        s = pst_sst_builder_measure_rows(&w->block, rows, from, changed, &n);
        if (!s && !n) {
            s = flush_block(w);
            if (!s)
                s = pst_sst_builder_measure_rows(&w->block, rows, from, changed, &n);
        }
        if (!s)
            s = begin_rows(w, group_of(w, rows, from), rows->hash[from], n);
        if (!s) {
            note_hashes(w, rows->hash + from, n);
            s = pst_sst_builder_add_rows(&w->block, rows, from, n);
        }
        if (s)
            return fail(w, s);
        w->last_key_group = group_of(w, rows, from + n - 1);
        w->last_hash = rows->hash[from + n - 1];
    }
    return PST_OK;
}

/* The index as the tail has it: entries of blocks, or of segments. */
static void put_index(const pst_sst_writer *w, uint8_t *out) {
    if (is_guided(w) && w->guide->n_segments)
        memcpy(out, w->guide->segments.data, w->guide->n_segments * PST_GUIDE_SEGMENT_BYTES);
    for (size_t i = 0; i < w->n_refs; i++)
        pst_sst_put_ref(&w->refs[i], out + i * PST_SST_REF_BYTES);
}

/* Writes the index of the timers, and what the properties say of it. */
static pst_status write_times(pst_sst_writer *w, uint8_t out[PST_SST_TIMES_BYTES]) {
    size_t size;
    pst_status s = flush_times(w);
    if (!s)
        s = pst_times_builder_index(w->times, &size);
    if (s)
        return s;
    uint64_t seed = pst_sst_seed(w->info.lineage.id, w->offset);
    pst_put_u64(out, w->offset);
    pst_put_u64(out + 8, w->times->n_blocks);
    pst_put_u64(out + 16, w->times->n_timers);
    pst_put_u64(out + 24, pst_xxh64(w->times->index.data, size, seed));
    return size ? emit(w, w->times->index.data, size) : PST_OK;
}

static size_t put_properties(const pst_sst_writer *w, const uint8_t *times, uint8_t *out) {
    uint8_t bounds[PST_MAX_KEYS * PST_SST_BOUNDS_BYTES];
    pst_sst_guided_properties guided = {bounds, (size_t)w->schema.n_keys * PST_SST_BOUNDS_BYTES,
                                        times};
    if (!is_guided(w))
        return pst_sst_put_properties(&w->totals, &w->info.lineage, NULL, out);
    pst_guide_builder_put_bounds(w->guide, w->schema.n_keys, bounds);
    return pst_sst_put_properties(&w->totals, &w->info.lineage, &guided, out);
}

static pst_status write_tail(pst_sst_writer *w) {
    uint64_t entries = is_guided(w) ? w->guide->n_segments : w->n_refs;
    size_t index_bytes = entries * PST_SST_REF_BYTES;
    uint8_t times[PST_SST_TIMES_BYTES];
    pst_status s = w->times ? write_times(w, times) : PST_OK;
    if (!s)
        s = pst_buffer_reserve(&w->packed,
                               index_bytes + PST_SST_MAX_PROPERTIES + PST_SST_FOOTER_BYTES);
    if (s)
        return s;
    uint8_t *p = w->packed.data;
    put_index(w, p);
    size_t properties = put_properties(w, w->times ? times : NULL, p + index_bytes);
    size_t tail = index_bytes + properties;
    const uint8_t *id = w->info.lineage.id;
    pst_sst_footer f = {w->offset, entries, properties,
                        pst_xxh64(p, tail, pst_sst_seed(id, w->offset)),
                        w->offset + tail + PST_SST_FOOTER_BYTES};
    uint8_t footer[PST_SST_FOOTER_BYTES];
    pst_sst_put_footer(&f, id, footer);
    memcpy(p + tail, footer, sizeof footer);
    return emit(w, p, tail + PST_SST_FOOTER_BYTES);
}

pst_status pst_sst_writer_finish(pst_sst_writer *w, pst_file_info *info) {
    if (w->failed || w->finished)
        return w->failed ? w->failed : PST_INVALID;
    pst_status s = w->block.rows ? flush_block(w) : PST_OK;
    if (!s && is_guided(w) && w->guide->open.blocks)
        s = flush_segment(w);
    if (!s)
        s = write_tail(w);
    if (s)
        return fail(w, s);
    w->finished = 1;
    w->info.rows = w->totals.puts;
    w->info.tombstones = w->totals.deletes;
    w->info.raw_bytes = w->totals.raw;
    w->info.file_bytes = w->offset;
    w->info.checksum = pst_xxh64_digest(&w->sum);
    *info = w->info;
    return PST_OK;
}

const pst_schema *pst_sst_writer_schema(const pst_sst_writer *w) {
    return &w->schema;
}
const pst_file_info *pst_sst_writer_info(const pst_sst_writer *w) {
    return &w->info;
}
