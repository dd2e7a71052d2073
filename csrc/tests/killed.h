/* killed.h: a process dies after any store while keys are changed that have much in files.
 *
 * What a test says of its model: its size, what changes it together with the table, and what compares it
 * with a table. Both use `kill_`.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_KILLED_H
#define PST_TEST_KILLED_H

#include "crash.h"
#include "long_files.h"

static struct {
    files *f;
    uint64_t key, points, looked, random, every, below;
    pst_table *copy;
    size_t size;
    void *now, *sealed[2]; /* models of the open epoch, and of the last ones */
    void (*change)(files *f);
    void (*compare)(pst_table *t, const void *model);
    pst_lineage lineage[2];
    pst_stack *stack[2]; /* [0]: the last epoch's, NULL while its delta is not there */
} kill_;

static void kill_after_store(void) {
    pst_lineage l;
    if (++kill_.points % kill_.every)
        return;
    pst_crash_hook = NULL;
    copy_image(kill_.f->t, kill_.copy);
    pst_epoch_recover(kill_.copy);
    REQUIRE(!pst_table_lineage(kill_.copy, 0, &l));
    int at = memcmp(&l, &kill_.lineage[0], sizeof l) != 0;
    REQUIRE(!memcmp(&l, &kill_.lineage[at], sizeof l));
    check_ownership(kill_.copy);
    if (kill_.stack[at]) {
        REQUIRE(!pst_table_set_stack(kill_.copy, kill_.stack[at], &l));
        kill_.compare(kill_.copy, kill_.sealed[at]);
        check_ownership(kill_.copy);
        kill_.looked++;
    }
    pst_crash_hook = kill_after_store;
}

static void kill_seal_and_leave(files *f) {
    pst_stack_close(kill_.stack[1]);
    kill_.stack[1] = kill_.stack[0];
    kill_.lineage[1] = kill_.lineage[0];
    memcpy(kill_.sealed[1], kill_.sealed[0], kill_.size);
    kill_.stack[0] = NULL;
    kill_.lineage[0] = (pst_lineage){.epoch = f->next + 1};
    memcpy(kill_.lineage[0].id, &kill_.lineage[0].epoch, sizeof f->next);
    memcpy(kill_.sealed[0], kill_.now, kill_.size);
    seal(f);
    kill_.stack[0] = pst_stack_retain(f->stack);
    if (check_random(&kill_.random) % 3)
        leave(f, 1 + check_random(&kill_.random) % 3);
}

/* `models` are three, each of so many bytes; one without anything is all zeros. */
static void kill_begin(void *models, size_t size) {
    memset(models, 0, 3 * size);
    memset(&kill_, 0, sizeof kill_);
    kill_.size = size;
    kill_.now = models;
    kill_.sealed[0] = (uint8_t *)models + size;
    kill_.sealed[1] = (uint8_t *)models + 2 * size;
}

/* REQUIRES: `change`, `compare` and `every` are set. */
static void kill_run(files *f, uint64_t seed) {
    begin(f, (uint64_t)1 << 26);
    kill_.f = f;
    kill_.random = seed;
    kill_.key = long_key(seed);
    kill_.copy = files_open(f, (uint64_t)1 << 26);
    pst_cell one = {{1, 0}, {NULL, 0}};
    REQUIRE(!set_key(f->t, kill_.key, 99) && !pst_value_put(f->t, A, &one));
    kill_seal_and_leave(f);
    for (int e = 0; e < 24; e++) {
        pst_crash_hook = kill_after_store;
        for (uint64_t n = check_random(&kill_.random) % 5; n > 0; n--)
            kill_.change(f);
        if (check_random(&kill_.random) % 6 == 0) {
            REQUIRE(!pst_table_rollback(f->t, 0));
            memcpy(kill_.now, kill_.sealed[0], kill_.size);
            kill_.change(f);
        }
        kill_.compare(f->t, kill_.now);
        kill_seal_and_leave(f);
        pst_crash_hook = NULL;
        kill_.compare(f->t, kill_.now);
        check_ownership(f->t);
        if (check_random(&kill_.random) % 5 == 0)
            anew(f, (uint64_t)1 << 26);
    }
    CHECK(kill_.looked > 10 && kill_.below > 10);
}

static void kill_end(files *f) {
    pst_table_close(kill_.copy);
    pst_stack_close(kill_.stack[0]);
    pst_stack_close(kill_.stack[1]);
    end(f);
}

#endif
