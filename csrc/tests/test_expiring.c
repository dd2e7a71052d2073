/* Merges that leave out what has expired, held against a model: the file of the merge that does not,
 * record by record, without what the clock says that nobody sees. The table whose files they are goes
 * on meanwhile, and its later deltas fit what was left.
 *
 *   test_expiring [worlds] [seed]
 */
#include "chain_compare.h"
#include "epoch_files.h"
#include "key/schema.h"

enum { WORLDS = 200, EPOCHS = 10, ROWS = 30000 };

/* What was there to leave out, and what was not left out. */
static struct {
    uint64_t values, entries, runs, rows, lenient, shown, kept_runs, without, timers;
    uint64_t stamped, stamped_entries, stamped_runs;
} seen;

/* ---- the model ------------------------------------------------------------------------------- */

static int is_hidden(const pst_ttl *ttl, const pst_clock *clock, int64_t written) {
    int64_t now = ttl->event_time ? clock->watermark_ms : clock->processing_ms;
    if (!ttl->duration_ms || written == INT64_MIN)
        return 0;
    if (written == INT64_MIN + 1) {
        seen.shown++;
        return 1;
    }
    if (now == INT64_MIN || now < written || now - written < ttl->duration_ms)
        return 0;
    seen.lenient += ttl->lenient;
    return !ttl->lenient;
}

typedef struct model {
    const pst_schema *schema; /* the file's */
    const pst_expiry *expiry;
    /* The list and the row whose run was seen last, and whether it was kept. */
    int32_t list;
    int list_kept;
    uint32_t nulls;
    pst_cell key[PST_MAX_KEYS];
    uint8_t bytes[WORLD_KEY_COLUMNS][WORLD_KEY_TEXT];
    uint64_t dropped;
    uint64_t stamped;
    uint8_t run[1 << 20]; /* with times */
} model;

static int64_t time_of(const pst_record *r, int32_t i) {
    return r->present >> (i + 1) & 1 ? (int64_t)r->cells[i + 1].word[0] : INT64_MIN;
}

static int run_is_hidden(const model *m, const pst_record *r, int32_t i) {
    const pst_column *c = &m->schema->states[i];
    pst_type type = (pst_type)c->map_key;
    pst_list_shape shape = {(uint16_t)(type == PST_FIXED ? c->width : pst_type_width(type)), 0};
    pst_packed p;
    pst_item item;
    int hidden = 1;
    REQUIRE(pst_packed_open(&p, &shape, r->cells[i].bytes) == PST_OK);
    while (pst_packed_next(&p, &item) == PST_OK)
        hidden &= p.timed && is_hidden(&m->expiry->ttl[i], &m->expiry->clock, item.time);
    return hidden;
}

/* The time that what has none gets. */
static int64_t stamp(const model *m, int32_t i) {
    const pst_ttl *ttl = &m->expiry->ttl[i];
    const pst_clock *c = &m->expiry->clock;
    if (!ttl->duration_ms)
        return INT64_MIN;
    int64_t at = ttl->event_time ? (c->event_ms > c->watermark_ms ? c->event_ms : c->watermark_ms)
                                 : c->processing_ms;
    return at == INT64_MIN ? at : at + ttl->ahead_ms;
}

static void stamp_value(model *m, pst_record *r, int32_t i, uint64_t *count) {
    if (stamp(m, i) == INT64_MIN || time_of(r, i) != INT64_MIN)
        return;
    r->changed |= UINT64_C(2) << i;
    r->present |= UINT64_C(2) << i;
    r->cells[i + 1].word[0] = (uint64_t)stamp(m, i);
    ++*count;
    m->stamped++;
}

static void stamp_run(model *m, pst_record *r, int32_t i) {
    const pst_column *c = &m->schema->states[i];
    pst_type type = (pst_type)c->map_key;
    pst_list_shape shape = {(uint16_t)(type == PST_FIXED ? c->width : pst_type_width(type)), 1};
    pst_packed p;
    pst_item item;
    size_t size = 1;
    uint64_t time = 0, stamped = 0;
    if (stamp(m, i) == INT64_MIN)
        return;
    m->run[0] = pst_packed_head(1, shape.width);
    REQUIRE(pst_packed_open(&p, &shape, r->cells[i].bytes) == PST_OK);
    while (pst_packed_next(&p, &item) == PST_OK) {
        if (!p.timed || item.time == INT64_MIN) {
            item.time = stamp(m, i);
            stamped++;
        }
        REQUIRE(size + item.size + 32 < sizeof m->run);
        size += pst_packed_add(m->run + size, m->run[0], &time, &item);
    }
    if (!stamped)
        return;
    r->cells[i].bytes = (pst_bytes){m->run, (uint32_t)size};
    seen.stamped_runs++;
    m->stamped++;
}

