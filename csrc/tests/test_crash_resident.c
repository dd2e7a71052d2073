/* The process dies after every store of rows that come, of rows that leave, of settling, and of the
 * epochs around them: see test_crash.c. The copy gets what is missing from the files, and must then
 * be as the model was in the epoch at which it stands.
 *
 *   test_crash_resident [epochs] [seed] [every]
 */
#include "below.h"
#include "crash.h"
#include "kinds.h"
#include "snapshot/leave_epochs.h"

static struct {
    const kind *kind;
    pst_table *t, *copy, *whole;
    void *model, *twin, *scratch;
    below_files files;
    uint64_t seals; /* the last epoch of which the files have the changes */
    uint64_t points, looked, every, random;
    uint64_t at[4]; /* sealed, going back 1, going back 2, written on */
} sweep;

static int admit_all(pst_table *t, uint64_t epoch, uint64_t one_in) {
    model_bytes room;
    pst_cell cells[2];
    for (int k = 0; k < sweep.kind->keys; k++) {
        sweep.kind->cells(sweep.model, k, cells, &room);
        if (check_random(&sweep.random) % one_in || below_is_here(t, cells))
            continue;
        pst_status s = below_admit(&sweep.files, t, cells, epoch);
        if (!CHECK(s == PST_OK || s == PST_NOT_FOUND))
            return 0;
    }
    return 1;
}

/* The copy, with what the files have, against the model. */
static int compare(uint64_t epoch) {
    memcpy(sweep.scratch, sweep.model, sweep.kind->size);
    sweep.kind->own(sweep.scratch);
    sweep.kind->back(sweep.scratch, epoch);
    sweep.kind->clock(sweep.scratch, sweep.copy);
    check_ownership(sweep.copy);
    return admit_all(sweep.copy, epoch, 1) && sweep.kind->compare(sweep.scratch, sweep.copy);
}

/* For as long as it takes to reuse what was freed. */
static int write_on(void) {
    int epochs = check_random(&sweep.random) % 8 ? 1 : 6, ok = 1;
    for (int e = 0; ok && e < epochs; e++) {
        for (int i = 0; i < 6; i++)
            sweep.kind->step(sweep.scratch, sweep.copy, &sweep.random);
        ok = sweep.kind->compare(sweep.scratch, sweep.copy);
        sweep.kind->seal(sweep.scratch, sweep.copy, NULL);
        ok = ok && sweep.kind->compare(sweep.scratch, sweep.copy);
    }
    return ok;
}

static void check_copy(void) {
    pst_lineage l;
    copy_image(sweep.t, sweep.copy);
    pst_epoch_recover(sweep.copy);
    REQUIRE(pst_table_lineage(sweep.copy, 0, &l) == PST_OK);
    int ok = CHECK(l.epoch <= sweep.seals && l.epoch + 4 > sweep.seals) && compare(l.epoch);
    sweep.at[0]++;
    int32_t back = (int32_t)(check_random(&sweep.random) % 4);
    if (ok && back < 3 && pst_table_lineage(sweep.copy, back, &l) == PST_OK) {
        ok = CHECK_EQ(pst_table_rollback(sweep.copy, back), PST_OK) && compare(l.epoch);
        sweep.at[back]++;
    }
    if (ok && check_random(&sweep.random) % 4 == 0) {
        ok = write_on();
        sweep.at[3]++;
    }
    if (!ok) {
        fprintf(stderr, "    after store %llu, epoch %llu\n", (unsigned long long)sweep.points,
                (unsigned long long)l.epoch);
        exit(check_report());
    }
}

static void after_store(void) {
    sweep.points++;
    if (sweep.points % sweep.every)
        return;
    pst_crash_hook = NULL;
    sweep.files.within = 1;
    check_copy();
    sweep.files.within = 0;
    sweep.looked++;
    pst_crash_hook = after_store;
}

static void leave(void) {
    uint64_t keys = (uint64_t)sweep.kind->keys;
    pst_room wanted = {1 + check_random(&sweep.random) % keys, 0};
    if (sweep.t->lay.timers >= 0 && check_random(&sweep.random) % 3)
        for (int d = 0; d < 2; d++)
            CHECK_EQ(pst_table_set_horizon(sweep.t, (pst_domain)d,
                                           em_time((int)(check_random(&sweep.random) % 4))),
                     PST_OK);
    pst_crash_hook = after_store;
    CHECK_EQ(pst_leave_epochs(sweep.t, &wanted, NULL), PST_OK);
    pst_crash_hook = NULL;
}

