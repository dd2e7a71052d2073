/* Files read as a later program declares their states: what is refused, memory that is refused at
 * every allocation, and bytes that are no values. What values become is compared with a model in
 * tests/model/test_evolution_model.py. */
#include "files.h"

enum { STATES = 4, KEYS = 20 };

static const pst_nested_type PAIR[] = {
    {.kind = PST_NESTED_STRUCT, .n_children = 2}, {.type = PST_INT32}, {.type = PST_FLOAT32}};
/* The pair's fields in another order, wider, and a third one that makes the width vary. */
static const pst_nested_type TRIPLE[] = {{.kind = PST_NESTED_STRUCT, .n_children = 3},
                                         {.type = PST_FLOAT64},
                                         {.type = PST_STRING},
                                         {.type = PST_INT64}};
static const int32_t FROM[] = {0, 2, -1, 1};
static const pst_nested_type SHORT = {.type = PST_INT16};
static const pst_nested_type LONG = {.type = PST_INT64};
static const int32_t ROOT[] = {0};

static const pst_column KEY = {.name = "k", .type = PST_INT64};
static const pst_column OLD_STATES[STATES] = {
    {.name = "n", .type = PST_INT16},
    {.name = "v", .type = PST_FIXED, .width = 16, .ddl = "pair"},
    {.name = "l", .type = PST_FIXED, .width = 16, .ddl = "pair", .kind = PST_LIST},
    {.name = "m",
     .type = PST_FIXED,
     .width = 16,
     .ddl = "pair",
     .kind = PST_MAP,
     .map_key = PST_INT32}};
static const pst_column NEW_STATES[STATES] = {
    {.name = "n", .type = PST_INT64},
    {.name = "v", .type = PST_NESTED, .ddl = "triple"},
    {.name = "l", .type = PST_NESTED, .ddl = "triple", .kind = PST_LIST},
    {.name = "m", .type = PST_NESTED, .ddl = "triple", .kind = PST_MAP, .map_key = PST_INT64}};
static const pst_schema OLD = {1, STATES, &KEY, OLD_STATES, 0};
static const pst_schema NEW = {1, STATES, &KEY, NEW_STATES, 0};

