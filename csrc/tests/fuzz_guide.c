/* Guided files, forged: bytes changed at random and all checksums made right again, so that what a
 * hostile writer could have put there is read, as a whole and key by key. Whatever comes out, it is
 * a status or rows that stay inside their buffers. Deterministic; the argument is the number of
 * rounds. Most of what it finds only shows in an instrumented build. */
#include "forge.h"
#include "guide/sst_times.h"
#include "guided.h"

enum { MAP_FILE = 6, TIMER_FILE = 7, VARIANTS = 8 };

typedef struct original {
    random_schema s;
    const pst_schema *schema;
    memory_file file;
    random_rows rows;
} original;

static uint64_t touched; /* keeps reads from being optimised away */

static const pst_column COLUMNS[] = {
    {.name = "k", .type = PST_INT64},
    {.name = PST_ELEMENT_COLUMN, .type = PST_BINARY},
    {.name = "m", .type = PST_INT64, .kind = PST_MAP, .map_key = PST_INT64}};
static const pst_schema MAPS = {2, 1, COLUMNS, COLUMNS + 2, 1};

static const pst_column TIMER_COLUMNS[] = {
    {.name = "k", .type = PST_INT64},
    {.name = PST_ELEMENT_COLUMN, .type = PST_BINARY},
    {.name = "#timers", .type = PST_BOOL, .kind = PST_TIMERS},
    {.name = "#timer", .type = PST_INT64, .kind = PST_TIMER}};
static const pst_schema TIMERS = {2, 2, TIMER_COLUMNS, TIMER_COLUMNS + 2, 1};

/* Rows with a timer each. */
static random_rows timers_random(uint64_t *rng) {
    random_rows out = {calloc(800, sizeof(pst_record)), 0, calloc(1, sizeof(byte_heap))};
    REQUIRE(out.rows && out.heap);
    for (uint64_t i = 0; i < 400; i++) {
        pst_record *r = &out.rows[out.n++];
        r->op = PST_PUT;
        r->key[0].word[0] = i;
        r->key_nulls = 2;
        r->hash = pst_hash_key(TIMERS.keys, 1, r->key, 0);
        r->key_group = pst_key_group(r->hash, 16);
        r->changed = r->present = 2;
        r->cells[1].word[0] = check_random(rng) >> check_random(rng) % 64;
    }
    sort_rows(&TIMERS, out.rows, out.rows + out.n, out.n);
    return out;
}

/* Rows with elements. */
static random_rows maps_random(uint64_t *rng) {
    random_rows out = {calloc(800, sizeof(pst_record)), 0, calloc(1, sizeof(byte_heap))};
    REQUIRE(out.rows && out.heap);
    for (uint64_t i = 0; i < 400; i++) {
        pst_record *r = &out.rows[out.n++];
        r->op = PST_PUT;
        r->key[0].word[0] = i / 40;
        r->hash = pst_hash_key(MAPS.keys, 1, r->key, 0);
        r->key_group = pst_key_group(r->hash, 16);
        r->changed = 1;
        if (i % 40 == 0) {
            r->key_nulls = 2;
            continue;
        }
        uint8_t *p = heap_take(out.heap, 12);
        pst_put_big(p, pst_collection_id("m"), 4);
        pst_put_big(p + 4, i, 8);
        r->key[1].bytes = (pst_bytes){p, 12};
        r->present = 1;
        r->cells[0].word[0] = check_random(rng);
    }
    sort_rows(&MAPS, out.rows, out.rows + out.n, out.n);
    return out;
}

static void make(original *o, int variant) {
    uint64_t rng = 100 + (uint64_t)variant;
    row_style style = {.masks = (uint32_t)variant % 4,
                       .max_parallelism = 16,
                       .last_key_group = 15,
                       .null_keys = 10,
                       .null_values = 20,
                       .deletes = 15,
                       .block_bytes = 4096};
    pst_file_kind kind = variant == 4 ? PST_BASE : PST_DELTA;
    schema_random(&o->s, &rng, 1 + variant % 3, 2 + variant);
    o->schema = variant == MAP_FILE ? &MAPS : variant == TIMER_FILE ? &TIMERS : &o->s.schema;
    o->rows = variant == MAP_FILE ? maps_random(&rng)
              : variant == TIMER_FILE
                  ? timers_random(&rng)
                  : rows_random(o->schema, &style, &rng, variant == 5 ? 4000 : 200);
    as_stored(kind, &o->rows);
    pst_io io = file_io(&o->file, variant % 2);
    pst_file_info info = info_of(kind, &style, 9);
    REQUIRE(write_rows(o->schema, &info, &io, o->rows.rows, o->rows.n) == PST_OK);
}

