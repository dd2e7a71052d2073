#include "snapshot/dropped.h"

#include "base/element.h"

void pst_dropped_note(pst_dropped *d, const pst_schema *from, const int32_t *columns, int32_t n) {
    d->n = 0;
    for (int32_t i = 0; columns && i < from->n_states; i++) {
        uint8_t kind = from->states[i].kind;
        if (i < n && columns[i] >= 0)
            continue;
        if (kind == PST_TIMERS)
            d->ids[d->n++] = PST_TIMERS_ID;
        else if (kind == PST_LIST || kind == PST_MAP)
            d->ids[d->n++] = pst_collection_id(from->states[i].name);
    }
}

int pst_dropped_has(const pst_dropped *d, pst_bytes element) {
    if (!d->n || element.size < PST_ELEMENT_ID)
        return 0;
    uint32_t id = (uint32_t)pst_get_big(element.data, PST_ELEMENT_ID);
    int32_t i = 0;
    while (i < d->n && d->ids[i] != id)
        i++;
    return i < d->n;
}
