#include "stack/walk.h"

#include <string.h>

#include "key/hash.h"

#define NO_BLOCK UINT64_MAX

/* What a row is looked for as: the key, and an element of it. */
typedef struct target {
    pst_cell key[PST_MAX_KEYS];
    uint32_t nulls;
} target;

static pst_status fail(const pst_walk *w, pst_status s, uint64_t offset, int sys_errno) {
    w->stack->detail = (pst_detail){(int64_t)offset, w->file, -1, -1, sys_errno ? sys_errno : -1};
    return s;
}

static const pst_member *member_of(const pst_walk *w) {
    return w->stack->files[w->file];
}

pst_status pst_walk_open(pst_walk *w, pst_stack *st, int32_t file, int32_t key_group, uint64_t hash,
                         const pst_cell *key, uint32_t nulls) {
    const pst_member *m = st->files[file];
    uint32_t n, has = !m->filtered;
    uint64_t bytes;
    if (!pst_stack_counts(st, file, key_group))
        return PST_NOT_FOUND;
    uint32_t segment = pst_guide_segments(m->guide, key_group, hash, &n);
    pst_detail detail = {-1, -1, -1, -1, -1};
    pst_status s = pst_member_bring(st->files[file], segment, n, 0, &detail);
    if (s) {
        st->detail = detail;
        st->detail.row = file;
        return s;
    }
    for (uint32_t i = segment; !has && i < segment + n; i++) {
        const uint8_t *filter = pst_member_filter(m, i);
        has = !filter || pst_guide_may_have(&m->guide->segments[i], pst_member_entries(m, i),
                                            filter, key_group, hash);
    }
    uint64_t blocks = has ? pst_member_blocks(m, key_group, hash, &bytes) : 0;
    if (!blocks || !pst_guide_is_within(m->guide, key, nulls, st->n_keys))
        return PST_NOT_FOUND;
    *w = (pst_walk){.stack = pst_stack_retain(st),
                    .file = file,
                    .key_group = key_group,
                    .hash = hash,
                    .key = key,
                    .nulls = nulls,
                    .segment = segment,
                    .blocks = blocks,
                    .open = NO_BLOCK,
                    .ahead = 1};
    return PST_OK;
}

void pst_walk_close(pst_walk *w) {
    w->stack->room.used -= w->window.capacity + w->search.raw.capacity;
    pst_buffer_free(&w->window);
    pst_search_free(&w->search);
    pst_stack_close(w->stack);
}

/* ---- blocks ------------------------------------------------------------------------------------ */

/* Where block `at` of the place is; *left: blocks of the place in that segment from it on. */
static uint32_t place_of(const pst_walk *w, uint64_t at, uint32_t *block, uint32_t *left) {
    const pst_member *m = member_of(w);
    for (uint32_t i = w->segment;; i++) {
        uint32_t n, first = pst_guide_blocks(&m->guide->segments[i], pst_member_entries(m, i),
                                             w->key_group, w->hash, &n);
        if (at < n) {
            *block = first + (uint32_t)at;
            *left = n - (uint32_t)at;
            return i;
        }
        at -= n;
    }
}

static pst_guide_block block_at(const pst_walk *w, uint32_t segment, uint32_t block) {
    const pst_member *m = member_of(w);
    return pst_guide_block_at(&m->guide->segments[segment], pst_member_entries(m, segment), block);
}

/* Reads `size` bytes into the window. */
static pst_status read_window(pst_walk *w, uint64_t offset, uint64_t size) {
    pst_stack *st = w->stack;
    pst_arrival a;
    pst_status s = pst_allowance_room(&st->room, &w->window, size);
    if (!s)
        s = pst_reads_enter(st->reads);
    if (s)
        return s;
    s = pst_reads_start(st->reads, &st->files[w->file]->file, offset, size, 0);
    if (!s) {
        pst_reads_next(st->reads, &a);
        if (a.sys_errno)
            s = fail(w, PST_IO, offset, a.sys_errno);
        else
            memcpy(w->window.data, a.data, size);
        pst_reads_give(st->reads, &a);
        st->stats.reads++;
        st->stats.bytes += size;
    }
    pst_reads_leave(st->reads);
    return s;
}

/* Reads block `at`, and as many of those behind it as may come with it. */
static pst_status fill_window(pst_walk *w, uint64_t at) {
    uint32_t block, left, n = 1, segment = place_of(w, at, &block, &left);
    pst_guide_block b = block_at(w, segment, block), last = b;
    for (; n < left && n < w->ahead; n++) {
        pst_guide_block next = block_at(w, segment, block + n);
        if (next.offset + next.stored - b.offset > PST_WINDOW_BYTES)
            break;
        last = next;
    }
    w->held = 0;
    pst_status s = read_window(w, b.offset, last.offset + last.stored - b.offset);
    if (s)
        return s;
    w->first = at;
    w->held = n;
    return PST_OK;
}

