/* What a damaged, truncated or newer file, refused memory and failing callbacks lead to: a status
 * of their own, never a wrong value. */
#include "files.h"

#include "base/coding.h"
#include "key/xxh64.h"
#include "sst/sst_format.h"

static const row_style WHOLE = {.masks = 1, .max_parallelism = 128, .last_key_group = 127};

/* ---- damage ---------------------------------------------------------------------------------- */

typedef struct small_file {
    random_schema s;
    random_rows rows;
    memory_file f;
    pst_io io;
} small_file;

static void small_make(small_file *x, pst_file_kind kind, int compressed, uint64_t seed) {
    schema_add(&x->s, 0, PST_INT64, 0);
    schema_add(&x->s, 1, PST_STRING, 0);
    schema_add(&x->s, 2, PST_INT32, 0);
    schema_add(&x->s, 3, PST_STRING, 0);
    schema_add(&x->s, 4, PST_BOOL, 0);
    schema_done(&x->s, 2, 3);
    row_style style = WHOLE;
    style.deletes = 20;
    style.null_values = 20;
    style.null_keys = 10;
    style.masks = 3;
    uint64_t rng = seed;
    x->rows = rows_random(&x->s.schema, &style, &rng, 12);
    as_stored(kind, &x->rows);
    x->f = (memory_file){0};
    x->io = file_io(&x->f, compressed);
    pst_file_info info = info_of(kind, &WHOLE, 9);
    REQUIRE(write_rows(&x->s.schema, &info, &x->io, x->rows.rows, x->rows.n) == PST_OK);
}

static void small_free(small_file *x) {
    file_free(&x->f);
    rows_free(&x->rows);
}

static pst_status small_read(small_file *x, size_t size, size_t *equal) {
    return read_rows(&x->s.schema, &x->io, size, x->rows.rows, x->rows.n, equal);
}

static void test_every_byte_and_every_length(void) {
    for (int variant = 0; variant < 4; variant++) {
        small_file x;
        small_make(&x, variant & 1 ? PST_BASE : PST_DELTA, variant & 2, 6 + (uint64_t)variant);
        size_t equal, size = x.f.size;
        CHECK_EQ(small_read(&x, size, &equal), PST_OK);
        CHECK_EQ(equal, x.rows.n);
        static const uint8_t flips[] = {0x01, 0x80, 0xff};
        for (size_t i = 0; i < size; i++) {
            for (size_t k = 0; k < sizeof flips; k++) {
                x.f.data[i] ^= flips[k];
                CHECK_EQ(small_read(&x, size, &equal), PST_CORRUPT);
                x.f.data[i] ^= flips[k];
            }
        }
        for (size_t length = 0; length < size; length++) {
            /* exactly as long, so that a read past the end is seen by the sanitizer */
            small_file cut = x;
            cut.f.data = malloc(length + 1);
            REQUIRE(cut.f.data);
            memcpy(cut.f.data, x.f.data, length);
            cut.f.size = length;
            cut.io.ctx = &cut.f;
            CHECK_EQ(small_read(&cut, length, &equal), PST_CORRUPT);
            free(cut.f.data);
        }
        uint8_t zeros[64] = {0};
        for (size_t more = 1; more <= 64; more += 21) {
            CHECK_EQ(file_write(&x.f, zeros, more), 0);
            CHECK_EQ(small_read(&x, x.f.size, &equal), PST_CORRUPT);
            x.f.size = size;
        }
        CHECK_EQ(small_read(&x, size, &equal), PST_OK);
        small_free(&x);
    }
}

