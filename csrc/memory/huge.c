#include "memory/huge.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/handle.h"
#include "memory/store.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; unknown to older headers and kernels */
#endif

/* Takes from one space what is filled and was not taken yet. */
static void take_from(pst_table *t, int space, uint64_t *taken, uint64_t filled, pst_huge *huge) {
    uint64_t at = *taken;
    for (; huge->n < PST_HUGE_MOST && at + PST_HUGE_PAGE <= filled; at += PST_HUGE_PAGE)
        huge->at[huge->n++] = t->arena.start[space] + at;
    if (at != *taken)
        pst_put64(taken, at);
}

void pst_huge_take(pst_table *t, pst_huge *huge) {
    huge->n = 0;
    if (t->arena.fd < 0)
        return;
    take_from(t, PST_SPACE_ROWS, &t->h->huge_rows, (uint64_t)t->m->slots * t->lay.row_size, huge);
    take_from(t, PST_SPACE_HEAP, &t->h->huge_heap, t->m->heap_top * PST_GRANULE, huge);
    if (!huge->n)
        return;
    char name[40];
    snprintf(name, sizeof name, "/proc/self/fd/%d", t->arena.fd);
    huge->fd = open(name, O_RDONLY | O_CLOEXEC);
    if (huge->fd < 0)
        huge->n = 0;
}

void pst_huge_make(pst_huge *huge) {
    if (!huge->n)
        return;
    uint8_t *room = mmap(NULL, 2 * (size_t)PST_HUGE_PAGE, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uintptr_t past = (uintptr_t)room % PST_HUGE_PAGE;
    uint8_t *window = past ? room + (PST_HUGE_PAGE - past) : room;
    for (uint32_t i = 0; room != MAP_FAILED && i < huge->n; i++) {
        off_t at = (off_t)huge->at[i];
        if (lseek(huge->fd, at, SEEK_HOLE) < at + PST_HUGE_PAGE)
            continue;
        if (mmap(window, PST_HUGE_PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, huge->fd, at) !=
                window ||
            madvise(window, PST_HUGE_PAGE, MADV_COLLAPSE))
            break;
    }
    if (room != MAP_FAILED)
        munmap(room, 2 * (size_t)PST_HUGE_PAGE);
    pst_huge_drop(huge);
}

void pst_huge_drop(pst_huge *huge) {
    if (huge->n)
        close(huge->fd);
    huge->n = 0;
}
