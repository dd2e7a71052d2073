/* forge.h: files that a checksum believes and no writer of the core wrote.
 *
 * A file is taken apart into its records; some of them are changed in what they say: masks, cells,
 * keys, elements, order; and all is put together again around them, checksums and index too. Other
 * forgeries change bytes where the directory of a block, its offsets or the schema lie.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_FORGE_H
#define PST_TEST_FORGE_H

#include "base/coding.h"
#include "files.h"
#include "guide/sst_guide.h"
#include "key/schema.h"
#include "key/xxh64.h"
#include "sst/sst_build.h"
#include "sst/sst_format.h"

enum { FORGE_RECORDS = 3000 };

static inline uint32_t forge_get32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t forge_get64(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void forge_put64(void *p, uint64_t v) {
    memcpy(p, &v, sizeof v);
}

/* Values that are likely to hurt. */
static inline uint64_t forge_evil(uint64_t *rng, uint64_t old) {
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      63,
                                      64,
                                      255,
                                      256,
                                      65535,
                                      65536,
                                      65537,
                                      1 << 20,
                                      0x7fffffff,
                                      0x80000000,
                                      0xffffffff,
                                      UINT64_C(1) << 56,
                                      (UINT64_C(1) << 56) - 4096,
                                      UINT64_C(1) << 63,
                                      UINT64_MAX >> 1,
                                      UINT64_MAX - 1,
                                      UINT64_MAX};
    uint64_t r = check_random(rng);
    switch (r % 5) {
    case 0:
        return values[(r >> 8) % (sizeof values / sizeof *values)];
    case 1:
        return old + 1;
    case 2:
        return old - 1;
    case 3:
        return old ^ UINT64_C(1) << (r >> 8) % 64;
    default:
        return r >> (r >> 8) % 64;
    }
}

static inline void forge_bytes(uint8_t *p, size_t size, uint64_t *rng) {
    size_t width = (size_t)1 << check_random(rng) % 4;
    if (size < width)
        return;
    size_t at = check_random(rng) % (size - width + 1);
    if (check_random(rng) % 4)
        at -= at % width;
    uint64_t value = 0;
    memcpy(&value, p + at, width);
    value = forge_evil(rng, value);
    memcpy(p + at, &value, width);
}

/* The checksums of a guided file's time index. */
static inline void forge_reseal_times(uint8_t *p, const memory_file *original, uint64_t properties,
                                      size_t size) {
    const uint8_t *old = original->data, *id = p + 56;
    size_t length;
    const uint8_t *times =
        pst_sst_property_value(old + properties, size, PST_PROPERTY_TIMES, &length);
    uint64_t index = times ? forge_get64(times) : 0, blocks = times ? forge_get64(times + 8) : 0;
    for (uint64_t i = 0; i < blocks; i++) {
        const uint8_t *ref = old + index + i * PST_GUIDE_TIMES_REF;
        uint64_t at = forge_get64(ref), bytes = UINT64_C(64) * pst_get_u16(ref + 24);
        forge_put64(p + (ref - old) + 8, pst_xxh64(p + at, bytes, pst_sst_seed(id, at)));
    }
    if (times)
        forge_put64(p + (times - old) + 24,
                    pst_xxh64(p + index, pst_sst_align(blocks * PST_GUIDE_TIMES_REF),
                              pst_sst_seed(id, index)));
}

/* The checksums of a guided file's blocks, filters and entries. */
static inline void forge_reseal_guides(uint8_t *p, const memory_file *original, uint64_t index,
                                       uint64_t segments) {
    const uint8_t *old = original->data, *id = p + 56;
    for (uint64_t i = 0; i < segments; i++) {
        const uint8_t *segment = old + index + i * PST_GUIDE_SEGMENT_BYTES;
        uint64_t at = forge_get64(segment), guide = forge_get64(segment + 8);
        uint32_t blocks = pst_get_u16(segment + 52);
        uint64_t entries = pst_guide_entries_bytes(blocks), filter = guide + entries;
        uint64_t end = filter + UINT64_C(64) * forge_get32(segment + 56);
        for (uint32_t b = 0; b < blocks; b++) {
            const uint8_t *entry = old + guide + 16 + b * PST_GUIDE_ENTRY_BYTES;
            uint64_t before = b ? pst_get_u16(entry - 8) : 0;
            uint64_t from = at + 64 * before;
            uint64_t to = blocks == 1 ? guide : at + UINT64_C(64) * pst_get_u16(entry + 16);
            forge_put64(p + (entry - old) + 8,
                        pst_xxh64(p + from, to - from, pst_sst_seed(id, from)));
        }
        forge_put64(p + guide, pst_xxh64(p + filter, end - filter, pst_sst_seed(id, filter)));
        forge_put64(p + (segment - old) + 16,
                    pst_xxh64(p + guide, entries, pst_sst_seed(id, guide)));
    }
}

