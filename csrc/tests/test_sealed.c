/* A sealed epoch's delta against the file that the same records make one by one: equal bytes, over
 * kinds of keys and values, ranges of key groups, mixed kinds of rows, and hashes that are
 * chosen. */
#include "files.h"
#include "key/key.h"
#include "key/schema.h"
#include "key/xxh64.h"

enum { KEYS = 6000, MOST_STATES = 12 };

/* A type for each of a table's states; 0 ends them. */
typedef struct shape {
    const char *name;
    pst_type keys[2];
    pst_type states[MOST_STATES];
    uint32_t ties; /* so many keys are alike in their first column, which alone is hashed */
} shape;

static const shape SHAPES[] = {
    {"a long and two longs", {PST_INT64}, {PST_INT64, PST_INT64}},
    {"a string and a long", {PST_STRING}, {PST_INT64}},
    {"every width",
     {PST_INT64},
     {PST_INT64, PST_INT8, PST_INT16, PST_INT32, PST_FLOAT32, PST_BOOL, PST_DECIMAL}},
    {"a long and an int", {PST_INT64}, {PST_INT32}},
    {"narrow values",
     {PST_INT64},
     {PST_INT16, PST_FLOAT32, PST_INT64, PST_INT8, PST_BOOL, PST_INT32, PST_FLOAT64}},
    {"strings", {PST_STRING}, {PST_STRING, PST_INT64, PST_BINARY}},
    {"two key columns", {PST_INT64, PST_STRING}, {PST_INT64, PST_STRING}},
    {"two longs as key", {PST_INT64, PST_INT64}, {PST_INT64, PST_INT64}},
    {"windows of a key", {PST_INT64, PST_TIMESTAMP}, {PST_INT64, PST_INT64}, 20},
    {"many windows of a key", {PST_DATE32, PST_INT64}, {PST_INT64, PST_STRING}, 700},
    {"windows of a string", {PST_STRING, PST_TIMESTAMP}, {PST_INT64}, 20},
    {"a decimal key", {PST_DECIMAL}, {PST_INT64}},
    {"a date key", {PST_DATE32}, {PST_INT64, PST_STRING}},
    {"wide rows",
     {PST_INT64},
     {PST_INT64, PST_INT64, PST_STRING, PST_INT64, PST_INT32, PST_INT64, PST_BOOL, PST_INT64,
      PST_STRING, PST_INT64, PST_INT64}},
};

typedef struct groups {
    int32_t max_parallelism, first, last;
} groups;

static const groups RANGES[] = {{128, 0, 127}, {128, 37, 90}, {100, 7, 12}, {1, 0, 0}, {64, 5, 5}};

/* Limits of rows that are written whole: of fewer and of more bytes than rows have, and in between. */
static const uint64_t WHOLE[] = {1, 12, 28, 50, 512};

static uint8_t letters[1024];

/* ---- hashes that are chosen ------------------------------------------------------------------ */

static uint64_t inverse(uint64_t odd) {
    uint64_t x = odd;
    for (int i = 0; i < 6; i++)
        x *= 2 - odd * x;
    return x;
}

