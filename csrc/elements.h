/* elements.h: entries, items and timers as records of files.
 *
 * Purpose: the element column of a record's key, there and back; FORMAT.md describes its bytes:
 * an id of the state (a hash of its name, so that it means the same whatever else is declared),
 * then the map's key, the number of the first item of a run, or a timer's domain and time, such
 * that elements of a state sort as they are kept.
 *
 * Thread safety: as what they work on.
 *
 * Invariants
 *  N1. Applying a record twice changes nothing the second time.
 *  N2. A record of a state that the table does not have is skipped.
 */
#ifndef PST_ELEMENTS_H
#define PST_ELEMENTS_H

#include "collections.h"
#include "key.h"

enum { PST_ELEMENT_HEAD = 13, PST_RUN_BYTES = 32 * 1024 };

static inline void pst_put_big(uint8_t *p, uint64_t v, int bytes) {
    for (int i = bytes; i-- > 0; v >>= 8)
        p[i] = (uint8_t)v;
}

static inline uint64_t pst_get_big(const uint8_t *p, int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v = v << 8 | p[i];
    return v;
}

/* Applies a record whose element is not null to the key's row. Room for a touch was reserved. */
pst_status pst_element_apply(pst_table *t, const pst_key *key, const pst_record *r);

#endif
