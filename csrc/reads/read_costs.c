#include "reads/read_costs.h"

#include <time.h>

enum {
    USUAL_GAP = 4,
    MOST_GAP = 32,
    SINGLES = 192,
    WINDOWS = 32,
    WINDOW_PAGES = 32,
    PAGE = PST_READ_ALIGN
};

#define LEAST_FILE ((uint64_t)16 << 20)
#define LASTS_NS INT64_C(60000000000)

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint64_t draw(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + 1;
    return *state >> 33;
}

static int take(pst_reads *r) {
    pst_arrival a;
    pst_reads_next(r, &a);
    pst_reads_give(r, &a);
    return a.sys_errno == 0;
}

/* The time that each of n reads takes, with many in flight; 0 where some fail. */
static double time_of(pst_reads *r, pst_read_file *file, uint64_t file_bytes, int n, size_t bytes) {
    int64_t start = now_ns();
    uint64_t state = (uint64_t)start;
    int right = 1;
    for (int i = 0; i < n && right; i++) {
        uint64_t offset = draw(&state) * PAGE % (file_bytes - bytes);
        pst_status s;
        while ((s = pst_reads_start(r, file, offset & ~(uint64_t)(PAGE - 1), bytes, 0)) == PST_BUSY)
            right &= take(r);
        right &= s == PST_OK;
    }
    while (pst_reads_pending(r))
        right &= take(r);
    return right ? (double)(now_ns() - start) / n : 0;
}

uint32_t pst_read_costs_gap(pst_reads *r, pst_read_file *file, uint64_t file_bytes) {
    pst_read_costs *costs = pst_reads_costs(r);
    int64_t now = now_ns();
    if (file_bytes < LEAST_FILE || (costs->gap && now - costs->measured_ns < LASTS_NS))
        return costs->gap ? costs->gap : USUAL_GAP;
    double single = time_of(r, file, file_bytes, SINGLES, PAGE);
    double window = time_of(r, file, file_bytes, WINDOWS, (size_t)WINDOW_PAGES * PAGE);
    double page = (window - single) / (WINDOW_PAGES - 1), first = single - page;
    uint32_t gap = MOST_GAP;
    if (first < page)
        gap = 1;
    else if (first < page * MOST_GAP)
        gap = (uint32_t)(first / page);
    /* One measurement may have met other work. */
    if (single > 0 && window > 0)
        costs->gap = ((costs->gap ? costs->gap : USUAL_GAP) + gap + 1) / 2;
    costs->measured_ns = now;
    return costs->gap ? costs->gap : USUAL_GAP;
}
