/* Files written and read back: every type, nulls, masks, ranges, compression, size; what the
 * writer refuses. */
#include "files.h"

#include <malloc.h>

#include "base/coding.h"
#include "key/xxh64.h"
#include "sst/sst_format.h"

static const row_style WHOLE = {.masks = 1, .max_parallelism = 128, .last_key_group = 127};

/* ---- round trips ----------------------------------------------------------------------------- */

static void check_info(const pst_file_info *a, const pst_file_info *b) {
    CHECK_EQ(a->kind, b->kind);
    CHECK(memcmp(&a->lineage, &b->lineage, sizeof a->lineage) == 0);
    CHECK_EQ(a->max_parallelism, b->max_parallelism);
    CHECK_EQ(a->first_key_group, b->first_key_group);
    CHECK_EQ(a->last_key_group, b->last_key_group);
    CHECK_EQ(a->rows, b->rows);
    CHECK_EQ(a->tombstones, b->tombstones);
    CHECK_EQ(a->raw_bytes, b->raw_bytes);
    CHECK_EQ(a->file_bytes, b->file_bytes);
    CHECK_EQ(a->block_bytes, b->block_bytes);
}

static void check_schema(const pst_schema *a, const pst_schema *b) {
    CHECK_EQ(a->n_keys, b->n_keys);
    CHECK_EQ(a->n_states, b->n_states);
    for (int32_t i = 0; i < a->n_keys + a->n_states; i++) {
        const pst_column *x = i < a->n_keys ? &a->keys[i] : &a->states[i - a->n_keys];
        const pst_column *y = i < b->n_keys ? &b->keys[i] : &b->states[i - b->n_keys];
        CHECK(strcmp(x->name, y->name) == 0);
        CHECK(x->type == y->type && x->precision == y->precision && x->scale == y->scale);
    }
}

static void round_trip_of(const pst_schema *s, const row_style *style, pst_file_kind kind,
                          int compressed, uint64_t *rng, size_t n) {
    random_rows rows = rows_random(s, style, rng, n);
    as_stored(kind, &rows);
    memory_file f = {0};
    pst_io io = file_io(&f, compressed);
    pst_file_info info = info_of(kind, style, 9);
    REQUIRE(write_rows(s, &info, &io, rows.rows, rows.n) == PST_OK);
    uint64_t deletes = 0;
    for (size_t i = 0; i < rows.n; i++)
        deletes += rows.rows[i].op == PST_DELETE;
    CHECK_EQ(info.rows, rows.n - deletes);
    CHECK_EQ(info.tombstones, deletes);
    CHECK_EQ(info.file_bytes, f.size);
    CHECK_EQ(info.checksum, pst_xxh64(f.data, f.size, 0));

    pst_sst_reader *r = NULL;
    REQUIRE(pst_sst_reader_open(&io, f.size, &r, NULL) == PST_OK);
    check_info(pst_sst_reader_info(r), &info);
    check_schema(pst_sst_reader_schema(r), s);
    pst_record record;
    size_t equal = 0, read = 0;
    pst_status status;
    while (!(status = pst_sst_reader_next(r, &record))) {
        equal += read < rows.n && same_row(s, &rows.rows[read], &record);
        read++;
    }
    CHECK_EQ(status, PST_NOT_FOUND);
    CHECK_EQ(pst_sst_reader_next(r, &record), PST_NOT_FOUND);
    CHECK_EQ(read, rows.n);
    CHECK_EQ(equal, rows.n);
    for (int i = 0; i < 20; i++) {
        int32_t first = (int32_t)(check_random(rng) % 128);
        int32_t last = first + (int32_t)(check_random(rng) % (i < 10 ? 3 : 140));
        CHECK_EQ(pst_sst_reader_seek(r, first, last), PST_OK);
        size_t at = 0;
        while (at < rows.n && rows.rows[at].key_group < first)
            at++;
        while (!(status = pst_sst_reader_next(r, &record))) {
            CHECK(at < rows.n && same_row(s, &rows.rows[at], &record));
            at++;
        }
        CHECK_EQ(status, PST_NOT_FOUND);
        CHECK(at == rows.n || rows.rows[at].key_group > last);
    }
    pst_sst_reader_close(r);
    file_free(&f);
    rows_free(&rows);
}

