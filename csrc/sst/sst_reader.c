#include <string.h>

#include "base/budget.h"
#include "base/buffer.h"
#include "base/coding.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/schema.h"
#include "base/xxh64.h"
#include "sst/record.h"
#include "sst/sst_block.h"
#include "sst/sst_format.h"
#include "sst/sst_reader.h"

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
    pst_file_info info;
    pst_detail detail;
    pst_schema schema;
    pst_schema shown; /* as converted; without conversions it has no columns */
    pst_sst_conversion *conversions;
    int32_t n_conversions;
    pst_record_rules rules;
    pst_sst_ref *refs;
    size_t n_refs;
    size_t next_ref; /* the block to read once the current one is exhausted */
    int32_t first_key_group;
    int32_t last_key_group;
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

static const pst_detail NOWHERE = {-1, -1, -1, -1, -1};

static pst_status fail_at(pst_sst_reader *r, pst_status s, uint64_t offset) {
    r->detail = NOWHERE;
    r->detail.offset = (int64_t)offset;
    return s;
}

static pst_status read_at(pst_sst_reader *r, uint64_t offset, void *data, size_t size) {
    if (r->io.read_at(r->io.ctx, offset, data, size) != 0)
        return fail_at(r, PST_CALLBACK, offset);
    return PST_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static pst_status read_header(pst_sst_reader *r, uint64_t file_bytes, uint64_t *data_offset) {
    uint8_t bytes[PST_SST_HEADER_BYTES];
    pst_sst_header h;
    if (file_bytes < PST_SST_HEADER_BYTES)
        return fail_at(r, PST_CORRUPT, file_bytes);
    pst_status s = read_at(r, 0, bytes, sizeof bytes);
    if (s)
        return s;
    s = pst_sst_get_header(bytes, &h);
    if (s)
        return fail_at(r, s, 0);
    *data_offset = PST_SST_HEADER_BYTES + (uint64_t)h.schema_bytes;
    if (file_bytes < *data_offset + PST_SST_FOOTER_BYTES)
        return fail_at(r, PST_CORRUPT, file_bytes);
    r->info.kind = h.kind;
    r->info.lineage = h.lineage;
    r->info.max_parallelism = h.max_parallelism;
    r->info.first_key_group = h.first_key_group;
    r->info.last_key_group = h.last_key_group;
    r->info.file_bytes = file_bytes;
    r->info.null_entries = (h.features & PST_SST_FEATURE_NULLS) != 0;
    s = pst_buffer_reserve(&r->stored, h.schema_bytes);
    if (s)
        return s;
    s = read_at(r, PST_SST_HEADER_BYTES, r->stored.data, h.schema_bytes);
    if (s)
        return s;
    s = pst_sst_get_schema(r->stored.data, h.schema_bytes, h.lineage.id, h.features, &r->schema);
    if (!s)
        s = pst_record_rules_make(&r->schema, r->info.null_entries, &r->rules);
    return s == PST_CORRUPT ? fail_at(r, s, PST_SST_HEADER_BYTES) : s;
}

/* Blocks must follow one another without a gap, in order of key group and hash, within the file's
 * range. */
static pst_status read_index(pst_sst_reader *r, const pst_sst_footer *f, const uint8_t *index,
                             uint64_t data_offset, pst_sst_totals *totals) {
    uint64_t offset = data_offset;
    int32_t key_group = r->info.first_key_group;
    uint64_t hash = 0; /* of the first row of the block before, if that is of this key group */
    for (size_t i = 0; i < r->n_refs; i++) {
        pst_sst_ref *ref = &r->refs[i];
        if (pst_sst_get_ref(index + i * PST_SST_REF_BYTES, ref) || ref->offset != offset ||
            ref->stored > f->index_offset - offset || ref->first_key_group < key_group ||
            ref->last_key_group > r->info.last_key_group ||
            (ref->first_key_group == key_group && ref->first_hash < hash))
            return PST_CORRUPT;
        uint64_t padded = pst_sst_align(ref->stored);
        if (padded > f->index_offset - offset)
            return PST_CORRUPT;
        offset += padded;
        key_group = ref->last_key_group;
        hash = ref->first_key_group == key_group ? ref->first_hash : 0;
        totals->puts += ref->puts;
        totals->deletes += ref->deletes;
        totals->raw += ref->raw;
        totals->stored += padded;
    }
    int complete = offset == f->index_offset && (r->info.kind != PST_BASE || totals->deletes == 0);
    return complete ? PST_OK : PST_CORRUPT;
}

static pst_status read_tail(pst_sst_reader *r, uint64_t data_offset) {
    uint8_t bytes[PST_SST_FOOTER_BYTES];
    const uint8_t *id = r->info.lineage.id;
    uint64_t end = r->info.file_bytes - PST_SST_FOOTER_BYTES;
    pst_sst_footer f;
    pst_status s = read_at(r, end, bytes, sizeof bytes);
    if (s)
        return s;
    if (pst_sst_get_footer(bytes, id, data_offset, r->info.file_bytes, &f))
        return fail_at(r, PST_CORRUPT, end);
    size_t size = end - f.index_offset;
    s = pst_charge_raise(&r->charge, size + f.blocks * sizeof *r->refs);
    if (!s)
        s = pst_buffer_reserve(&r->stored, size);
    if (s)
        return s;
    s = read_at(r, f.index_offset, r->stored.data, size);
    if (s)
        return s;
    const uint8_t *tail = r->stored.data;
    if (pst_xxh64(tail, size, pst_sst_seed(id, f.index_offset)) != f.tail_checksum)
        return fail_at(r, PST_CORRUPT, f.index_offset);
    r->refs = pst_malloc(f.blocks * sizeof *r->refs);
    if (!r->refs)
        return PST_NO_MEMORY;
    r->n_refs = f.blocks;
    pst_sst_totals totals = {0, 0, 0, 0};
    if (read_index(r, &f, tail, data_offset, &totals) ||
        pst_sst_check_properties(tail + f.blocks * PST_SST_REF_BYTES, f.properties_bytes, &totals,
                                 &r->info.lineage))
        return fail_at(r, PST_CORRUPT, f.index_offset);
    r->info.rows = totals.puts;
    r->info.tombstones = totals.deletes;
    r->info.raw_bytes = totals.raw;
    return PST_OK;
}

pst_status pst_sst_reader_open(const pst_io *io, uint64_t file_bytes, pst_sst_reader **reader,
                               pst_detail *detail) {
    if (detail)
        *detail = NOWHERE;
    if (!io->read_at)
        return PST_INVALID;
    pst_sst_reader *r = pst_calloc(1, sizeof *r);
    if (!r)
        return PST_NO_MEMORY;
    r->io = *io;
    r->charge.budget = pst_budget_retain(io->budget);
    r->detail = NOWHERE;
    uint64_t data_offset;
    pst_status s = read_header(r, file_bytes, &data_offset);
    if (!s)
        s = read_tail(r, data_offset);
    if (s) {
        if (detail)
            *detail = r->detail;
        pst_sst_reader_close(r);
        return s;
    }
    r->first_key_group = r->info.first_key_group;
    r->last_key_group = r->info.last_key_group;
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
    pst_schema_clear(&r->schema);
    pst_free(r->refs);
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
    return &r->info;
}
const pst_schema *pst_sst_reader_schema(const pst_sst_reader *r) {
    return r->shown.n_keys ? &r->shown : &r->schema;
}
const pst_detail *pst_sst_reader_detail(const pst_sst_reader *r) {
    return &r->detail;
}

/* ---- conversions ----------------------------------------------------------------------------- */

pst_status pst_sst_reader_convert(pst_sst_reader *r, const pst_sst_conversion *conversions,
                                  int32_t n) {
    pst_column states[PST_MAX_STATES];
    pst_schema changed = r->schema;
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
        pst_sst_values *values = &r->block.columns[r->schema.n_keys + c->column];
        pst_status s = values->count ? c->run(c->ctx, &r->block, values) : PST_OK;
        if (s)
            return s == PST_CORRUPT ? fail_at(r, s, ref->offset) : s;
    }
    return PST_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The first block that may have rows of the key group, or of later ones. */
static size_t first_ref(const pst_sst_reader *r, int32_t key_group) {
    size_t low = 0, high = r->n_refs;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->refs[middle].last_key_group < key_group)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

pst_status pst_sst_reader_seek(pst_sst_reader *r, int32_t first_key_group, int32_t last_key_group) {
    if (first_key_group < 0 || first_key_group > last_key_group)
        return PST_INVALID;
    r->next_ref = first_ref(r, first_key_group);
    r->first_key_group = first_key_group;
    r->last_key_group = last_key_group;
    r->failed = PST_OK;
    r->tied = 0;
    r->block.row = r->block.rows = 0;
    return PST_OK;
}

uint64_t pst_sst_reader_estimate(const pst_sst_reader *r, int32_t key_group) {
    uint64_t rows = 0;
    if (key_group < r->first_key_group || key_group > r->last_key_group)
        return 0;
    for (size_t i = first_ref(r, key_group); i < r->n_refs; i++) {
        const pst_sst_ref *ref = &r->refs[i];
        if (ref->first_key_group > key_group)
            break;
        uint32_t groups = (uint32_t)(ref->last_key_group - ref->first_key_group) + 1;
        rows += (ref->puts + groups - 1) / groups;
    }
    return rows;
}

/* Reads the block's stored bytes; *raw is then its raw bytes. */
static pst_status fetch(pst_sst_reader *r, const pst_sst_ref *ref, const uint8_t **raw) {
    size_t padded = pst_sst_align(ref->stored);
    uint64_t rows = ref->puts + ref->deletes;
    /* Twice its raw size where the codec has a copy, and a hash, a key group and a byte per row.
     * Converted values are kept as such, as Arrow columns of both types, and once more as they are
     * put together. */
    uint64_t copies = r->n_conversions ? 8 : 2;
    pst_status s = pst_charge_raise(&r->charge, r->n_refs * sizeof *ref + padded +
                                                    copies * ref->raw + rows * 13);
    if (!s)
        s = pst_buffer_reserve(&r->stored, padded);
    if (s)
        return s;
    s = read_at(r, ref->offset, r->stored.data, padded);
    if (s)
        return s;
    uint64_t seed = pst_sst_seed(r->info.lineage.id, ref->offset);
    if (pst_xxh64(r->stored.data, padded, seed) != ref->checksum)
        return fail_at(r, PST_CORRUPT, ref->offset);
    *raw = r->stored.data;
    if (ref->codec == PST_CODEC_RAW)
        return PST_OK;
    if (!r->io.decompress)
        return PST_INVALID;
    s = pst_buffer_reserve(&r->raw, ref->raw);
    if (s)
        return s;
    *raw = r->raw.data;
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
    return pst_key_compare(r->schema.keys, r->schema.n_keys, r->tied_key, r->tied_nulls, key,
                           nulls) < 0;
}

/* Hashes the block's keys and checks their order against the index. */
static pst_status hash_block(pst_sst_reader *r, const pst_sst_ref *ref) {
    uint32_t rows = r->block.rows;
    uint8_t *same = NULL;
    pst_status s = pst_buffer_reserve(&r->hashes, (size_t)rows * sizeof(uint64_t));
    if (!s)
        s = pst_buffer_reserve(&r->key_groups, (size_t)rows * sizeof(int32_t));
    if (!s && r->rules.has_element) {
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
        !pst_sst_rows_ascend(&r->block, hash, r->info.max_parallelism, key_group, same) ||
        hash[0] != ref->first_hash || key_group[0] != ref->first_key_group ||
        key_group[rows - 1] != ref->last_key_group)
        return fail_at(r, PST_CORRUPT, ref->offset);
    return PST_OK;
}

/* Compares the block's end with the next one's beginning, and keeps the last key where that must be
 * compared too. */
static pst_status keep_last_key(pst_sst_reader *r, const pst_sst_ref *ref) {
    const pst_sst_ref *next = ref + 1;
    uint32_t last = r->block.rows - 1;
    uint64_t hash = hashes_of(r)[last];
    size_t size = 0;
    r->tied = 0;
    if (next == r->refs + r->n_refs || next->first_key_group != ref->last_key_group ||
        next->first_hash > hash)
        return PST_OK;
    if (next->first_hash < hash)
        return fail_at(r, PST_CORRUPT, next->offset);
    pst_sst_view_key(&r->block, last, r->tied_key, &r->tied_nulls);
    for (int32_t i = 0; i < r->schema.n_keys; i++)
        if (r->schema.keys[i].type >= PST_STRING && !(r->tied_nulls >> i & 1))
            size += r->tied_key[i].bytes.size;
    pst_status s = pst_buffer_reserve(&r->tied_bytes, size);
    if (s)
        return s;
    uint8_t *to = r->tied_bytes.data;
    for (int32_t i = 0; i < r->schema.n_keys; i++) {
        pst_bytes *key = &r->tied_key[i].bytes;
        if (r->schema.keys[i].type < PST_STRING || r->tied_nulls >> i & 1 || !key->size)
            continue;
        key->data = memcpy(to, key->data, key->size);
        to += key->size;
    }
    r->tied = 1;
    return PST_OK;
}

static pst_status load_block(pst_sst_reader *r) {
    const pst_sst_ref *ref = &r->refs[r->next_ref];
    const uint8_t *raw = NULL;
    r->block.row = r->block.rows = 0;
    pst_status s = fetch(r, ref, &raw);
    if (s)
        return s;
    if (pst_sst_view_open(&r->block, &r->schema, raw, ref->raw) ||
        r->block.deletes != ref->deletes || r->block.rows - r->block.deletes != ref->puts)
        return fail_at(r, PST_CORRUPT, ref->offset);
    s = hash_block(r, ref);
    if (!s)
        s = keep_last_key(r, ref);
    if (!s && r->n_conversions)
        s = convert_block(r, ref);
    if (s)
        return s;
    r->next_ref++;
    r->first_row = pst_sst_first_row(key_groups_of(r), r->block.rows, r->first_key_group);
    pst_sst_view_skip(&r->block, r->first_row);
    return PST_OK;
}

/* Stands before a row of the seeked range. */
static pst_status find_row(pst_sst_reader *r) {
    while (r->block.row >= r->block.rows) {
        if (r->failed)
            return r->failed;
        if (r->next_ref >= r->n_refs || r->refs[r->next_ref].first_key_group > r->last_key_group)
            return PST_NOT_FOUND;
        r->failed = load_block(r);
        if (r->failed) {
            r->block.row = r->block.rows = 0;
            return r->failed;
        }
    }
    return key_groups_of(r)[r->block.row] > r->last_key_group ? PST_NOT_FOUND : PST_OK;
}

pst_status pst_sst_reader_next(pst_sst_reader *r, pst_record *record) {
    pst_status s = find_row(r);
    if (s)
        return s;
    record->hash = hashes_of(r)[r->block.row];
    record->key_group = key_groups_of(r)[r->block.row];
    pst_sst_view_next(&r->block, record);
    if (!r->rules.has_element || pst_record_is_sound(&r->rules, record))
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
                         r->rules.has_element ? r->same.data + row : NULL,
                         row,
                         end - row};
}

static int has_stretch(const pst_sst_reader *r) {
    return !r->rules.has_element && r->block.n_kinds == 1 && !r->block.deletes;
}

/* Where the block's rows of the seeked range end. */
static uint32_t end_of_range(pst_sst_reader *r) {
    uint32_t end = r->block.rows;
    return r->last_key_group < r->info.last_key_group
               ? pst_sst_first_row(key_groups_of(r), end, r->last_key_group + 1)
               : end;
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
        v->columns[r->schema.n_keys + __builtin_ctzll(left)].next += n;
    v->row += n;
}

pst_ahead pst_sst_reader_ahead(const pst_sst_reader *r) {
    uint32_t row = r->block.row - 1;
    const uint64_t *hash = (const uint64_t *)(const void *)r->hashes.data;
    const uint8_t *same = r->rules.has_element ? r->same.data + row : NULL;
    return (pst_ahead){hash + row, r->block.rows - row, same, &r->block, row == r->first_row};
}
