/* slots_check.h: what must hold of a table's slots. */
#ifndef PST_TEST_SLOTS_CHECK_H
#define PST_TEST_SLOTS_CHECK_H

#include <string.h>

#include "check.h"
#include "memory/alloc.h"
#include "memory/ring.h"
#include "table/row.h"

/* Every slot is a row's or named by the ring once, but for what the cut has taken out of it. */
static inline void check_slots(const pst_table *t) {
    static uint8_t seen[8192];
    const pst_meta *m = t->m;
    const pst_ring *r = &m->rings[PST_RING_SLOTS];
    REQUIRE(m->slots <= sizeof seen);
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < m->slots; i++)
        seen[i] = (uint8_t)pst_is_live(pst_row(t, i)[0]);
    for (uint32_t p = r->head; p != r->tail; p++) {
        uint32_t slot = pst_ring_at(t, PST_RING_SLOTS, p);
        if (slot < m->slots)
            seen[slot]++;
        CHECK(slot < m->slots);
        CHECK(m->cut_phase < PST_CUT_MOVE || m->cut_phase == PST_CUT_RELIST || slot < m->cut);
    }
    for (uint32_t i = 0; i < m->slots; i++)
        CHECK(seen[i] == 1 || (seen[i] == 0 && m->cut_phase != PST_CUT_NONE && i >= m->cut));
}

#endif