/* Opens block `at` of the place, unless it is. */
static pst_status open_block(pst_walk *w, uint64_t at) {
    pst_stack *st = w->stack;
    const pst_member *m = member_of(w);
    pst_status s = PST_OK;
    if (w->open == at)
        return PST_OK;
    w->open = NO_BLOCK;
    if (!w->held || at < w->first || at >= w->first + w->held)
        s = fill_window(w, at);
    if (s)
        return s;
    uint32_t block, first, left, segment = place_of(w, w->first, &first, &left);
    block = first + (uint32_t)(at - w->first);
    pst_guide_block b = block_at(w, segment, block), from = block_at(w, segment, first);
    const pst_guide_segment *g = &m->guide->segments[segment];
    int32_t last_group = g->last_key_group;
    uint64_t last_hash = pst_guide_last_hash(pst_member_entries(m, segment));
    if (block + 1 < g->blocks) {
        pst_guide_block next = block_at(w, segment, block + 1);
        last_group = next.key_group;
        last_hash = next.first_hash;
    }
    st->stats.blocks++;
    if (b.raw != b.stored)
        s = pst_allowance_room(&st->room, &w->search.raw, b.raw);
    if (!s)
        s = pst_search_open(&w->search, m->guide, &b, last_group, last_hash,
                            w->window.data + (b.offset - from.offset));
    if (s)
        return s == PST_CORRUPT ? fail(w, s, b.offset, 0) : s;
    w->open = at;
    w->row = 0;
    return PST_OK;
}

/* ---- rows -------------------------------------------------------------------------------------- */

static void make_target(const pst_walk *w, const pst_bytes *element, target *to) {
    int32_t n = w->stack->n_keys;
    memcpy(to->key, w->key, (size_t)n * sizeof *w->key);
    to->nulls = w->nulls;
    if (n == w->stack->schema.n_keys)
        return;
    if (element)
        to->key[n].bytes = *element;
    else
        to->nulls |= UINT32_C(1) << n;
}

/* How a row of the open block lies to the target; of its key's own columns alone where there is none. */
static int compare_row(const pst_walk *w, uint32_t row, const target *to) {
    const pst_schema *schema = &w->stack->schema;
    pst_cell key[PST_MAX_KEYS];
    uint32_t nulls;
    pst_sst_view_key(&w->search.view, row, key, &nulls);
    uint64_t hash = pst_hash_key(schema->keys, pst_schema_hashed(schema), key, nulls);
    int32_t group = pst_key_group(hash, w->stack->max_parallelism);
    int order = pst_place_compare(group, hash, w->key_group, w->hash);
    if (order)
        return order;
    return to ? pst_key_compare(schema->keys, schema->n_keys, key, nulls, to->key, to->nulls)
              : pst_key_compare(schema->keys, w->stack->n_keys, key, nulls, w->key, w->nulls);
}

/* The first row of the open block that is not before the target. */
static uint32_t lower_bound(const pst_walk *w, const target *to) {
    uint32_t low = 0, high = w->search.view.rows;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (compare_row(w, middle, to) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Stands at the place's first row that is not before the target, in the block of the last row before
 * it or at the beginning of the first block. `probe`: the block that is looked at first. */
static pst_status find(pst_walk *w, const target *to, uint64_t probe) {
    uint64_t low = 0, high = w->blocks; /* the block is among these */
    w->ahead = 1;
    for (;; probe = low + (high - low) / 2) {
        pst_status s = open_block(w, probe);
        if (s)
            return s;
        uint32_t row = lower_bound(w, to);
        if (row == 0 && probe > low) {
            high = probe;
        } else if (row == w->search.view.rows && probe + 1 < high) {
            low = probe;
        } else {
            w->row = row;
            return PST_OK;
        }
    }
}

pst_status pst_walk_seek(pst_walk *w, const pst_bytes *element) {
    target to;
    make_target(w, element, &to);
    uint64_t probe = w->open != NO_BLOCK ? w->open : element ? w->blocks / 2 : 0;
    return find(w, &to, probe);
}

pst_status pst_walk_seek_last(pst_walk *w, const pst_bytes *element) {
    target to;
    make_target(w, element, &to);
    pst_status s = find(w, &to, w->blocks - 1);
    if (s)
        return s;
    if (!w->row || compare_row(w, w->row - 1, NULL) != 0)
        return PST_NOT_FOUND;
    w->row--;
    return PST_OK;
}

pst_status pst_walk_next(pst_walk *w, pst_record *record) {
    if (w->open == NO_BLOCK)
        return PST_NOT_FOUND;
    if (w->row == w->search.view.rows) {
        if (w->open + 1 == w->blocks)
            return PST_NOT_FOUND;
        if (w->open + 1 == w->first + w->held && w->ahead < PST_GUIDE_BLOCKS)
            w->ahead *= 2;
        pst_status s = open_block(w, w->open + 1);
        if (s)
            return s;
    }
    if (compare_row(w, w->row, NULL) != 0)
        return PST_NOT_FOUND;
    pst_status s = pst_search_record(&w->search, w->row, record);
    if (s == PST_CORRUPT) {
        uint32_t block, left, segment = place_of(w, w->open, &block, &left);
        return fail(w, s, block_at(w, segment, block).offset, 0);
    }
    w->row++;
    return s;
}

uint64_t pst_walk_block(const pst_walk *w, uint64_t *bytes) {
    *bytes = 0;
    if (w->open != NO_BLOCK) {
        uint32_t block, left, segment = place_of(w, w->open, &block, &left);
        *bytes = block_at(w, segment, block).raw;
    }
    return w->open;
}
