#include "lookup/said.h"

#include <string.h>

#include "base/mem.h"

pst_status pst_said_init(pst_said *x, const pst_stack *st, uint32_t n) {
    *x = (pst_said){.parts = {.schema = &st->schema,
                              .n_keys = st->n_keys,
                              .charge = {st->room.charge.budget, 0, PST_SMALL_BUFFER}},
                    .last = pst_calloc(n + (size_t)1, sizeof *x->last)};
    return x->last ? PST_OK : PST_NO_MEMORY;
}

void pst_said_free(pst_said *x) {
    pst_free(x->last);
    pst_parts_free(&x->parts);
}

pst_status pst_said_add(pst_said *x, uint32_t key, int32_t file, const pst_record *r) {
    uint32_t part;
    pst_status s = pst_parts_add(&x->parts, x->last[key] - 1, file, r, &part);
    if (!s)
        x->last[key] = part + 1;
    return s;
}

void pst_said_clear(pst_said *x, uint32_t from, uint32_t end) {
    memset(x->last + from, 0, (end - from) * sizeof *x->last);
    pst_parts_clear(&x->parts);
}

/* ---- merged ---------------------------------------------------------------------------------- */

/* The parts of a file, in its order. */
typedef struct file_parts {
    const pst_parts *parts;
    const uint32_t *at;
    const uint32_t *end;
} file_parts;

static pst_status next_part(void *ctx, pst_record *record) {
    file_parts *f = ctx;
    if (f->at == f->end)
        return PST_NOT_FOUND;
    pst_parts_get(f->parts, *f->at++, record);
    return PST_OK;
}

/* Puts the parts of all keys in the order of each file, and leaves out files that say nothing; *n is
 * how many do. `files` has room for all of them. */
static pst_status sort_parts(const pst_said *x, uint32_t from, uint32_t to, int32_t files_all,
                             file_parts *files, int32_t *n, uint32_t **sorted) {
    uint32_t all = 0;
    uint32_t *counts = pst_calloc((size_t)files_all + 1, sizeof *counts);
    if (!counts)
        return PST_NO_MEMORY;
    for (uint32_t i = from; i < to; i++)
        for (uint32_t p = x->last[i]; p; p = pst_parts_before(&x->parts, p - 1) + 1, all++)
            counts[pst_parts_file(&x->parts, p - 1)]++;
    uint32_t *order = pst_malloc((all + (size_t)1) * sizeof *order), *end = order;
    *sorted = order;
    *n = 0;
    for (int32_t f = 0; order && f < files_all; f++) {
        if (counts[f])
            files[(*n)++] = (file_parts){&x->parts, end, end + counts[f]};
        end += counts[f];
        counts[f] = (uint32_t)(end - order);
    }
    /* Of a key they come backwards, so that all are laid down from the last one on. */
    for (uint32_t i = to; order && i-- > from;)
        for (uint32_t p = x->last[i]; p; p = pst_parts_before(&x->parts, p - 1) + 1)
            order[--counts[pst_parts_file(&x->parts, p - 1)]] = p - 1;
    pst_free(counts);
    return order ? PST_OK : PST_NO_MEMORY;
}

pst_status pst_said_merge(const pst_said *x, uint32_t from, uint32_t end, int32_t n_files,
                          const pst_sink *sink) {
    int32_t n = 0;
    uint32_t *order = NULL;
    file_parts *files = pst_malloc((size_t)n_files * sizeof *files);
    pst_records *sources = pst_malloc((size_t)n_files * sizeof *sources);
    pst_status s =
        files && sources ? sort_parts(x, from, end, n_files, files, &n, &order) : PST_NO_MEMORY;
    for (int32_t i = 0; !s && i < n; i++)
        sources[i] = (pst_records){&files[i], next_part};
    if (!s)
        s = pst_merge_records(sources, n, sink);
    pst_free(order);
    pst_free(sources);
    pst_free(files);
    return s;
}