/* Is the run of the list whose run was seen last? Notes that it is now. */
static int is_of_last(model *m, const pst_record *r, int32_t i) {
    int32_t n = m->schema->n_keys - 1;
    uint32_t nulls = r->key_nulls & ((UINT32_C(1) << n) - 1);
    int same =
        m->list == i && !pst_key_compare(m->schema->keys, n, m->key, m->nulls, r->key, nulls);
    m->list = i;
    m->nulls = nulls;
    for (int32_t k = 0; k < n; k++) {
        m->key[k] = r->key[k];
        if (m->schema->keys[k].type < PST_STRING || nulls >> k & 1)
            continue;
        m->key[k].bytes.data = m->bytes[k];
        memcpy(m->bytes[k], r->key[k].bytes.data, r->key[k].bytes.size);
    }
    return same;
}

/* Takes out of a base's record what nobody sees; 0: nothing is left. */
static int leave_out(model *m, pst_record *r) {
    int element =
        pst_schema_has_element(m->schema) && !(r->key_nulls >> (m->schema->n_keys - 1) & 1);
    for (int32_t i = 0; !element && i < m->schema->n_states; i++) {
        if (m->schema->states[i].kind != PST_VALUE || !m->expiry->ttl[i].duration_ms ||
            !(r->present >> i & 1) ||
            !is_hidden(&m->expiry->ttl[i], &m->expiry->clock, time_of(r, i)))
            continue;
        r->present &= ~(UINT64_C(3) << i);
        r->changed = r->present;
        m->dropped++;
        seen.values++;
        seen.rows += !r->present;
    }
    for (int32_t i = 0; !element && i < m->schema->n_states; i++)
        if (m->schema->states[i].kind == PST_VALUE && r->present >> i & 1)
            stamp_value(m, r, i, &seen.stamped);
    if (!element)
        return r->present != 0;
    int32_t i = __builtin_ctzll(r->changed);
    pst_kind kind = (pst_kind)m->schema->states[i].kind;
    seen.timers += kind == PST_TIMERS;
    if (kind == PST_TIMERS || !m->expiry->ttl[i].duration_ms)
        return 1;
    int gone;
    if (kind == PST_MAP) {
        gone = is_hidden(&m->expiry->ttl[i], &m->expiry->clock, time_of(r, i));
        seen.entries += (uint64_t)gone;
    } else {
        gone = !(is_of_last(m, r, i) && m->list_kept) && run_is_hidden(m, r, i);
        m->list_kept = !gone;
        seen.runs += (uint64_t)gone;
        seen.kept_runs += (uint64_t)!gone;
    }
    m->dropped += (uint64_t)gone;
    if (!gone && kind == PST_MAP)
        stamp_value(m, r, i, &seen.stamped_entries);
    else if (!gone)
        stamp_run(m, r, i);
    return !gone;
}

/* Whether `got` is `all` without what has expired, and with times. */
static int is_model(const pst_expiry *expiry, memory_file *all, memory_file *got) {
    static pst_record want, found;
    pst_sst_reader *a = NULL, *b = NULL;
    int same = 1;
    REQUIRE(file_open(all, &a) == PST_OK && file_open(got, &b) == PST_OK);
    static model m;
    m = (model){.schema = pst_sst_reader_schema(a), .expiry = expiry, .list = -1};
    while (same && pst_sst_reader_next(a, &want) == PST_OK)
        if (leave_out(&m, &want))
            same = CHECK_EQ(pst_sst_reader_next(b, &found), PST_OK) &&
                   CHECK(same_row(m.schema, &want, &found));
    same = same && CHECK_EQ(pst_sst_reader_next(b, &found), PST_NOT_FOUND);
    pst_sst_reader_close(a);
    pst_sst_reader_close(b);
    if (!m.dropped && !m.stamped) {
        seen.without++;
        same &= CHECK(all->size == got->size && !memcmp(all->data, got->data, got->size));
    }
    return same;
}

