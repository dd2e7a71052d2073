#include "lookup/plan.h"

#include "file/sst_reader.h"
#include "lookup/wanted.h"
#include "stack/stack.h"

/* ---- parts ------------------------------------------------------------------------------------- */

static pst_status say(pst_plan *p, uint64_t size) {
    uint64_t begin = p->begin;
    p->begin += size;
    return p->sink->part(p->sink->ctx, p->file, begin, size);
}

pst_status pst_plan_end(pst_plan *p) {
    return p->begin < p->end ? say(p, p->end - p->begin) : PST_OK;
}

pst_status pst_plan_add(pst_plan *p, uint64_t begin, uint64_t end) {
    pst_status s = PST_OK;
    if (p->end && (begin <= p->end || begin - p->end <= p->sink->gap)) {
        p->end = end > p->end ? end : p->end;
    } else {
        s = pst_plan_end(p);
        p->begin = begin;
        p->end = end;
    }
    while (!s && p->end - p->begin > p->sink->most)
        s = say(p, p->sink->most);
    return s;
}

/* ---- stacks ------------------------------------------------------------------------------------ */

/* Brings what of a file's guide leads to keys: of segments that lie side by side at once. */
static pst_status bring_entries(pst_stack *st, int32_t file, const pst_wanted_list *w,
                                pst_detail *detail) {
    pst_member *m = st->files[file];
    uint32_t first = 0, end = 0; /* of segments that are still to be brought */
    pst_status s = PST_OK;
    for (uint32_t i = 0; !s && i < w->n; i = w->keys[i].end) {
        const pst_wanted_key *k = &w->keys[i];
        if (!pst_stack_counts(st, file, k->key_group))
            continue;
        uint32_t n, segment = pst_guide_segments(m->guide, k->key_group, k->hash, &n);
        if (segment > end || first == end) {
            s = pst_member_bring(m, first, end - first, 0, detail);
            first = segment;
        }
        end = segment + n > end ? segment + n : end;
    }
    if (!s)
        s = pst_member_bring(m, first, end - first, 0, detail);
    if (s)
        detail->row = file;
    return s;
}

static pst_status add_place(pst_plan *p, const pst_member *m, int32_t key_group, uint64_t hash) {
    uint32_t n, first = pst_guide_segments(m->guide, key_group, hash, &n);
    pst_status s = PST_OK;
    for (uint32_t i = first; !s && i < first + n; i++) {
        const pst_guide_segment *segment = &m->guide->segments[i];
        const uint8_t *entries = pst_member_entries(m, i);
        const uint8_t *filter = m->filtered ? pst_member_filter(m, i) : NULL;
        uint32_t blocks;
        if (filter && !pst_guide_may_have(segment, entries, filter, key_group, hash))
            continue;
        uint32_t block = pst_guide_blocks(segment, entries, key_group, hash, &blocks);
        if (!blocks)
            continue;
        pst_guide_block low = pst_guide_block_at(segment, entries, block);
        pst_guide_block high = pst_guide_block_at(segment, entries, block + blocks - 1);
        s = pst_plan_add(p, low.offset, high.offset + high.stored);
    }
    return s;
}

pst_status pst_stack_plan(pst_stack *st, const pst_wanted_keys *wanted, const pst_plan_sink *sink,
                          pst_detail *detail) {
    pst_wanted_list w;
    *detail = (pst_detail){-1, -1, -1, -1, -1};
    if (!sink->most)
        return PST_INVALID;
    pst_status s =
        pst_wanted_make(&w, &st->schema, st->max_parallelism, wanted, st->room.charge.budget, NULL);
    for (int32_t file = 0; !s && file < st->n; file++) {
        pst_plan p = {sink, file, 0, 0};
        s = bring_entries(st, file, &w, detail);
        for (uint32_t i = 0; !s && i < w.n; i = w.keys[i].end)
            if (pst_stack_counts(st, file, w.keys[i].key_group))
                s = add_place(&p, st->files[file], w.keys[i].key_group, w.keys[i].hash);
        if (!s)
            s = pst_plan_end(&p);
    }
    pst_wanted_free(&w);
    return s;
}

/* ---- any file ---------------------------------------------------------------------------------- */

static pst_status add_bytes(void *ctx, uint64_t begin, uint64_t end) {
    return pst_plan_add(ctx, begin, end);
}

pst_status pst_sst_reader_plan(pst_sst_reader *r, const pst_wanted_keys *wanted, int entries,
                               const pst_plan_sink *sink) {
    pst_wanted_list w;
    pst_plan p = {sink, 0, 0, 0};
    const pst_file_info *info = pst_sst_reader_info(r);
    if (!sink->most)
        return PST_INVALID;
    pst_status s =
        pst_wanted_make(&w, pst_sst_reader_schema(r), info->max_parallelism, wanted, NULL, NULL);
    for (uint32_t i = 0; !s && i < w.n; i = w.keys[i].end) {
        int32_t group = w.keys[i].key_group;
        if (group >= info->first_key_group && group <= info->last_key_group)
            s = pst_sst_reader_where(r, group, w.keys[i].hash, entries, add_bytes, &p);
    }
    if (!s)
        s = pst_plan_end(&p);
    pst_wanted_free(&w);
    return s;
}
