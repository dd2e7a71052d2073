/* Fetching where memory is short, and from files that are wrong under a right checksum: what is
 * refused says why, and the epoch goes on. */
#include <sys/stat.h>
#include <unistd.h>

#include "elements/elements.h"
#include "fetch/fetch.h"
#include "forge.h"
#include "key/schema.h"
#include "ownership.h"
#include "reads/read.h"
#include "stack/stack.h"

enum { KEYS = 16, SMALL_KEYS = 4000, TEXT = 150000, ITEMS = 200, MOST_FILES = 3, GROUPS = 4 };

static const pst_column KEY = {.name = "k", .type = PST_INT64};
static const pst_column STATES[] = {{.name = "a", .type = PST_INT64},
                                    {.name = "s", .type = PST_STRING},
                                    {.name = "l", .type = PST_STRING, .kind = PST_LIST}};
static const pst_schema VALUES = {1, 2, &KEY, STATES, 0};
static const pst_schema LISTS = {1, 3, &KEY, STATES, 0};

typedef struct state {
    const pst_schema *schema;
    pst_schema *in_files;
    char folder[40];
    memory_file files[MOST_FILES];
    int n;
    uint64_t next;
    pst_stack *stack;
} state;

static pst_table *open_table(const state *s, const char *path, pst_budget *budget) {
    static const pst_identity nobody = {.owner_pid = 1};
    pst_table_options o = {.max_parallelism = GROUPS,
                           .last_key_group = GROUPS - 1,
                           .limit_bytes = budget ? 0 : (uint64_t)1 << 27,
                           .budget = budget,
                           .path = path,
                           .identity = path ? &nobody : NULL,
                           .create = 1};
    pst_table *t = NULL;
    REQUIRE(!pst_table_open(s->schema, &o, &t, NULL, NULL));
    return t;
}

static void seal(state *s, pst_table *t) {
    pst_lineage l = {.epoch = ++s->next};
    pst_sealed *sealed = NULL;
    pst_file_info info;
    memory_file *f = &s->files[s->n++];
    *f = (memory_file){.calls_left = -1};
    pst_io io = file_io(f, 0);
    memcpy(l.id, &s->next, sizeof s->next);
    REQUIRE(!pst_table_seal(t, &l, &sealed));
    pst_sealed_guide(sealed, 4096);
    REQUIRE(!pst_sealed_write(sealed, &io, &info));
    pst_sealed_destroy(sealed);
}

static void begin(state *s, const pst_schema *schema) {
    memset(s, 0, sizeof *s);
    s->schema = schema;
    snprintf(s->folder, sizeof s->folder, "/dev/shm/pst_fetch_XXXXXX");
    REQUIRE(mkdtemp(s->folder));
    REQUIRE(!pst_file_schema_create(schema, &s->in_files));
}

/* A table above the files, and their stack. */
static pst_table *above(state *s, const char *path, pst_budget *budget, pst_reads *reads) {
    char paths[MOST_FILES][96];
    pst_stack_file files[MOST_FILES] = {{0}};
    pst_stack_options o = {.reads = reads};
    pst_lineage l = {.epoch = 1};
    for (int i = 0; i < s->n; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%d.sst", s->folder, i);
        FILE *out = fopen(paths[i], "wb");
        REQUIRE(out && fwrite(s->files[i].data, 1, s->files[i].size, out) == s->files[i].size);
        fclose(out);
        files[i].path = paths[i];
    }
    REQUIRE(!pst_stack_open(s->in_files, GROUPS, files, s->n, &o, &s->stack, NULL));
    pst_table *t = open_table(s, path, budget);
    REQUIRE(!pst_table_seal(t, &l, NULL));
    pst_table_set_whole(t, 0);
    REQUIRE(!pst_table_set_stack(t, s->stack, &l));
    return t;
}

static void end(state *s, pst_table *t) {
    char command[96];
    pst_table_close(t);
    pst_stack_close(s->stack);
    pst_file_schema_destroy(s->in_files);
    for (int i = 0; i < s->n; i++)
        file_free(&s->files[i]);
    snprintf(command, sizeof command, "rm -r %s", s->folder);
    REQUIRE(!system(command));
}

/* Column a of the first n keys. */
static pst_status get(pst_table *t, int64_t n, int64_t *values) {
    int64_t keys[KEYS];
    uint8_t valid[KEYS];
    pst_array k = {.type = PST_INT64, .length = n, .values = keys};
    pst_batch *b = NULL;
    for (int64_t i = 0; i < n; i++)
        keys[i] = i;
    REQUIRE(!pst_batch_create(t, &k, &b));
    pst_status s = pst_batch_get(b, 0, values, valid);
    pst_batch_destroy(b);
    return s;
}

static void put_a(pst_table *t, uint64_t key, uint64_t value) {
    pst_cell a = {{value, 0}, {NULL, 0}};
    REQUIRE(!pst_key_set_word(t, key) && !pst_value_put(t, 0, &a));
}

