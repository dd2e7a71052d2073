/* A table of every kind of state under churn, and a replica that is given each of its deltas.
 *
 *   test_churn [epochs] [seed] [kills]
 *
 * Thousands of keys come and go in batches, sizes drift, epochs are sealed and rolled back. What
 * the values must be is for test_elements and test_table, which have a model of few keys. Here each
 * delta must say neither less nor more than what became of the table, whatever has been moved,
 * reused and given back meanwhile. In a second part it is another process that works on the table,
 * which is a shared one then, and is killed over and over.
 */
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "files.h"
#include "ownership.h"

enum {
    NUMBER,
    TEXT,
    BYTES,
    OBJECT,
    ITEMS,
    LINES,
    ENTRIES,
    LARGEST,
    BLOB, /* the ninth: the presence of more than seven states lies in a word of its own */
    TIMERS,
    TIMER,
    COLUMNS
};

enum { MOST_KEYS = 4000, MOST_ITEMS = 4 * MOST_KEYS, KEY_BYTES = 48, MOST_BYTES = 32 << 20 };
enum { GROUPS = 8, TIMES = 1000, COMPARED_EVERY = 16 };

static const pst_column STATES[COLUMNS] = {
    [NUMBER] = {.name = "number", .type = PST_INT64, .has_default = 1},
    [TEXT] = {.name = "text", .type = PST_STRING},
    [BYTES] = {.name = "bytes", .type = PST_BINARY},
    [OBJECT] = {.name = "object", .type = PST_OBJECT},
    [ITEMS] = {.name = "items", .type = PST_INT64, .kind = PST_LIST},
    [LINES] = {.name = "lines", .type = PST_STRING, .kind = PST_LIST},
    [ENTRIES] = {.name = "entries", .type = PST_STRING, .kind = PST_MAP, .map_key = PST_INT64},
    [LARGEST] = {.name = "largest", .type = PST_INT64},
    [BLOB] = {.name = "blob", .type = PST_BINARY},
    [TIMERS] = {.name = "#timers", .type = PST_INT32, .kind = PST_TIMERS},
    [TIMER] = {.name = "#timer", .type = PST_INT64, .kind = PST_TIMER}};
static const pst_column LONG_KEY[] = {{.name = "k", .type = PST_INT64}};
static const pst_column TEXT_KEY[] = {{.name = "k", .type = PST_STRING}};

static struct {
    pst_schema schema;
    pst_table *t;
    pst_table *replica;
    uint64_t random;
    uint64_t first; /* keys that may be there: the numbers from here ... */
    uint64_t next;  /* ... to the one before this */
    double bytes;   /* of a text, on average */
    uint64_t seals;
    int teller; /* of a process that is to be killed: where it says what it does */
} run;

/* Of all runs. */
static struct {
    uint64_t compared;
    uint64_t lowered;  /* seals after which there were fewer slots */
    uint64_t given_up; /* seals in a cut that was given up */
    uint64_t back[3];  /* roll backs over so many sealed epochs */
    uint64_t ahead;    /* kills between a step and the word of it */
} seen;

/* The rows of the batch at hand, and the arrays made for it. */
static int64_t n;
static int64_t numbers[MOST_ITEMS], words[MOST_ITEMS];
static int32_t key_offsets[MOST_KEYS + 1], offsets[MOST_ITEMS + 1], runs[MOST_KEYS + 1];
static char key_bytes[MOST_KEYS * KEY_BYTES];
static uint8_t bytes[MOST_BYTES], validity[MOST_KEYS / 8 + 1];

static uint64_t any(uint64_t below) {
    return check_random(&run.random) % below;
}

