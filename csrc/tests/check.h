/* check.h: what the C tests share. A test program calls CHECK for every claim, runs on after a
 * failure, and ends with `return check_report();`.
 *
 * Thread safety: the counters are atomic; everything else belongs to one thread.
 */
#ifndef PST_CHECK_H
#define PST_CHECK_H

#include <inttypes.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static _Atomic uint64_t check_passed;
static _Atomic uint64_t check_failed;

static inline int check_true(int ok, const char *what, const char *file, int line) {
    if (ok) {
        atomic_fetch_add_explicit(&check_passed, 1, memory_order_relaxed);
        return 1;
    }
    if (atomic_fetch_add_explicit(&check_failed, 1, memory_order_relaxed) < 20)
        fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
    return 0;
}

static inline int check_equal(uint64_t a, uint64_t b, const char *what, const char *file,
                              int line) {
    int ok = check_true(a == b, what, file, line);
    if (!ok && atomic_load(&check_failed) <= 20)
        fprintf(stderr, "    %" PRId64 " (0x%" PRIx64 ") != %" PRId64 " (0x%" PRIx64 ")\n",
                (int64_t)a, a, (int64_t)b, b);
    return ok;
}

#define CHECK(condition) check_true(!!(condition), #condition, __FILE__, __LINE__)
#define CHECK_EQ(a, b) check_equal((uint64_t)(a), (uint64_t)(b), #a " == " #b, __FILE__, __LINE__)
/* For what the rest of the program cannot run without. */
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!CHECK(condition))                                                                     \
            exit(1);                                                                               \
    } while (0)

static inline int check_report(void) {
    printf("%" PRIu64 " passed, %" PRIu64 " failed\n", atomic_load(&check_passed),
           atomic_load(&check_failed));
    return atomic_load(&check_failed) ? 1 : 0;
}

/* splitmix64: the same sequence on every machine. */
static inline uint64_t check_random(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Makes the calling thread's (n + 1)th allocation from now on fail, and each after it if `forever`.
 * Negative n: none fails. Defined in alloc_hook.c. */
void check_fail_alloc(int64_t n, int forever);
/* Whether an allocation was refused since the last check_fail_alloc. */
int check_alloc_failed(void);

#endif