/* A file without a guide and one with it. */
static void round_trip(const pst_schema *s, const row_style *style, pst_file_kind kind,
                       int compressed, uint64_t *rng, size_t n) {
    row_style guided = *style;
    guided.block_bytes = 4096;
    round_trip_of(s, style, kind, compressed, rng, n);
    round_trip_of(s, &guided, kind, compressed, rng, n);
}

static void test_every_type(void) {
    uint64_t rng = 1;
    for (int type = PST_BOOL; type <= PST_OBJECT; type++) {
        random_schema s;
        schema_add(&s, 0, type == PST_OBJECT ? PST_BINARY : (pst_type)type, 38);
        schema_add(&s, 1, PST_INT16, 0);
        schema_add(&s, 2, (pst_type)type, 20);
        schema_add(&s, 3, (pst_type)type, 18);
        schema_done(&s, 2, 2);
        for (int nulls = 0; nulls < 2; nulls++) {
            row_style style = WHOLE;
            style.null_keys = style.null_values = nulls ? 30 : 0;
            round_trip(&s.schema, &style, PST_DELTA, 0, &rng, 700);
            style.masks = 3;
            style.deletes = 20;
            round_trip(&s.schema, &style, PST_DELTA, 1, &rng, 700);
            round_trip(&s.schema, &style, PST_BASE, 1, &rng, 700);
        }
    }
}

static void test_many_shapes(void) {
    uint64_t rng = 2;
    for (int i = 0; i < 60; i++) {
        random_schema s;
        int32_t n_keys = 1 + (int32_t)(check_random(&rng) % 5);
        int32_t n_states = i % 9 == 0 ? 64 : (int32_t)(check_random(&rng) % 12);
        schema_random(&s, &rng, n_keys, n_states);
        row_style style = WHOLE;
        style.masks = (uint32_t)(check_random(&rng) % 5);
        style.null_keys = i % 2 ? 10 : 0;
        style.null_values = i % 3 ? 20 : 0;
        style.deletes = i % 4 ? 10 : 0;
        if (i % 5 == 0) {
            style.max_parallelism = 1000;
            style.first_key_group = 50;
            style.last_key_group = 99;
        }
        size_t n = i % 9 == 0 ? 600 : check_random(&rng) % 2500;
        round_trip(&s.schema, &style, i % 3 == 1 ? PST_BASE : PST_DELTA, i % 2, &rng, n);
    }
}

/* ---- size, blocks, ranges -------------------------------------------------------------------- */

/* Raw block bytes against keys and changed columns, as the performance goal counts them. */
static void test_density(void) {
    uint64_t rng = 3;
    random_schema s = plain_schema(6, PST_INT64);
    const pst_schema *schema = at_home(&s);
    for (int columns = 1; columns <= 6; columns += 5) {
        for (int mixed = 0; mixed < 2; mixed++) {
            random_rows rows = rows_random(schema, &WHOLE, &rng, 20000);
            for (size_t i = 0; i < rows.n; i++) {
                pst_record *r = &rows.rows[i];
                uint64_t one = UINT64_C(1) << (mixed ? check_random(&rng) % 6 : 3);
                r->changed = r->present = columns == 6 ? 63 : one;
            }
            memory_file f = {0};
            pst_io io = file_io(&f, 0);
            pst_file_info info = info_of(PST_DELTA, &WHOLE, 9);
            CHECK_EQ(write_rows(schema, &info, &io, rows.rows, rows.n), PST_OK);
            uint64_t bytes = rows.n * (8 + 8 * (uint64_t)columns);
            CHECK(info.raw_bytes >= bytes);
            CHECK(info.raw_bytes * 100 <= bytes * 112);
            CHECK(f.size * 100 <= bytes * 115);
            file_free(&f);
            rows_free(&rows);
        }
    }
}

static uint64_t blocks_of(const memory_file *f) {
    return pst_get_u64(f->data + f->size - PST_SST_FOOTER_BYTES + 8);
}

