#include "check.h"

#include "base/mem.h"
#include "reads/read.h"

static _Thread_local int64_t countdown = -1;
static _Thread_local int fail_forever;
static _Thread_local int refused;

void check_fail_alloc(int64_t n, int forever) {
    countdown = n;
    fail_forever = forever;
    refused = 0;
}

int check_alloc_failed(void) {
    return refused;
}

int pst_test_alloc_refuse(void) {
    if (countdown < 0)
        return 0;
    if (countdown > 0) {
        countdown--;
        return 0;
    }
    refused = 1;
    if (!fail_forever)
        countdown = -1;
    return 1;
}

void (*pst_crash_hook)(void);

int64_t (*pst_read_hook)(const pst_read *r, int64_t result);