/* Makes all checksums right, taking the places of the parts from the unharmed file. */
static inline void forge_reseal(uint8_t *p, const memory_file *original) {
    const uint8_t *old = original->data, *id = p + 56;
    size_t size = original->size, footer = size - PST_SST_FOOTER_BYTES;
    size_t schema = forge_get32(old + 12), index = forge_get64(old + footer);
    uint64_t blocks = forge_get64(old + footer + 8);
    forge_put64(p + 120, pst_xxh64(p, 120, 0));
    forge_put64(p + 128 + schema - 8, pst_xxh64(p + 128, schema - 8, pst_sst_seed(id, 128)));
    int guided = (forge_get64(old + 24) & PST_SST_FEATURE_GUIDE) != 0;
    if (guided)
        forge_reseal_guides(p, original, index, blocks);
    if (guided)
        forge_reseal_times(p, original, index + blocks * 64, footer - index - blocks * 64);
    for (uint64_t i = 0; !guided && i < blocks; i++) {
        uint8_t *ref = p + index + i * PST_SST_REF_BYTES;
        uint64_t at = forge_get64(ref), stored = pst_sst_align(forge_get64(ref + 8));
        if (at < index && stored <= index - at)
            forge_put64(ref + 24, pst_xxh64(p + at, stored, pst_sst_seed(id, at)));
    }
    forge_put64(p + footer + 24, pst_xxh64(p + index, footer - index, pst_sst_seed(id, index)));
    forge_put64(p + footer + 48, pst_xxh64(p + footer, 48, pst_sst_seed(id, footer)));
}

/* ---- taking apart ---------------------------------------------------------------------------- */

/* A file's records in memory of their own. */
typedef struct forge_file {
    pst_schema schema; /* owned */
    pst_file_info info;
    pst_record *records;
    size_t n;
    byte_heap *heap;
} forge_file;

static inline void forge_own(forge_file *f, pst_bytes *bytes) {
    uint8_t *own = heap_take(f->heap, bytes->size);
    if (bytes->size)
        memcpy(own, bytes->data, bytes->size);
    bytes->data = own;
}

static inline void forge_own_record(forge_file *f, pst_record *r) {
    for (int32_t k = 0; k < f->schema.n_keys; k++)
        if (f->schema.keys[k].type >= PST_STRING && !(r->key_nulls >> k & 1))
            forge_own(f, &r->key[k].bytes);
    for (uint64_t left = r->present; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        if (f->schema.states[i].type >= PST_STRING)
            forge_own(f, &r->cells[i].bytes);
    }
}

static inline void forge_open(forge_file *f, memory_file *file) {
    pst_sst_reader *r = NULL;
    pst_record record;
    memset(&record, 0, sizeof record);
    *f = (forge_file){.records = calloc(FORGE_RECORDS, sizeof *f->records),
                      .heap = calloc(1, sizeof *f->heap)};
    REQUIRE(f->records && f->heap && file_open(file, &r) == PST_OK);
    f->info = *pst_sst_reader_info(r);
    REQUIRE(pst_schema_copy(pst_sst_reader_schema(r), &f->schema) == PST_OK);
    while (f->n < FORGE_RECORDS && pst_sst_reader_next(r, &record) == PST_OK) {
        f->records[f->n] = record;
        forge_own_record(f, &f->records[f->n++]);
    }
    pst_sst_reader_close(r);
}

static inline void forge_close(forge_file *f) {
    pst_schema_clear(&f->schema);
    heap_free(f->heap);
    free(f->heap);
    free(f->records);
    *f = (forge_file){.n = 0};
}

/* ---- putting together ------------------------------------------------------------------------ */

/* What has no writer: records in any order, saying anything that the layout of a block can hold. */
typedef struct forge_writer {
    const forge_file *f;
    memory_file *out;
    pst_sst_builder *block;
    pst_sst_ref refs[FORGE_RECORDS];
    size_t n_refs;
    pst_sst_totals totals;
    uint64_t first_hash;
    int32_t first_group;
    int32_t last_group;
} forge_writer;