/* Long texts in the older file, and numbers in the newer one; most rows are small. */
static void make_long(state *s) {
    static uint8_t text[TEXT];
    pst_cell cell = {{0, 0}, {text, TEXT}};
    begin(s, &VALUES);
    pst_table *t = open_table(s, NULL, NULL);
    for (uint64_t k = 0; k < KEYS; k++) {
        uint64_t random = k + 1;
        for (int i = 0; i < TEXT; i++)
            text[i] = 'a' + (uint8_t)(check_random(&random) % 26);
        put_a(t, k, 1);
        REQUIRE(!pst_value_put(t, 1, &cell));
    }
    for (uint64_t k = 0; k < SMALL_KEYS; k++)
        put_a(t, 10000 + k, k);
    seal(s, t);
    for (uint64_t k = 0; k < KEYS; k++)
        put_a(t, k, 100 + k);
    seal(s, t);
    pst_table_close(t);
}

/* ---- memory ------------------------------------------------------------------------------------ */

static pst_budget *watched;
static _Atomic uint64_t most_private;

static int64_t watch(const pst_read *r, int64_t result) {
    pst_budget_stats stats;
    (void)r;
    pst_budget_get_stats(watched, &stats);
    if (stats.private_bytes > most_private)
        most_private = stats.private_bytes;
    return result;
}

/* What waits of many keys for other files is no more than a few of them have. */
static void test_crowded(void) {
    state s;
    int64_t values[KEYS];
    char path[96];
    make_long(&s);
    snprintf(path, sizeof path, "%s/live.table", s.folder);
    REQUIRE(!pst_budget_create(64 << 20, &watched));
    pst_table *t = above(&s, path, watched, NULL);
    most_private = 0;
    pst_read_hook = watch;
    CHECK_EQ(get(t, KEYS, values), PST_OK);
    pst_read_hook = NULL;
    for (int k = 0; k < KEYS; k++)
        CHECK_EQ(values[k], 100 + k);
    for (uint64_t k = 0; k < KEYS; k++) {
        pst_cell cell;
        REQUIRE(!pst_key_set_word(t, k) && !pst_value_get(t, 1, &cell));
        CHECK_EQ(cell.bytes.size, TEXT);
    }
    CHECK(most_private > 0 && most_private < 6 * TEXT);
    CHECK(!pst_table_dirty(t));
    end(&s, t);
    pst_budget_release(watched);
}

/* If the search has no memory, no step and no smaller batch helps: it is not told as if they did. */
static void test_refused(void) {
    enum { TAKEN = 128 << 20 };
    state s;
    int64_t values[KEYS];
    pst_budget *budget = NULL;
    pst_reads *reads = NULL;
    make_long(&s);
    REQUIRE(!pst_budget_create(64 << 20, &budget));
    pst_reads_options o = {.pool_bytes = 1 << 20, .budget = budget};
    REQUIRE(!pst_reads_create(&o, &reads));
    pst_table *t = above(&s, NULL, NULL, reads);
    put_a(t, 1000, 5);
    REQUIRE(!pst_budget_take(budget, PST_PRIVATE, TAKEN, PST_COUNTED));
    CHECK_EQ(get(t, KEYS, values), PST_LIMIT); /* a block is larger than the pool has room for */
    CHECK(!t->poisoned);
    pst_budget_drop(budget, TAKEN);
    CHECK_EQ(get(t, KEYS, values), PST_OK);
    end(&s, t);
    pst_reads_release(reads);
    pst_budget_release(budget);
}

/* ---- one key ----------------------------------------------------------------------------------- */

enum { SPACES = 3000, SPACE_BYTES = 12 };

/* The namespaces from, from + step, ... of one key, which is all that is hashed. */
static pst_batch *spaces(pst_table *t, int from, int step, int n) {
    static int64_t keys[SPACES];
    static int32_t offsets[SPACES + 1];
    static uint8_t names[SPACES * SPACE_BYTES + 1];
    pst_batch *b = NULL;
    for (int i = 0; i < n; i++) {
        keys[i] = 7;
        offsets[i + 1] = offsets[i] + SPACE_BYTES;
        snprintf((char *)names + offsets[i], SPACE_BYTES + 1, "space %06d", from + i * step);
    }
    pst_array k[2] = {{.type = PST_INT64, .length = n, .values = keys},
                      {.type = PST_STRING,
                       .length = n,
                       .values = names,
                       .offsets = offsets,
                       .values_bytes = offsets[n]}};
    REQUIRE(!pst_batch_create(t, k, &b));
    return b;
}

static void put_spaces(pst_table *t, int from, int step, int n, int64_t add) {
    static int64_t values[SPACES];
    pst_array v = {.type = PST_INT64, .length = n, .values = values};
    for (int i = 0; i < n; i++)
        values[i] = from + i * step + add;
    pst_batch *b = spaces(t, from, step, n);
    REQUIRE(!pst_batch_put(b, 0, &v));
    pst_batch_destroy(b);
}

