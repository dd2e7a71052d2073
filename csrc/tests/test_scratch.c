/* Memory that is used again has one owner at a time, and little of it is kept. */
#include "check.h"

#include <malloc.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/scratch.h"

#ifdef __SANITIZE_ADDRESS__
enum { KEEPS = 0 };
#else
enum { KEEPS = 1 };
#endif

enum { THREADS = 4, ROUNDS = 20000, HELD = 6 };

static void test_used_again(void) {
    uint8_t *first = pst_scratch_take(500000);
    REQUIRE(first);
    CHECK_EQ((uintptr_t)first % 64, 0);
    memset(first, 1, 500000);
    pst_scratch_drop(first);
    uint8_t *second = pst_scratch_take(400000);
    CHECK(second);
    CHECK_EQ(second == first, KEEPS);
    /* Somebody has it. */
    uint8_t *third = pst_scratch_take(400000);
    CHECK(third != second);
    pst_scratch_drop(second);
    /* Much larger than what is asked for, or smaller: left for others. */
    uint8_t *small = pst_scratch_take(20000), *large = pst_scratch_take(900000);
    CHECK(small != second && large != second);
    memset(large, 2, 900000);
    pst_scratch_drop(small);
    pst_scratch_drop(large);
    pst_scratch_drop(third);
    pst_scratch_drop(NULL);
}

/* Sizes that were asked for once do not keep others out. */
static void test_newest(void) {
    void *blocks[PST_SCRATCH_KEPT];
    for (int i = 0; i < PST_SCRATCH_KEPT; i++)
        REQUIRE(blocks[i] = pst_scratch_take(PST_SCRATCH_LEAST));
    for (int i = 0; i < PST_SCRATCH_KEPT; i++)
        pst_scratch_drop(blocks[i]);
    void *large = pst_scratch_take(700000), *larger = pst_scratch_take(900000);
    pst_scratch_drop(large);
    pst_scratch_drop(larger);
    for (int i = 0; i < 3; i++) {
        void *again = pst_scratch_take(700000), *second = pst_scratch_take(700000);
        CHECK(!KEEPS || (again == larger && second == large));
        pst_scratch_drop(second);
        pst_scratch_drop(again);
    }
}

/* Of many blocks that are dropped, the places hold some; of large ones none. */
static void test_bounded(void) {
    enum { MANY = 64 };
    void *blocks[MANY];
    for (size_t size = 8 * PST_SCRATCH_MOST; size >= PST_SCRATCH_MOST; size /= 8) {
        for (int i = 0; i < MANY; i++)
            REQUIRE(blocks[i] = pst_scratch_take(size));
        for (int i = 0; i < MANY; i++)
            pst_scratch_drop(blocks[i]);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        struct mallinfo2 m = mallinfo2();
        CHECK(m.uordblks + m.hblkhd < (PST_SCRATCH_KEPT + 1) * (size_t)PST_SCRATCH_MOST);
#endif
    }
}

static void test_refused(void) {
    pst_scratch_drop(pst_scratch_take(100000));
    void *blocks[PST_SCRATCH_KEPT + 1];
    /* Of those that are kept, and of new ones. */
    for (int i = 0; i <= PST_SCRATCH_KEPT; i++) {
        check_fail_alloc(0, 0);
        CHECK(!pst_scratch_take(100000));
        CHECK(check_alloc_failed());
        blocks[i] = pst_scratch_take(100000);
        REQUIRE(blocks[i]);
    }
    for (int i = 0; i <= PST_SCRATCH_KEPT; i++)
        pst_scratch_drop(blocks[i]);
}

/* What a thread wrote is there until it drops the block. */
static void *owner(void *seed) {
    uint64_t random = (uintptr_t)seed;
    uint64_t *held[HELD] = {0};
    size_t words[HELD] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t at = check_random(&random) % HELD;
        if (held[at]) {
            CHECK(held[at][0] == (uintptr_t)held[at] + at);
            CHECK(held[at][words[at] - 1] == (uintptr_t)seed);
            pst_scratch_drop(held[at]);
            held[at] = NULL;
            continue;
        }
        words[at] = ((size_t)PST_SCRATCH_LEAST << check_random(&random) % 4) / 8 + 8;
        held[at] = pst_scratch_take(words[at] * 8);
        REQUIRE(held[at]);
        held[at][0] = (uintptr_t)held[at] + at;
        held[at][words[at] - 1] = (uintptr_t)seed;
    }
    for (int at = 0; at < HELD; at++)
        pst_scratch_drop(held[at]);
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&threads[i], NULL, owner, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

int main(void) {
    test_used_again();
    test_newest();
    test_bounded();
    test_refused();
    test_threads();
    return check_report();
}
