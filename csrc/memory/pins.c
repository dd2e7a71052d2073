#include "memory/pins.h"

#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "memory/store.h"

static uint64_t start_time(pid_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *p = strrchr(text, ')'); /* the name before it may hold anything */
    unsigned long long ticks = 0;
    if (!p || sscanf(p + 1,
                     " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
                     "%*d %llu",
                     &ticks) != 1)
        return 0;
    return ticks;
}

static uint64_t pin_owner(pid_t pid) {
    return (uint64_t)(uint32_t)pid << 32 | (uint32_t)(start_time(pid) | 1);
}

int pst_pin_take(pst_header *h, uint64_t epoch) {
    uint64_t me = pin_owner(getpid());
    for (int i = 0; i < PST_PINS; i++) {
        uint64_t owner = pst_acquire64(&h->pins[i].owner);
        if (owner && pin_owner((pid_t)(owner >> 32)) == owner)
            continue;
        if (!__atomic_compare_exchange_n(&h->pins[i].owner, &owner, me, 0, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue;
        pst_release64(&h->pins[i].epoch, epoch);
        /* The pin must be visible before the reader looks at the writer's floor, as the writer
         * looks at pins after it has raised the floor. */
        PST_FENCE(__ATOMIC_SEQ_CST);
        return i;
    }
    return -1;
}

int pst_reader_lags(const pst_header *h) {
    PST_FENCE(__ATOMIC_SEQ_CST);
    for (int i = 0; i < PST_PINS; i++) {
        uint64_t owner = pst_acquire64(&h->pins[i].owner);
        if (owner && pst_acquire64(&h->pins[i].epoch) < h->floor &&
            pin_owner((pid_t)(owner >> 32)) == owner)
            return 1;
    }
    return 0;
}