/* ---- worlds ---------------------------------------------------------------------------------- */

static void settings_of(const world *w, pst_ttl *ttl) {
    memset(ttl, 0, PST_MAX_STATES * sizeof *ttl);
    for (int32_t c = 1; c < w->schema.n_states; c++)
        if (w->columns[c].kind == PST_TIME)
            ttl[c - 1] = w->state_of[c - 1]->ttl;
}

static void check_refused(world *w, memory_file *files, int n, const pst_expiry *expiry) {
    for (int64_t at = 0;; at++) {
        memory_file out = {.calls_left = -1};
        check_fail_alloc(at, 0);
        pst_status s = epochs_merge(w, files, n, PST_BASE, expiry, &out);
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(s, refused ? PST_NO_MEMORY : PST_OK);
        file_free(&out);
        if (!refused)
            break;
    }
}

/* The files as one without what has expired. */
static memory_file expired_out(world *w, memory_file *files, int n, int refusing) {
    pst_ttl ttl[PST_MAX_STATES];
    settings_of(w, ttl);
    pst_expiry expiry = {ttl, w->now};
    memory_file all = epochs_merged(w, files, n, PST_BASE);
    memory_file got = {.calls_left = -1}, again = {.calls_left = -1};
    REQUIRE(epochs_merge(w, files, n, PST_BASE, &expiry, &got) == PST_OK);
    REQUIRE(epochs_merge(w, files, n, PST_BASE, &expiry, &again) == PST_OK);
    CHECK(got.size == again.size && !memcmp(got.data, again.data, got.size));
    CHECK(is_model(&expiry, &all, &got));
    if (refusing)
        check_refused(w, files, n, &expiry);
    file_free(&all);
    file_free(&again);
    return got;
}

static void check_loaded(world *w, pst_table *t, memory_file *files, int n) {
    pst_table *got = epochs_loaded(w, files, n);
    CHECK(same_tables(w, t, got, w->first, w->last));
    pst_table_close(got);
}

/* Reads some of what has expired, which is the last time. */
static void see_all(world *w, pst_table *t) {
    for (int32_t i = 0; i < w->schema.n_states; i++)
        for (int k = 0; k < WORLD_KEYS; k += 2)
            if (w->columns[i].kind == PST_VALUE && w->groups[k] >= w->first &&
                w->groups[k] <= w->last && world_did(w, pst_key_set(t, w->keys[k], w->nulls[k])))
                world_read(w, t, i);
}

static void run_world(uint64_t seed) {
    world *w = world_create(seed);
    memory_file files[EPOCHS + 1];
    int n = 0, lenient = seed % 3 == 0;
    for (int i = 0; lenient && i < w->n_states; i++)
        w->states[i].ttl.lenient = 1;
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_table_set_clock(t, &w->now);
    pst_table_set_whole_rows(t, seed % 2 ? 1 : 200);
    for (int e = 0; e < 2 * EPOCHS && !check_failed; e++) {
        for (uint64_t steps = world_below(w, e ? 12 : 60); steps > 0; steps--)
            world_step(w, t);
        if (world_one_in(w, 4))
            world_fire(w, t);
        if (lenient)
            see_all(w, t);
        if (world_one_in(w, 2))
            world_pass_time(w, t);
        REQUIRE(!w->failed);
        files[n++] = epoch_sealed(t, (uint64_t)e + 1);
        uint64_t before = seen.stamped + seen.stamped_entries + seen.stamped_runs;
        memory_file base = expired_out(w, files, n, seed % 16 == 0 && e % 8 == 7);
        if (seen.stamped + seen.stamped_entries + seen.stamped_runs > before) {
            /* In the table it is swept later. */
            file_free(&base);
            base = epochs_merged(w, files, n, PST_BASE);
        }
        check_loaded(w, t, &base, 1);
        if (n == EPOCHS || world_one_in(w, 4)) {
            epochs_free(files, n);
            files[0] = base;
            n = 1;
        } else {
            file_free(&base);
        }
        check_loaded(w, t, files, n);
    }
    epochs_free(files, n);
    pst_table_close(t);
    free(w);
}

