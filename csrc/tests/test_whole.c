/* Deltas with whole rows: merged they are what the usual ones of the same epochs are, byte for byte,
 * and whoever looks for a key may begin at the newest record that says to need no older one.
 *
 *   test_whole [worlds] [seed]
 */
#include "chain_compare.h"
#include "epoch_files.h"
#include "key/schema.h"

enum { WORLDS = 150, EPOCHS = 8, RECORDS = 600 };

static const uint64_t LIMITS[] = {1, 30, 200, 512, UINT64_MAX};

/* What came up. */
static struct {
    uint64_t ended, ended_with_elements, long_rows, timers, widened;
} seen;

/* Of a file's records of one key those that come first, in memory of their own. */
typedef struct records {
    pst_record all[RECORDS];
    int n;
    byte_heap heap;
} records;

static void own_cell(records *r, const pst_column *c, pst_cell *cell) {
    if (c->type < PST_STRING || !cell->bytes.size)
        return;
    cell->bytes.data =
        memcpy(heap_take(&r->heap, cell->bytes.size), cell->bytes.data, cell->bytes.size);
}

static void keep_record(records *r, const pst_schema *s, const pst_record *from) {
    if (r->n == RECORDS)
        return;
    pst_record *to = &r->all[r->n++];
    *to = *from;
    for (int32_t k = 0; k < s->n_keys; k++)
        if (!(to->key_nulls >> k & 1))
            own_cell(r, &s->keys[k], &to->key[k]);
    for (int32_t i = 0; i < s->n_states; i++)
        if (to->present >> i & 1)
            own_cell(r, &s->states[i], &to->cells[i]);
}

static int is_of_key(const world *w, const pst_record *r, int k) {
    uint32_t nulls = r->key_nulls & ((UINT32_C(1) << w->schema.n_keys) - 1);
    return !pst_key_compare(w->schema.keys, w->schema.n_keys, r->key, nulls, w->keys[k],
                            w->nulls[k]);
}

static int is_row(const pst_schema *s, const pst_record *r) {
    return !pst_schema_has_element(s) || r->key_nulls >> (s->n_keys - 1) & 1;
}

/* The records of one key. */
static void records_of(const world *w, memory_file *f, int k, records *out) {
    static pst_record r;
    pst_sst_reader *reader = NULL;
    out->n = 0;
    REQUIRE(file_open(f, &reader) == PST_OK);
    while (pst_sst_reader_next(reader, &r) == PST_OK)
        if (is_of_key(w, &r, k))
            keep_record(out, pst_sst_reader_schema(reader), &r);
    pst_sst_reader_close(reader);
}

/* Does a search end with this record of a row? */
static int ends_search(const pst_schema *s, const pst_record *r) {
    uint64_t all = s->n_states < 64 ? (UINT64_C(1) << s->n_states) - 1 : ~UINT64_C(0);
    uint64_t lists = 0;
    for (int32_t i = 0; i < s->n_states; i++)
        lists |= (uint64_t)(s->states[i].kind == PST_LIST) << i;
    return r->op == PST_DELETE || ((r->changed & all) == all && !(r->present & lists));
}

/* The newest file at which looking for a key can end. */
static int search_from(const world *w, memory_file *files, int n, int k, const pst_schema *s) {
    static records r;
    while (--n > 0) {
        records_of(w, &files[n], k, &r);
        int ends = r.n && is_row(s, &r.all[0]) && ends_search(s, &r.all[0]);
        seen.ended += (uint64_t)ends;
        seen.ended_with_elements += (uint64_t)(ends && r.n > 1);
        heap_free(&r.heap);
        if (ends)
            break;
    }
    return n < 0 ? 0 : n;
}

static void check_search(world *w, memory_file *files, int n, memory_file *base) {
    static records want, got;
    pst_schema *s = NULL;
    REQUIRE(pst_file_schema_create(&w->schema, &s) == PST_OK);
    for (int k = 0; k < WORLD_KEYS; k++) {
        int from = search_from(w, files, n, k, s);
        if (!from)
            continue;
        memory_file part = epochs_merged(w, files + from, n - from, PST_BASE);
        records_of(w, base, k, &want);
        records_of(w, &part, k, &got);
        int same = CHECK_EQ(want.n, got.n);
        for (int i = 0; same && i < want.n; i++)
            same = CHECK(same_row(s, &want.all[i], &got.all[i]));
        for (int i = 0; same && i < want.n; i++)
            seen.timers +=
                !is_row(s, &want.all[i]) && want.all[i].key[s->n_keys - 1].bytes.size == 13;
        if (!same)
            fprintf(stderr, "    key %d from file %d of %d\n", k, from, n);
        heap_free(&want.heap);
        heap_free(&got.heap);
        file_free(&part);
    }
    pst_file_schema_destroy(s);
}