static pst_sst_ref ref_of(const memory_file *f, uint64_t i) {
    const uint8_t *index = f->data + pst_get_u64(f->data + f->size - PST_SST_FOOTER_BYTES);
    pst_sst_ref ref;
    CHECK_EQ(pst_sst_get_ref(index + i * PST_SST_REF_BYTES, &ref), PST_OK);
    return ref;
}

/* Of the blocks that the index says meet the range. */
static uint64_t bytes_of_blocks(const memory_file *f, int32_t first, int32_t last) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < blocks_of(f); i++) {
        pst_sst_ref ref = ref_of(f, i);
        if (ref.last_key_group >= first && ref.first_key_group <= last)
            bytes += pst_sst_align(ref.stored);
    }
    return bytes;
}

static void check_padding(const memory_file *f) {
    for (uint64_t i = 0; i < blocks_of(f); i++) {
        pst_sst_ref ref = ref_of(f, i);
        uint64_t end = ref.offset + ref.stored;
        for (uint64_t at = end; at < pst_sst_align(end); at++)
            CHECK_EQ(f->data[at], 0);
    }
}

static void test_range_reads_only_its_blocks(void) {
    uint64_t rng = 4;
    random_schema s = plain_schema(4, PST_INT64);
    const pst_schema *schema = at_home(&s);
    row_style style = WHOLE;
    /* so many that some blocks end where a key group does */
    style.max_parallelism = 32768;
    style.last_key_group = 32767;
    random_rows rows = rows_random(schema, &style, &rng, 60000);
    memory_file f = {0};
    pst_io io = file_io(&f, 0);
    pst_file_info info = info_of(PST_DELTA, &style, 9);
    CHECK_EQ(write_rows(schema, &info, &io, rows.rows, rows.n), PST_OK);
    pst_sst_reader *r = NULL;
    REQUIRE(pst_sst_reader_open(&io, f.size, &r, NULL) == PST_OK);
    CHECK(f.bytes_read < blocks_of(&f) * PST_SST_REF_BYTES + 2000);
    pst_record record;
    uint64_t alone = 0;
    for (uint64_t i = 0; i < blocks_of(&f); i++) {
        pst_sst_ref ref = ref_of(&f, i);
        f.bytes_read = 0;
        CHECK_EQ(pst_sst_reader_seek(r, ref.first_key_group, ref.last_key_group), PST_OK);
        size_t n = 0;
        while (!pst_sst_reader_next(r, &record))
            n++;
        CHECK(n >= ref.puts + ref.deletes);
        CHECK_EQ(f.bytes_read, bytes_of_blocks(&f, ref.first_key_group, ref.last_key_group));
        alone += f.bytes_read == pst_sst_align(ref.stored);
    }
    CHECK(alone > 1);
    CHECK_EQ(pst_sst_reader_seek(r, 5, 4), PST_INVALID);
    CHECK_EQ(pst_sst_reader_seek(r, -1, 4), PST_INVALID);
    CHECK_EQ(pst_sst_reader_seek(r, 32768, 40000), PST_OK);
    CHECK_EQ(pst_sst_reader_next(r, &record), PST_NOT_FOUND);
    pst_sst_reader_close(r);
    file_free(&f);
    rows_free(&rows);
}

/* A file depends on the rows alone: not on cells that are null or not carried, nor on what memory
 * held before, nor on the blocks written before. */