static inline void forge_flush(forge_writer *w) {
    const uint8_t *raw;
    size_t size;
    if (!w->block->rows)
        return;
    REQUIRE(w->n_refs < FORGE_RECORDS);
    pst_sst_ref *ref = &w->refs[w->n_refs++];
    *ref = (pst_sst_ref){.offset = w->out->size,
                         .first_hash = w->first_hash,
                         .first_key_group = w->first_group,
                         .last_key_group = w->last_group,
                         .puts = w->block->rows - w->block->deletes,
                         .deletes = w->block->deletes};
    REQUIRE(pst_sst_builder_finish(w->block, &raw, &size) == PST_OK);
    ref->raw = ref->stored = size;
    ref->checksum = pst_xxh64(raw, size, pst_sst_seed(w->f->info.lineage.id, ref->offset));
    REQUIRE(!file_write(w->out, raw, size));
    w->totals.puts += ref->puts;
    w->totals.deletes += ref->deletes;
    w->totals.raw += size;
    w->totals.stored += size;
}

static inline void forge_add(forge_writer *w, const pst_record *r, int split) {
    int fits;
    REQUIRE(pst_sst_builder_measure(w->block, r, r->changed, &fits) == PST_OK);
    if (!fits || (split && w->block->rows)) {
        forge_flush(w);
        REQUIRE(pst_sst_builder_measure(w->block, r, r->changed, &fits) == PST_OK);
    }
    if (!w->block->rows) {
        w->first_hash = r->hash;
        w->first_group = r->key_group;
    }
    w->last_group = r->key_group;
    REQUIRE(pst_sst_builder_add(w->block, r) == PST_OK);
}

static inline void forge_tail(forge_writer *w) {
    const uint8_t *id = w->f->info.lineage.id;
    size_t index = w->out->size, bytes = w->n_refs * PST_SST_REF_BYTES;
    uint8_t *tail = malloc(bytes + PST_SST_MAX_PROPERTIES + PST_SST_FOOTER_BYTES);
    REQUIRE(tail);
    for (size_t i = 0; i < w->n_refs; i++)
        pst_sst_put_ref(&w->refs[i], tail + i * PST_SST_REF_BYTES);
    size_t properties = pst_sst_put_properties(&w->totals, &w->f->info.lineage, NULL, tail + bytes);
    bytes += properties;
    pst_sst_footer footer = {.index_offset = index,
                             .blocks = w->n_refs,
                             .properties_bytes = properties,
                             .tail_checksum = pst_xxh64(tail, bytes, pst_sst_seed(id, index)),
                             .file_bytes = index + bytes + PST_SST_FOOTER_BYTES};
    pst_sst_put_footer(&footer, id, tail + bytes);
    REQUIRE(!file_write(w->out, tail, bytes + PST_SST_FOOTER_BYTES));
    free(tail);
}

/* The records as a file; blocks end early now and then. */
static inline void forge_write(const forge_file *f, uint64_t *rng, memory_file *out) {
    static forge_writer w;
    pst_sst_header h = {.kind = f->info.kind,
                        .lineage = f->info.lineage,
                        .max_parallelism = f->info.max_parallelism,
                        .first_key_group = f->info.first_key_group,
                        .last_key_group = f->info.last_key_group,
                        .schema_bytes = pst_sst_schema_bytes(&f->schema),
                        .features = pst_sst_features(&f->schema, f->info.null_entries)};
    uint8_t *head = malloc(PST_SST_HEADER_BYTES + h.schema_bytes);
    memset(&w, 0, sizeof w);
    w.block = malloc(sizeof *w.block);
    REQUIRE(head && w.block);
    w.f = f;
    w.out = out;
    pst_sst_put_header(&h, head);
    pst_sst_put_schema(&f->schema, h.lineage.id, head + PST_SST_HEADER_BYTES, h.schema_bytes);
    REQUIRE(!file_write(out, head, PST_SST_HEADER_BYTES + h.schema_bytes));
    pst_sst_builder_init(w.block, &f->schema);
    int small = check_random(rng) % 3 == 0;
    for (size_t i = 0; i < f->n; i++)
        forge_add(&w, &f->records[i], small && check_random(rng) % 3 == 0);
    forge_flush(&w);
    forge_tail(&w);
    pst_sst_builder_free(w.block);
    free(w.block);
    free(head);
}

static inline void forge_sort(forge_file *f) {
    pst_record *spare = malloc((f->n + 1) * sizeof *spare);
    REQUIRE(spare);
    sort_rows(&f->schema, f->records, spare, f->n);
    free(spare);
}