static void touch(const pst_schema *s, const pst_record *r) {
    touched += r->hash + (uint64_t)r->key_group;
    for (int32_t i = 0; i < s->n_keys + s->n_states; i++) {
        int is_key = i < s->n_keys;
        int32_t c = is_key ? i : i - s->n_keys;
        const pst_cell *cell = is_key ? &r->key[c] : &r->cells[c];
        if (!((is_key ? ~(uint64_t)r->key_nulls : r->present) >> c & 1))
            continue;
        if ((is_key ? s->keys[c] : s->states[c]).type < PST_STRING)
            touched += cell->word[0];
        else
            for (uint32_t k = 0; k < cell->bytes.size; k++)
                touched += cell->bytes.data[k];
    }
}

static pst_status read_all(memory_file *f) {
    pst_io io = file_io(f, 1);
    pst_sst_reader *r = NULL;
    pst_record *record = calloc(1, sizeof *record);
    REQUIRE(record);
    pst_status s = pst_sst_reader_open(&io, f->size, &r, NULL);
    while (!s) {
        s = pst_sst_reader_next(r, record);
        if (!s)
            touch(pst_sst_reader_schema(r), record);
    }
    if (r && pst_sst_reader_seek(r, 3, 9) == PST_OK)
        while (pst_sst_reader_next(r, record) == PST_OK)
            touch(pst_sst_reader_schema(r), record);
    pst_sst_reader_close(r);
    free(record);
    return s;
}

/* Every block by itself, for one of the keys and for any place. */
static void search_all(guided *g, const original *o, uint64_t *rng) {
    const pst_schema *s = &g->guide->schema;
    pst_record *record = calloc(1, sizeof *record);
    REQUIRE(record);
    for (uint32_t k = 0; k < g->guide->n_segments; k++) {
        const pst_guide_segment *segment = &g->guide->segments[k];
        uint8_t *entries = guided_part(g->f, segment->guide, segment->filter);
        REQUIRE(entries); /* what the index says lies in the file */
        int sound = pst_guide_check_entries(g->guide, k, entries) == PST_OK;
        for (uint32_t i = 0; sound && i < segment->blocks; i++) {
            pst_guide_block b = pst_guide_block_at(segment, entries, i);
            int32_t group;
            uint64_t hash = guided_end(segment, entries, i, &group);
            uint8_t *stored = guided_part(g->f, b.offset, b.offset + b.stored);
            REQUIRE(stored);
            pst_status st = pst_search_open(&g->search, g->guide, &b, group, hash, stored);
            CHECK(st == PST_OK || st == PST_CORRUPT);
            CHECK(st || g->search.view.rows == b.rows);
            for (int n = 0; !st && n < 6; n++) {
                const pst_record *r = &o->rows.rows[check_random(rng) % o->rows.n];
                uint32_t found, first;
                pst_wanted w = {n % 3 ? b.first_hash + check_random(rng) % 100 : r->hash,
                                b.key_group, r->key_nulls, r->key};
                first =
                    s->n_keys == o->schema->n_keys ? pst_search_find(&g->search, &w, &found) : 0;
                first = s->n_keys == o->schema->n_keys && found
                            ? first
                            : (uint32_t)check_random(rng) % b.rows;
                if (pst_search_record(&g->search, first, record) == PST_OK)
                    touch(s, record);
            }
            free(stored);
        }
        free(entries);
    }
    free(record);
}

