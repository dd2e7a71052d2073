/* files.h: files in memory, a codec for them and random rows, for the tests of the file layer.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_FILES_H
#define PST_TEST_FILES_H

#include <string.h>

#include "check.h"
#include "key/hash.h"
#include "pystate.h"
#include "sst/sst_unpack.h"

/* ---- a file in memory ------------------------------------------------------------------------ */

typedef struct memory_file {
    uint8_t *data;
    size_t size;
    size_t capacity;
    uint64_t bytes_read;
    int64_t calls_left; /* callbacks that still succeed; negative: all */
} memory_file;

static inline int file_refuses(memory_file *f) {
    if (f->calls_left < 0)
        return 0;
    if (f->calls_left == 0)
        return 1;
    f->calls_left--;
    return 0;
}

static inline int file_write(void *ctx, const void *data, size_t size) {
    memory_file *f = ctx;
    if (file_refuses(f))
        return 1;
    if (f->size + size > f->capacity) {
        f->capacity = 2 * (f->size + size);
        f->data = realloc(f->data, f->capacity);
        REQUIRE(f->data);
    }
    memcpy(f->data + f->size, data, size);
    f->size += size;
    return 0;
}

static inline int file_read_at(void *ctx, uint64_t offset, void *data, size_t size) {
    memory_file *f = ctx;
    if (file_refuses(f) || offset > f->size || size > f->size - offset)
        return 1;
    if (size)
        memcpy(data, f->data + offset, size);
    f->bytes_read += size;
    return 0;
}

/* Appends a length of LZ4 from 15 on; 0 where there is no room. */
static inline int lz4_put_length(uint8_t *out, size_t *n, size_t room, size_t length) {
    for (length -= 15;; length -= 255) {
        if (*n == room)
            return 0;
        out[(*n)++] = (uint8_t)(length < 255 ? length : 255);
        if (length < 255)
            return 1;
    }
}

/* Appends a sequence of LZ4, the last one where match is 0. */
static inline int lz4_put_sequence(uint8_t *out, size_t *n, size_t room, const uint8_t *literals,
                                   size_t count, size_t offset, size_t match) {
    size_t length = match ? match - 4 : 0;
    if (*n == room)
        return 0;
    out[(*n)++] = (uint8_t)((count < 15 ? count : 15) << 4 | (length < 15 ? length : 15));
    if ((count >= 15 && !lz4_put_length(out, n, room, count)) || count + 2 > room - *n)
        return 0;
    memcpy(out + *n, literals, count);
    *n += count;
    if (!match)
        return 1;
    out[(*n)++] = (uint8_t)offset;
    out[(*n)++] = (uint8_t)(offset >> 8);
    return length < 15 || lz4_put_length(out, n, room, length);
}

/* An LZ4 block, greedily, and its size; 0 where it takes more than `room`. As the format wants it,
 * the last five bytes are literals, and no match begins in the last twelve. */
static inline size_t lz4_pack(const uint8_t *p, size_t size, uint8_t *out, size_t room) {
    static uint32_t last[4096]; /* 1 + where these four bytes were */
    size_t n = 0, from = 0;
    memset(last, 0, sizeof last);
    for (size_t i = 0; i + 12 < size;) {
        uint32_t four, *slot;
        memcpy(&four, p + i, 4);
        slot = &last[four * 2654435761u >> 20];
        size_t at = *slot, match = 0;
        *slot = (uint32_t)i + 1;
        if (at && i + 1 - at <= 65535 && !memcmp(p + at - 1, p + i, 4)) {
            match = 4;
            while (i + match < size - 5 && p[at - 1 + match] == p[i + match])
                match++;
            if (!lz4_put_sequence(out, &n, room, p + from, i - from, i + 1 - at, match))
                return 0;
            from = i + match;
        }
        i += match ? match : 1;
    }
    return lz4_put_sequence(out, &n, room, p + from, size - from, 0, 0) ? n : 0;
}

static inline int file_compress(void *ctx, const void *src, size_t size, void *dst,
                                size_t *dst_size) {
    if (file_refuses(ctx))
        return 1;
    *dst_size = lz4_pack(src, size, dst, *dst_size);
    return 0;
}

static inline int file_decompress(void *ctx, const void *src, size_t size, void *dst,
                                  size_t dst_size) {
    return file_refuses(ctx) || pst_sst_unpack(src, size, dst, dst_size) != size;
}