static void same_rows_same_bytes(uint32_t block_bytes) {
    uint64_t rng = 12;
    random_schema s;
    schema_random(&s, &rng, 3, 9);
    row_style style = WHOLE;
    style.masks = 0;
    style.block_bytes = block_bytes;
    style.null_keys = style.null_values = style.deletes = 10;
    random_rows rows = rows_random(&s.schema, &style, &rng, 6000);
    memory_file a = {0}, b = {0};
    pst_io io_a = file_io(&a, 1), io_b = file_io(&b, 1);
    pst_file_info info = info_of(PST_DELTA, &style, 9);
    mallopt(M_PERTURB, 0x5a);
    CHECK_EQ(write_rows(&s.schema, &info, &io_a, rows.rows, rows.n), PST_OK);
    static const uint8_t junk[8];
    for (size_t i = 0; i < rows.n; i++) {
        pst_record *r = &rows.rows[i];
        pst_cell noise = {{check_random(&rng), check_random(&rng)}, {junk, 8}};
        for (int32_t k = 0; k < s.schema.n_keys; k++)
            if ((r->key_nulls >> k) & 1)
                r->key[k] = noise;
        for (int32_t c = 0; c < s.schema.n_states; c++)
            if (!((r->present >> c) & 1))
                r->cells[c] = noise;
    }
    mallopt(M_PERTURB, 0xc3);
    info = info_of(PST_DELTA, &style, 9);
    CHECK_EQ(write_rows(&s.schema, &info, &io_b, rows.rows, rows.n), PST_OK);
    mallopt(M_PERTURB, 0);
    CHECK_EQ(a.size, b.size);
    CHECK(a.size == b.size && memcmp(a.data, b.data, a.size) == 0);
    file_free(&a);
    file_free(&b);
    rows_free(&rows);
}

static void test_same_rows_same_bytes(void) {
    same_rows_same_bytes(0);
    same_rows_same_bytes(4096);
}

static void test_compressed_blocks_end_in_zeros(void) {
    uint64_t rng = 13, compressed = 0;
    random_schema s = plain_schema(4, PST_INT64);
    const pst_schema *schema = at_home(&s);
    random_rows rows = rows_random(schema, &WHOLE, &rng, 20000);
    for (size_t i = 0; i < rows.n; i++)
        memset(rows.rows[i].cells, 0, 4 * sizeof(pst_cell));
    memory_file f = {0};
    pst_io io = file_io(&f, 1);
    pst_file_info info = info_of(PST_DELTA, &WHOLE, 9);
    CHECK_EQ(write_rows(schema, &info, &io, rows.rows, rows.n), PST_OK);
    for (uint64_t i = 0; i < blocks_of(&f); i++)
        compressed += ref_of(&f, i).codec == PST_CODEC_LZ4;
    CHECK(compressed > 3);
    check_padding(&f);
    size_t equal;
    CHECK_EQ(read_rows(schema, &io, f.size, rows.rows, rows.n, &equal), PST_OK);
    CHECK_EQ(equal, rows.n);
    file_free(&f);
    rows_free(&rows);
}

/* A value far above the block size makes a block of its own between ordinary ones. */
static void test_huge_values(void) {
    uint64_t rng = 5;
    random_schema s = plain_schema(2, PST_BINARY);
    const pst_schema *schema = at_home(&s);
    random_rows rows = rows_random(schema, &WHOLE, &rng, 3000);
    for (size_t at = 1000; at < 1003; at++) {
        uint32_t size = at == 1002 ? 200 * 1024 : 3 * 1024 * 1024;
        uint8_t *p = heap_take(rows.heap, size);
        for (uint32_t i = 0; i < size; i++)
            p[i] = (uint8_t)check_random(&rng);
        rows.rows[at].cells[1].bytes = (pst_bytes){p, size};
        /* the second has a kind of its own, which the block before it must not list */
        rows.rows[at].present = rows.rows[at].changed = at == 1001 ? 2 : 3;
        rows.rows[at].op = PST_PUT;
    }
    for (int compressed = 0; compressed < 2; compressed++) {
        memory_file f = {0};
        pst_io io = file_io(&f, compressed);
        pst_file_info info = info_of(PST_DELTA, &WHOLE, 9);
        CHECK_EQ(write_rows(schema, &info, &io, rows.rows, rows.n), PST_OK);
        size_t equal;
        CHECK_EQ(read_rows(schema, &io, f.size, rows.rows, rows.n, &equal), PST_OK);
        CHECK_EQ(equal, rows.n);
        file_free(&f);
    }
    memory_file f = {0};
    pst_io io = file_io(&f, 0);
    pst_file_info info = info_of(PST_DELTA, &WHOLE, 9);
    pst_sst_writer *w = NULL;
    REQUIRE(pst_sst_writer_create(schema, &info, &io, &w) == PST_OK);
    pst_record r = rows.rows[0];
    r.cells[0].bytes.size = PST_MAX_BYTES + 1;
    r.changed = r.present = 3;
    CHECK_EQ(pst_sst_writer_add(w, &r), PST_TOO_LARGE);
    CHECK_EQ(pst_sst_writer_add(w, &rows.rows[0]), PST_OK);
    CHECK_EQ(pst_sst_writer_finish(w, &info), PST_OK);
    CHECK_EQ(info.rows + info.tombstones, 1);
    pst_sst_writer_destroy(w);
    file_free(&f);
    rows_free(&rows);
}