/* The long whose hash it is. */
static uint64_t long_of(uint64_t h) {
    h ^= h >> 32;
    h *= inverse(PST_XXH_P3);
    h ^= h >> 29 ^ h >> 58;
    h *= inverse(PST_XXH_P2);
    h ^= h >> 33;
    h = pst_xxh64_rotl((h - PST_XXH_P4) * inverse(PST_XXH_P1), 37);
    h ^= PST_HASH_SEED + PST_XXH_P5 + 8;
    return pst_xxh64_rotl(h * inverse(PST_XXH_P1), 33) * inverse(PST_XXH_P2);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* What is known of key i, and what a file is to say of it. */
typedef struct row {
    pst_cell key[2];
    uint64_t hash;
    int32_t group;
    uint32_t nulls;
    uint64_t present; /* in the table */
    pst_record_op op; /* 0: unchanged */
    uint64_t changed;
    uint64_t carried;             /* in the file: some that did not change, too */
    uint32_t rounds[MOST_STATES]; /* in which each state was put */
} row;

typedef struct world {
    pst_column columns[2 + MOST_STATES];
    char names[2 + MOST_STATES][8];
    pst_schema schema;
    uint32_t ties;
    groups range;
    uint64_t whole; /* rows with so many bytes of values are written whole */
    int chosen;     /* keys of longs whose hashes differ in the lowest bits, or in one of them */
    row rows[KEYS];
    uint8_t key_bytes[KEYS][64];
    pst_record record;
} world;

static void value_of(pst_type type, uint64_t seed, pst_cell *cell) {
    uint64_t x = seed;
    cell->word[0] = check_random(&x);
    cell->word[1] = type == PST_DECIMAL ? check_random(&x) : 0;
    if (type == PST_BOOL)
        cell->word[0] = seed & 1;
    if (type == PST_INT8)
        cell->word[0] = (uint64_t)(int8_t)(seed * 37);
    if (type == PST_INT16)
        cell->word[0] = (uint64_t)(int16_t)(seed * 37);
    if (type == PST_INT32 || type == PST_DATE32)
        cell->word[0] = (uint64_t)(int32_t)cell->word[0];
    if (type == PST_FLOAT32)
        cell->word[0] = (uint32_t)(seed * 37);
    uint64_t size = seed % 50 ? seed % 70 : 60 + seed % 400;
    cell->bytes = (pst_bytes){letters + seed * 7 % 256, (uint32_t)size};
}

static void make_key(world *w, uint64_t i) {
    row *r = &w->rows[i];
    for (int32_t k = 0; k < w->schema.n_keys; k++) {
        pst_type type = w->schema.keys[k].type;
        uint64_t number = w->ties && k == 0 ? i / w->ties : i;
        value_of(type, number, &r->key[k]);
        if (type == PST_DATE32)
            r->key[k].word[0] = (uint64_t)(int64_t)(int32_t)number - 100;
        if (type == PST_TIMESTAMP)
            r->key[k].word[0] = (i % 3 ? number * 60000 : UINT64_MAX - number) << 8 * (i % 7);
        if (type == PST_INT64 && w->chosen)
            r->key[k].word[0] = long_of(UINT64_C(0xABCDEF0123000000) +
                                        (w->chosen == 1 ? number : number % 2 << 60 | number / 2));
        memcpy(w->key_bytes[i], &number, 8);
        memset(w->key_bytes[i] + 8, 'x', sizeof w->key_bytes[i] - 8);
        r->key[k].bytes = (pst_bytes){w->key_bytes[i], 3 + (uint32_t)number % 60};
    }
    r->nulls = i == 17;
    if (w->schema.n_keys == 2 && (i == 18 || i == 19))
        r->nulls = i == 18 ? 2 : 3;
    r->hash = pst_hash_key(w->schema.keys, pst_schema_hashed(&w->schema), r->key, r->nulls);
    r->group = pst_key_group(r->hash, w->range.max_parallelism);
    r->present = 0;
}

static uint64_t value_seed(const row *r, int32_t k) {
    return r->hash % 1009 * 5 + r->rounds[k];
}

static uint64_t bytes_of_row(const world *w, const row *r) {
    uint64_t bytes = 0;
    for (int32_t k = 0; k < w->schema.n_states; k++) {
        pst_cell cell;
        uint32_t width = pst_type_width(w->schema.states[k].type);
        value_of(w->schema.states[k].type, value_seed(r, k), &cell);
        bytes += !(r->present >> k & 1) ? 0 : width ? width : cell.bytes.size;
    }
    return bytes;
}

/* What round `round` does to a row that is there or not: puts, clears, deletes, or nothing. */
static void change(const world *w, row *r, uint32_t round, uint64_t *random) {
    uint64_t all = (UINT64_C(1) << w->schema.n_states) - 1, dice = check_random(random);
    uint64_t touched = dice % 3 ? all : check_random(random) & all;
    uint64_t cleared = dice % 5 ? 0 : check_random(random) & all;
    r->op = 0;
    if (r->group < w->range.first || r->group > w->range.last || dice % 11 == 0)
        return;
    if (r->present && dice % 7 == 0)
        cleared = touched = all;
    uint64_t after = (r->present | touched) & ~cleared;
    r->changed = (touched & ~cleared) | (cleared & r->present);
    if (!r->changed)
        return;
    for (int32_t k = 0; k < w->schema.n_states; k++)
        if (r->changed >> k & 1)
            r->rounds[k] = round;
    int born = !r->present;
    r->op = after ? PST_PUT : PST_DELETE;
    r->present = after;
    r->carried = r->changed;
    if (w->whole && (born || bytes_of_row(w, r) <= w->whole))
        r->carried = all;
}

/* The record of what was done, or of what the file says of it; values differ between the two
 * rounds. */
static const pst_record *record_of(world *w, const row *r, uint64_t columns) {
    pst_record *to = &w->record;
    memset(to, 0, sizeof *to);
    to->hash = r->hash;
    to->key_group = r->group;
    to->op = r->op;
    to->key_nulls = r->nulls;
    memcpy(to->key, r->key, sizeof r->key);
    to->changed = r->op == PST_PUT ? columns : 0;
    to->present = to->changed & r->present;
    for (int32_t k = 0; k < w->schema.n_states; k++)
        value_of(w->schema.states[k].type, value_seed(r, k), &to->cells[k]);
    return to;
}

static const world *sorted_by; /* what qsort's comparison needs */

static int by_place(const void *a, const void *b) {
    const row *x = &sorted_by->rows[*(const uint32_t *)a];
    const row *y = &sorted_by->rows[*(const uint32_t *)b];
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return pst_key_compare(sorted_by->schema.keys, sorted_by->schema.n_keys, x->key, x->nulls,
                           y->key, y->nulls);
}

static void write_one_by_one(world *w, const pst_lineage *lineage, memory_file *f) {
    static uint32_t order[KEYS];
    pst_file_info info = {PST_DELTA, *lineage, w->range.max_parallelism, w->range.first,
                          w->range.last};
    pst_io io = file_io(f, 1);
    pst_sst_writer *writer = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < KEYS; i++)
        if (w->rows[i].op)
            order[n++] = i;
    sorted_by = w;
    qsort(order, n, sizeof *order, by_place);
    CHECK_EQ(pst_sst_writer_create(&w->schema, &info, &io, &writer), PST_OK);
    for (uint32_t i = 0; i < n; i++)
        CHECK_EQ(
            pst_sst_writer_add(writer, record_of(w, &w->rows[order[i]], w->rows[order[i]].carried)),
            PST_OK);
    CHECK_EQ(pst_sst_writer_finish(writer, &info), PST_OK);
    pst_sst_writer_destroy(writer);
}

