#include "elements/admit.h"

#include <stdlib.h>

#include "base/mem.h"
#include "elements/elements.h"
#include "key/key.h"
#include "table/resident.h"

pst_status pst_admission_begin(pst_admission *a, pst_table *t, const pst_key *key, int *here) {
    *a = (pst_admission){
        .t = t, .key = *key, .slot = PST_NONE, .birth = t->birth, .clock = t->clock};
    a->timers = a->few;
    a->room = PST_ADMIT_TIMERS;
    pst_status s = pst_check_group(t, key->hash);
    if (s)
        return s;
    s = pst_undo_reserve(t, 1);
    if (!s)
        s = pst_admit_begin(t, key, &a->slot, here);
    if (s || *here)
        return s;
    t->birth = pst_admitted_birth(t);
    /* A time of now would be no change of the epoch, so files would never have it. */
    t->clock = (pst_clock){PST_NO_TIME, PST_NO_TIME, PST_NO_TIME};
    t->applied = PST_NONE;
    return PST_OK;
}

/* ---- timers ---------------------------------------------------------------------------------- */

static pst_status note_timer(pst_admission *a, pst_domain domain, uint64_t word) {
    if (a->n_timers == a->room) {
        uint32_t room = 4 * a->room;
        pst_timer *own = a->timers == a->few ? NULL : a->timers;
        pst_timer *grown = pst_realloc(own, room * sizeof *grown);
        if (!grown)
            return PST_NO_MEMORY;
        if (!own)
            memcpy(grown, a->few, sizeof a->few);
        a->timers = grown;
        a->room = room;
    }
    a->timers[a->n_timers++] = (pst_timer){word, a->slot, domain};
    return PST_OK;
}

/* Notes the timer that a record brings, if it does. */
static pst_status note_timers(pst_admission *a, const pst_record *r, const pst_mapping *m,
                              int element) {
    pst_domain domain;
    int64_t time_ms;
    return pst_record_timer(a->t, r, m, element, &domain, &time_ms)
               ? note_timer(a, domain, pst_timer_word(time_ms))
               : PST_OK;
}

static int by_timer(const void *a, const void *b) {
    return pst_timer_compare(a, b);
}

/* Keeps those that the row has, each once. Returns whether they are all. */
static int find_timers(pst_admission *a) {
    const pst_table *t = a->t;
    int32_t group = pst_group_of(t, pst_row_hash(t, pst_row(t, a->slot)));
    uint32_t n = 0;
    qsort(a->timers, a->n_timers, sizeof *a->timers, by_timer);
    for (uint32_t i = 0; i < a->n_timers; i++) {
        const pst_timer *timer = &a->timers[i];
        if (n && !pst_timer_compare(timer, &a->timers[n - 1]))
            continue;
        if (pst_timer_is_there(t, t->m, group, timer))
            a->timers[n++] = *timer;
    }
    a->n_timers = n;
    return n == pst_timer_count(t, a->slot);
}

/* ---- records --------------------------------------------------------------------------------- */

/* What a record cannot mean is refused before it is written, or as a whole: a row with that can be
 * dropped. What makes less of a row makes room, and may be half done where even that is refused. */
static pst_status poison_half(pst_table *t, pst_status s) {
    int whole = s == PST_CORRUPT || s == PST_WRONG_TYPE || s == PST_TOO_LARGE;
    return whole ? s : pst_poison(t, s);
}

/* As pst_apply_columns; what is put and refused memory leaves a row that can be dropped. */
static pst_status add_columns(pst_admission *a, const pst_record *r, const pst_mapping *m) {
    pst_table *t = a->t;
    for (uint64_t left = r->changed & m->taken; left; left &= left - 1) {
        int i = __builtin_ctzll(left), present = (int)(r->present >> i & 1);
        int32_t column = pst_mapped(m, i);
        uint8_t kind = t->lay.fields[column].kind;
        t->arena.clearing = !present;
        pst_status s =
            pst_cleared(t, pst_apply_column(t, a->slot, column, &r->cells[i], present, m->here));
        if (s)
            return present && (kind == PST_VALUE || kind == PST_TIMER) ? s : poison_half(t, s);
    }
    return PST_OK;
}

/* An item, an entry or a timer that is refused memory leaves the others as they were. */
static pst_status add_element(pst_admission *a, const pst_record *r, const pst_mapping *m,
                              uint32_t more) {
    pst_table *t = a->t;
    uint32_t slot = a->slot;
    if (!t->lay.has_elements)
        return PST_OK;
    t->arena.clearing = r->op != PST_PUT;
    pst_status s = pst_cleared(t, pst_element_apply(t, &a->key, r, m->columns, m->n, more, &slot));
    return r->op == PST_PUT ? s : poison_half(t, s);
}

pst_status pst_admission_add(pst_admission *a, const pst_record *r, const pst_mapping *m,
                             int element, uint32_t more) {
    pst_table *t = a->t;
    pst_status s = note_timers(a, r, m, element);
    if (s)
        return s;
    if (element)
        return add_element(a, r, m, more);
    t->applied = PST_NONE;
    if (r->op == PST_PUT)
        return add_columns(a, r, m);
    pst_clearing(t);
    return poison_half(t, pst_cleared(t, pst_apply_delete(t, a->slot, m)));
}

static void finish(pst_admission *a) {
    if (a->timers != a->few)
        pst_free(a->timers);
    a->timers = a->few;
    a->n_timers = 0;
    a->t->birth = a->birth;
    a->t->clock = a->clock;
    a->t->applied = PST_NONE;
}

pst_status pst_admission_end(pst_admission *a) {
    pst_table *t = a->t;
    uint64_t *row = pst_row(t, a->slot);
    pst_status s = PST_OK;
    if (t->lay.timers >= 0 && pst_timers_are_apart(&t->lay, pst_presence(&t->lay, row)))
        s = find_timers(a) ? pst_timers_note_admitted(t, a->timers, a->n_timers) : PST_CORRUPT;
    if (s) {
        pst_admission_drop(a);
        return s;
    }
    finish(a);
    return pst_admit_end(t, a->slot) ? PST_OK : PST_NOT_FOUND;
}

void pst_admission_drop(pst_admission *a) {
    pst_table *t = a->t;
    pst_status s = t->poisoned;
    pst_clearing(t);
    if (!s && a->n_timers)
        (void)find_timers(a);
    for (uint32_t i = 0; !s && i < a->n_timers; i++)
        s = pst_timer_remove(t, a->slot, a->timers[i].domain, pst_timer_time(a->timers[i].word));
    if (!s)
        pst_admit_drop(t, a->slot);
    /* Timers that are not in the trees would keep it. */
    if (!s && pst_is_live(pst_row(t, a->slot)[0]))
        s = PST_CORRUPT;
    (void)pst_poison(t, pst_cleared(t, s));
    finish(a);
}