static void walk_times(memory_file *f, const pst_guide *g, uint64_t *rng) {
    pst_io io = file_io(f, 0);
    pst_times *t = NULL;
    pst_timer_hint hint;
    pst_status s = pst_times_open(&io, g, &t);
    for (int32_t domain = 0; !s && domain < 2; domain++) {
        uint64_t last = check_random(rng), n = 0;
        int64_t from = (int64_t)last >> last % 64;
        uint64_t place = check_random(rng) % 2 ? check_random(rng) : 0;
        pst_times_seek(t, &(pst_timer_hint){from, place, (int32_t)(place % 128), domain});
        while (!(s = pst_times_next(t, &hint)) && n++ < 3000) {
            CHECK(hint.time >= from);
            touched += hint.hash;
        }
        CHECK(s == PST_NOT_FOUND || s == PST_CORRUPT);
        s = s == PST_NOT_FOUND ? PST_OK : s;
    }
    CHECK(s == PST_OK || s == PST_NOT_FOUND || s == PST_CORRUPT);
    pst_times_close(t);
}

static int same_keys(const pst_schema *a, const pst_schema *b) {
    int same = a->n_keys == b->n_keys;
    for (int32_t i = 0; same && i < a->n_keys; i++)
        same = a->keys[i].type == b->keys[i].type;
    return same;
}

static void fuzz_file(const original *o, uint64_t *rng) {
    memory_file f = {.size = o->file.size, .data = malloc(o->file.size)};
    REQUIRE(f.data);
    memcpy(f.data, o->file.data, f.size);
    size_t footer = f.size - PST_SST_FOOTER_BYTES;
    size_t index = forge_get64(o->file.data + footer);
    size_t data = 128 + (size_t)forge_get32(o->file.data + 12);
    size_t guide = forge_get64(o->file.data + index + 8);
    for (uint64_t n = 1 + check_random(rng) % 3; n > 0; n--) {
        switch (check_random(rng) % 7) {
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
            forge_bytes(f.data + guide, check_random(rng) % 2 ? 16 + 24 * 2 : index - guide, rng);
            break;
        case 5:
            forge_bytes(f.data + data, guide - data, rng);
            break;
        default: /* the directory of the first block */
            forge_bytes(f.data + data, guide - data < 256 ? guide - data : 256, rng);
            break;
        }
    }
    forge_reseal(f.data, &o->file);
    pst_status s = read_all(&f);
    CHECK(s == PST_NOT_FOUND || s == PST_CORRUPT || s == PST_NEWER_FORMAT || s == PST_CALLBACK ||
          s == PST_INVALID);
    guided g;
    s = guided_open(&g, &f);
    CHECK(s == PST_OK || s == PST_CORRUPT || s == PST_NEWER_FORMAT || s == PST_SCHEMA ||
          s == PST_CALLBACK);
    if (!s && same_keys(o->schema, &g.guide->schema)) {
        for (int i = 0; i < 5; i++) {
            guided_found found = {.schema = o->schema};
            s = guided_find(&g, &o->rows.rows[check_random(rng) % o->rows.n], &found);
            CHECK(s == PST_OK || s == PST_CORRUPT);
        }
        search_all(&g, o, rng);
        walk_times(&f, g.guide, rng);
    }
    if (g.guide)
        guided_close(&g);
    free(f.data);
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 3000, rng = 1;
    static original originals[VARIANTS];
    for (int i = 0; i < VARIANTS; i++) {
        make(&originals[i], i);
        CHECK_EQ(read_all(&originals[i].file), PST_NOT_FOUND);
        /* resealing an unharmed file changes nothing */
        memory_file copy = {0};
        pst_io io = file_io(&copy, 0);
        io.write(&copy, originals[i].file.data, originals[i].file.size);
        forge_reseal(copy.data, &originals[i].file);
        CHECK(memcmp(copy.data, originals[i].file.data, copy.size) == 0);
        file_free(&copy);
    }
    for (uint64_t round = 0; round < rounds; round++)
        fuzz_file(&originals[round % 16 == 0  ? 5
                             : round % 6 == 5 ? 6
                             : round % 6 == 4 ? 7
                                              : round % 5],
                  &rng);
    CHECK(touched != 0);
    for (int i = 0; i < VARIANTS; i++) {
        file_free(&originals[i].file);
        rows_free(&originals[i].rows);
    }
    return check_report();
}