static double fraction(void) {
    return (double)(check_random(&run.random) >> 11) / 9007199254740992.0;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* Draws keys: few or many, old ones with repetitions, and where the table grows some new ones. */
static void draw_keys(int grows) {
    n = (int64_t)pow(MOST_KEYS, fraction());
    int64_t fresh = grows || run.first == run.next ? (int64_t)any((uint64_t)n + 1) : 0;
    for (int64_t i = 0; i < fresh; i++)
        numbers[i] = (int64_t)run.next++;
    uint64_t old = run.next > run.first ? run.next - run.first : 1;
    for (int64_t i = fresh; i < n; i++)
        numbers[i] = (int64_t)(run.first + any(old));
}

/* Texts of keys from 14 bytes to 38: some lie in the row, others have a block. */
static pst_array keys(void) {
    if (run.schema.keys == LONG_KEY)
        return (pst_array){.type = PST_INT64, .length = n, .values = numbers};
    int32_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        key_offsets[i] = at;
        at += snprintf(key_bytes + at, KEY_BYTES, "user-%09d%.*s",
                       (int)((uint64_t)numbers[i] * 7919 % 1000000000), (int)(numbers[i] % 25),
                       "-and-what-makes-it-longer");
    }
    key_offsets[n] = at;
    return (pst_array){PST_STRING, n, 0, NULL, key_bytes, key_offsets, 0, at};
}

static pst_array longs(int64_t length, uint64_t below) {
    for (int64_t i = 0; i < length; i++)
        words[i] = (int64_t)any(below);
    return (pst_array){.type = PST_INT64, .length = length, .values = words};
}

static pst_array texts(pst_type type, int64_t length, uint32_t most) {
    int32_t at = 0;
    for (int64_t i = 0; i < length; i++) {
        uint32_t size = (uint32_t)(-log(1 - fraction()) * run.bytes);
        offsets[i] = at;
        if (size > most)
            size %= most;
        if ((uint32_t)at + size > MOST_BYTES)
            size = 0;
        memset(bytes + at, (int)('a' + any(26)), size);
        at += (int32_t)size;
    }
    offsets[length] = at;
    return (pst_array){type, length, 0, NULL, bytes, offsets, 0, at};
}

/* One in ten is null. */
static const uint8_t *some_nulls(void) {
    memset(validity, 0xFF, sizeof validity);
    for (uint32_t i = 0; i < MOST_KEYS; i++)
        if (!any(10))
            validity[i / 8] &= (uint8_t)~(1u << i % 8);
    return validity;
}

/* ---- what is done to keys -------------------------------------------------------------------- */

static pst_batch *look_up(void) {
    pst_array a = keys();
    pst_batch *b = NULL;
    REQUIRE(pst_batch_create(run.t, &a, &b) == PST_OK);
    return b;
}

static pst_status put_values(pst_batch *b) {
    static const struct {
        int column;
        pst_type type;
    } of[] = {{NUMBER, PST_INT64},
              {TEXT, PST_STRING},
              {BYTES, PST_BINARY},
              {OBJECT, PST_OBJECT},
              {BLOB, PST_BINARY}};
    uint64_t i = any(5);
    pst_array values = i ? texts(of[i].type, n, i == 1 ? 60000 : 255) : longs(n, UINT64_MAX);
    values.validity = some_nulls();
    return pst_batch_put(b, of[i].column, &values);
}

static pst_status append(pst_batch *b) {
    int32_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        runs[i] = at;
        at += (int32_t)any(4);
    }
    runs[n] = at;
    int column = any(2) ? ITEMS : LINES;
    pst_array items = column == ITEMS ? longs(at, UINT64_MAX) : texts(PST_STRING, at, 255);
    return pst_batch_list_append_many(b, column, runs, &items);
}

/* Now and then some keys have maps large enough for trees of several levels. */
static pst_status change_entries(pst_batch *b) {
    pst_array at = longs(n, any(5) ? 12 : 4000);
    if (any(10) < 3)
        return pst_batch_map_remove(b, ENTRIES, &at);
    pst_array values = texts(PST_STRING, n, 255);
    return pst_batch_map_put(b, ENTRIES, &at, &values);
}

static pst_status change_timers(pst_batch *b) {
    pst_domain domain = any(4) ? PST_EVENT : PST_PROCESSING;
    pst_array times = longs(n, TIMES);
    return any(10) < 3 ? pst_batch_timer_delete(b, domain, &times)
                       : pst_batch_timer_register(b, domain, &times);
}