/* A block moved to another place, or taken from another file, does not pass for its own. */
static void test_checksums_are_bound(void) {
    random_schema s = plain_schema(1, PST_INT64);
    const pst_schema *schema = at_home(&s);
    uint64_t rng = 7;
    random_rows rows = rows_random(schema, &WHOLE, &rng, 20000);
    memory_file a = {0}, b = {0};
    pst_io io_a = file_io(&a, 0), io_b = file_io(&b, 0);
    pst_file_info info_a = info_of(PST_DELTA, &WHOLE, 9), info_b = info_of(PST_DELTA, &WHOLE, 10);
    info_b.lineage.epoch = info_a.lineage.epoch;
    memcpy(info_b.lineage.parent, info_a.lineage.parent, 16);
    CHECK_EQ(write_rows(schema, &info_a, &io_a, rows.rows, rows.n), PST_OK);
    CHECK_EQ(write_rows(schema, &info_b, &io_b, rows.rows, rows.n), PST_OK);
    REQUIRE(a.size == b.size);
    size_t equal, block = 256 + 64 * 1024;
    CHECK_EQ(read_rows(schema, &io_a, a.size, rows.rows, rows.n, &equal), PST_OK);
    CHECK(memcmp(a.data + block, b.data + block, 4096) == 0);
    /* head of one, rest of the other */
    memcpy(b.data, a.data, PST_SST_HEADER_BYTES);
    CHECK_EQ(read_rows(schema, &io_b, b.size, rows.rows, rows.n, &equal), PST_CORRUPT);
    memcpy(a.data + a.size - 200, b.data + a.size - 200, 200);
    CHECK_EQ(read_rows(schema, &io_a, a.size, rows.rows, rows.n, &equal), PST_CORRUPT);
    file_free(&a);
    file_free(&b);
    rows_free(&rows);
}

static void reseal_header(uint8_t *header) {
    pst_put_u64(header + 120, pst_xxh64(header, 120, 0));
}

static void test_versions(void) {
    small_file x;
    small_make(&x, PST_DELTA, 0, 8);
    size_t equal;
    static const struct {
        size_t at;
        uint8_t value;
        pst_status status;
    } cases[] = {
        {8, PST_SST_VERSION + 1, PST_NEWER_FORMAT}, /* version */
        {9, 1, PST_NEWER_FORMAT},
        {24, 32, PST_NEWER_FORMAT}, /* an incompatible feature */
        {24, 16, PST_CORRUPT},      /* times without a guide */
        {24, 8, PST_CORRUPT},       /* a guided file without a size of blocks */
        {31, 0x80, PST_NEWER_FORMAT},
        {16, 1, PST_OK},           /* a compatible one */
        {11, 2, PST_NEWER_FORMAT}, /* another hash */
        {32, 43, PST_NEWER_FORMAT},
        {8, 0, PST_CORRUPT},
        {10, 3, PST_CORRUPT}, /* neither delta nor base */
        {10, 2, PST_CORRUPT}, /* a base with tombstones */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *p = x.f.data + cases[i].at, old = *p;
        *p = cases[i].value;
        CHECK_EQ(small_read(&x, x.f.size, &equal), PST_CORRUPT);
        reseal_header(x.f.data);
        CHECK_EQ(small_read(&x, x.f.size, &equal), cases[i].status);
        *p = old;
        reseal_header(x.f.data);
    }
    CHECK_EQ(small_read(&x, x.f.size, &equal), PST_OK);
    small_free(&x);
}

static void test_detail(void) {
    small_file x;
    small_make(&x, PST_DELTA, 0, 9);
    pst_sst_reader *r = NULL;
    pst_detail detail;
    x.f.data[3] ^= 1;
    CHECK_EQ(pst_sst_reader_open(&x.io, x.f.size, &r, &detail), PST_CORRUPT);
    CHECK_EQ(detail.offset, 0);
    x.f.data[3] ^= 1;
    REQUIRE(pst_sst_reader_open(&x.io, x.f.size, &r, &detail) == PST_OK);
    CHECK_EQ(detail.offset, -1);
    uint64_t block = 128 + pst_get_u32(x.f.data + 12);
    x.f.data[block + 100] ^= 1;
    pst_record record;
    CHECK_EQ(pst_sst_reader_next(r, &record), PST_CORRUPT);
    CHECK_EQ(pst_sst_reader_detail(r)->offset, block);
    x.f.data[block + 100] ^= 1;
    CHECK_EQ(pst_sst_reader_next(r, &record), PST_CORRUPT);
    CHECK_EQ(pst_sst_reader_seek(r, 0, 127), PST_OK);
    CHECK_EQ(pst_sst_reader_next(r, &record), PST_OK);
    pst_sst_reader_close(r);
    small_free(&x);
}