static pst_table *open_table(const pst_schema *s) {
    pst_table_options o = {.max_parallelism = 2, .last_key_group = 1, .limit_bytes = 1 << 24};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

/* A pair {i, i / 2}: bits, then its scalars at 4 and 8. */
static pst_cell pair_of(uint8_t *room, int32_t i, uint8_t bits) {
    float half = (float)i / 2;
    memset(room, 0, 16);
    room[0] = bits;
    memcpy(room + 4, &i, 4);
    memcpy(room + 8, &half, 4);
    return (pst_cell){{0, 0}, {room, 16}};
}

static void write_old(memory_file *out, uint8_t bits, uint32_t block_bytes) {
    pst_table *t = open_table(&OLD);
    uint8_t room[16];
    for (int32_t i = 0; i < KEYS; i++) {
        pst_cell number = {{(uint64_t)(int64_t)-i, 0}, {NULL, 0}}, key = {{7, 0}, {NULL, 0}};
        pst_cell pair = pair_of(room, i, bits);
        REQUIRE(pst_key_set_word(t, (uint64_t)i) == PST_OK);
        REQUIRE(pst_value_put(t, 0, &number) == PST_OK);
        if (i % 3)
            REQUIRE(pst_value_put(t, 1, &pair) == PST_OK);
        for (int32_t k = 0; k < i % 4; k++)
            REQUIRE(pst_list_add(t, 2, &pair) == PST_OK);
        REQUIRE(pst_map_put(t, 3, &key, &pair) == PST_OK);
    }
    pst_lineage l = {.id = {1}, .epoch = 1};
    pst_sealed *sealed = NULL;
    pst_file_info info;
    pst_io io = file_io(out, 0);
    REQUIRE(pst_table_seal(t, &l, &sealed) == PST_OK);
    pst_sealed_guide(sealed, block_bytes);
    REQUIRE(pst_sealed_write(sealed, &io, &info) == PST_OK);
    pst_sealed_destroy(sealed);
    pst_table_close(t);
}

/* A triple whose string alone is there; the value state is filled with it. */
static const uint8_t FILL[] = {2, 2, 'a', 'b'};

static void set_evolutions(pst_evolution *all, const pst_schema *to) {
    all[0] = (pst_evolution){0, &to->states[0], &SHORT, 1, &LONG, 1, ROOT};
    for (int32_t i = 1; i < STATES; i++)
        all[i] = (pst_evolution){i, &to->states[i], PAIR, 3, TRIPLE, 4, FROM};
    all[1].fill = FILL;
    all[1].fill_bytes = sizeof FILL;
}

static void check_triple(pst_bytes b, int32_t i) {
    double half = (double)i / 2;
    int64_t whole = i;
    CHECK_EQ(b.size, 17);
    CHECK(b.size == 17 && b.data[0] == 5 && !memcmp(b.data + 1, &half, 8) &&
          !memcmp(b.data + 9, &whole, 8));
}

static void check_filled(pst_bytes b, int32_t i) {
    double half = (double)i / 2;
    int64_t whole = i;
    CHECK_EQ(b.size, 20);
    CHECK(b.size == 20 && b.data[0] == 7 && !memcmp(b.data + 1, &half, 8) &&
          !memcmp(b.data + 9, FILL + 1, 3) && !memcmp(b.data + 12, &whole, 8));
}

static void check_table(pst_table *t) {
    for (int32_t i = 0; i < KEYS; i++) {
        pst_cell cell, key = {{7, 0}, {NULL, 0}};
        uint64_t n = 0;
        int is_null;
        REQUIRE(pst_key_set_word(t, (uint64_t)i) == PST_OK);
        CHECK(pst_value_get(t, 0, &cell) == PST_OK && (int64_t)cell.word[0] == -i);
        CHECK_EQ(pst_value_get(t, 1, &cell), i % 3 ? PST_OK : PST_NOT_FOUND);
        if (i % 3)
            check_filled(cell.bytes, i);
        CHECK_EQ(pst_elements_count(t, 2, &n), PST_OK);
        CHECK_EQ(n, (uint64_t)(i % 4));
        CHECK_EQ(pst_map_get(t, 3, &key, &cell, &is_null), PST_OK);
        check_triple(cell.bytes, i);
    }
}

/* Reads the file into a table of the new schema. */
static pst_status load(memory_file *f, const pst_schema *shown, pst_table **table) {
    pst_sst_reader *r = NULL;
    pst_evolution all[STATES];
    pst_table *t = open_table(&NEW);
    pst_status s = file_open(f, &r);
    set_evolutions(all, shown);
    if (!s)
        s = pst_sst_reader_evolve(r, all, STATES);
    if (!s)
        s = pst_table_load(t, r, NULL, STATES, NULL);
    if (r)
        pst_sst_reader_close(r);
    if (s)
        pst_table_close(t);
    else
        *table = t;
    return s;
}

static void test_refused_memory(memory_file *f, const pst_schema *shown) {
    int refused = 1;
    for (int64_t n = 0; refused; n++) {
        pst_sst_reader *r = NULL;
        pst_record *record = calloc(1, sizeof *record);
        pst_evolution all[STATES];
        set_evolutions(all, shown);
        check_fail_alloc(n, 0);
        pst_status s = file_open(f, &r);
        if (!s)
            s = pst_sst_reader_evolve(r, all, STATES);
        while (!s)
            s = pst_sst_reader_next(r, record);
        refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(s, refused ? PST_NO_MEMORY : PST_NOT_FOUND);
        if (r)
            pst_sst_reader_close(r);
        free(record);
    }
}

static void expect(memory_file *f, pst_status wanted, const pst_evolution *e, int32_t n) {
    pst_sst_reader *r = NULL;
    REQUIRE(file_open(f, &r) == PST_OK);
    CHECK_EQ(pst_sst_reader_evolve(r, e, n), wanted);
    pst_sst_reader_close(r);
}

static void test_refused_evolutions(memory_file *f, const pst_schema *shown) {
    static const pst_nested_type BYTE = {.type = PST_INT8};
    static const int32_t BEYOND[] = {0, 3, -1, 1}, ITSELF[] = {0, 0, -1, 1},
                         NARROW[] = {0, 1, -1, 2};
    pst_column value = NEW_STATES[3];
    pst_evolution all[STATES], e;
    set_evolutions(all, shown);
    expect(f, PST_OK, all, STATES);
    expect(f, PST_INVALID, all, 0);
    expect(f, PST_INVALID, all, STATES + 1);
    e = all[0], e.column = STATES, expect(f, PST_INVALID, &e, 1);
    e = all[0], e.column = -1, expect(f, PST_INVALID, &e, 1);
    e = all[0], e.to_types = &BYTE, expect(f, PST_SCHEMA, &e, 1);
    e = all[0], e.from_types = &BYTE, expect(f, PST_SCHEMA, &e, 1);
    e = all[0], e.n_to = 0, expect(f, PST_SCHEMA, &e, 1);
    e = all[1], e.to = &shown->states[3], expect(f, PST_SCHEMA, &e, 1);
    e = all[1], e.from = BEYOND, expect(f, PST_INVALID, &e, 1);
    e = all[1], e.from = ITSELF, expect(f, PST_INVALID, &e, 1);
    e = all[1], e.from = NARROW, expect(f, PST_SCHEMA, &e, 1);
    e = all[1], e.n_to = 3, expect(f, PST_INVALID, &e, 1);
    e = all[0], e.fill = FILL, e.fill_bytes = 4, expect(f, PST_INVALID, &e, 1);
    e = all[1], e.fill_bytes = 3, expect(f, PST_CORRUPT, &e, 1);
    e = all[1], e.fill_bytes = PST_MAX_BYTES + 1u, expect(f, PST_INVALID, &e, 1);
    /* Scalars become scalars. */
    e = all[0], e.from_types = PAIR, e.n_from = 3, expect(f, PST_INVALID, &e, 1);
    e = all[0], e.to_types = TRIPLE, e.n_to = 4, e.from = FROM, expect(f, PST_INVALID, &e, 1);
    e = all[1], e.to_types = &LONG, e.n_to = 1, expect(f, PST_INVALID, &e, 1);
    e = all[1], e.from_types = &SHORT, e.n_from = 1, expect(f, PST_INVALID, &e, 1);
    e = all[0], e.from = FROM + 2, expect(f, PST_INVALID, &e, 1);
    e = all[0], e.to_types = &SHORT, expect(f, PST_INVALID, &e, 1); /* nothing to convert */
    /* An array's elements are made of elements. */
    static const pst_nested_type ARRAY[] = {{.kind = PST_NESTED_ARRAY, .n_children = 1},
                                            {.type = PST_INT32}};
    static const int32_t NOTHING[] = {0, -1};
    e = (pst_evolution){1, &shown->states[1], ARRAY, 2, ARRAY, 2, NOTHING, NULL, 0};
    expect(f, PST_INVALID, &e, 1);
    e = all[0], e.n_from = 0, expect(f, PST_INVALID, &e, 1);
    /* What was made for the first ones goes, which a sanitizer sees. */
    all[STATES - 1].to = &shown->states[0];
    expect(f, PST_SCHEMA, all, STATES);
    value.map_key = PST_STRING;
    set_evolutions(all, shown);
    e = all[3], e.to = &value, expect(f, PST_SCHEMA, &e, 1);
    value.map_key = PST_INT16;
    expect(f, PST_SCHEMA, &e, 1);
}

int main(void) {
    memory_file sound = {NULL, 0, 0, 0, -1}, bad = {NULL, 0, 0, 0, -1};
    pst_schema *shown = NULL;
    pst_table *t = NULL;
    REQUIRE(pst_file_schema_create(&NEW, &shown) == PST_OK);
    for (uint32_t block_bytes = 0; block_bytes <= 4096; block_bytes += 4096) {
        sound.size = 0;
        write_old(&sound, 3, block_bytes);
        CHECK_EQ(load(&sound, shown, &t), PST_OK);
        if (t) {
            check_table(t);
            pst_table_close(t);
        }
    }
    test_refused_memory(&sound, shown);
    test_refused_evolutions(&sound, shown);
    /* A bit of a field that there is not: what is stored is no pair. */
    write_old(&bad, 0x83, 0);
    CHECK_EQ(load(&bad, shown, &t), PST_CORRUPT);
    pst_file_schema_destroy(shown);
    file_free(&sound);
    file_free(&bad);
    return check_report();
}
