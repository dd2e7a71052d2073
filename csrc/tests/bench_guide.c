/* What guided files cost: bytes a row, time to write and to read all, and to find a row in a block.
 * Rows are a long, a count and a sum, from and to memory. Prints medians; asserts nothing about
 * time. */
#include "guide/sst_times.h"
#include "guided.h"

#include <time.h>

enum { ROWS = 400000, ROUNDS = 7, SEARCHES = 20000 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *seconds) {
    qsort(seconds, ROUNDS, sizeof *seconds, by_value);
    return seconds[ROUNDS / 2];
}

typedef struct small_row {
    int32_t key_group;
    uint64_t hash;
    uint64_t key;
} small_row;

static int by_place(const void *a, const void *b) {
    const small_row *x = a, *y = b;
    return pst_place_compare(x->key_group, x->hash, y->key_group, y->hash);
}

static char texts[ROWS][32];

static void fill(const pst_schema *s, const small_row *row, pst_record *r) {
    if (s->keys[0].type == PST_STRING)
        r->key[0].bytes = (pst_bytes){(const uint8_t *)texts[row->key], 20};
    else
        r->key[0].word[0] = row->key * UINT64_C(0x9E3779B97F4A7C15);
    r->hash = row->hash;
    r->key_group = row->key_group;
    r->cells[0].word[0] = row->key % 1000;
    r->cells[1].word[0] = row->key % 100000;
}

static double write_all(const pst_schema *s, const small_row *rows, pst_record *r, memory_file *f,
                        uint32_t block_bytes) {
    row_style style = {.max_parallelism = 128, .last_key_group = 127, .block_bytes = block_bytes};
    pst_file_info info = info_of(PST_BASE, &style, 1);
    pst_io io = file_io(f, 1);
    pst_sst_writer *w = NULL;
    f->size = 0;
    double t = now();
    REQUIRE(pst_sst_writer_create(s, &info, &io, &w) == PST_OK);
    for (size_t i = 0; i < ROWS; i++) {
        fill(s, &rows[i], r);
        if (pst_sst_writer_add(w, r))
            exit(1);
    }
    REQUIRE(pst_sst_writer_finish(w, &info) == PST_OK);
    pst_sst_writer_destroy(w);
    return now() - t;
}

static double read_all(memory_file *f, pst_record *r) {
    pst_sst_reader *reader = NULL;
    pst_io io = file_io(f, 1);
    uint64_t sum = 0;
    double t = now();
    REQUIRE(pst_sst_reader_open(&io, f->size, &reader, NULL) == PST_OK);
    while (!pst_sst_reader_next(reader, r))
        sum += r->hash;
    pst_sst_reader_close(reader);
    t = now() - t;
    REQUIRE(sum != 0);
    return t;
}

typedef struct at {
    uint32_t segment;
    uint32_t block;
} at;

/* Opens blocks at random, and finds `wanted` rows in each. */
static double search(const pst_schema *s, memory_file *f, const small_row *rows, pst_record *r,
                     uint32_t wanted) {
    guided g;
    uint64_t rng = 1, lost = 0;
    REQUIRE(guided_open(&g, f) == PST_OK);
    at *where = malloc(SEARCHES * sizeof *where);
    size_t *first = calloc(g.guide->n_segments * PST_GUIDE_BLOCKS + 1, sizeof *first);
    REQUIRE(where && first);
    for (uint32_t k = 0, row = 0; k < g.guide->n_segments; k++)
        for (uint32_t i = 0; i < g.guide->segments[k].blocks; i++) {
            const pst_guide_segment *segment = &g.guide->segments[k];
            first[k * PST_GUIDE_BLOCKS + i] = row;
            row += pst_guide_block_at(segment, f->data + segment->guide, i).rows;
        }
    for (size_t i = 0; i < SEARCHES; i++) {
        where[i].segment = (uint32_t)(check_random(&rng) % g.guide->n_segments);
        where[i].block =
            (uint32_t)(check_random(&rng) % g.guide->segments[where[i].segment].blocks);
    }
    double t = now();
    for (size_t i = 0; i < SEARCHES; i++) {
        const pst_guide_segment *segment = &g.guide->segments[where[i].segment];
        const uint8_t *entries = f->data + segment->guide;
        pst_guide_block b = pst_guide_block_at(segment, entries, where[i].block);
        int32_t group;
        uint64_t hash = guided_end(segment, entries, where[i].block, &group);
        if (pst_search_open(&g.search, g.guide, &b, group, hash, f->data + b.offset))
            exit(1);
        size_t from = first[where[i].segment * PST_GUIDE_BLOCKS + where[i].block];
        for (uint32_t k = 0; k < wanted; k++) {
            uint32_t n, row = (uint32_t)((uint64_t)b.rows * (2 * k + 1) / (2 * wanted));
            fill(s, &rows[from + row], r);
            pst_wanted w = {r->hash, r->key_group, 0, r->key};
            uint32_t found = pst_search_find(&g.search, &w, &n);
            lost += n != 1 || found != row || pst_search_record(&g.search, found, r);
        }
    }
    t = now() - t;
    REQUIRE(lost == 0);
    free(where);
    free(first);
    guided_close(&g);
    return t / SEARCHES;
}