/* ---- what the writer refuses ----------------------------------------------------------------- */

static uint64_t inverse(uint64_t odd) {
    uint64_t x = odd;
    for (int i = 0; i < 6; i++)
        x *= 2 - odd * x;
    return x;
}

/* The second column that gives (a, ?) the hash of (b, y): hashLong can be undone. */
static uint64_t colliding(uint64_t a, uint64_t b, uint64_t y) {
    uint64_t sa = pst_xxh64_long((int64_t)a, PST_HASH_SEED) + PST_XXH_P5 + 8;
    uint64_t sb = pst_xxh64_long((int64_t)b, PST_HASH_SEED) + PST_XXH_P5 + 8;
    uint64_t round = pst_xxh64_rotl(y * PST_XXH_P2, 31) * PST_XXH_P1;
    uint64_t wanted = (sa ^ sb ^ round) * inverse(PST_XXH_P1);
    return pst_xxh64_rotl(wanted, 33) * inverse(PST_XXH_P2);
}

static pst_record record_of(const pst_schema *s, uint64_t a, uint64_t b) {
    pst_record r;
    memset(&r, 0, sizeof r);
    r.op = PST_PUT;
    r.key[0].word[0] = a;
    r.key[1].word[0] = b;
    r.hash = pst_hash_key(s->keys, s->n_keys, r.key, 0);
    r.key_group = pst_key_group(r.hash, 128);
    r.changed = r.present = all_states(s);
    return r;
}

static void test_order_is_checked(void) {
    random_schema s;
    schema_add(&s, 0, PST_INT64, 0);
    schema_add(&s, 1, PST_INT64, 0);
    schema_add(&s, 2, PST_INT64, 0);
    schema_done(&s, 2, 1);
    pst_record low = record_of(&s.schema, 1, colliding(1, 2, 5));
    pst_record high = record_of(&s.schema, 2, 5);
    REQUIRE(low.hash == high.hash);
    pst_record nulls = high;
    nulls.key_nulls = 2;
    nulls.hash = pst_hash_key(s.schema.keys, 2, nulls.key, 2);
    nulls.key_group = pst_key_group(nulls.hash, 128);
    memory_file f = {0};
    pst_io io = file_io(&f, 0);
    pst_file_info info = info_of(PST_DELTA, &WHOLE, 9);
    pst_sst_writer *w = NULL;
    REQUIRE(pst_sst_writer_create(&s.schema, &info, &io, &w) == PST_OK);
    CHECK_EQ(pst_sst_writer_add(w, &low), PST_OK);
    CHECK_EQ(pst_sst_writer_add(w, &low), PST_INVALID);
    CHECK_EQ(pst_sst_writer_add(w, &high), PST_OK);
    CHECK_EQ(pst_sst_writer_add(w, &low), PST_INVALID);
    CHECK_EQ(pst_sst_writer_add(w, &high), PST_INVALID);
    pst_record earlier;
    for (uint64_t a = 10;; a++) {
        earlier = record_of(&s.schema, a, 0);
        if (earlier.key_group == high.key_group && earlier.hash < high.hash)
            break;
    }
    CHECK_EQ(pst_sst_writer_add(w, &earlier), PST_INVALID);
    int before = nulls.key_group < high.key_group ||
                 (nulls.key_group == high.key_group && nulls.hash < high.hash);
    CHECK_EQ(pst_sst_writer_add(w, &nulls), before ? PST_INVALID : PST_OK);
    pst_record bad = high;
    bad.key_group = 127 - bad.key_group;
    CHECK_EQ(pst_sst_writer_add(w, &bad), PST_INVALID);
    bad = high;
    bad.op = (pst_record_op)0;
    CHECK_EQ(pst_sst_writer_add(w, &bad), PST_INVALID);
    bad = high;
    bad.changed = 2;
    CHECK_EQ(pst_sst_writer_add(w, &bad), PST_INVALID);
    bad = high;
    bad.key_nulls = 4;
    CHECK_EQ(pst_sst_writer_add(w, &bad), PST_INVALID);
    CHECK_EQ(pst_sst_writer_finish(w, &info), PST_OK);
    CHECK_EQ(info.rows, before ? 2 : 3);
    CHECK_EQ(pst_sst_writer_finish(w, &info), PST_INVALID);
    CHECK_EQ(pst_sst_writer_add(w, &high), PST_INVALID);
    pst_sst_writer_destroy(w);
    file_free(&f);
}

