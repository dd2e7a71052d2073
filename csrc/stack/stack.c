#include "stack/stack.h"

#include <string.h>

#include "base/mem.h"
#include "base/schema.h"

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

static pst_status open_files(pst_stack *st, const pst_stack_file *files, int32_t n,
                             const char *guides, pst_detail *detail) {
    pst_member_options o = {&st->schema, st->max_parallelism, guides, st->reads, &st->room};
    st->files = pst_calloc((size_t)n, sizeof *st->files);
    if (!st->files)
        return PST_NO_MEMORY;
    for (int32_t i = 0; i < n; i++) {
        pst_member *m = &st->files[i];
        st->n = i + 1;
        pst_status s = pst_member_open(m, &files[i], &o, detail);
        if (s) {
            detail->row = i;
            return s;
        }
        st->stats.guide_bytes += m->image_bytes;
        st->stats.guides_made += (uint32_t)m->made;
        st->stats.direct += (uint32_t)m->file.direct;
    }
    return PST_OK;
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
        s = open_files(st, files, n_files, o.guides, &own);
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
    if (!st)
        return;
    for (int32_t i = 0; i < st->n; i++)
        pst_member_close(&st->files[i]);
    pst_free(st->files);
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
}