/* Hash and key group as a reader will find them. */
static inline void forge_place(const forge_file *f, pst_record *r) {
    r->hash = pst_hash_key(f->schema.keys, pst_schema_hashed(&f->schema), r->key, r->key_nulls);
    r->key_group = pst_key_group(r->hash, f->info.max_parallelism);
}

/* ---- lies ------------------------------------------------------------------------------------ */

/* A cell that the column's type can have, of any size. */
static inline pst_cell forge_cell(forge_file *f, const pst_column *c, uint64_t *rng,
                                  const pst_cell *old) {
    static const uint32_t sizes[] = {0, 1, 4, 7, 8, 9, 12, 13, 16, 17, 20, 40, 256, 2000};
    uint64_t r = check_random(rng);
    pst_cell cell = {{0, 0}, {NULL, 0}};
    if (c->type < PST_STRING) {
        cell.word[0] = forge_evil(rng, old ? old->word[0] : r);
        cell.word[1] = c->type == PST_DECIMAL ? forge_evil(rng, r) : 0;
        return cell;
    }
    uint32_t size = sizes[(r >> 8) % (sizeof sizes / sizeof *sizes)];
    if (old && r % 3)
        size = old->bytes.size;
    uint8_t *own = heap_take(f->heap, size);
    cell.bytes = (pst_bytes){own, size};
    for (uint32_t i = 0; i < size; i++)
        own[i] = (uint8_t)(r % 2 ? check_random(rng) : 0);
    if (old && old->bytes.size && size)
        memcpy(own, old->bytes.data, old->bytes.size < size ? old->bytes.size : size);
    if (size)
        forge_bytes(own, size, rng);
    return cell;
}

/* Of a state's element: of this one's id, or the number, key or time behind it. */
static inline void forge_element(forge_file *f, pst_record *r, uint64_t *rng) {
    pst_bytes *element = &r->key[f->schema.n_keys - 1].bytes;
    const pst_column *c = &f->schema.states[check_random(rng) % (uint64_t)f->schema.n_states];
    uint8_t own[64] = {0};
    uint32_t size = element->size < sizeof own ? element->size : (uint32_t)sizeof own;
    if (size)
        memcpy(own, element->data, size);
    uint64_t what = check_random(rng) % 4;
    if (what == 0)
        pst_put_big(own, c->kind == PST_TIMERS ? PST_TIMERS_ID : pst_collection_id(c->name), 4);
    else if (what == 1 && size >= PST_ELEMENT_RUN)
        pst_put_big(own + size - 8, forge_evil(rng, pst_get_big(own + size - 8, 8)), 8);
    else if (what == 2)
        size = (uint32_t)(check_random(rng) % sizeof own);
    else if (size)
        forge_bytes(own, size, rng);
    element->data = own;
    element->size = size;
    forge_own(f, element);
}

static inline int forge_has_element(const forge_file *f, const pst_record *r) {
    return f->schema.n_states > 0 && pst_schema_has_element(&f->schema) &&
           !(r->key_nulls >> (f->schema.n_keys - 1) & 1);
}

/* The columns that it is newly said to carry get some cell each. */
static inline void forge_masks(forge_file *f, pst_record *r, uint64_t *rng) {
    uint64_t all = all_states(&f->schema), had = r->present;
    uint64_t bit = UINT64_C(1) << check_random(rng) % 64;
    switch (check_random(rng) % 6) {
    case 0:
        r->changed ^= bit & all;
        break;
    case 1:
        r->changed |= bit & all;
        r->present |= bit & all;
        break;
    case 2:
        r->changed = r->present = r->changed << 1 & all;
        break;
    case 3:
        r->present ^= bit & all;
        r->changed |= r->present;
        break;
    case 4:
        r->changed = check_random(rng) & all;
        break;
    default:
        r->op = r->op == PST_PUT ? PST_DELETE : PST_PUT;
        break;
    }
    if (r->op == PST_DELETE)
        r->changed = 0;
    r->present &= r->changed;
    for (uint64_t left = r->present & ~had; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        r->cells[i] = forge_cell(f, &f->schema.states[i], rng, NULL);
    }
}

