/* Readers of sealed epochs beside a writer that inserts, updates, deletes, grows, seals and rolls
 * back: whatever a reader is told belongs to exactly the epoch it pinned, or it is told that the
 * epoch is gone. Built with -fsanitize=thread it also shows that no access races.
 *
 *   test_reader [steps] [seed]
 */
#include <pthread.h>
#include <sched.h>

#include "table/undo.h"
#include "table_model.h"

enum { HISTORY = 16 };

/* Sealed states by a number that is never used twice, which travels as the lineage's query. */
static struct {
    pthread_mutex_t lock;
    uint64_t number[HISTORY];
    model_state state[HISTORY];
    pst_table *t;
    const pst_schema *schema;
    _Atomic int done;
    _Atomic uint64_t complete, too_old;
    uint64_t moved; /* keys whose bytes were, by seals */
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int same_record(const pst_schema *s, const model_state *m, int32_t k, const pst_record *r) {
    for (int32_t c = 0; c < s->n_states; c++) {
        if ((int)(r->present >> c & 1) != m->present[k][c])
            return 0;
        if (m->present[k][c] && !model_same(s->states[c].type, m->value[k][c], &r->cells[c]))
            return 0;
    }
    return 1;
}

/* 1: everything agreed; 0: the epoch went away in the middle. */
static int read_epoch(pst_reader *reader, const model_state *m, pst_record *r) {
    const pst_schema *s = shared.schema;
    uint64_t cursor = 0, rows = 0, alive = 0;
    pst_status st;
    for (int32_t k = 0; k < MODEL_KEYS; k++) {
        pst_cell key[2];
        model_bytes room;
        model_key(s, k, key, &room);
        st = pst_reader_get(reader, key, 0, r);
        if (st == PST_SNAPSHOT_TOO_OLD)
            return 0;
        int lives = model_alive(m, s, k);
        alive += (uint64_t)lives;
        CHECK_EQ(st, lives ? PST_OK : PST_NOT_FOUND);
        if (!st)
            CHECK(same_record(s, m, k, r));
    }
    while ((st = pst_reader_next(reader, &cursor, r)) == PST_OK)
        rows++;
    if (st == PST_SNAPSHOT_TOO_OLD)
        return 0;
    CHECK_EQ(rows, alive);
    return 1;
}

static void *read_on(void *unused) {
    model_state *m = malloc(sizeof *m);
    pst_record *r = malloc(sizeof *r);
    REQUIRE(m && r);
    while (!atomic_load(&shared.done)) {
        pst_reader *reader = NULL;
        REQUIRE(pst_reader_open(shared.t, NULL, NULL, &reader, NULL) == PST_OK);
        uint64_t number = pst_reader_lineage(reader)->query;
        pthread_mutex_lock(&shared.lock);
        int known = shared.number[number % HISTORY] == number;
        if (known)
            *m = shared.state[number % HISTORY];
        pthread_mutex_unlock(&shared.lock);
        if (known && read_epoch(reader, m, r))
            atomic_fetch_add(&shared.complete, 1);
        else
            atomic_fetch_add(&shared.too_old, 1);
        pst_reader_close(reader);
    }
    free(r);
    free(m);
    return unused;
}

static void seal(model *m, uint64_t number) {
    pst_lineage l = model_lineage(m->seals + 1);
    l.query = number;
    m->sealed[(m->seals + 1) % MODEL_EPOCHS] = m->now;
    pthread_mutex_lock(&shared.lock);
    shared.number[number % HISTORY] = number;
    shared.state[number % HISTORY] = m->now;
    pthread_mutex_unlock(&shared.lock);
    REQUIRE(pst_table_seal(shared.t, &l, NULL) == PST_OK);
    m->seals++;
    const pst_header *h = shared.t->h;
    uint8_t *log = pst_undo_log(shared.t, h->sealed);
    for (uint64_t i = 0; i < h->undo_count[h->sealed % PST_UNDO_LOGS]; i++)
        shared.moved += pst_get64(pst_undo_record(shared.t, log, i)) >> 32;
}

/* Every state of the keys that are a multiple of so many, and nothing of others. */
static void keep(model *m, int32_t every) {
    const pst_schema *s = shared.schema;
    for (int32_t k = 0; k < MODEL_KEYS; k++) {
        pst_cell key[2];
        model_bytes room;
        model_key(s, k, key, &room);
        REQUIRE(pst_key_set(shared.t, key, 0) == PST_OK);
        for (int32_t c = 0; c < s->n_states; c++) {
            pst_cell cell;
            model_bytes bytes;
            model_cell(s->states[c].type, (uint64_t)k, &cell, &bytes);
            m->now.present[k][c] = k % every == 0;
            m->now.value[k][c] = (uint64_t)k;
            CHECK_EQ(k % every ? pst_value_clear(shared.t, c) : pst_value_put(shared.t, c, &cell),
                     PST_OK);
        }
    }
}

/* Most keys go, so that those that stay are moved out of spans that are mostly free. */
static void thin_out(model *m, uint64_t *number) {
    keep(m, 1);
    seal(m, (*number)++);
    keep(m, 15);
    for (int i = 0; i < 40; i++)
        seal(m, (*number)++);
}

/* Waits until a reader has read an epoch whole, so that the window does not always outrun them. */
static void let_one_finish(void) {
    uint64_t before = atomic_load(&shared.complete);
    while (atomic_load(&shared.complete) == before)
        sched_yield();
}

static void run(const pst_schema *s, int steps, uint64_t seed) {
    model *m = calloc(1, sizeof *m);
    pthread_t readers[2];
    uint64_t number = 0;
    pst_table_options o = {.max_parallelism = 2, .last_key_group = 1};
    REQUIRE(m != NULL);
    m->schema = s;
    m->keys = MODEL_KEYS;
    shared.schema = s;
    REQUIRE(pst_table_open(s, &o, &shared.t, NULL, NULL) == PST_OK);
    memset(shared.number, 0xFF, sizeof shared.number);
    seal(m, number++); /* the empty table */
    atomic_store(&shared.done, 0);
    for (int i = 0; i < 2; i++)
        REQUIRE(pthread_create(&readers[i], NULL, read_on, NULL) == 0);
    for (int i = 0; i < steps; i++) {
        if (i % 100 == 99)
            thin_out(m, &number);
        if (i % 5 == 4) {
            seal(m, number++);
            if (i % 50 == 4)
                let_one_finish();
            continue;
        }
        uint64_t what = check_random(&seed) % 100;
        if (what < 60) {
            model_many(shared.t, m, &seed, 1 + (int)(check_random(&seed) % 100),
                       (int)(check_random(&seed) % 4));
        } else if (what < 92) {
            model_one_key(shared.t, m, &seed);
        } else {
            int32_t back = (int32_t)(check_random(&seed) % 2);
            pst_lineage l;
            if (pst_table_lineage(shared.t, back, &l))
                back = 0;
            CHECK_EQ(pst_table_rollback(shared.t, back), PST_OK);
            CHECK(model_follow(shared.t, m));
        }
    }
    let_one_finish();
    atomic_store(&shared.done, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);
    CHECK(model_compare(shared.t, &m->now, s, m->keys));
    pst_table_close(shared.t);
    free(m);
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 600;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    pst_schema schemas[] = {{1, 2, MODEL_LONG_KEY, MODEL_STATES},
                            {1, 3, MODEL_TEXT_KEY, MODEL_STATES},
                            {1, 9, MODEL_LONG_KEY, MODEL_STATES}};
    for (int i = 0; i < 3; i++)
        run(&schemas[i], steps, seed + (uint64_t)i);
    fprintf(stderr, "%llu epochs read whole, %llu went away meanwhile, %llu keys moved\n",
            (unsigned long long)shared.complete, (unsigned long long)shared.too_old,
            (unsigned long long)shared.moved);
    CHECK(shared.moved > 0);
    return check_report();
}