static void fire_timers(void) {
    static int64_t times[MOST_KEYS];
    static const int64_t until[] = {TIMES / 20, TIMES / 3, INT64_MAX};
    pst_batch *b = NULL;
    pst_status s =
        pst_timers_due(run.t, PST_EVENT, until[any(3)], any(2) ? 100 : MOST_KEYS, times, &b);
    if (CHECK(s == PST_OK || s == PST_NOT_FOUND) && !s)
        CHECK_EQ(pst_timers_fire_all(b, PST_EVENT, times), PST_OK);
    pst_batch_destroy(b);
}

static void step(int grows) {
    uint64_t what = any(12);
    pst_array values;
    if (what == 11) {
        fire_timers();
        return;
    }
    draw_keys(grows);
    pst_batch *b = look_up();
    pst_status s = PST_OK;
    switch (what) {
    case 0:
        values = longs(n, 1 << 20);
        s = pst_batch_apply(b, NUMBER, PST_ADD, &values);
        break;
    case 1:
        values = longs(n, 1 << 20);
        s = pst_batch_apply(b, LARGEST, PST_MAX, &values);
        break;
    case 2:
    case 3:
        s = append(b);
        break;
    case 4:
    case 5:
        s = change_entries(b);
        break;
    case 6:
        s = change_timers(b);
        break;
    case 7:
        s = pst_batch_clear(b, (int32_t)any(TIMERS));
        break;
    case 8:
        s = pst_batch_clear(b, -1);
        break;
    default:
        s = put_values(b);
    }
    CHECK_EQ(s, PST_OK);
    pst_batch_destroy(b);
}

/* ---- epochs ---------------------------------------------------------------------------------- */