static void write_sealed(pst_table *t, const pst_lineage *lineage, memory_file *f) {
    pst_sealed *sealed = NULL;
    pst_file_info info;
    pst_io io = file_io(f, 1);
    CHECK_EQ(pst_table_seal(t, lineage, &sealed), PST_OK);
    CHECK_EQ(pst_sealed_write(sealed, &io, &info), PST_OK);
    pst_sealed_destroy(sealed);
}

static void run(world *w, const shape *of, groups range, int chosen, uint64_t whole,
                uint64_t seed) {
    int32_t n_keys = 0, n_states = 0;
    w->whole = whole;
    w->range = range;
    w->chosen = chosen;
    for (; n_keys < 2 && of->keys[n_keys]; n_keys++)
        w->columns[n_keys].type = of->keys[n_keys];
    for (; n_states < MOST_STATES && of->states[n_states]; n_states++)
        w->columns[n_keys + n_states].type = of->states[n_states];
    for (int32_t i = 0; i < n_keys + n_states; i++) {
        snprintf(w->names[i], sizeof w->names[i], "c%d", i);
        w->columns[i] = (pst_column){.name = w->names[i],
                                     .type = w->columns[i].type,
                                     .precision = w->columns[i].type == PST_DECIMAL ? 38 : 0};
    }
    w->schema = (pst_schema){n_keys, n_states, w->columns, w->columns + n_keys, of->ties ? 1 : 0};
    w->ties = of->ties;
    for (uint64_t i = 0; i < KEYS; i++)
        make_key(w, i);
    pst_table_options o = {.max_parallelism = range.max_parallelism,
                           .first_key_group = range.first,
                           .last_key_group = range.last,
                           .limit_bytes = (uint64_t)1 << 30};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&w->schema, &o, &t, NULL, NULL) == PST_OK);
    pst_table_set_whole_rows(t, whole);
    for (uint32_t round = 1; round < 3; round++) {
        pst_lineage lineage = {.id = {(uint8_t)round}, .epoch = round};
        memory_file one_by_one = {0}, sealed = {0};
        for (uint32_t i = 0; i < KEYS; i++) {
            change(w, &w->rows[i], round, &seed);
            if (w->rows[i].op)
                CHECK_EQ(pst_table_apply(t, record_of(w, &w->rows[i], w->rows[i].changed), NULL,
                                         w->schema.n_states),
                         PST_OK);
        }
        write_one_by_one(w, &lineage, &one_by_one);
        write_sealed(t, &lineage, &sealed);
        if (!CHECK(one_by_one.size == sealed.size &&
                   memcmp(one_by_one.data, sealed.data, sealed.size) == 0))
            fprintf(stderr,
                    "    %s, round %u, groups %d to %d of %d, chosen %d, whole %" PRIu64 "\n",
                    of->name, round, range.first, range.last, range.max_parallelism, chosen, whole);
        file_free(&one_by_one);
        file_free(&sealed);
    }
    pst_table_close(t);
}