static inline void forge_record(forge_file *f, pst_record *r, uint64_t *rng) {
    uint64_t what = check_random(rng) % 8, n = (uint64_t)f->schema.n_keys;
    int32_t k = (int32_t)(check_random(rng) % n);
    if (forge_has_element(f, r) && what < 3) {
        forge_element(f, r, rng);
    } else if (what < 5) {
        forge_masks(f, r, rng);
    } else if (what < 7 && r->present) {
        int i = __builtin_ctzll(r->present);
        r->cells[i] = forge_cell(f, &f->schema.states[i], rng, &r->cells[i]);
    } else if (check_random(rng) % 2) {
        int null = (int)(r->key_nulls >> k & 1);
        r->key[k] = forge_cell(f, &f->schema.keys[k], rng, null ? NULL : &r->key[k]);
        r->key_nulls &= ~(1u << k);
    } else {
        r->key_nulls ^= 1u << k;
        if (!(r->key_nulls >> k & 1))
            r->key[k] = forge_cell(f, &f->schema.keys[k], rng, NULL);
    }
    forge_place(f, r);
}

/* A column that says something else of itself. What it says can still be written. */
static inline void forge_column(forge_file *f, uint64_t *rng) {
    if (!f->schema.n_states)
        return;
    size_t i = check_random(rng) % (uint64_t)f->schema.n_states;
    pst_column *c = (pst_column *)(uintptr_t)&f->schema.states[i];
    switch (check_random(rng) % 5) {
    case 0:
        c->kind = (uint8_t)(check_random(rng) % 5);
        break;
    case 1:
        c->map_key = (uint8_t)(check_random(rng) % 17);
        break;
    case 2:
        c->width = (uint16_t)(8 * (check_random(rng) % 40));
        break;
    case 3:
        c->name = f->schema.states[check_random(rng) % (uint64_t)f->schema.n_states].name;
        break;
    default:
        c->map_precision = (uint8_t)check_random(rng);
        break;
    }
}

/* Changes some of what the records say. */
static inline void forge_lies(forge_file *f, uint64_t *rng) {
    for (uint64_t n = 1 + check_random(rng) % 3; n > 0 && f->n > 0; n--)
        forge_record(f, &f->records[check_random(rng) % f->n], rng);
    if (f->n > 0 && f->n < FORGE_RECORDS && check_random(rng) % 8 == 0) {
        f->records[f->n] = f->records[check_random(rng) % f->n];
        f->n++;
    }
    if (check_random(rng) % 8 == 0)
        forge_column(f, rng);
    /* In their places by key; at times a group that is not the file's stays in. */
    size_t kept = 0;
    int strict = check_random(rng) % 16 != 0;
    for (size_t i = 0; i < f->n; i++) {
        int32_t group = f->records[i].key_group;
        if (!strict || (group >= f->info.first_key_group && group <= f->info.last_key_group))
            f->records[kept++] = f->records[i];
    }
    f->n = kept;
    if (check_random(rng) % 12)
        forge_sort(f);
    else if (f->n > 1) {
        size_t a = check_random(rng) % f->n, b = check_random(rng) % f->n;
        pst_record swap = f->records[a];
        f->records[a] = f->records[b];
        f->records[b] = swap;
    }
}

/* A copy of an uncompressed file with other bytes here and there, or NULL where that is not to
 * be. */
static inline memory_file forge_copy(const memory_file *file, uint64_t *rng) {
    memory_file f = {.size = file->size, .data = malloc(file->size), .calls_left = -1};
    REQUIRE(f.data);
    memcpy(f.data, file->data, f.size);
    size_t footer = f.size - PST_SST_FOOTER_BYTES, index = forge_get64(file->data + footer);
    size_t data = PST_SST_HEADER_BYTES + (size_t)forge_get32(file->data + 12);
    for (uint64_t n = 1 + check_random(rng) % 3; n > 0; n--) {
        uint64_t what = check_random(rng) % 16;
        if (what == 0)
            forge_bytes(f.data, 120, rng);
        else if (what == 1)
            forge_bytes(f.data + 128, data - 128 - 8, rng);
        else if (what == 2)
            forge_bytes(f.data + index, footer - index, rng);
        else if (what == 3)
            forge_bytes(f.data + footer, 48, rng);
        else if (what < 8) /* the directory of the first block */
            forge_bytes(f.data + data, index - data < 256 ? index - data : 256, rng);
        else
            forge_bytes(f.data + data, index - data, rng);
    }
    forge_reseal(f.data, file);
    return f;
}

static inline memory_file forge_lie(memory_file *file, uint64_t *rng) {
    memory_file out = {.calls_left = -1};
    forge_file f;
    forge_open(&f, file);
    forge_lies(&f, rng);
    forge_write(&f, rng, &out);
    forge_close(&f);
    return out;
}

#endif
