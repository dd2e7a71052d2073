/* Forged files: bytes changed at random and all checksums made right again. Whatever comes out, it
 * is a status or rows that stay inside their buffers. Deterministic; the argument is the number of
 * rounds. Most of what it finds only shows in an instrumented build. */
#include "forge.h"

enum { VARIANTS = 6 };

typedef struct original {
    random_schema s;
    memory_file file;
    int compressed;
} original;

static uint64_t touched; /* keeps reads from being optimised away */

static void touch(const pst_schema *s, const pst_record *r) {
    touched += r->hash + (uint64_t)r->key_group;
    for (int32_t i = 0; i < s->n_keys + s->n_states; i++) {
        int is_key = i < s->n_keys;
        int32_t c = is_key ? i : i - s->n_keys;
        uint64_t there = is_key ? ~(uint64_t)r->key_nulls : r->present;
        if (!((there >> c) & 1))
            continue;
        const pst_cell *cell = is_key ? &r->key[c] : &r->cells[c];
        if ((is_key ? s->keys[c] : s->states[c]).type < PST_STRING)
            touched += cell->word[0];
        else
            for (uint32_t k = 0; k < cell->bytes.size; k++)
                touched += cell->bytes.data[k];
    }
}

static void make(original *o, int variant) {
    uint64_t rng = 100 + (uint64_t)variant;
    row_style style = {.masks = (uint32_t)variant % 4,
                       .max_parallelism = 16,
                       .last_key_group = 15,
                       .null_keys = 10,
                       .null_values = 20,
                       .deletes = 15};
    schema_random(&o->s, &rng, 1 + variant % 3, 2 + variant);
    random_rows rows = rows_random(&o->s.schema, &style, &rng, variant == 5 ? 8000 : 60);
    o->compressed = variant % 2;
    pst_io io = file_io(&o->file, o->compressed);
    pst_file_kind kind = variant == 4 ? PST_BASE : PST_DELTA;
    as_stored(kind, &rows);
    pst_file_info info = info_of(kind, &style, 9);
    REQUIRE(write_rows(&o->s.schema, &info, &io, rows.rows, rows.n) == PST_OK);
    rows_free(&rows);
}

static pst_status read_forged(const memory_file *f, int compressed) {
    memory_file copy = *f;
    pst_io io = file_io(&copy, compressed);
    pst_sst_reader *r = NULL;
    pst_record record;
    pst_status s = pst_sst_reader_open(&io, f->size, &r, NULL);
    while (!s) {
        s = pst_sst_reader_next(r, &record);
        if (!s)
            touch(pst_sst_reader_schema(r), &record);
    }
    if (r && pst_sst_reader_seek(r, 3, 9) == PST_OK)
        while (pst_sst_reader_next(r, &record) == PST_OK)
            touch(pst_sst_reader_schema(r), &record);
    pst_sst_reader_close(r);
    return s;
}

/* A whole file, in memory that ends where it ends. */
static void fuzz_file(const original *o, uint64_t *rng) {
    memory_file f = {.size = o->file.size, .data = malloc(o->file.size)};
    REQUIRE(f.data);
    memcpy(f.data, o->file.data, f.size);
    size_t footer = f.size - PST_SST_FOOTER_BYTES;
    size_t index = forge_get64(o->file.data + footer);
    size_t data = 128 + (size_t)forge_get32(o->file.data + 12);
    for (uint64_t n = 1 + check_random(rng) % 3; n > 0; n--) {
        switch (check_random(rng) % 6) {
        case 0:
            forge_bytes(f.data, 120, rng);
            break;
        case 1:
            forge_bytes(f.data + 128, data - 128 - 8, rng);
            break;
        case 2:
            forge_bytes(f.data + index, footer - index, rng);
            break;
        case 3:
            forge_bytes(f.data + footer, 48, rng);
            break;
        case 4:
            forge_bytes(f.data + data, index - data, rng);
            break;
        default: /* the directory of the first block */
            forge_bytes(f.data + data, index - data < 256 ? index - data : 256, rng);
            break;
        }
    }
    forge_reseal(f.data, &o->file);
    pst_status s = read_forged(&f, o->compressed);
    CHECK(s == PST_NOT_FOUND || s == PST_CORRUPT || s == PST_NEWER_FORMAT || s == PST_CALLBACK);
    free(f.data);
}

/* A raw block alone, in memory that ends where it ends. */
static void fuzz_block(const original *o, uint64_t *rng) {
    pst_sst_ref ref;
    size_t footer = o->file.size - PST_SST_FOOTER_BYTES;
    CHECK_EQ(pst_sst_get_ref(o->file.data + forge_get64(o->file.data + footer), &ref), PST_OK);
    uint8_t *raw = malloc(ref.raw);
    uint64_t *hash = malloc(PST_SST_BLOCK_ROWS * sizeof *hash);
    pst_sst_view *v = malloc(sizeof *v);
    REQUIRE(raw && hash && v);
    memcpy(raw, o->file.data + ref.offset, ref.raw);
    for (uint64_t n = 1 + check_random(rng) % 3; n > 0; n--)
        forge_bytes(raw, check_random(rng) % 3 && ref.raw > 256 ? 256 : ref.raw, rng);
    if (pst_sst_view_open(v, &o->s.schema, raw, ref.raw) == PST_OK) {
        pst_record record;
        CHECK_EQ(pst_sst_view_hash(v, hash), PST_OK);
        pst_sst_view_skip(v, (uint32_t)(check_random(rng) % (v->rows + 1)));
        while (v->row < v->rows) {
            record.hash = hash[v->row];
            record.key_group = 0;
            pst_sst_view_next(v, &record);
            touch(&o->s.schema, &record);
        }
    }
    free(v);
    free(hash);
    free(raw);
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 3000, rng = 1;
    static original originals[VARIANTS];
    for (int i = 0; i < VARIANTS; i++) {
        make(&originals[i], i);
        CHECK_EQ(read_forged(&originals[i].file, originals[i].compressed), PST_NOT_FOUND);
        /* resealing an unharmed file changes nothing */
        memory_file copy = {0};
        pst_io io = file_io(&copy, 0);
        io.write(&copy, originals[i].file.data, originals[i].file.size);
        forge_reseal(copy.data, &originals[i].file);
        CHECK(memcmp(copy.data, originals[i].file.data, copy.size) == 0);
        file_free(&copy);
    }
    for (uint64_t round = 0; round < rounds; round++) {
        const original *o = &originals[round % 16 == 0 ? 5 : round % 5];
        fuzz_file(o, &rng);
        if (!o->compressed)
            fuzz_block(o, &rng);
    }
    CHECK(touched != 0);
    for (int i = 0; i < VARIANTS; i++)
        file_free(&originals[i].file);
    return check_report();
}