/* ---- elements as words ----------------------------------------------------------------------- */

enum { ELEMENTS = 30000, OF_A_ROW = 30 };

typedef struct element {
    pst_record record;
    uint8_t bytes[16];
    uint64_t key[1 + PST_ELEMENT_WORDS];
    uint64_t value;
} element;

static int by_key(const void *a, const void *b) {
    const pst_record *x = &(*(element *const *)a)->record, *y = &(*(element *const *)b)->record;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return pst_key_compare(sorted_by->schema.keys, 2, x->key, x->key_nulls, y->key, y->key_nulls);
}

/* Elements of every size, one of them absent, of rows that have many. */
static void make_element(element *e, uint32_t i) {
    uint32_t of = i / OF_A_ROW, nth = i % OF_A_ROW, size = nth % 17;
    for (uint32_t k = 0; k < sizeof e->bytes; k++)
        e->bytes[k] = (uint8_t)(k + 1 < size ? nth % 4 * 0x55 : nth); /* many begin alike */
    e->key[0] = of;
    for (int k = 0; k < PST_ELEMENT_WORDS; k++)
        e->key[1 + k] = 0;
    for (uint32_t k = 0; nth && k < size; k++)
        e->key[1 + k / 8] |= (uint64_t)e->bytes[k] << (56 - 8 * (k % 8));
    e->key[3] = nth ? 1 + size : 0;
    e->value = i;
    e->record.op = i % 5 ? PST_PUT : PST_DELETE;
    e->record.changed = e->record.present = i % 5 ? 1 : 0;
    e->record.key[0].word[0] = of;
    e->record.key[1].bytes = (pst_bytes){e->bytes, size};
    e->record.key_nulls = nth ? 0 : 2;
    e->record.cells[0].word[0] = i;
    e->record.hash = pst_hash_key(sorted_by->schema.keys, 1, e->record.key, 0);
}

static pst_sst_writer *writer_of(const world *w, memory_file *f, pst_file_info *info, pst_io *io) {
    pst_sst_writer *writer = NULL;
    *info = (pst_file_info){PST_DELTA, {.id = {1}, .epoch = 1}, 1, 0, 0};
    *io = file_io(f, 1);
    CHECK_EQ(pst_sst_writer_create(&w->schema, info, io, &writer), PST_OK);
    return writer;
}

