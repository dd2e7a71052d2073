#include "stack/stack.h"

#include <string.h>

#include "base/mem.h"
#include "key/schema.h"

enum { SLICE_KEYS = 65536, SLICE_LEAST = 16, SLICE_MOST = 1 << 20, MOST_FILES = 32767 };

static const pst_detail NOWHERE = {-1, -1, -1, -1, -1};

static void note_columns(pst_stack *st) {
    const pst_schema *s = &st->schema;
    st->n_keys = s->n_keys - (pst_schema_has_element(s) ? 1 : 0);
    for (int32_t i = 0; i < s->n_states; i++) {
        uint64_t bit = UINT64_C(1) << i;
        uint8_t kind = s->states[i].kind;
        /* Of a list or map the elements bear the time. */
        if (kind != PST_TIME || s->states[i - 1].kind == PST_VALUE)
            st->all |= bit;
        if (kind == PST_TIMERS)
            st->timers = bit;
    }
}

static pst_status note_groups(const pst_stack_file *from, int32_t groups, uint8_t **bits) {
    if (!from->n_ranges)
        return PST_OK;
    *bits = pst_calloc((size_t)groups / 8 + 1, 1);
    if (!*bits)
        return PST_NO_MEMORY;
    for (int32_t i = 0; i < from->n_ranges; i++) {
        int32_t first = from->ranges[2 * i], last = from->ranges[2 * i + 1];
        if (first < 0 || first > last || last >= groups)
            return PST_INVALID;
        for (int32_t g = first; g <= last; g++)
            (*bits)[g >> 3] |= (uint8_t)(1 << (g & 7));
    }
    return PST_OK;
}

/* The file as the n-th of the stack, opened here if it is not open. */
static pst_status take_file(pst_stack *st, const pst_stack_file *from, const pst_stack_options *o,
                            pst_detail *detail) {
    pst_member *m = NULL;
    pst_status s = PST_OK;
    if (!from->member)
        s = pst_member_open(&st->schema, st->max_parallelism, from->path, o, &m, detail);
    else if (from->member->reads != st->reads)
        s = PST_INVALID;
    else if (from->member->guide->made && !o->unguided)
        s = PST_SCHEMA;
    else if (!pst_member_fits(from->member, &st->schema, st->max_parallelism))
        s = PST_SCHEMA;
    else
        m = pst_member_retain(from->member);
    if (s)
        return s;
    st->files[st->n] = m;
    st->stats.direct += (uint32_t)m->file.direct;
    return note_groups(from, st->max_parallelism, &st->groups[st->n++]);
}

static pst_status take_files(pst_stack *st, const pst_stack_file *files, int32_t n,
                             const pst_stack_options *options, pst_detail *detail) {
    pst_stack_options o = *options;
    o.reads = st->reads;
    o.extents = NULL;
    st->files = pst_calloc((size_t)n, sizeof *st->files);
    st->groups = pst_calloc((size_t)n, sizeof *st->groups);
    if (!st->files || !st->groups)
        return PST_NO_MEMORY;
    pst_status s = PST_OK;
    for (int32_t i = 0; !s && i < n; i++) {
        s = take_file(st, &files[i], &o, detail);
        if (s)
            detail->row = i;
    }
    return s;
}

pst_status pst_stack_open(const pst_schema *schema, int32_t max_parallelism,
                          const pst_stack_file *files, int32_t n_files,
                          const pst_stack_options *options, pst_stack **stack, pst_detail *detail) {
    pst_stack_options o = options ? *options : (pst_stack_options){0};
    pst_detail own = NOWHERE;
    uint32_t slice = o.slice_keys ? o.slice_keys : SLICE_KEYS;
    if (detail)
        *detail = NOWHERE;
    if (n_files < 1 || n_files > MOST_FILES || max_parallelism < 1 || slice < SLICE_LEAST ||
        slice > SLICE_MOST)
        return PST_INVALID;
    pst_stack *st = pst_calloc(1, sizeof *st);
    if (!st)
        return PST_NO_MEMORY;
    st->references = 1;
    st->detail = NOWHERE;
    st->max_parallelism = max_parallelism;
    st->slice = slice;
    st->reads = pst_reads_retain(o.reads);
    st->room.charge.budget = pst_budget_retain(o.budget);
    pst_status s = pst_schema_copy(schema, &st->schema);
    pst_reads_options usual = {.budget = o.budget};
    if (!s && !st->reads)
        s = pst_reads_create(&usual, &st->reads);
    if (!s) {
        note_columns(st);
        s = take_files(st, files, n_files, &o, &own);
    }
    if (s)
        pst_stack_close(st);
    else
        *stack = st;
    if (s && detail)
        *detail = own;
    return s;
}

void pst_stack_close(pst_stack *st) {
    if (!st || __atomic_sub_fetch(&st->references, 1, __ATOMIC_ACQ_REL))
        return;
    for (int32_t i = 0; i < st->n; i++) {
        pst_member_release(st->files[i]);
        pst_free(st->groups[i]);
    }
    pst_free(st->files);
    pst_free(st->groups);
    pst_search_free(&st->block);
    pst_buffer_free(&st->memory);
    pst_buffer_free(&st->kept);
    pst_schema_clear(&st->schema);
    pst_reads_release(st->reads);
    pst_charge_drop(&st->room.charge);
    pst_budget_release(st->room.charge.budget);
    pst_free(st);
}

const pst_detail *pst_stack_detail(const pst_stack *st) {
    return &st->detail;
}

void pst_stack_get_stats(const pst_stack *st, pst_stack_stats *stats) {
    *stats = st->stats;
    stats->private_bytes = st->room.used;
    for (int32_t i = 0; i < st->n; i++) {
        const pst_member *m = st->files[i];
        stats->guide_bytes += __atomic_load_n(&m->part_bytes, __ATOMIC_RELAXED);
        stats->private_bytes += __atomic_load_n(&m->room.used, __ATOMIC_RELAXED);
        stats->guides_made += __atomic_load_n(&m->copy.put, __ATOMIC_RELAXED);
    }
}