/* The twin, which has all rows, is sealed first: so the files have the epoch's changes as soon as
 * the table itself may have them. */
static void seal(void) {
    pst_sealed *changes = NULL;
    sweep.kind->seal(sweep.twin, sweep.whole, &changes);
    below_add(&sweep.files, ++sweep.seals, changes);
    pst_sealed_destroy(changes);
    pst_crash_hook = after_store;
    sweep.kind->seal(sweep.model, sweep.t, NULL);
    pst_crash_hook = NULL;
}

static int go_on(void) {
    uint64_t what = check_random(&sweep.random);
    if (what % 2)
        leave();
    pst_crash_hook = after_store;
    if (what / 2 % 4 == 0)
        CHECK_EQ(pst_table_settle(sweep.t), PST_OK);
    int ok = admit_all(sweep.t, UINT64_MAX, 1 + what / 8 % 3);
    pst_crash_hook = NULL;
    if (what / 32 % 4) {
        ok = ok && admit_all(sweep.t, UINT64_MAX, 1);
        for (uint64_t i = what / 128 % 8; ok && i; i--) {
            uint64_t random = check_random(&sweep.random), same = random;
            sweep.kind->step(sweep.model, sweep.t, &random);
            sweep.kind->step(sweep.twin, sweep.whole, &same);
        }
        ok = ok && sweep.kind->compare(sweep.model, sweep.t);
    }
    seal();
    return ok;
}

static void run(const kind *kind_of, pst_table *(*open)(void *model), int epochs) {
    sweep.kind = kind_of;
    sweep.t = open(sweep.model);
    sweep.copy = open(sweep.model);
    sweep.whole = open(sweep.twin);
    sweep.scratch = malloc(sweep.kind->size);
    REQUIRE(sweep.scratch);
    below_init(&sweep.files, &sweep.t->schema, sweep.t->max_parallelism);
    sweep.seals = 0;
    pst_table_set_whole(sweep.t, 0);
    for (int e = 0; e < epochs && go_on(); e++)
        ;
    below_free(&sweep.files);
    pst_table_close(sweep.t);
    pst_table_close(sweep.copy);
    pst_table_close(sweep.whole);
    free(sweep.model);
    free(sweep.twin);
    free(sweep.scratch);
}

static pst_table *open_elements(void *m) {
    return em_open(m, 0, 3);
}

static pst_table *open_values(void *m) {
    pst_table_options o = {
        .max_parallelism = 2, .last_key_group = 1, .limit_bytes = (uint64_t)1 << 26};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(((model *)m)->schema, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static void *model_of_elements(int spaces) {
    elements_model *m = calloc(1, sizeof *m);
    REQUIRE(m);
    em_init(m, spaces, 0);
    return m;
}

static void *model_of_values(const pst_schema *s) {
    model *m = calloc(1, sizeof *m);
    REQUIRE(m);
    m->schema = s;
    m->keys = VALUE_KEYS;
    return m;
}

int main(int argc, char **argv) {
    int epochs = argc > 1 ? atoi(argv[1]) : 20;
    sweep.random = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t every = argc > 3 ? strtoull(argv[3], NULL, 10) : 29;
    pst_schema schemas[] = {{1, 2, MODEL_LONG_KEY, MODEL_STATES},
                            {1, 3, MODEL_TEXT_KEY, MODEL_STATES},
                            {1, 9, MODEL_LONG_KEY, MODEL_STATES}};
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        sweep.every = every;
        sweep.model = model_of_values(&schemas[i]);
        sweep.twin = model_of_values(&schemas[i]);
        run(&VALUES, open_values, epochs);
    }
    for (int spaces = 0; spaces < 2; spaces++) {
        sweep.every = every * 3;
        sweep.model = model_of_elements(spaces);
        sweep.twin = model_of_elements(spaces);
        run(&ELEMENTS, open_elements, epochs);
    }
    fprintf(stderr, "%llu stores, %llu looked at; back 1: %llu, back 2: %llu, written on: %llu\n",
            (unsigned long long)sweep.points, (unsigned long long)sweep.looked,
            (unsigned long long)sweep.at[1], (unsigned long long)sweep.at[2],
            (unsigned long long)sweep.at[3]);
    CHECK(sweep.looked > 0);
    return check_report();
}