/* The parts of opening: checksum and LZ4. */
static void parts(memory_file *f, double *sum_time, double *unpack_time) {
    guided g;
    uint64_t sum = 0, blocks = 0;
    REQUIRE(guided_open(&g, f) == PST_OK);
    uint8_t *raw = malloc(1 << 20);
    REQUIRE(raw);
    *sum_time = *unpack_time = 0;
    for (uint32_t k = 0; k < g.guide->n_segments; k++) {
        const pst_guide_segment *segment = &g.guide->segments[k];
        double t = now();
        for (uint32_t i = 0; i < segment->blocks; i++) {
            pst_guide_block b = pst_guide_block_at(segment, f->data + segment->guide, i);
            sum += pst_xxh64(f->data + b.offset, b.stored, b.offset);
        }
        *sum_time += now() - t;
        t = now();
        for (uint32_t i = 0; i < segment->blocks; i++) {
            pst_guide_block b = pst_guide_block_at(segment, f->data + segment->guide, i);
            if (b.packed)
                sum += pst_sst_unpack(f->data + b.offset, b.stored, raw, b.raw);
        }
        *unpack_time += now() - t;
        blocks += segment->blocks;
    }
    REQUIRE(sum != 0);
    *sum_time /= (double)blocks;
    *unpack_time /= (double)blocks;
    free(raw);
    guided_close(&g);
}

static void run(const pst_schema *s, const char *name, uint32_t block_bytes, small_row *rows) {
    pst_record *r = calloc(1, sizeof *r);
    REQUIRE(r);
    memory_file f = {0};
    double writing[ROUNDS], reading[ROUNDS], one[ROUNDS], eight[ROUNDS], all[ROUNDS], sums[ROUNDS],
        unpacks[ROUNDS];
    r->op = PST_PUT;
    r->changed = r->present = 3;
    for (int round = 0; round < ROUNDS; round++) {
        writing[round] = write_all(s, rows, r, &f, block_bytes);
        reading[round] = read_all(&f, r);
        if (!block_bytes)
            continue;
        one[round] = search(s, &f, rows, r, 1);
        eight[round] = search(s, &f, rows, r, 8);
        all[round] = search(s, &f, rows, r, 64);
        parts(&f, &sums[round], &unpacks[round]);
    }
    printf("%-7s blocks of %6u: file %5.2f B/row   write %5.1f read %5.1f ns/row", name,
           block_bytes, (double)f.size / ROWS, median(writing) / ROWS * 1e9,
           median(reading) / ROWS * 1e9);
    if (block_bytes) {
        guided g;
        uint64_t blocks = 0, entries = 0, filters = 0;
        REQUIRE(guided_open(&g, &f) == PST_OK);
        for (uint32_t i = 0; i < g.guide->n_segments; i++) {
            blocks += g.guide->segments[i].blocks;
            entries += pst_guide_entries_size(&g.guide->segments[i]);
            filters += pst_guide_filter_size(&g.guide->segments[i]);
        }
        guided_close(&g);
        printf(
            "   %3.0f rows a block, entries %.2f filter %.2f B/row   one row %.2f us, 8 %.2f, 64 "
            "%.2f (checksum %.2f, LZ4 %.2f)",
            (double)ROWS / (double)blocks, (double)entries / ROWS, (double)filters / ROWS,
            median(one) * 1e6, median(eight) * 1e6, median(all) * 1e6, median(sums) * 1e6,
            median(unpacks) * 1e6);
    }
    printf("\n");
    file_free(&f);
    free(r);
}

