/* What the open epoch changed, beside the files of the epochs before it: at any moment of a random
 * program, files and changes merged hold what the table holds, and the table knows nothing of it.
 *
 *   test_changes [worlds] [seed]
 */
#include "chain_compare.h"
#include "epoch_files.h"

enum { WORLDS = 120, EPOCHS = 8 };

static uint64_t looks, empty;

/* Files and the open epoch are the table. */
static void check_now(world *w, pst_table *t, memory_file *files, int n) {
    files[n] = epoch_changes(t);
    memory_file again = epoch_changes(t);
    CHECK(again.size == files[n].size && !memcmp(again.data, files[n].data, again.size));
    file_free(&again);
    memory_file merged = epochs_merged(w, files, n + 1, PST_BASE);
    pst_table *got = epochs_loaded(w, &merged, 1);
    CHECK(same_tables(w, t, got, w->first, w->last));
    pst_table_close(got);
    looks++;
    empty += !pst_table_dirty(t);
    file_free(&merged);
    file_free(&files[n]);
}

/* Refused memory, wherever it is, changes nothing either. */
static void check_refused(pst_table *t) {
    for (int64_t n = 0;; n++) {
        pst_sealed *sealed = NULL;
        check_fail_alloc(n, 0);
        pst_status s = pst_table_changes(t, &sealed);
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(s, refused ? PST_NO_MEMORY : PST_OK);
        pst_sealed_destroy(sealed);
        if (!refused)
            break;
    }
}

/* A batch of before is valid after. */
static void check_batch(pst_table *t) {
    pst_sealed *sealed = NULL;
    pst_batch *b = NULL;
    uint64_t cursor = 0;
    pst_status s = pst_batch_all(t, &cursor, 4, &b);
    if (s == PST_NOT_FOUND)
        return;
    REQUIRE(s == PST_OK && pst_table_changes(t, &sealed) == PST_OK);
    pst_sealed_destroy(sealed);
    CHECK_EQ(pst_batch_clear(b, -1), PST_OK);
    pst_batch_destroy(b);
}

static void run_world(uint64_t seed) {
    world *w = world_create(seed);
    memory_file files[EPOCHS + 1];
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_table_set_clock(t, &w->now);
    for (int n = 0; n < EPOCHS && !check_failed; n++) {
        for (uint64_t looked = 0; looked < 3; looked++) {
            for (uint64_t steps = world_below(w, n ? 12 : 60); steps > 0; steps--)
                world_step(w, t);
            if (world_one_in(w, 3))
                world_fire(w, t);
            if (world_one_in(w, 3))
                world_pass_time(w, t);
            REQUIRE(!w->failed);
            check_now(w, t, files, n);
        }
        if (seed % 8 == 0)
            check_refused(t);
        if (world_one_in(w, 4))
            check_batch(t);
        check_now(w, t, files, n);
        memory_file changes = epoch_changes(t);
        files[n] = epoch_sealed(t, (uint64_t)n + 1);
        CHECK(epochs_equal(&changes, &files[n]));
        file_free(&changes);
        check_now(w, t, files, n + 1);
    }
    epochs_free(files, EPOCHS);
    pst_table_close(t);
    free(w);
}

static void test_misuse(void) {
    world *w = world_create(3);
    pst_table *t = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_sealed *sealed = NULL;
    pst_lineage l = epoch_lineage(7);
    CHECK_EQ(pst_table_seal(t, &l, NULL), PST_OK);
    REQUIRE(pst_table_changes(t, &sealed) == PST_OK);
    CHECK_EQ(pst_sealed_rows(sealed), 0);
    CHECK(!memcmp(pst_sealed_lineage(sealed)->parent, l.id, sizeof l.id));
    pst_sealed_destroy(sealed);
    pst_poison(t, PST_NO_MEMORY);
    CHECK_EQ(pst_table_changes(t, &sealed), PST_POISONED);
    pst_table_close(t);
    free(w);
}

int main(int argc, char **argv) {
    uint64_t worlds = argc > 1 ? strtoull(argv[1], NULL, 10) : WORLDS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    test_misuse();
    for (uint64_t i = 0; i < worlds && !check_failed; i++) {
        run_world(seed * 100000 + i);
        if (check_failed)
            fprintf(stderr, "    world %" PRIu64 "\n", seed * 100000 + i);
    }
    CHECK(argc > 1 || (compared.items && compared.entry_times && compared.timers && looks > empty));
    return check_report();
}