/* Rows `from` to `to` - 1 of `order`, as words. */
static pst_status add_words(pst_sst_writer *writer, element *const *order, uint32_t from,
                            uint32_t to) {
    static const uint64_t *words[ELEMENTS], *keys[ELEMENTS];
    static uint64_t hash[ELEMENTS];
    const pst_record *first = &order[from]->record;
    for (uint32_t i = from; i < to; i++) {
        words[i - from] = &order[i]->value;
        keys[i - from] = order[i]->key;
        hash[i - from] = order[i]->record.hash;
    }
    pst_rows rows = {words,     keys,      hash,           letters,
                     to - from, first->op, first->changed, first->present};
    return pst_sst_writer_add_rows(writer, &rows);
}

static void check_elements(world *w) {
    static element all[ELEMENTS];
    static element *order[ELEMENTS];
    memory_file one_by_one = {0}, together = {0};
    pst_file_info info;
    pst_io io, io_together;
    w->columns[0] = (pst_column){.name = "key", .type = PST_INT64};
    w->columns[1] = (pst_column){.name = PST_ELEMENT_COLUMN, .type = PST_BINARY};
    w->columns[2] = (pst_column){.name = "n", .type = PST_INT64};
    w->schema = (pst_schema){2, 1, w->columns, w->columns + 2, 1};
    sorted_by = w;
    uint32_t n = 0;
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        make_element(&all[i], i);
        order[i] = &all[i];
    }
    qsort(order, ELEMENTS, sizeof *order, by_key);
    for (uint32_t i = 0; i < ELEMENTS; i++)
        if (!n || by_key(&order[n - 1], &order[i]))
            order[n++] = order[i];
    CHECK(n > ELEMENTS / 2);
    pst_sst_writer *writer = writer_of(w, &one_by_one, &info, &io);
    for (uint32_t i = 0; i < n; i++)
        CHECK_EQ(pst_sst_writer_add(writer, &order[i]->record), PST_OK);
    CHECK_EQ(pst_sst_writer_finish(writer, &info), PST_OK);
    pst_sst_writer_destroy(writer);
    writer = writer_of(w, &together, &info, &io_together);
    for (uint32_t i = 0, to; i < n; i = to) {
        for (to = i + 1; to < n && order[to]->record.op == order[i]->record.op; to++)
            ;
        CHECK_EQ(add_words(writer, order, i, to), PST_OK);
        /* What does not come after it is refused, and nothing has changed. */
        element *twice[] = {order[to - 1], order[to - 1]};
        CHECK_EQ(add_words(writer, twice, 0, 1), PST_INVALID);
        element *back[] = {to < n ? order[to] : order[to - 1], order[i]};
        CHECK_EQ(add_words(writer, back, 0, 2), PST_INVALID);
    }
    CHECK_EQ(pst_sst_writer_finish(writer, &info), PST_OK);
    pst_sst_writer_destroy(writer);
    CHECK(one_by_one.size == together.size &&
          memcmp(one_by_one.data, together.data, together.size) == 0);
    file_free(&one_by_one);
    file_free(&together);
}

int main(void) {
    world *w = calloc(1, sizeof *w);
    REQUIRE(w);
    for (size_t i = 0; i < sizeof letters; i++)
        letters[i] = (uint8_t)('a' + i % 23);
    CHECK_EQ(pst_xxh64_long((int64_t)long_of(12345678901234567), PST_HASH_SEED), 12345678901234567);
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
        for (size_t k = 0; k < sizeof RANGES / sizeof *RANGES; k++)
            run(w, &SHAPES[i], RANGES[k], 0, 0, 1 + i * 7 + k);
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
        for (size_t k = 0; k < sizeof WHOLE / sizeof *WHOLE; k++)
            run(w, &SHAPES[i], RANGES[0], 0, WHOLE[k], 1 + i * 7 + k);
    for (int chosen = 1; chosen <= 2; chosen++)
        for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
            if (SHAPES[i].keys[0] == PST_INT64 && (i == 0 || SHAPES[i].ties))
                run(w, &SHAPES[i], RANGES[0], chosen, 0, 99);
    check_elements(w);
    free(w);
    return check_report();
}
