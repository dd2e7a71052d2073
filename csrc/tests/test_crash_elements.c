/* The process dies after every store of list appends, map puts and removes (with the growth of a
 * map from a leaf to a tree), timers and expiry: see test_crash.c.
 *
 *   test_crash_elements [steps] [seed] [every]
 */
#include "crash.h"
#include "elements_model.h"

static struct {
    pst_table *t;
    elements_model *m;
    elements_model *scratch;
    pst_table *copy;
    uint64_t points, looked, every, random;
    uint64_t at[4]; /* sealed, going back 1, going back 2, written on */
} sweep;

static void after_store(void);

/* Goes on from where the copy stands, for as long as it takes to reuse what was freed. */
static int write_on(uint64_t seals) {
    elements_model *m = sweep.scratch;
    *m = *sweep.m;
    m->schema.states = m->states;
    m->seals = seals;
    m->now = m->sealed[seals % EM_EPOCHS];
    em_clock(m, sweep.copy);
    int epochs = check_random(&sweep.random) % 8 ? 1 : 6, ok = 1;
    for (int e = 0; ok && e < epochs; e++) {
        for (int i = 0; i < 10; i++)
            em_step(m, sweep.copy, &sweep.random);
        if (m->ttl_ms)
            em_pass(m, sweep.copy, 20, 50);
        ok = em_compare(m, &m->now, sweep.copy);
        em_seal(m, sweep.copy, NULL);
        ok = ok && em_compare(m, &m->now, sweep.copy);
    }
    return ok;
}

static void check_copy(void) {
    const elements_model *m = sweep.m;
    pst_lineage l;
    copy_image(sweep.t, sweep.copy);
    pst_epoch_recover(sweep.copy);
    em_clock(sweep.m, sweep.copy);
    REQUIRE(pst_table_lineage(sweep.copy, 0, &l) == PST_OK);
    int ok = CHECK(l.epoch + 3 > m->seals && l.epoch <= m->seals + 1) &&
             em_compare(m, &m->sealed[l.epoch % EM_EPOCHS], sweep.copy);
    sweep.at[0]++;
    int32_t back = (int32_t)(check_random(&sweep.random) % 4);
    if (ok && back < 3 && pst_table_lineage(sweep.copy, back, &l) == PST_OK) {
        ok = CHECK_EQ(pst_table_rollback(sweep.copy, back), PST_OK) &&
             em_compare(m, &m->sealed[l.epoch % EM_EPOCHS], sweep.copy);
        sweep.at[back]++;
    }
    if (ok && check_random(&sweep.random) % 8 == 0) {
        ok = write_on(l.epoch);
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
    check_copy();
    sweep.looked++;
    pst_crash_hook = after_store;
}

static void run(int spaces, int64_t ttl_ms, int steps, uint64_t seed) {
    elements_model *m = malloc(sizeof *m);
    sweep.scratch = malloc(sizeof *sweep.scratch);
    REQUIRE(m && sweep.scratch);
    em_init(m, spaces, ttl_ms);
    sweep.m = m;
    sweep.t = em_open(m, 0, 3);
    sweep.copy = em_open(m, 0, 3);
    sweep.random = seed;
    for (int i = 0; i < steps; i++) {
        pst_crash_hook = after_store;
        if (i % 10 == 9)
            em_seal(m, sweep.t, NULL);
        else if (ttl_ms && i % 10 == 8)
            em_pass(m, sweep.t, (int64_t)(check_random(&seed) % 60), 40);
        else
            em_step(m, sweep.t, &seed);
        pst_crash_hook = NULL;
        if (!CHECK(em_compare(m, &m->now, sweep.t)))
            break;
    }
    pst_table_close(sweep.t);
    pst_table_close(sweep.copy);
    free(sweep.scratch);
    free(m);
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 100;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    sweep.every = argc > 3 ? strtoull(argv[3], NULL, 10) : 17;
    for (int spaces = 0; spaces < 2; spaces++)
        for (int64_t ttl_ms = 0; ttl_ms < 200; ttl_ms += 100)
            run(spaces, ttl_ms, steps, seed++);
    fprintf(stderr, "%llu stores, %llu looked at; back 1: %llu, back 2: %llu, written on: %llu\n",
            (unsigned long long)sweep.points, (unsigned long long)sweep.looked,
            (unsigned long long)sweep.at[1], (unsigned long long)sweep.at[2],
            (unsigned long long)sweep.at[3]);
    CHECK(sweep.looked > 0);
    return check_report();
}
