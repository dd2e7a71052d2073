/* sealed_timers.c: what an epoch changed of timers that are elements in files (TM4). A key's only
 * timer is a column of its row like any other. */
#include <string.h>

#include "base/element.h"
#include "elements/timers.h"
#include "snapshot/sealed.h"
#include "snapshot/sealed_entry.h"
#include "table/undo.h"

static pst_status emit_timer(pst_sealed *s, const pst_table *t, int domain, pst_record_op op,
                             const pst_tree_entry *e) {
    uint8_t element[PST_ELEMENT_TIMER];
    uint64_t *w, bit = op == PST_PUT ? UINT64_C(1) << t->lay.timers : 0;
    pst_put_big(element, PST_TIMERS_ID, 4);
    element[4] = (uint8_t)domain;
    pst_put_big(element + 5, e->key[0], 8);
    const uint64_t *row = pst_row(t, (uint32_t)e->key[1]);
    pst_status st = pst_entry_begin(s, t, row, (pst_bytes){element, sizeof element}, 1, &w);
    if (st)
        return st;
    w = pst_entry_info(s, w + 3, op, bit, bit);
    if (bit)
        *w++ = 1;
    pst_entry_end(s, w);
    return PST_OK;
}

static int are_apart(const pst_table *t, uint32_t slot) {
    return pst_timers_are_apart(&t->lay, pst_presence(&t->lay, pst_row(t, slot)));
}

/* Had the row, in the last sealed epoch, timers that are elements in files? */
static int were_apart(const pst_table *t, uint32_t slot) {
    uint64_t header = pst_row(t, slot)[0];
    uint32_t index = (uint32_t)(header >> 32);
    if (pst_header_stamp(header) != t->stamp)
        return are_apart(t, slot);
    return index != PST_NONE &&
           pst_timers_are_apart(&t->lay, pst_undo_presence(t, pst_undo_record(t, t->undo, index)));
}

/* The rows of timers lie anywhere, so some timers are found before the first is emitted. */
static pst_status emit_timers(pst_sealed *s, const pst_table *t, int domain, pst_tree_root from,
                              pst_tree_root to) {
    enum { TOGETHER = 32 };
    pst_tree_diff d;
    pst_tree_entry e[TOGETHER];
    pst_record_op op[TOGETHER];
    pst_status found = PST_OK, st = PST_OK;
    if (!memcmp(&from, &to, sizeof to))
        return PST_OK;
    pst_tree_diff_open(&d, t->heap, pst_heap_bytes(t), &pst_timer_shape, from, to);
    while (!found && !st) {
        int n = 0;
        while (n < TOGETHER && !(found = pst_tree_diff_next(&d, &op[n], &e[n])))
            pst_prefetch_row(t, (uint32_t)e[n++].key[1]);
        for (int i = 0; !st && i < n; i++) {
            uint32_t slot = (uint32_t)e[i].key[1];
            if (op[i] == PST_PUT ? are_apart(t, slot) : were_apart(t, slot))
                st = emit_timer(s, t, domain, op[i], &e[i]);
        }
    }
    return st || found == PST_NOT_FOUND ? st : found;
}

/* A timer that stays, while in files it becomes an element or is one no longer: no difference
 * between trees names it. */
pst_status pst_sealed_staying(pst_sealed *s, const pst_table *t, const uint64_t *row,
                              uint64_t before, const uint64_t *image) {
    const pst_row_layout *lay = &t->lay;
    uint64_t after = pst_presence(lay, row);
    const uint64_t *from = image;
    pst_record_op op = PST_PUT;
    pst_meta *m = t->m;
    if (lay->timer < 0 || !image)
        return PST_OK;
    if (pst_timers_are_apart(lay, before) && after >> lay->timer & 1) {
        op = PST_DELETE;
        m = pst_meta_of(t, t->h->sealed);
        from = row + lay->image_offset / 8;
    } else if (!(before >> lay->timer & 1) || !pst_timers_are_apart(lay, after)) {
        return PST_OK;
    }
    uint64_t word = *pst_image_field(lay, from, lay->timer);
    uint32_t slot = (uint32_t)((uint64_t)((const uint8_t *)row - t->rows) / lay->row_size);
    pst_domain domain = pst_timer_packed_domain(word);
    pst_tree_entry e = {.key = {pst_timer_word(pst_timer_packed_time(word)), slot}};
    pst_tree_root root = *pst_timer_root(t, m, pst_group_of(t, pst_row_hash(t, row)), domain);
    pst_status st = pst_tree_find(t->heap, pst_heap_bytes(t), &pst_timer_shape, root, &e);
    if (st)
        return st == PST_NOT_FOUND ? PST_OK : st;
    return emit_timer(s, t, (int)domain, op, &e);
}

pst_status pst_sealed_timers(pst_sealed *s, const pst_table *t) {
    pst_meta *before = pst_meta_of(t, t->h->sealed);
    pst_status st = PST_OK;
    if (!before->timed_apart && !t->m->timed_apart)
        return PST_OK;
    for (int32_t g = t->first_key_group; !st && g <= t->last_key_group; g++)
        for (int domain = 0; !st && domain < 2; domain++)
            st = emit_timers(s, t, domain, *pst_timer_root(t, before, g, (pst_domain)domain),
                             *pst_timer_root(t, t->m, g, (pst_domain)domain));
    return st;
}

pst_status pst_sealed_group_timers(pst_sealed *s, const pst_table *t, int32_t key_group) {
    pst_status st = PST_OK;
    for (int domain = 0; !st && t->m->timed_apart && domain < 2; domain++)
        st = emit_timers(s, t, domain, (pst_tree_root){0, 0},
                         *pst_timer_root(t, t->m, key_group, (pst_domain)domain));
    return st;
}