static void test_arguments(void) {
    random_schema s = plain_schema(1, PST_INT64);
    const pst_schema *schema = at_home(&s);
    memory_file f = {0};
    pst_io io = file_io(&f, 0);
    pst_sst_writer *w = NULL;
    pst_file_info good = info_of(PST_DELTA, &WHOLE, 9), bad = good;
    bad.kind = (pst_file_kind)3;
    CHECK_EQ(pst_sst_writer_create(schema, &bad, &io, &w), PST_INVALID);
    bad = good;
    bad.last_key_group = 128;
    CHECK_EQ(pst_sst_writer_create(schema, &bad, &io, &w), PST_INVALID);
    bad = good;
    bad.first_key_group = 5;
    bad.last_key_group = 4;
    CHECK_EQ(pst_sst_writer_create(schema, &bad, &io, &w), PST_INVALID);
    pst_io no_write = io;
    no_write.write = NULL;
    CHECK_EQ(pst_sst_writer_create(schema, &good, &no_write, &w), PST_INVALID);
    char *name = malloc(PST_SST_MAX_NAME + 2);
    REQUIRE(name);
    memset(name, 'n', PST_SST_MAX_NAME + 1);
    name[PST_SST_MAX_NAME + 1] = 0;
    s.columns[0].name = name;
    CHECK_EQ(pst_sst_writer_create(schema, &good, &io, &w), PST_INVALID);
    name[PST_SST_MAX_NAME] = 0;
    CHECK_EQ(write_rows(schema, &good, &io, NULL, 0), PST_OK);
    size_t equal;
    CHECK_EQ(read_rows(schema, &io, f.size, NULL, 0, &equal), PST_OK);
    free(name);
    at_home(&s);
    /* a base takes no tombstones, one row outside the range is one too many */
    pst_file_info base = info_of(PST_BASE, &WHOLE, 9);
    base.last_key_group = 0;
    REQUIRE(pst_sst_writer_create(schema, &base, &io, &w) == PST_OK);
    pst_record r;
    for (uint64_t key = 0;; key++) {
        memset(&r, 0, sizeof r);
        r.op = PST_DELETE;
        r.key[0].word[0] = key;
        r.hash = pst_hash_key(schema->keys, 1, r.key, 0);
        r.key_group = pst_key_group(r.hash, 128);
        if (r.key_group == 0)
            break;
        r.op = PST_PUT;
        CHECK_EQ(pst_sst_writer_add(w, &r), PST_INVALID);
    }
    CHECK_EQ(pst_sst_writer_add(w, &r), PST_INVALID);
    r.op = PST_PUT;
    r.changed = 1;
    CHECK_EQ(pst_sst_writer_add(w, &r), PST_OK);
    pst_sst_writer_destroy(w);
    file_free(&f);
}

int main(void) {
    test_every_type();
    test_many_shapes();
    test_density();
    test_range_reads_only_its_blocks();
    test_same_rows_same_bytes();
    test_compressed_blocks_end_in_zeros();
    test_huge_values();
    test_order_is_checked();
    test_arguments();
    return check_report();
}
