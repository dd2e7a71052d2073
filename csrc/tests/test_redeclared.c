/* A map is dropped, and a list declared under its name: what the map's files say of their elements,
 * which name their state by its name alone, means nothing to the list. */
#include "files.h"

static const pst_column KEY = {.name = "k", .type = PST_INT64};
static const pst_column WITH_MAP[] = {
    {.name = "n", .type = PST_INT64},
    {.name = "x", .type = PST_INT64, .kind = PST_MAP, .map_key = PST_INT64}};
static const pst_column WITH_LIST[] = {{.name = "n", .type = PST_INT64},
                                       {.name = "x", .type = PST_INT64, .kind = PST_LIST}};
static const pst_schema OLD = {1, 2, &KEY, WITH_MAP, 0};
static const pst_schema NEW = {1, 2, &KEY, WITH_LIST, 0};

static const int32_t DROPPED[] = {0, -1};
static const int32_t TAKEN[] = {0, 1};

enum { FILES = 3 };

static pst_table *open_table(const pst_schema *s) {
    pst_table_options o = {.max_parallelism = 2, .last_key_group = 1, .limit_bytes = 1 << 24};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static pst_cell number(uint64_t n) {
    return (pst_cell){{n, 0}, {NULL, 0}};
}

static void write_epoch(pst_table *t, uint64_t epoch, memory_file *out) {
    pst_lineage l = {.id = {(uint8_t)epoch}, .epoch = epoch};
    pst_sealed *sealed = NULL;
    pst_file_info info;
    pst_io io = file_io(out, 0);
    REQUIRE(pst_table_seal(t, &l, &sealed) == PST_OK);
    REQUIRE(pst_sealed_write(sealed, &io, &info) == PST_OK);
    pst_sealed_destroy(sealed);
}

static void set_value(pst_table *t, uint64_t n) {
    pst_cell value = number(n);
    REQUIRE(pst_key_set_word(t, 7) == PST_OK);
    REQUIRE(pst_value_put(t, 0, &value) == PST_OK);
}

/* The map's entries in one file, and in the next that one of them went. */
static void write_map(memory_file *files) {
    pst_table *t = open_table(&OLD);
    set_value(t, 1);
    for (uint64_t i = 0; i < 3; i++) {
        pst_cell key = number(i), value = number(10 * i);
        REQUIRE(pst_map_put(t, 1, &key, &value) == PST_OK);
    }
    write_epoch(t, 1, &files[0]);
    pst_cell gone = number(2);
    set_value(t, 2);
    REQUIRE(pst_map_remove(t, 1, &gone) == PST_OK);
    write_epoch(t, 2, &files[1]);
    pst_table_close(t);
}

static void write_list(memory_file *file) {
    pst_table *t = open_table(&NEW);
    set_value(t, 3);
    for (uint64_t i = 0; i < 5; i++) {
        pst_cell item = number(100 + i);
        REQUIRE(pst_list_add(t, 1, &item) == PST_OK);
    }
    write_epoch(t, 3, file);
    pst_table_close(t);
}

static void load(pst_table *t, memory_file *f, const int32_t *columns) {
    pst_sst_reader *r = NULL;
    REQUIRE(file_open(f, &r) == PST_OK);
    CHECK_EQ(pst_table_load(t, r, columns, 2, NULL), PST_OK);
    pst_sst_reader_close(r);
}

static void check_list(pst_table *t) {
    uint64_t n = 0;
    pst_cell value;
    REQUIRE(pst_key_set_word(t, 7) == PST_OK);
    CHECK(pst_value_get(t, 0, &value) == PST_OK && value.word[0] == 3);
    CHECK_EQ(pst_elements_count(t, 1, &n), PST_OK);
    CHECK_EQ(n, 5);
}

static void test_loading(memory_file *files) {
    pst_table *t = open_table(&NEW);
    for (int i = 0; i < FILES; i++)
        load(t, &files[i], i < 2 ? DROPPED : TAKEN);
    check_list(t);
    pst_table_close(t);
}

/* All files, or the last two of them after the first: no record of the map is left. */
static void test_merging(memory_file *files, int from) {
    const int32_t *columns[FILES];
    pst_sst_reader *readers[FILES];
    pst_schema *schema = NULL;
    memory_file merged = {.calls_left = -1};
    pst_io io = file_io(&merged, 0);
    pst_file_info info = {.kind = PST_DELTA, .max_parallelism = 2, .last_key_group = 1};
    REQUIRE(pst_file_schema_create(&NEW, &schema) == PST_OK);
    for (int i = from; i < FILES; i++) {
        columns[i] = i < 2 ? DROPPED : TAKEN;
        REQUIRE(file_open(&files[i], &readers[i]) == PST_OK);
    }
    CHECK_EQ(file_merge(schema, &info, readers + from, columns + from, FILES - from, &io), PST_OK);
    CHECK_EQ(info.tombstones, 0);
    CHECK_EQ(info.rows, 2); /* the row and its run of items */
    pst_table *t = open_table(&NEW);
    load(t, &merged, TAKEN);
    check_list(t);
    pst_table_close(t);
    for (int i = from; i < FILES; i++)
        pst_sst_reader_close(readers[i]);
    pst_file_schema_destroy(schema);
    file_free(&merged);
}

int main(void) {
    memory_file files[FILES] = {{NULL, 0, 0, 0, 0}};
    write_map(files);
    write_list(&files[2]);
    test_loading(files);
    test_merging(files, 0);
    test_merging(files, 1);
    for (int i = 0; i < FILES; i++)
        file_free(&files[i]);
    return check_report();
}