static double write_timers(const pst_schema *s, const small_row *rows, memory_file *f) {
    row_style style = {.max_parallelism = 128, .last_key_group = 127, .block_bytes = 4096};
    pst_file_info info = info_of(PST_BASE, &style, 1);
    pst_io io = file_io(f, 1);
    pst_sst_writer *w = NULL;
    pst_record *r = calloc(1, sizeof *r);
    REQUIRE(r);
    f->size = 0;
    r->op = PST_PUT;
    r->key_nulls = 2;
    r->changed = r->present = s->n_states == 3 ? 5 : 1;
    double t = now();
    REQUIRE(pst_sst_writer_create(s, &info, &io, &w) == PST_OK);
    for (size_t i = 0; i < ROWS; i++) {
        r->key[0].word[0] = rows[i].key;
        r->hash = rows[i].hash;
        r->key_group = rows[i].key_group;
        r->cells[2].word[0] = (rows[i].key * 7919 % 1000003 + UINT64_C(1700000000000)) * 2;
        if (pst_sst_writer_add(w, r))
            exit(1);
    }
    REQUIRE(pst_sst_writer_finish(w, &info) == PST_OK);
    pst_sst_writer_destroy(w);
    free(r);
    return now() - t;
}

/* A timer for each row, at any of a million milliseconds. */
static void run_timers(small_row *rows) {
    pst_column columns[] = {{.name = "k", .type = PST_INT64},
                            {.name = PST_ELEMENT_COLUMN, .type = PST_BINARY},
                            {.name = "v", .type = PST_INT64},
                            {.name = "#timers", .type = PST_BOOL, .kind = PST_TIMERS},
                            {.name = "#timer", .type = PST_INT64, .kind = PST_TIMER}};
    pst_schema with = {2, 3, columns, columns + 2, 1}, without = {2, 1, columns, columns + 2, 1};
    memory_file f = {0};
    double timers[ROUNDS], plain[ROUNDS], walks[ROUNDS];
    uint64_t bytes = 0, blocks = 0;
    for (size_t i = 0; i < ROWS; i++) {
        pst_cell key = {{i, 0}, {NULL, 0}};
        rows[i] = (small_row){0, pst_hash_key(columns, 1, &key, 0), i};
        rows[i].key_group = pst_key_group(rows[i].hash, 128);
    }
    qsort(rows, ROWS, sizeof *rows, by_place);
    for (int round = 0; round < ROUNDS; round++) {
        pst_guide *g;
        pst_times *times;
        pst_timer_hint hint;
        uint64_t n = 0;
        plain[round] = write_timers(&without, rows, &f);
        timers[round] = write_timers(&with, rows, &f);
        pst_io io = file_io(&f, 1);
        REQUIRE(pst_guide_open(&io, f.size, &g, NULL) == PST_OK);
        double t = now();
        REQUIRE(pst_times_open(&io, g, &times) == PST_OK);
        pst_times_seek(times, &(pst_timer_hint){0});
        while (!pst_times_next(times, &hint))
            n++;
        walks[round] = now() - t;
        REQUIRE(n == ROWS);
        blocks = g->times_blocks;
        bytes = blocks * PST_GUIDE_TIMES_REF;
        for (uint32_t i = 0; i < g->times_blocks; i++)
            bytes += UINT64_C(64) *
                     pst_get_u16(f.data + g->data_end + (size_t)i * PST_GUIDE_TIMES_REF + 24);
        pst_times_close(times);
        pst_guide_close(g);
    }
    printf("timers  write %.1f ns/row, %.1f with them   index %.2f B each, %.0f in a block   read "
           "%.1f ns each\n",
           median(plain) / ROWS * 1e9, median(timers) / ROWS * 1e9, (double)bytes / ROWS,
           (double)ROWS / (double)blocks, median(walks) / ROWS * 1e9);
    file_free(&f);
}

int main(void) {
    small_row *rows = malloc(ROWS * sizeof *rows);
    REQUIRE(rows);
    for (int text = 0; text < 2; text++) {
        random_schema s;
        schema_add(&s, 0, text ? PST_STRING : PST_INT64, 0);
        schema_add(&s, 1, PST_INT64, 0);
        schema_add(&s, 2, PST_INT64, 0);
        schema_done(&s, 1, 2);
        pst_record *r = calloc(1, sizeof *r);
        REQUIRE(r);
        for (size_t i = 0; i < ROWS; i++) {
            snprintf(texts[i], sizeof texts[i], "user-%015zu", i * 7919 % 1000003);
            rows[i] = (small_row){0, 0, i};
            fill(&s.schema, &rows[i], r);
            rows[i].hash = pst_hash_key(s.schema.keys, 1, r->key, 0);
            rows[i].key_group = pst_key_group(rows[i].hash, 128);
        }
        free(r);
        qsort(rows, ROWS, sizeof *rows, by_place);
        static const uint32_t sizes[] = {0, 4096, 8192, 16384, 65536};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            run(&s.schema, text ? "string" : "long", sizes[i], rows);
    }
    run_timers(rows);
    free(rows);
    return 0;
}