/* ---- refused memory and failing callbacks ---------------------------------------------------- */

static void test_memory_refusals(void) {
    random_schema s;
    schema_add(&s, 0, PST_STRING, 0);
    for (int i = 1; i < 5; i++)
        schema_add(&s, i, i % 2 ? PST_BINARY : PST_INT64, 0);
    schema_done(&s, 1, 4);
    row_style style = WHOLE;
    style.null_values = 10;
    style.null_keys = 2;
    style.masks = 0;
    uint64_t rng = 10;
    random_rows rows = rows_random(&s.schema, &style, &rng, 6000);
    memory_file f = {0};
    pst_io io = file_io(&f, 1);
    int64_t n = 0;
    for (;; n++) {
        f.size = 0;
        pst_file_info info = info_of(PST_DELTA, &WHOLE, 9);
        check_fail_alloc(n, (int)(n % 2));
        pst_status status = write_rows(&s.schema, &info, &io, rows.rows, rows.n);
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(status, refused ? PST_NO_MEMORY : PST_OK);
        if (!refused)
            break;
    }
    CHECK(n > 20);
    size_t equal;
    for (n = 0;; n++) {
        check_fail_alloc(n, (int)(n % 2));
        pst_status status = read_rows(&s.schema, &io, f.size, rows.rows, rows.n, &equal);
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(status, refused ? PST_NO_MEMORY : PST_OK);
        if (!refused)
            break;
    }
    CHECK(n > 5);
    CHECK_EQ(equal, rows.n);
    file_free(&f);
    rows_free(&rows);
}

static void test_callback_failures(void) {
    uint64_t rng = 11;
    random_schema s = plain_schema(3, PST_STRING);
    const pst_schema *schema = at_home(&s);
    random_rows rows = rows_random(schema, &WHOLE, &rng, 6000);
    memory_file f = {0};
    pst_io io = file_io(&f, 1);
    size_t equal;
    int64_t n = 0;
    for (pst_status status = PST_CALLBACK; status; n++) {
        f.size = 0;
        f.calls_left = n;
        pst_file_info info = info_of(PST_DELTA, &WHOLE, 9);
        status = write_rows(schema, &info, &io, rows.rows, rows.n);
        CHECK(status == PST_OK || status == PST_CALLBACK);
    }
    CHECK(n > 5);
    n = 0;
    for (pst_status status = PST_CALLBACK; status; n++) {
        f.calls_left = n;
        status = read_rows(schema, &io, f.size, rows.rows, rows.n, &equal);
        CHECK(status == PST_OK || status == PST_CALLBACK);
    }
    CHECK(n > 5);
    /* a writer that failed stays failed */
    pst_sst_writer *w = NULL;
    pst_file_info info = info_of(PST_DELTA, &WHOLE, 9);
    f.size = 0;
    f.calls_left = 1;
    REQUIRE(pst_sst_writer_create(schema, &info, &io, &w) == PST_OK);
    pst_status status = PST_OK;
    for (size_t i = 0; i < rows.n && !status; i++)
        status = pst_sst_writer_add(w, &rows.rows[i]);
    CHECK_EQ(status, PST_CALLBACK);
    f.calls_left = -1;
    CHECK_EQ(pst_sst_writer_finish(w, &info), PST_CALLBACK);
    pst_sst_writer_destroy(w);
    file_free(&f);
    rows_free(&rows);
}

int main(void) {
    test_every_byte_and_every_length();
    test_checksums_are_bound();
    test_versions();
    test_detail();
    test_memory_refusals();
    test_callback_failures();
    return check_report();
}