static pst_table *open_table(void) {
    pst_table_options o = {
        .max_parallelism = GROUPS, .last_key_group = GROUPS - 1, .limit_bytes = (uint64_t)1 << 30};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&run.schema, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static pst_lineage lineage_of(uint64_t epoch) {
    pst_lineage l = {.epoch = epoch};
    memcpy(l.id, &epoch, sizeof epoch);
    return l;
}

/* Ends the table's epoch and writes its delta. */
static void seal_into(pst_table *t, const pst_lineage *l, memory_file *f) {
    pst_sealed *sealed = NULL;
    pst_file_info info;
    REQUIRE(pst_table_seal(t, l, &sealed) == PST_OK);
    pst_io io = file_io(f, 0);
    REQUIRE(pst_sealed_write(sealed, &io, &info) == PST_OK);
    pst_sealed_destroy(sealed);
}

/* All that a table holds, as the delta of a table into which it was copied. */
static memory_file everything(pst_table *t) {
    pst_table *copy = open_table();
    memory_file f = {.calls_left = -1};
    pst_lineage l = lineage_of(1);
    REQUIRE(pst_table_copy(copy, t, 0, GROUPS - 1, NULL) == PST_OK);
    seal_into(copy, &l, &f);
    pst_table_close(copy);
    return f;
}

static void compare(void) {
    memory_file mine = everything(run.t), other = everything(run.replica);
    CHECK(mine.size == other.size && !memcmp(mine.data, other.data, mine.size));
    file_free(&mine);
    file_free(&other);
    check_ownership(run.t);
    seen.compared++;
}

/* Brings the replica to the next epoch. */
static void follow(memory_file *delta, const pst_lineage *l) {
    pst_sst_reader *r = NULL;
    REQUIRE(file_open(delta, &r) == PST_OK);
    REQUIRE(pst_table_load(run.replica, r, NULL, COLUMNS, NULL) == PST_OK);
    pst_sst_reader_close(r);
    REQUIRE(pst_table_seal(run.replica, l, NULL) == PST_OK);
}

/* What is said of a sealed epoch, before its delta, or of a roll back that is about to begin. */
typedef struct message {
    uint64_t first, next;
    double bytes;
    int64_t back; /* or -1 */
    pst_lineage lineage;
    uint64_t size; /* of the delta that follows */
} message;

static void tell(int32_t back, const pst_lineage *l, const memory_file *delta) {
    message m = {run.first, run.next, run.bytes, back, *l, delta ? delta->size : 0};
    REQUIRE(write(run.teller, &m, sizeof m) == sizeof m);
    for (uint64_t at = 0; at < m.size;) {
        ssize_t some = write(run.teller, delta->data + at, m.size - at);
        REQUIRE(some > 0);
        at += (uint64_t)some;
    }
}

static void seal(void) {
    static memory_file delta = {.calls_left = -1};
    pst_lineage before;
    uint32_t phase = run.t->m->cut_phase, slots = run.t->m->slots;
    REQUIRE(pst_table_lineage(run.t, 0, &before) == PST_OK);
    pst_lineage l = lineage_of(before.epoch + 1);
    delta.size = 0;
    seal_into(run.t, &l, &delta);
    if (run.teller) {
        tell(-1, &l, &delta);
        return;
    }
    follow(&delta, &l);
    CHECK_EQ(run.t->m->live, run.replica->m->live);
    seen.lowered += run.t->m->slots < slots;
    seen.given_up += phase == PST_CUT_RELIST;
    if (++run.seals % COMPARED_EVERY == 0)
        compare();
}

static void roll_back(int32_t back) {
    pst_lineage l;
    if (pst_table_lineage(run.t, back, &l))
        return;
    if (run.teller)
        tell(back, &l, NULL);
    CHECK_EQ(pst_table_rollback(run.t, back), PST_OK);
    if (run.teller)
        return;
    CHECK_EQ(pst_table_rollback(run.replica, back), PST_OK);
    CHECK_EQ(run.t->m->live, run.replica->m->live);
    seen.back[back]++;
}

/* Keys below the first one go, over several epochs. */
static void drop_old(uint64_t from) {
    while (from < run.first) {
        for (n = 0; from < run.first && n < MOST_KEYS;)
            numbers[n++] = (int64_t)from++;
        pst_batch *b = look_up();
        CHECK_EQ(pst_batch_clear(b, -1), PST_OK);
        pst_batch_destroy(b);
        seal();
    }
}

/* Some epochs in a row that next to nothing happens in: time for what is tidied at each seal. */
static void idle(int epochs) {
    for (int i = 0; i < epochs; i++) {
        n = 1;
        numbers[0] = (int64_t)run.first;
        pst_batch *b = look_up();
        pst_array one = longs(1, 2);
        CHECK_EQ(pst_batch_apply(b, NUMBER, PST_ADD, &one), PST_OK);
        pst_batch_destroy(b);
        seal();
    }
}

static void begin(const pst_column *key, uint64_t seed) {
    memset(&run, 0, sizeof run);
    run.schema = (pst_schema){1, COLUMNS, key, STATES, 1};
    run.random = seed;
    run.bytes = 100;
    run.replica = open_table();
}

/* Some epochs of one kind, and now and then the end of many keys. */
static void churn(void) {
    static const double drifts[] = {0.7, 1, 1, 1.4}, kept[] = {0.5, 0.1, 0};
    double drift = drifts[any(4)];
    int grows = (int)any(2);
    for (uint64_t left = 5 + any(20); left; left--) {
        run.bytes = fmin(fmax(run.bytes * drift, 4), 1000);
        for (uint64_t steps = 1 + any(6); steps; steps--)
            step(grows);
        if (any(8) == 0)
            roll_back((int32_t)any(3));
        else
            seal();
    }
    if (any(3) == 0 || run.next - run.first > 8 * MOST_KEYS) {
        uint64_t from = run.first;
        run.first = run.next - (uint64_t)((double)(run.next - run.first) * kept[any(3)]);
        drop_old(from);
        idle((int)any(120));
    }
}

static void test_churn(const pst_column *key, uint64_t epochs, uint64_t seed) {
    begin(key, seed);
    run.t = open_table();
    uint64_t failed = check_failed;
    while (run.seals < epochs && check_failed == failed)
        churn();
    compare();
    pst_table_close(run.t);
    pst_table_close(run.replica);
}

/* ---- a process that is killed ---------------------------------------------------------------- */

static char path[] = "/dev/shm/pst-churn-XXXXXX";

static pst_table *open_shared(void) {
    static const pst_identity identity = {.owner_pid = 1};
    pst_table_options o = {.max_parallelism = GROUPS,
                           .last_key_group = GROUPS - 1,
                           .limit_bytes = (uint64_t)1 << 30,
                           .path = path,
                           .identity = &identity,
                           .lock_timeout_ms = 5000,
                           .create = 1};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&run.schema, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static int hear_bytes(int from, void *to, uint64_t size) {
    for (uint64_t at = 0; at < size;) {
        ssize_t some = read(from, (uint8_t *)to + at, size - at);
        if (some <= 0)
            return 0;
        at += (uint64_t)some;
    }
    return 1;
}

/* Has the replica do what the other process did. 0: nothing more was said, or not to its end. */
static int hear(int from) {
    static memory_file delta = {.calls_left = -1};
    message m;
    if (!hear_bytes(from, &m, sizeof m))
        return 0;
    if (m.size > delta.capacity) {
        delta.data = realloc(delta.data, m.size);
        REQUIRE(delta.data);
        delta.capacity = m.size;
    }
    delta.size = m.size;
    if (!hear_bytes(from, delta.data, m.size))
        return 0;
    if (m.back < 0)
        follow(&delta, &m.lineage);
    else
        CHECK_EQ(pst_table_rollback(run.replica, (int32_t)m.back), PST_OK);
    run.first = m.first;
    run.next = m.next;
    run.bytes = m.bytes;
    return 1;
}

/* The table may be ahead: of an epoch whose delta did not come, or of a roll back that was not
 * done. */
static void meet(void) {
    pst_lineage mine, other;
    REQUIRE(pst_table_lineage(run.t, 0, &mine) == PST_OK);
    REQUIRE(pst_table_lineage(run.replica, 0, &other) == PST_OK);
    REQUIRE(mine.epoch >= other.epoch && mine.epoch - other.epoch <= 2);
    if (mine.epoch > other.epoch)
        CHECK_EQ(pst_table_rollback(run.t, (int32_t)(mine.epoch - other.epoch)), PST_OK);
    seen.ahead += mine.epoch > other.epoch;
    compare();
}

static void test_kills(const pst_column *key, int kills, uint64_t seed) {
    begin(key, seed);
    unlink(path);
    uint64_t failed = check_failed;
    for (int i = 0; i < kills && check_failed == failed; i++) {
        int ends[2];
        REQUIRE(pipe(ends) == 0);
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (!child) {
            close(ends[0]);
            run.random = seed + 1000 * (uint64_t)i;
            run.teller = ends[1];
            run.t = open_shared();
            for (;;)
                churn();
        }
        close(ends[1]);
        for (uint64_t messages = any(20); messages && hear(ends[0]); messages--)
            ;
        struct timespec while_longer = {0, (long)any(4000000)};
        nanosleep(&while_longer, NULL);
        REQUIRE(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        while (hear(ends[0]))
            ;
        close(ends[0]);
        run.t = open_shared();
        meet();
        pst_table_close(run.t);
    }
    pst_table_close(run.replica);
    unlink(path);
}

int main(int argc, char **argv) {
    uint64_t epochs = argc > 1 ? strtoull(argv[1], NULL, 10) : 250;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    test_churn(LONG_KEY, epochs, seed);
    test_churn(TEXT_KEY, epochs, seed + 1);
    int kills = argc > 3 ? atoi(argv[3]) : 8, fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    test_kills(LONG_KEY, kills, seed);
    test_kills(TEXT_KEY, kills, seed + 1);
    fprintf(stderr, "compared %llu, roll backs over 0, 1, 2 epochs: %llu, %llu, %llu; ",
            (unsigned long long)seen.compared, (unsigned long long)seen.back[0],
            (unsigned long long)seen.back[1], (unsigned long long)seen.back[2]);
    fprintf(stderr, "slots lowered %llu, cuts given up %llu, tables ahead %llu\n",
            (unsigned long long)seen.lowered, (unsigned long long)seen.given_up,
            (unsigned long long)seen.ahead);
    CHECK(seen.given_up > 0);
    return check_report();
}