/* Of a key's many namespaces, those that are wanted, some of which there are not. */
static void test_spaces(void) {
    static const pst_column keys[] = {{.name = "k", .type = PST_INT64},
                                      {.name = "n", .type = PST_STRING}};
    static const pst_schema schema = {2, 2, keys, STATES, 1};
    static int64_t values[SPACES];
    static uint8_t valid[SPACES];
    state s;
    pst_stack_stats stats;
    begin(&s, &schema);
    pst_table *t = open_table(&s, NULL, NULL);
    put_spaces(t, 0, 2, SPACES, 0);
    seal(&s, t);
    put_spaces(t, 0, 10, SPACES / 5, 100000);
    seal(&s, t);
    pst_table_close(t);
    t = above(&s, NULL, NULL, NULL);
    pst_batch *b = spaces(t, 2 * SPACES - 1, -3, SPACES / 2);
    CHECK_EQ(pst_batch_get(b, 0, values, valid), PST_OK);
    pst_batch_destroy(b);
    for (int i = 0; i < SPACES / 2; i++) {
        int space = 2 * SPACES - 1 - 3 * i;
        CHECK_EQ(valid[i], space % 2 == 0);
        if (valid[i])
            CHECK_EQ(values[i], space + (space % 10 ? 0 : 100000));
    }
    uint64_t blocks = 0;
    for (int32_t f = 0; f < s.stack->n; f++)
        for (uint32_t i = 0; i < s.stack->files[f]->guide->n_segments; i++)
            blocks += s.stack->files[f]->guide->segments[i].blocks;
    pst_stack_get_stats(s.stack, &stats);
    CHECK(blocks > 20);
    CHECK(stats.blocks <= blocks * (SPACES / 2 / PST_FETCH_SLICE + 1) * 2);
    end(&s, t);
}

/* ---- files that are wrong ---------------------------------------------------------------------- */

static void append(pst_table *t, uint64_t key, int n) {
    char text[40];
    REQUIRE(!pst_key_set_word(t, key));
    for (int i = 0; i < n; i++) {
        int size = snprintf(text, sizeof text, "item number %d", i);
        pst_cell item = {{0, 0}, {(uint8_t *)text, (uint32_t)size}};
        REQUIRE(!pst_list_add(t, 2, &item));
    }
}

static pst_record *run_of(forge_file *f, int64_t key) {
    for (size_t i = 0; i < f->n; i++)
        if (forge_has_element(f, &f->records[i]) && f->records[i].key[0].word[0] == (uint64_t)key)
            return &f->records[i];
    return NULL;
}

/* A run of a list begins behind its end, or one of its items is cut off. */
static void damage(memory_file *file, int64_t key, int cut) {
    forge_file f;
    memory_file out = {.calls_left = -1};
    pst_io io = file_io(&out, 0);
    forge_open(&f, file);
    pst_record *r = run_of(&f, key);
    REQUIRE(r);
    if (cut) {
        r->cells[2].bytes.size -= 3;
    } else {
        pst_bytes *element = &r->key[f.schema.n_keys - 1].bytes;
        pst_put_big((uint8_t *)(uintptr_t)element->data + PST_ELEMENT_ID, ITEMS + 7, 8);
    }
    f.info.block_bytes = 4096;
    REQUIRE(!write_rows(&f.schema, &f.info, &io, f.records, f.n));
    forge_close(&f);
    file_free(file);
    *file = out;
}

/* One key of a file is not as any table would have written it. The epoch keeps what was done in it,
 * and other keys come. */
static void test_wrong(int cut) {
    enum { WRONG = 5 };
    state s;
    int64_t values[KEYS];
    pst_cell cell;
    begin(&s, &LISTS);
    pst_table *t = open_table(&s, NULL, NULL);
    for (uint64_t k = 0; k < KEYS; k++) {
        put_a(t, k, k);
        append(t, k, ITEMS);
    }
    seal(&s, t);
    for (uint64_t k = 0; k < KEYS; k++)
        append(t, k, ITEMS);
    seal(&s, t);
    put_a(t, WRONG, 9);
    seal(&s, t);
    pst_table_close(t);
    damage(&s.files[1], WRONG, cut);
    t = above(&s, NULL, NULL, NULL);
    put_a(t, 1000, 5);
    for (int again = 0; again < 2; again++) {
        CHECK_EQ(get(t, KEYS, values), PST_CORRUPT);
        CHECK_EQ(pst_table_detail(t)->row, 1);
        CHECK_EQ(pst_table_detail(t)->offset, -1);
        CHECK(!t->poisoned);
        CHECK_EQ(pst_changed_rows(t), 1);
    }
    CHECK_EQ(get(t, WRONG, values), PST_OK);
    for (int k = 0; k < WRONG; k++) {
        uint64_t count;
        CHECK_EQ(values[k], k);
        REQUIRE(!pst_key_set_word(t, (uint64_t)k) && !pst_elements_count(t, 2, &count));
        CHECK_EQ(count, 2 * ITEMS);
    }
    REQUIRE(!pst_key_set_word(t, 1000) && !pst_value_get(t, 0, &cell));
    CHECK_EQ(cell.word[0], 5);
    pst_lineage l = {.epoch = 50};
    CHECK_EQ(pst_table_seal(t, &l, NULL), PST_OK);
    check_ownership(t);
    end(&s, t);
}

int main(void) {
    test_crowded();
    test_refused();
    test_spaces();
    test_wrong(0);
    test_wrong(1);
    return check_report();
}
