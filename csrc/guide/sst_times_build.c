#include "guide/sst_times_build.h"

#include <string.h>

#include "key/schema.h"

typedef struct timer {
    int64_t time;
    uint64_t hash;
} timer;

static timer *timers_of(const pst_times_list *l) {
    return (timer *)(void *)l->timers.data;
}

void pst_times_builder_free(pst_times_builder *b) {
    pst_buffer_free(&b->lists[0].timers);
    pst_buffer_free(&b->lists[1].timers);
    pst_buffer_free(&b->spare);
    pst_buffer_free(&b->hashes);
    pst_buffer_free(&b->block);
    pst_buffer_free(&b->index);
}

size_t pst_times_builder_bytes(const pst_times_builder *b) {
    return b->lists[0].timers.capacity + b->lists[1].timers.capacity + b->spare.capacity +
           b->hashes.capacity + b->block.capacity + b->index.capacity;
}

/* ---- taking ---------------------------------------------------------------------------------- */

static pst_status add(pst_times_builder *b, uint32_t domain, int64_t time, uint64_t hash) {
    pst_times_list *l = &b->lists[domain];
    pst_status s = pst_buffer_reserve(&l->timers, (l->n + 1) * sizeof(timer));
    if (!s)
        timers_of(l)[l->n++] = (timer){time, hash};
    return s;
}

static int32_t timer_column(const pst_schema *schema) {
    int32_t i = schema->n_states - 1;
    while (i >= 0 && schema->states[i].kind != PST_TIMER)
        i--;
    return i;
}

static pst_status take_record(pst_times_builder *b, const pst_schema *schema, int32_t column,
                              const pst_record *r) {
    int32_t last = schema->n_keys - 1;
    pst_bytes element = r->key[last].bytes;
    if (r->op != PST_PUT)
        return PST_OK;
    if (r->key_nulls >> last & 1) {
        if (column < 0 || !(r->present >> column & 1))
            return PST_OK;
        uint64_t word = r->cells[column].word[0];
        return add(b, word & 1, (int64_t)word >> 1, r->hash);
    }
    if (element.size != PST_ELEMENT_TIMER || pst_get_big(element.data, PST_ELEMENT_ID) ||
        element.data[PST_ELEMENT_ID] > 1)
        return PST_OK;
    uint64_t time = pst_get_big64(element.data + PST_ELEMENT_ID + 1) ^ UINT64_C(1) << 63;
    return add(b, element.data[PST_ELEMENT_ID], (int64_t)time, r->hash);
}

pst_status pst_times_builder_take(pst_times_builder *b, const pst_schema *schema,
                                  const uint8_t *raw, size_t size) {
    pst_record record;
    int32_t column = timer_column(schema);
    pst_status s = pst_sst_view_open(&b->view, schema, raw, size);
    if (!s)
        s = pst_buffer_reserve(&b->hashes, b->view.rows * sizeof(uint64_t));
    if (s)
        return s;
    uint64_t *hash = (uint64_t *)(void *)b->hashes.data;
    s = pst_sst_view_hash(&b->view, hash);
    while (!s && b->view.row < b->view.rows) {
        record.hash = hash[b->view.row];
        pst_sst_view_next(&b->view, &record);
        s = take_record(b, schema, column, &record);
    }
    return s;
}

int pst_times_builder_is_full(const pst_times_builder *b) {
    return b->lists[0].n + b->lists[1].n >= PST_TIMES_RUN;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Merges runs of `step` timers; those of one time stay in the order of rows. */
static void merge_steps(const timer *from, timer *to, size_t n, size_t step) {
    for (size_t begin = 0; begin < n; begin += 2 * step) {
        size_t middle = begin + step < n ? begin + step : n;
        size_t end = middle + step < n ? middle + step : n;
        for (size_t a = begin, b = middle, i = begin; i < end; i++)
            to[i] =
                b == end || (a < middle && from[a].time <= from[b].time) ? from[a++] : from[b++];
    }
}

static pst_status sort(pst_times_builder *b, pst_times_list *l) {
    pst_status s = pst_buffer_reserve(&b->spare, l->n * sizeof(timer));
    l->written = 0;
    for (size_t step = 1; !s && step < l->n; step *= 2) {
        merge_steps(timers_of(l), (timer *)(void *)b->spare.data, l->n, step);
        pst_buffer swapped = l->timers;
        l->timers = b->spare;
        b->spare = swapped;
    }
    return s;
}

pst_status pst_times_builder_sort(pst_times_builder *b) {
    pst_status s = sort(b, &b->lists[0]);
    return s ? s : sort(b, &b->lists[1]);
}

static pst_status put_block(pst_times_builder *b, pst_times_list *l, uint64_t offset,
                            const uint8_t id[16], size_t *size) {
    uint32_t domain = l == &b->lists[1];
    size_t n = l->n - l->written < PST_TIMES_BLOCK ? l->n - l->written : PST_TIMES_BLOCK;
    const timer *t = timers_of(l) + l->written;
    pst_status s =
        pst_buffer_reserve(&b->block, PST_TIMES_BLOCK * PST_TIMES_ENTRY_MOST + PST_SST_ALIGN);
    if (!s)
        s = pst_buffer_reserve(&b->index, ((size_t)b->n_blocks + 1) * PST_GUIDE_TIMES_REF);
    if (s)
        return s;
    uint8_t *p = b->block.data;
    for (size_t i = 0; i < n; i++) {
        p += pst_put_varint(p, i ? (uint64_t)t[i].time - (uint64_t)t[i - 1].time : 0);
        pst_put_u64(p, t[i].hash);
        p += 8;
    }
    size_t used = (size_t)(p - b->block.data);
    *size = (size_t)pst_sst_align(used);
    memset(p, 0, *size - used);
    uint8_t *ref = b->index.data + (size_t)b->n_blocks * PST_GUIDE_TIMES_REF;
    memset(ref, 0, PST_GUIDE_TIMES_REF);
    pst_put_u64(ref, offset);
    pst_put_u64(ref + 8, pst_xxh64(b->block.data, *size, pst_sst_seed(id, offset)));
    pst_put_u64(ref + 16, (uint64_t)t[0].time);
    pst_put_u16(ref + 24, (uint16_t)(*size / PST_SST_ALIGN));
    pst_put_u16(ref + 26, (uint16_t)n);
    ref[28] = (uint8_t)domain;
    ref[29] = l->written == 0;
    l->written += n;
    b->n_blocks++;
    b->n_timers += n;
    return PST_OK;
}

pst_status pst_times_builder_block(pst_times_builder *b, uint64_t offset, const uint8_t id[16],
                                   size_t *size) {
    *size = 0;
    for (int domain = 0; domain < 2; domain++)
        if (b->lists[domain].written < b->lists[domain].n)
            return put_block(b, &b->lists[domain], offset, id, size);
    for (int domain = 0; domain < 2; domain++)
        b->lists[domain].n = b->lists[domain].written = 0;
    return PST_OK;
}

pst_status pst_times_builder_index(pst_times_builder *b, size_t *size) {
    size_t used = (size_t)b->n_blocks * PST_GUIDE_TIMES_REF;
    *size = (size_t)pst_sst_align(used);
    pst_status s = pst_buffer_reserve(&b->index, *size);
    if (!s && *size > used)
        memset(b->index.data + used, 0, *size - used);
    return s;
}
