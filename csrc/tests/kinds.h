/* kinds.h: tables of values, and tables with elements, driven by the same code. */
#ifndef PST_TEST_KINDS_H
#define PST_TEST_KINDS_H

#include "elements_model.h"
#include "table_model.h"

/* A model with its operations, as both kinds of tables have them. */
typedef struct kind {
    int keys;
    void (*cells)(const void *m, int k, pst_cell cells[2], model_bytes *room);
    void (*step)(void *m, pst_table *t, uint64_t *random);
    void (*pass)(void *m, pst_table *t, int64_t ms);
    int (*compare)(const void *m, pst_table *t);
    void (*seal)(void *m, pst_table *t, pst_sealed **sealed);
    void (*back)(void *m, uint64_t epoch);
    void (*clock)(void *m, pst_table *t);
    void (*own)(void *m); /* after the model was copied */
    size_t size;
} kind;

/* Whoever uses these has asked the files below for all keys, so that what is not here is nowhere.
 * Returns what is to be given back to kind_leave. */
static inline uint32_t kind_enter(pst_table *t) {
    uint32_t whole = t->m->whole;
    pst_put32(&t->m->whole, 1);
    return whole;
}

static inline void kind_leave(pst_table *t, uint32_t whole) {
    pst_put32(&t->m->whole, whole);
}

static inline void cells_of_elements(const void *m, int k, pst_cell cells[2], model_bytes *room) {
    em_key_cells(m, k, cells, room->data);
}

static inline void step_elements(void *m, pst_table *t, uint64_t *random) {
    uint32_t whole = kind_enter(t);
    em_step(m, t, random);
    kind_leave(t, whole);
}

static inline void pass_elements(void *m, pst_table *t, int64_t ms) {
    uint32_t whole = kind_enter(t);
    if (((elements_model *)m)->ttl_ms)
        em_pass(m, t, ms, 1 << 20);
    kind_leave(t, whole);
}

static inline int compare_elements(const void *m, pst_table *t) {
    uint32_t whole = kind_enter(t);
    int same = em_compare(m, &((const elements_model *)m)->now, t);
    kind_leave(t, whole);
    return same;
}

static inline void seal_elements(void *m, pst_table *t, pst_sealed **sealed) {
    em_seal(m, t, sealed);
}

static inline void back_elements(void *of, uint64_t epoch) {
    elements_model *m = of;
    m->seals = epoch;
    m->now = m->sealed[epoch % EM_EPOCHS];
}

static inline void clock_of_elements(void *m, pst_table *t) {
    em_clock(m, t);
}

static inline void own_elements(void *of) {
    elements_model *m = of;
    m->schema.states = m->states;
}

static const kind ELEMENTS = {
    EM_KEYS,       cells_of_elements, step_elements,     pass_elements, compare_elements,
    seal_elements, back_elements,     clock_of_elements, own_elements,  sizeof(elements_model)};

enum { VALUE_KEYS = 120 };

static inline void cells_of_values(const void *m, int k, pst_cell cells[2], model_bytes *room) {
    model_key(((const model *)m)->schema, k, cells, room);
}

static inline void step_values(void *m, pst_table *t, uint64_t *random) {
    uint32_t whole = kind_enter(t);
    if (check_random(random) % 3)
        model_one_key(t, m, random);
    else
        model_many(t, m, random, 1 + (int)(check_random(random) % 20),
                   (int)(check_random(random) % 4));
    kind_leave(t, whole);
}

static inline void pass_values(void *m, pst_table *t, int64_t ms) {
    (void)m;
    (void)t;
    (void)ms;
}

static inline int compare_values(const void *model_of, pst_table *t) {
    const model *m = model_of;
    uint32_t whole = kind_enter(t);
    int same = model_compare(t, &m->now, m->schema, m->keys);
    kind_leave(t, whole);
    return same;
}

static inline void seal_values(void *m, pst_table *t, pst_sealed **sealed) {
    model_seal(t, m, sealed);
}

static inline void back_values(void *model_of, uint64_t epoch) {
    model *m = model_of;
    m->seals = epoch;
    m->now = m->sealed[epoch % MODEL_EPOCHS];
}

static inline void clock_of_values(void *m, pst_table *t) {
    (void)m;
    (void)t;
}

static inline void own_values(void *m) {
    (void)m;
}

static const kind VALUES = {VALUE_KEYS,     cells_of_values, step_values, pass_values,
                            compare_values, seal_values,     back_values, clock_of_values,
                            own_values,     sizeof(model)};

#endif