static uint64_t size_of(const pst_schema *s, const pst_record *r) {
    uint64_t bytes = 0;
    for (int32_t i = 0; i < s->n_states; i++) {
        if (!(r->present >> i & 1) || s->states[i].kind == PST_LIST)
            continue;
        uint32_t width = pst_type_width(s->states[i].type);
        bytes += width ? width : r->cells[i].bytes.size;
    }
    return bytes;
}

/* A delta's rows are whole, or have more than so many bytes. */
static void check_delta(world *w, memory_file *delta, memory_file *base, uint64_t whole) {
    static records now, rows;
    pst_schema *s = NULL;
    uint64_t columns = 0;
    REQUIRE(pst_file_schema_create(&w->schema, &s) == PST_OK);
    for (int32_t i = 0; i < s->n_states; i++) {
        int kind = s->states[i].kind;
        if (kind == PST_VALUE || kind == PST_TIMER ||
            (kind == PST_TIME && s->states[i - 1].kind == PST_VALUE))
            columns |= UINT64_C(1) << i;
    }
    for (int k = 0; k < WORLD_KEYS; k++) {
        records_of(w, delta, k, &now);
        if (now.n && is_row(s, &now.all[0]) && now.all[0].op == PST_PUT) {
            uint64_t carried = now.all[0].changed & columns;
            records_of(w, base, k, &rows);
            if (carried != columns) {
                CHECK(rows.n && size_of(s, &rows.all[0]) > whole);
                seen.long_rows++;
            }
            for (int32_t i = 0; i + 1 < s->n_states; i++)
                if (s->states[i].kind == PST_VALUE && s->states[i + 1].kind == PST_TIME)
                    CHECK(carried >> i & 1 || !(carried >> (i + 1) & 1));
            heap_free(&rows.heap);
        }
        heap_free(&now.heap);
    }
    pst_file_schema_destroy(s);
}

static void run_world(uint64_t seed) {
    world *w = world_create(seed);
    memory_file usual[EPOCHS], files[EPOCHS];
    uint64_t whole = LIMITS[seed % (sizeof LIMITS / sizeof *LIMITS)];
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_table_set_clock(t, &w->now);
    for (int n = 0; n < EPOCHS && !check_failed; n++) {
        for (uint64_t steps = world_below(w, n ? 12 : 60); steps > 0; steps--)
            world_step(w, t);
        world_fire(w, t);
        if (world_one_in(w, 2))
            world_pass_time(w, t);
        REQUIRE(!w->failed);
        pst_table_set_whole_rows(t, 0);
        usual[n] = epoch_changes(t);
        pst_table_set_whole_rows(t, whole);
        files[n] = epoch_sealed(t, (uint64_t)n + 1);
        seen.widened += files[n].size != usual[n].size;
        memory_file want = epochs_merged(w, usual, n + 1, PST_BASE);
        memory_file base = epochs_merged(w, files, n + 1, PST_BASE);
        CHECK(want.size == base.size && !memcmp(want.data, base.data, base.size));
        memory_file two[2] = {epochs_merged(w, files, n / 2 + 1, PST_DELTA),
                              epochs_merged(w, files + n / 2 + 1, n - n / 2, PST_DELTA)};
        memory_file again = epochs_merged(w, two, 2, PST_BASE);
        CHECK(again.size == base.size && !memcmp(again.data, base.data, base.size));
        pst_table *got = epochs_loaded(w, n % 2 ? two : files, n % 2 ? 2 : n + 1);
        CHECK(same_tables(w, t, got, w->first, w->last));
        check_delta(w, &files[n], &base, whole);
        check_search(w, files, n + 1, &base);
        check_search(w, two, 2, &base);
        pst_table_close(got);
        epochs_free(two, 2);
        file_free(&want);
        file_free(&base);
        file_free(&again);
    }
    epochs_free(usual, EPOCHS);
    epochs_free(files, EPOCHS);
    pst_table_close(t);
    free(w);
}

int main(int argc, char **argv) {
    uint64_t worlds = argc > 1 ? strtoull(argv[1], NULL, 10) : WORLDS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (uint64_t i = 0; i < worlds && !check_failed; i++) {
        run_world(seed * 100000 + i);
        if (check_failed)
            fprintf(stderr, "    world %" PRIu64 "\n", seed * 100000 + i);
    }
    if (argc > 1)
        fprintf(stderr,
                "    ended %" PRIu64 ", with elements %" PRIu64 ", long %" PRIu64
                ", timers %" PRIu64 ", wider %" PRIu64 "\n",
                seen.ended, seen.ended_with_elements, seen.long_rows, seen.timers, seen.widened);
    else
        CHECK(seen.ended && seen.ended_with_elements && seen.long_rows && seen.timers &&
              seen.widened);
    return check_report();
}