/* ---- many rows, which are taken many at a time ----------------------------------------------- */

static void put_some(pst_table *t, uint64_t *random, uint64_t n, int64_t now) {
    pst_clock clock = {now, now, now};
    pst_table_set_clock(t, &clock);
    for (; n > 0; n--) {
        pst_cell key = {{check_random(random) % ROWS, 0}, {NULL, 0}}, value = {{n, 0}, {NULL, 0}};
        REQUIRE(pst_key_set(t, &key, 0) == PST_OK);
        for (int32_t i = 0; i < 3; i += 2)
            CHECK_EQ(pst_value_put(t, i, &value), PST_OK);
        CHECK_EQ(pst_value_put(t, 4, &value), PST_OK);
    }
}

static void test_many(uint64_t seed, int with_untimed) {
    static const pst_column key = {.name = "k", .type = PST_INT64};
    static const pst_column states[] = {{.name = "a", .type = PST_INT64},
                                        {.name = "a#time", .type = PST_INT64, .kind = PST_TIME},
                                        {.name = "b", .type = PST_INT32},
                                        {.name = "b#time", .type = PST_INT64, .kind = PST_TIME},
                                        {.name = "c", .type = PST_INT64}};
    pst_schema schema = {1, 5, &key, states, 0}, *file = NULL;
    pst_table_options o = {.max_parallelism = 4, .last_key_group = 3, .limit_bytes = 1 << 28};
    pst_ttl ttl[5] = {{.duration_ms = 500}, {0}, {.duration_ms = 900, .event_time = 1}, {0}, {0}};
    pst_table *t = NULL;
    memory_file files[4], all = {.calls_left = -1}, got = {.calls_left = -1};
    pst_sst_reader *readers[4];
    uint64_t random = seed;
    REQUIRE(pst_table_open(&schema, &o, &t, NULL, NULL) == PST_OK);
    for (int32_t i = 0; i < 3; i += 2)
        REQUIRE(pst_table_set_ttl(t, i, &ttl[i]) == PST_OK);
    for (int e = 0; e < 4; e++) {
        int64_t now = 1000 + 300 * e;
        put_some(t, &random, e ? 2000 : 60000, now);
        files[e] = epoch_sealed(t, (uint64_t)e + 1);
        REQUIRE(file_open(&files[e], &readers[e]) == PST_OK);
    }
    REQUIRE(pst_file_schema_create(&schema, &file) == PST_OK);
    pst_expiry expiry = {ttl, {with_untimed ? 1950 : 1600, 1950, 1950}};
    for (int which = 0; which < 2; which++) {
        memory_file *to = which ? &got : &all;
        pst_io io = file_io(to, 0);
        pst_sst_writer *writer = NULL;
        pst_file_info info = {.kind = PST_BASE, .max_parallelism = 4, .last_key_group = 3};
        REQUIRE(pst_sst_writer_create(file, &info, &io, &writer) == PST_OK);
        CHECK_EQ(which ? pst_merge_expiring(readers, NULL, 4, &expiry, writer)
                       : pst_merge(readers, NULL, 4, writer),
                 PST_OK);
        CHECK_EQ(pst_sst_writer_finish(writer, &info), PST_OK);
        pst_sst_writer_destroy(writer);
    }
    uint64_t before = seen.values;
    CHECK(is_model(&expiry, &all, &got));
    CHECK(seen.values > before + 1000);
    for (int e = 0; e < 4; e++) {
        pst_sst_reader_close(readers[e]);
        file_free(&files[e]);
    }
    file_free(&all);
    file_free(&got);
    pst_file_schema_destroy(file);
    pst_table_close(t);
}

/* A run that has expired stays where one before it is seen: the items of the next one have numbers.
 * Then runs go from the head on. */
