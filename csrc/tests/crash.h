/* crash.h: the state of a table as a kill leaves it. */
#ifndef PST_TEST_CRASH_H
#define PST_TEST_CRASH_H

#include <string.h>

#include "check.h"
#include "memory/handle.h"
#include "table/epoch.h"

extern void (*pst_crash_hook)(void);

/* What a process finds that maps the table now: what the header says is committed, no more. */
static inline void copy_image(pst_table *from, pst_table *to) {
    const pst_header *h = from->h;
    memcpy(to->arena.base, from->arena.base, h->committed[PST_SPACE_HEAD]);
    REQUIRE(pst_arena_refresh(&to->arena) == PST_OK);
    for (int s = 1; s < PST_SPACES; s++)
        memcpy(pst_space(&to->arena, s), pst_space(&from->arena, s), h->committed[s]);
}

#endif