static inline pst_io file_io(memory_file *f, int compressed) {
    f->calls_left = -1;
    return (pst_io){f, file_write, file_read_at, compressed ? file_compress : NULL,
                    file_decompress};
}

static inline void file_free(memory_file *f) {
    free(f->data);
    *f = (memory_file){.calls_left = -1};
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* A schema whose columns lie in the struct itself. */
typedef struct random_schema {
    pst_column columns[PST_MAX_KEYS + PST_MAX_STATES];
    char names[PST_MAX_KEYS + PST_MAX_STATES][24];
    pst_schema schema;
} random_schema;

static inline void schema_add(random_schema *s, int32_t i, pst_type type, uint8_t precision) {
    snprintf(s->names[i], sizeof s->names[i], "column %d", i);
    s->columns[i] = (pst_column){.name = s->names[i], .type = type};
    if (type == PST_DECIMAL) {
        s->columns[i].precision = precision;
        s->columns[i].scale = 2;
    }
}

static inline void schema_done(random_schema *s, int32_t n_keys, int32_t n_states) {
    s->schema = (pst_schema){n_keys, n_states, s->columns, s->columns + n_keys};
}

static inline void schema_random(random_schema *s, uint64_t *rng, int32_t n_keys,
                                 int32_t n_states) {
    for (int32_t i = 0; i < n_keys + n_states; i++) {
        pst_type type = (pst_type)(1 + check_random(rng) % (i < n_keys ? 12 : 13));
        schema_add(s, i, type, check_random(rng) % 2 ? 38 : 18);
    }
    schema_done(s, n_keys, n_states);
}

/* A long key and states of one type. */
static inline random_schema plain_schema(int32_t n_states, pst_type type) {
    random_schema s;
    schema_add(&s, 0, PST_INT64, 0);
    for (int32_t i = 0; i < n_states; i++)
        schema_add(&s, 1 + i, type, 0);
    schema_done(&s, 1, n_states);
    return s;
}

/* The columns lie in the struct, which was returned by value. */
static inline pst_schema *at_home(random_schema *s) {
    for (int32_t i = 0; i < s->schema.n_keys + s->schema.n_states; i++)
        s->columns[i].name = s->names[i];
    s->schema.keys = s->columns;
    s->schema.states = s->columns + s->schema.n_keys;
    return &s->schema;
}

/* A canonical value; a small `domain` makes keys meet. The bytes leak into `heap`. */
typedef struct byte_heap {
    uint8_t *blocks[65536];
    size_t n;
} byte_heap;

static inline uint8_t *heap_take(byte_heap *h, size_t size) {
    REQUIRE(h->n < sizeof h->blocks / sizeof *h->blocks);
    uint8_t *p = malloc(size ? size : 1);
    REQUIRE(p);
    return h->blocks[h->n++] = p;
}

static inline void heap_free(byte_heap *h) {
    while (h->n > 0)
        free(h->blocks[--h->n]);
}

static inline pst_cell random_cell(const pst_column *c, uint64_t *rng, uint64_t domain,
                                   byte_heap *heap) {
    uint64_t shift = check_random(rng) % 64;
    uint64_t r = domain ? check_random(rng) % domain : check_random(rng) >> shift;
    pst_cell cell = {{0, 0}, {NULL, 0}};
    switch (c->type) {
    case PST_BOOL:
        cell.word[0] = r & 1;
        break;
    case PST_INT8:
        cell.word[0] = (uint64_t)(int8_t)r;
        break;
    case PST_INT16:
        cell.word[0] = (uint64_t)(int16_t)r;
        break;
    case PST_INT32:
    case PST_DATE32:
        cell.word[0] = (uint64_t)(int32_t)r;
        break;
    case PST_FLOAT32:
        cell.word[0] = pst_canonical_word(c->type, (uint32_t)r);
        break;
    case PST_DECIMAL:
        cell.word[0] = r;
        cell.word[1] = c->precision > 18 && !domain ? check_random(rng) : 0;
        break;
    case PST_STRING:
    case PST_BINARY:
    case PST_OBJECT:
        cell.bytes.size = domain ? 3 : (uint32_t)(check_random(rng) % 40);
        if (cell.bytes.size) {
            uint8_t *p = heap_take(heap, cell.bytes.size);
            for (uint32_t i = 0; i < cell.bytes.size; i++)
                p[i] = (uint8_t)(domain ? r >> (8 * i) : check_random(rng));
            cell.bytes.data = p;
        }
        break;
    default:
        cell.word[0] = pst_canonical_word(c->type, r);
        break;
    }
    return cell;
}

typedef struct random_rows {
    pst_record *rows;
    size_t n;
    byte_heap *heap;
} random_rows;

/* What random rows look like. */
typedef struct row_style {
    uint64_t domain;    /* of key columns; 0: the type's */
    uint32_t null_keys; /* percent */
    uint32_t null_values;
    uint32_t deletes;
    uint32_t masks; /* how many different masks; 1: all columns, 0: any */
    int32_t max_parallelism;
    int32_t first_key_group;
    int32_t last_key_group;
    uint32_t block_bytes; /* of the file; 0: one without a guide */
} row_style;

static inline int percent(uint64_t *rng, uint32_t p) {
    return check_random(rng) % 100 < p;
}

static inline uint64_t all_states(const pst_schema *s) {
    return s->n_states < 64 ? (UINT64_C(1) << s->n_states) - 1 : ~UINT64_C(0);
}

static inline int compare_rows(const pst_schema *s, const pst_record *a, const pst_record *b) {
    if (a->key_group != b->key_group)
        return a->key_group < b->key_group ? -1 : 1;
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    return pst_key_compare(s->keys, s->n_keys, a->key, a->key_nulls, b->key, b->key_nulls);
}

static inline void sort_rows(const pst_schema *s, pst_record *rows, pst_record *spare, size_t n) {
    if (n < 2)
        return;
    size_t half = n / 2;
    sort_rows(s, rows, spare, half);
    sort_rows(s, rows + half, spare, n - half);
    memcpy(spare, rows, n * sizeof *rows);
    for (size_t i = 0, a = 0, b = half; i < n; i++) {
        int left = b == n || (a < half && compare_rows(s, &spare[a], &spare[b]) <= 0);
        rows[i] = spare[left ? a++ : b++];
    }
}

/* Up to `n` rows, sorted, without duplicates. */
static inline random_rows rows_random(const pst_schema *s, const row_style *style, uint64_t *rng,
                                      size_t n) {
    random_rows out = {calloc(2 * n + 1, sizeof(pst_record)), 0, calloc(1, sizeof(byte_heap))};
    REQUIRE(out.rows && out.heap);
    uint64_t masks[256];
    for (size_t i = 0; i < 256; i++)
        masks[i] = check_random(rng) & all_states(s);
    size_t made = 0;
    for (size_t i = 0; i < n; i++) {
        pst_record *r = &out.rows[made];
        for (int32_t k = 0; k < s->n_keys; k++) {
            r->key[k] = random_cell(&s->keys[k], rng, style->domain, out.heap);
            if (percent(rng, style->null_keys))
                r->key_nulls |= 1u << k;
        }
        r->hash = pst_hash_key(s->keys, s->n_keys, r->key, r->key_nulls);
        r->key_group = pst_key_group(r->hash, style->max_parallelism);
        if (r->key_group < style->first_key_group || r->key_group > style->last_key_group) {
            memset(r, 0, sizeof *r);
            continue;
        }
        r->op = percent(rng, style->deletes) ? PST_DELETE : PST_PUT;
        if (r->op == PST_PUT) {
            r->changed = style->masks == 1   ? all_states(s)
                         : style->masks == 0 ? check_random(rng) & all_states(s)
                                             : masks[check_random(rng) % style->masks];
            for (int32_t c = 0; c < s->n_states; c++) {
                if (!((r->changed >> c) & 1) || percent(rng, style->null_values))
                    continue;
                r->present |= UINT64_C(1) << c;
                r->cells[c] = random_cell(&s->states[c], rng, 0, out.heap);
            }
        }
        made++;
    }
    sort_rows(s, out.rows, out.rows + n, made);
    for (size_t i = 0; i < made; i++)
        if (out.n == 0 || compare_rows(s, &out.rows[out.n - 1], &out.rows[i]) != 0)
            out.rows[out.n++] = out.rows[i];
    return out;
}

static inline void rows_free(random_rows *r) {
    if (r->heap)
        heap_free(r->heap);
    free(r->heap);
    free(r->rows);
    *r = (random_rows){NULL, 0, NULL};
}

static inline int same_cell(const pst_column *c, const pst_cell *a, const pst_cell *b) {
    if (c->type >= PST_STRING)
        return a->bytes.size == b->bytes.size &&
               (a->bytes.size == 0 || memcmp(a->bytes.data, b->bytes.data, a->bytes.size) == 0);
    return a->word[0] == b->word[0] && (c->type != PST_DECIMAL || a->word[1] == b->word[1]);
}

static inline int same_row(const pst_schema *s, const pst_record *a, const pst_record *b) {
    if (a->hash != b->hash || a->key_group != b->key_group || a->op != b->op ||
        a->key_nulls != b->key_nulls || a->changed != b->changed || a->present != b->present)
        return 0;
    for (int32_t k = 0; k < s->n_keys; k++)
        if (!((a->key_nulls >> k) & 1) && !same_cell(&s->keys[k], &a->key[k], &b->key[k]))
            return 0;
    for (int32_t c = 0; c < s->n_states; c++)
        if (((a->present >> c) & 1) && !same_cell(&s->states[c], &a->cells[c], &b->cells[c]))
            return 0;
    return 1;
}

/* The rows as a file of that kind keeps them. */
static inline void as_stored(pst_file_kind kind, random_rows *rows) {
    size_t n = 0;
    for (size_t i = 0; i < rows->n; i++) {
        pst_record *r = &rows->rows[i];
        if (kind == PST_BASE) {
            if (r->op == PST_DELETE)
                continue;
            r->changed = r->present;
        }
        rows->rows[n++] = *r;
    }
    rows->n = n;
}

/* ---- writing --------------------------------------------------------------------------------- */

static inline pst_file_info info_of(pst_file_kind kind, const row_style *style, uint8_t id) {
    pst_file_info info = {.kind = kind,
                          .lineage = {.epoch = id, .query = 77},
                          .max_parallelism = style->max_parallelism,
                          .first_key_group = style->first_key_group,
                          .last_key_group = style->last_key_group,
                          .block_bytes = style->block_bytes};
    memset(info.lineage.id, id, sizeof info.lineage.id);
    memset(info.lineage.parent, id - 1, sizeof info.lineage.parent);
    return info;
}

/* Writes rows as a file; `info` becomes what the writer says of it. */
static inline pst_status write_rows(const pst_schema *s, pst_file_info *info, const pst_io *io,
                                    const pst_record *rows, size_t n) {
    pst_sst_writer *w = NULL;
    pst_status status = pst_sst_writer_create(s, info, io, &w);
    for (size_t i = 0; i < n && !status; i++)
        status = pst_sst_writer_add(w, &rows[i]);
    if (!status)
        status = pst_sst_writer_finish(w, info);
    pst_sst_writer_destroy(w);
    return status;
}

/* The reader keeps what it needs of the I/O. */
static inline pst_status file_open(memory_file *f, pst_sst_reader **r) {
    pst_io io = file_io(f, 1);
    return pst_sst_reader_open(&io, f->size, r, NULL);
}

/* Merges open files into one; `info` becomes what the writer says of it. */
static inline pst_status file_merge(const pst_schema *s, pst_file_info *info,
                                    pst_sst_reader *const *readers, const int32_t *const *columns,
                                    int32_t n, const pst_io *io) {
    pst_sst_writer *w = NULL;
    for (int32_t i = 0; i < n; i++)
        info->null_entries |= pst_sst_reader_info(readers[i])->null_entries;
    pst_status status = pst_sst_writer_create(s, info, io, &w);
    if (!status)
        status = pst_merge(readers, columns, n, w);
    if (!status)
        status = pst_sst_writer_finish(w, info);
    pst_sst_writer_destroy(w);
    return status;
}

/* Opens the file and reads all of it; counts rows equal to `rows`. PST_OK at the end. */
static inline pst_status read_rows(const pst_schema *s, const pst_io *io, size_t size,
                                   const pst_record *rows, size_t n, size_t *equal) {
    pst_sst_reader *r = NULL;
    pst_record record;
    pst_status status = pst_sst_reader_open(io, size, &r, NULL);
    *equal = 0;
    for (size_t i = 0; !status; i++) {
        status = pst_sst_reader_next(r, &record);
        if (!status)
            *equal += i < n && same_row(s, &rows[i], &record);
    }
    pst_sst_reader_close(r);
    return status == PST_NOT_FOUND ? PST_OK : status;
}

#endif