static void test_runs_between(void) {
    static const int64_t times[] = {PST_NO_TIME, 1000, 2000};
    world *w = small_world(PST_INT64, PST_LIST);
    pst_cell one = {{1, 0}, {NULL, 0}};
    pst_ttl ttl[2] = {SMALL_TTL, {0}};
    memory_file files[3];
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_table_set_whole_rows(t, 1);
    for (int e = 0; e < 3; e++) {
        w->now = (pst_clock){times[e], PST_NO_TIME, PST_NO_TIME};
        pst_table_set_clock(t, &w->now);
        REQUIRE(pst_key_set(t, &one, 0) == PST_OK && pst_list_add(t, 0, &one) == PST_OK);
        files[e] = epoch_sealed(t, (uint64_t)e + 1);
    }
    for (int from = 0; from < 2; from++) {
        pst_expiry expiry = {ttl, w->now};
        memory_file all = epochs_merged(w, files + from, 3 - from, PST_BASE);
        memory_file got = {.calls_left = -1};
        REQUIRE(epochs_merge(w, files + from, 3 - from, PST_BASE, &expiry, &got) == PST_OK);
        CHECK(is_model(&expiry, &all, &got));
        pst_table *loaded = epochs_loaded(w, &got, 1);
        uint64_t n = 0;
        REQUIRE(pst_key_set(loaded, &one, 0) == PST_OK);
        CHECK_EQ(pst_elements_count(loaded, 0, &n), PST_OK);
        CHECK_EQ(n, from ? 1 : 3);
        pst_table_close(loaded);
        file_free(&all);
        file_free(&got);
    }
    pst_table_close(t);
    epochs_free(files, 3);
    free(w);
}

/* What is put again as it was, after a merge has left it out: its delta has it all the same. */
static void test_put_again(uint64_t whole) {
    world *w = small_world(PST_STRING, PST_VALUE);
    pst_cell one = {{1, 0}, {NULL, 0}}, text = {{0, 0}, {(const uint8_t *)"some long text", 14}},
             got;
    pst_ttl ttl[2] = {SMALL_TTL, {0}};
    memory_file files[2];
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_table_set_whole_rows(t, whole);
    for (int e = 0; e < 2; e++) {
        w->now = (pst_clock){1000 + 1000 * e, PST_NO_TIME, PST_NO_TIME};
        pst_table_set_clock(t, &w->now);
        REQUIRE(pst_key_set(t, &one, 0) == PST_OK && pst_value_put(t, 0, &text) == PST_OK);
        files[e] = epoch_sealed(t, (uint64_t)e + 1);
    }
    pst_expiry expiry = {ttl, w->now};
    memory_file base = {.calls_left = -1};
    REQUIRE(epochs_merge(w, files, 1, PST_BASE, &expiry, &base) == PST_OK);
    CHECK(base.size < files[0].size);
    file_free(&files[0]);
    files[0] = base;
    pst_table *loaded = epochs_loaded(w, files, 2);
    REQUIRE(pst_key_set(loaded, &one, 0) == PST_OK);
    CHECK_EQ(pst_value_get(loaded, 0, &got), PST_OK);
    pst_table_close(loaded);
    pst_table_close(t);
    epochs_free(files, 2);
    free(w);
}

