#include "reads/extents.h"

#include <errno.h>

/* As long as others drop what was brought: more is no accident. */
enum { MOST_TRIES = 64, MIX = 31 };

/* The first and last extent of a part; what lies behind the file's end belongs to the last one. */
static void range_of(const pst_extents *e, uint64_t offset, uint64_t size, uint64_t *first,
                     uint64_t *last) {
    uint64_t end = e->file_bytes ? e->file_bytes - 1 : 0, to = offset + (size ? size - 1 : 0);
    *first = (offset < end ? offset : end) / e->extent_bytes;
    *last = (to < end ? to : end) / e->extent_bytes;
}

/* What the states say, but for their use; 0: one of them is not here. */
static uint32_t mark_of(const pst_extents *e, uint64_t first, uint64_t last, int use) {
    uint32_t mark = 1;
    for (uint64_t i = first; i <= last; i++) {
        uint8_t state = __atomic_load_n(&e->states[i], __ATOMIC_ACQUIRE);
        if (!(state & PST_EXTENT_HERE))
            return 0;
        if (use && !(state & PST_EXTENT_USED))
            __atomic_fetch_or(&e->states[i], PST_EXTENT_USED, __ATOMIC_RELAXED);
        mark = mark * MIX + (uint32_t)(state & ~PST_EXTENT_USED);
    }
    return mark ? mark : 1;
}

int pst_extents_need(const pst_extents *e, uint64_t offset, uint64_t size, uint32_t *mark) {
    uint64_t first, last;
    range_of(e, offset, size, &first, &last);
    for (int i = 0; i < MOST_TRIES; i++) {
        *mark = mark_of(e, first, last, 1);
        if (*mark)
            return 0;
        int error = e->bring(e->ctx, first, last);
        if (error)
            return error;
    }
    return ENODATA;
}

int pst_extents_stayed(const pst_extents *e, uint64_t offset, uint64_t size, uint32_t mark) {
    uint64_t first, last;
    range_of(e, offset, size, &first, &last);
#ifndef __SANITIZE_THREAD__ /* which does not know it */
    /* The bytes were read before the states are looked at again. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
    return mark_of(e, first, last, 0) == mark;
}

void pst_extents_drop(const pst_extents *e, uint64_t offset, uint64_t size) {
    uint64_t first, last;
    range_of(e, offset, size, &first, &last);
    e->drop(e->ctx, first, last);
}
