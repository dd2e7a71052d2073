#include "snapshot/evacuate.h"
#include "elements/collections.h"
#include "memory/span.h"

enum { LEAST_LOOKS = 1024, LOOKS_PER_CHANGE = 4 };

static pst_status move_list(pst_table *t, uint32_t slot, int32_t i, uint64_t *looked) {
    pst_list l = pst_row_list(t, pst_row(t, slot), i), before = l;
    pst_status s = pst_list_move(t, &l, looked);
    if (!s && l.first != before.first)
        pst_row_list_store(t, slot, i, &l);
    return s;
}

static pst_status move_map(pst_table *t, uint32_t slot, int32_t i, uint64_t *looked) {
    pst_tree_root before = pst_row_map(t, pst_row(t, slot), i), root = before;
    if (root.count > PST_MOVE_MOST)
        return PST_OK;
    pst_status s = pst_tree_move(t, &t->collections[i].map, &root, looked);
    pst_row_map_replace(t, slot, i, before, root);
    return s;
}

static pst_status move_row(pst_table *t, uint32_t slot, uint64_t *looked) {
    pst_status s = pst_undo_reserve(t, 1);
    uint64_t present = pst_presence(&t->lay, pst_row(t, slot));
    for (; present && !s; present &= present - 1) {
        int32_t i = __builtin_ctzll(present);
        const pst_field *f = &t->lay.fields[i];
        if (f->is_bytes)
            s = pst_row_move_bytes(t, slot, i);
        else if (f->kind == PST_LIST)
            s = move_list(t, slot, i, looked);
        else if (f->kind == PST_MAP)
            s = move_map(t, slot, i, looked);
    }
    return s;
}

/* What a seal may look at. */
static uint64_t looks_of(const pst_table *t) {
    return LEAST_LOOKS + LOOKS_PER_CHANGE * pst_changed_rows(t);
}

void pst_evacuate(pst_table *t) {
    pst_span_hints *hints = &t->h->spans;
    if (hints->phase != PST_SPANS_LEFT || !t->lay.has_blocks)
        return;
    uint32_t slot = hints->slot;
    uint64_t looks = looks_of(t), looked = 0;
    for (; slot < t->m->slots && looked < looks; slot++, looked++)
        if (pst_is_live(pst_row(t, slot)[0]) && move_row(t, slot, &looked))
            break;
    pst_put32(&hints->slot, slot);
}

void pst_evacuate_keys(pst_table *t) {
    pst_span_hints *hints = &t->h->spans;
    if (hints->phase != PST_SPANS_LEFT)
        return;
    uint32_t slot = hints->keyed, last = t->m->slots;
    uint64_t looks = looks_of(t);
    if (t->lay.key_kind != PST_KEY_BYTES)
        slot = last;
    for (; slot < last && looks; slot++, looks--)
        if (pst_is_live(pst_row(t, slot)[0]) && pst_row_move_key(t, slot))
            break;
    pst_put32(&hints->keyed, slot);
    if (slot >= last && (hints->slot >= last || !t->lay.has_blocks))
        pst_put32(&hints->phase, PST_SPANS_DONE);
}