/* What was written before any time was known, and a run of a list that had no times at all. */
static void test_without_times(pst_kind kind, pst_type items, int timed) {
    world *w = small_world(PST_INT64, kind);
    pst_cell one = {{1, 0}, {NULL, 0}}, text = {{7, 0}, {(const uint8_t *)"an item", 7}};
    pst_ttl ttl[2] = {SMALL_TTL, {0}};
    if (kind != PST_VALUE)
        w->columns[0].map_key = (uint8_t)items;
    if (kind == PST_LIST)
        w->columns[0].type = items;
    int32_t n_states = w->schema.n_states;
    if (!timed)
        w->schema.n_states = 1;
    w->now = (pst_clock){PST_NO_TIME, PST_NO_TIME, PST_NO_TIME};
    pst_table_options o = {.max_parallelism = w->max_parallelism,
                           .last_key_group = w->last,
                           .limit_bytes = WORLD_LIMIT};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&w->schema, &o, &t, NULL, NULL) == PST_OK);
    if (timed)
        REQUIRE(pst_table_set_ttl(t, 0, &ttl[0]) == PST_OK);
    REQUIRE(pst_key_set(t, &one, 0) == PST_OK);
    for (int i = 0; i < 3; i++) {
        if (kind == PST_VALUE)
            CHECK_EQ(pst_value_put(t, 0, &one), PST_OK);
        else if (kind == PST_LIST)
            CHECK_EQ(pst_list_add(t, 0, &text), PST_OK);
        else
            CHECK_EQ(pst_map_put(t, 0, &text, &one), PST_OK);
    }
    memory_file file = epoch_sealed(t, 1), first = {.calls_left = -1}, late = {.calls_left = -1};
    pst_table_close(t);
    w->schema.n_states = n_states;
    for (int which = 0; which < 2; which++) {
        static const int32_t columns[] = {0, 1};
        memory_file *from = which ? &first : &file, *to = which ? &late : &first;
        pst_expiry expiry = {ttl, {which ? 2500 : 2000, PST_NO_TIME, PST_NO_TIME}};
        pst_sst_reader *reader = NULL;
        pst_sst_writer *writer = NULL;
        pst_schema *schema = NULL;
        pst_io io = file_io(to, 0);
        pst_file_info info = {
            .kind = PST_BASE, .max_parallelism = w->max_parallelism, .last_key_group = w->last};
        const int32_t *mapping = columns;
        REQUIRE(file_open(from, &reader) == PST_OK);
        REQUIRE(pst_schema_in_files(&w->schema, kind != PST_VALUE, &schema) == PST_OK);
        REQUIRE(pst_sst_writer_create(schema, &info, &io, &writer) == PST_OK);
        CHECK_EQ(pst_merge_expiring(&reader, &mapping, 1, &expiry, writer), PST_OK);
        CHECK_EQ(pst_sst_writer_finish(writer, &info), PST_OK);
        /* They live for half a second from the merge on. */
        CHECK_EQ(info.rows != 0, !which);
        pst_sst_writer_destroy(writer);
        pst_file_schema_destroy(schema);
        pst_sst_reader_close(reader);
    }
    file_free(&file);
    file_free(&first);
    file_free(&late);
    free(w);
}

static void test_misuse(void) {
    world *w = world_create(3);
    memory_file out = {.calls_left = -1};
    pst_ttl ttl[PST_MAX_STATES] = {{0}};
    pst_expiry expiry = {ttl, {0, 0, 0}};
    CHECK_EQ(epochs_merge(w, NULL, 0, PST_DELTA, &expiry, &out), PST_INVALID);
    ttl[w->schema.n_states - 1].duration_ms = 1;
    CHECK_EQ(epochs_merge(w, NULL, 0, PST_BASE, &expiry, &out), PST_INVALID);
    file_free(&out);
    free(w);
}

int main(int argc, char **argv) {
    uint64_t worlds = argc > 1 ? strtoull(argv[1], NULL, 10) : WORLDS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    test_misuse();
    for (int timed = 0; timed < 2; timed++) {
        test_without_times(PST_VALUE, PST_INT64, timed);
        test_without_times(PST_LIST, PST_INT64, timed);
        test_without_times(PST_LIST, PST_STRING, timed);
        test_without_times(PST_LIST, PST_INT16, timed);
        test_without_times(PST_MAP, PST_INT64, timed);
        test_without_times(PST_MAP, PST_STRING, timed);
    }
    test_runs_between();
    test_put_again(1);
    test_put_again(512);
    test_many(seed, 0);
    test_many(seed + 1, 1);
    for (uint64_t i = 0; i < worlds && !check_failed; i++) {
        run_world(seed * 100000 + i);
        if (check_failed)
            fprintf(stderr, "    world %" PRIu64 "\n", seed * 100000 + i);
    }
    if (argc > 1)
        fprintf(stderr,
                "    values %" PRIu64 ", entries %" PRIu64 ", runs %" PRIu64 ", rows %" PRIu64
                ", lenient %" PRIu64 ", shown %" PRIu64 ", runs kept %" PRIu64 ", nothing %" PRIu64
                ", timers %" PRIu64 "\n",
                seen.values, seen.entries, seen.runs, seen.rows, seen.lenient, seen.shown,
                seen.kept_runs, seen.without, seen.timers);
    else
        CHECK(seen.values && seen.entries && seen.runs && seen.rows && seen.lenient && seen.shown &&
              seen.kept_runs && seen.without && seen.timers && seen.stamped &&
              seen.stamped_entries && seen.stamped_runs);
    return check_report();
}
