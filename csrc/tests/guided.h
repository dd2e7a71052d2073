/* guided.h: looks for keys in files, by their guides or by such as are made, as one who reads block by block does.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_GUIDED_H
#define PST_TEST_GUIDED_H

#include "files.h"
#include "guide/sst_search.h"

typedef struct guided {
    const memory_file *f;
    pst_guide *guide;
    pst_search search;
    uint64_t blocks_read;
    uint64_t filters_asked;
    uint64_t filters_passed;
} guided;

/* A copy of exactly that part of the file, so that a sanitizer sees who reads beyond. NULL: it is
 * not all there. */
static inline uint8_t *guided_part(const memory_file *f, uint64_t from, uint64_t to) {
    if (from > to || to > f->size)
        return NULL;
    uint8_t *part = malloc(to - from ? to - from : 1);
    REQUIRE(part);
    memcpy(part, f->data + from, to - from);
    return part;
}

static inline pst_status guided_open(guided *g, memory_file *f) {
    pst_io io = file_io(f, 1);
    *g = (guided){.f = f};
    return pst_guide_open_any(&io, f->size, &g->guide, NULL);
}

static inline void guided_close(guided *g) {
    pst_search_free(&g->search);
    pst_guide_close(g->guide);
}

typedef struct guided_found {
    const pst_schema *schema;
    const pst_record *rows; /* what must be found, in order */
    size_t n;
    size_t equal;
    size_t records; /* that were found */
} guided_found;

/* The place that no row of a block is above. */
static inline uint64_t guided_end(const pst_guide_segment *s, const uint8_t *entries, uint32_t i,
                                  int32_t *key_group) {
    if (i + 1 == s->blocks) {
        *key_group = s->last_key_group;
        return pst_guide_last_hash(entries);
    }
    pst_guide_block next = pst_guide_block_at(s, entries, i + 1);
    *key_group = next.key_group;
    return next.first_hash;
}

static inline pst_status guided_search_block(guided *g, const pst_guide_segment *s,
                                             const uint8_t *entries, uint32_t i,
                                             const pst_wanted *w, guided_found *found) {
    pst_guide_block b = pst_guide_block_at(s, entries, i);
    int32_t last_group;
    uint64_t last_hash = guided_end(s, entries, i, &last_group);
    uint8_t *stored = guided_part(g->f, b.offset, b.offset + b.stored);
    if (!stored)
        return PST_CORRUPT;
    g->blocks_read++;
    pst_status st = pst_search_open(&g->search, g->guide, &b, last_group, last_hash, stored);
    uint32_t n = 0, first = st ? 0 : pst_search_find(&g->search, w, &n);
    pst_record *r = calloc(1, sizeof *r);
    REQUIRE(r);
    for (uint32_t k = 0; !st && k < n; k++) {
        st = pst_search_record(&g->search, first + k, r);
        if (!st && found->records < found->n)
            found->equal += (size_t)same_row(found->schema, &found->rows[found->records], r);
        found->records += !st;
    }
    free(r);
    free(stored);
    return st;
}

static inline pst_status guided_search_segment(guided *g, uint32_t segment, const pst_wanted *w,
                                               guided_found *found) {
    const pst_guide_segment *s = &g->guide->segments[segment];
    const uint8_t *made = g->guide->made;
    uint8_t *entries = NULL, *filter = NULL;
    pst_status st = PST_OK;
    if (made) {
        for (uint32_t i = 0; i < segment; i++)
            made += pst_guide_entries_size(&g->guide->segments[i]);
        entries = malloc(pst_guide_entries_size(s));
        REQUIRE(entries);
        memcpy(entries, made, pst_guide_entries_size(s));
    } else {
        entries = guided_part(g->f, s->guide, s->filter);
        filter = guided_part(g->f, s->filter, s->end);
        st = entries && filter ? PST_OK : PST_CORRUPT;
        if (!st)
            st = pst_guide_check_entries(g->guide, segment, entries);
        if (!st)
            st = pst_guide_check_filter(g->guide, segment, entries, filter);
    }
    uint32_t n = 0, first = 0;
    if (!st)
        first = pst_guide_blocks(s, entries, w->key_group, w->hash, &n);
    if (!st && n) {
        g->filters_asked++;
        if (filter && !pst_guide_may_have(s, entries, filter, w->key_group, w->hash))
            n = 0;
        g->filters_passed += n > 0;
    }
    for (uint32_t i = 0; !st && i < n; i++)
        st = guided_search_block(g, s, entries, first + i, w, found);
    free(entries);
    free(filter);
    return st;
}

/* Looks for a key, whose rows are `rows`. */
static inline pst_status guided_find(guided *g, const pst_record *key, guided_found *found) {
    pst_wanted w = {key->hash, key->key_group, key->key_nulls, key->key};
    uint32_t n, first = pst_guide_segments(g->guide, w.key_group, w.hash, &n);
    pst_status st = PST_OK;
    w.nulls &= ~(g->guide->rules.has_element ? 1u << (g->guide->schema.n_keys - 1) : 0u);
    found->equal = found->records = 0;
    for (uint32_t i = 0; !st && i < n; i++)
        st = guided_search_segment(g, first + i, &w, found);
    return st;
}

#endif
