#include "stack/search.h"

#include <string.h>

#include "key/hash.h"
#include "reads/read_costs.h"

/* Of so many bytes for each wanted key of a place it pays to look for the records that are needed.
 * Tests take any key for one of these. */
#define PST_LONG_BYTES ((uint64_t)128 << 10)
#ifdef PST_LONG_SOME
#define PST_IS_LONG(bytes, keys, hash) ((bytes) > 0 && (keys) > 0 && (hash) % PST_LONG_SOME == 0)
#else
#define PST_IS_LONG(bytes, keys, hash) ((bytes) > PST_LONG_BYTES * (keys))
#endif

enum {
    WINDOW_BYTES = PST_WINDOW_BYTES,
    WINDOWS = 512,        /* on their way at most, or arrived */
    MEASURED_KEYS = 4096, /* for fewer the disk's costs are not measured */
    AHEAD = 6,            /* keys */
    BOUNDED = 256,        /* keys of a file that are compared with its bounds before these are
                             taken for useless */
    KEPT_BYTES = 1 << 20, /* of a decompressed block, for the next search */
    CROWD = 8,            /* keys of one place, from which on it pays to put them in order */
    NO_FILE = -1,
    BASE_ASKED = 1 << 16 /* of which the share of absent keys is reckoned */
};

/* What is known of a key. */
typedef struct wanted {
    uint64_t covered; /* columns of which older files add nothing */
    int16_t next;     /* the newest file that it has not asked, or NO_FILE */
    uint8_t asks;     /* a file, in this round */
    uint8_t any;      /* something was found */
    uint8_t here;     /* in the file that it asks */
    uint8_t done;
    uint8_t blind; /* of that file no filter was here */
    uint16_t kib;  /* of files that it has asked and that have much of it */
} wanted;

/* A key in a file that it asks, and the blocks in which it would be. */
typedef struct item {
    uint32_t at; /* in the slice */
    uint32_t segment;
    uint16_t block;
    uint16_t blocks; /* 0: they are not near each other, or were not looked for yet */
} item;

/* Blocks of a segment that are read together, or its filter. */
typedef struct window {
    int32_t file;
    uint32_t segment;
    uint64_t offset;
    uint32_t item; /* the first of those whose blocks they are */
    uint32_t items;
    uint16_t block;
    uint16_t blocks; /* 0: it is the filter */
    uint8_t more;    /* its items are of one place, which has other blocks besides */
    uint8_t flies;
    uint32_t mark; /* of what has arrived */
} window;

typedef struct run {
    pst_stack *st;
    const pst_seeker *seeker;
    const pst_place *places; /* of the slice */
    wanted *wanted;
    uint32_t *active; /* keys that are not done, ascending */
    uint32_t n_active;
    item *items; /* of the round: one at most for each active key */
    uint32_t n_items;
    window *windows;
    uint32_t *free_windows;
    uint32_t n_free;
    uint32_t gap_pages; /* that are read rather than begin another read */
    uint32_t filters;   /* on their way */
    uint32_t pieces;    /* of guides, likewise */
    uint32_t bounded;   /* keys of the file at hand that were compared with its bounds */
    uint32_t beyond;    /* of these, outside */
    pst_record record;
} run;

static pst_status fail(pst_stack *st, pst_status s, int32_t file, uint64_t offset, int sys_errno) {
    st->detail = (pst_detail){(int64_t)offset, file, -1, -1, sys_errno ? sys_errno : -1};
    return s;
}

/* ---- keys -------------------------------------------------------------------------------------- */

static pst_status finish(run *r, uint32_t at) {
    r->wanted[at].done = 1;
    return r->seeker->done(r->seeker->ctx, r->places[at].key, r->wanted[at].any);
}

/* Can no older file add anything? */
static int is_over(const pst_stack *st, const wanted *w) {
    return w->next == NO_FILE || (w->any && !(st->all & ~w->covered));
}

/* The file that it asked has nothing more to say. */
static pst_status leave_file(run *r, uint32_t at, const pst_member *m) {
    pst_stack *st = r->st;
    wanted *w = &r->wanted[at];
    if (m->filtered && !w->blind) {
        st->stats.lies += !w->here;
    } else {
        st->stats.absent += !w->here;
    }
    if (!m->filtered) {
        st->base_asked++;
        st->base_absent += !w->here;
        if (st->base_asked > BASE_ASKED) {
            st->base_asked /= 2;
            st->base_absent /= 2;
        }
    }
    w->here = 0;
    return is_over(st, w) ? finish(r, at) : PST_OK;
}

/* ---- blocks ------------------------------------------------------------------------------------ */

/* Looks for an item's key in the open block. */
static pst_status find(run *r, const window *v, const item *it) {
    pst_stack *st = r->st;
    const pst_place *place = &r->places[it->at];
    wanted *w = &r->wanted[it->at];
    pst_cell cells[PST_MAX_KEYS];
    pst_wanted sought = {place->hash, place->key_group, 0, cells};
    pst_found f = {place->key, v->file, 0, 0, &r->record, 0, &st->block};
    if (r->seeker->key)
        r->seeker->key(r->seeker->ctx, place->key, cells, &sought.nulls);
    else
        sought.key = NULL;
    f.row = pst_search_find(&st->block, &sought, &f.rows);
    if (!f.rows)
        return PST_OK;
    pst_status s = pst_search_record(&st->block, f.row, &r->record);
    if (s)
        return s;
    int first = !w->any;
    if (r->seeker->key)
        w->covered = pst_stack_covered(st, w->covered, &r->record);
    w->any = w->here = 1;
    f.only = first && r->seeker->key && st->n_keys == st->schema.n_keys && is_over(st, w);
    return r->seeker->found(r->seeker->ctx, &f);
}

static int is_last_block(const window *v, const item *it, uint32_t block) {
    return !v->more && block + 1u >= (uint32_t)it->block + it->blocks;
}

static pst_status look_up(run *r, const window *v, const item *it, uint32_t block) {
    pst_status s = find(r, v, it);
    return s || !is_last_block(v, it, block) ? s : leave_file(r, it->at, r->st->files[v->file]);
}

/* ---- crowds ------------------------------------------------------------------------------------ */

/* A crowd is keys of one place, as many as have one hash and different namespaces. Its blocks are
 * read once for all of them, and where the crowd is in the order of its keys each is looked for in
 * those blocks alone in which it can be. */

static int same_place(const run *r, const item *a, const item *b) {
    const pst_place *p = &r->places[a->at], *q = &r->places[b->at];
    return p->hash == q->hash && p->key_group == q->key_group;
}

/* How many of the items from the first one on are of its place. */
static uint32_t crowd_of(const run *r, const item *first, const item *end) {
    uint32_t n = 1;
    while (first + n < end && same_place(r, first, first + n))
        n++;
    return n;
}

static int compare_to(const run *r, const item *it, const pst_cell *key, uint32_t nulls) {
    pst_cell own[PST_MAX_KEYS];
    uint32_t own_nulls = 0;
    r->seeker->key(r->seeker->ctx, r->places[it->at].key, own, &own_nulls);
    return pst_key_compare(r->st->schema.keys, r->st->n_keys, own, own_nulls, key, nulls);
}

static int compare_items(const run *r, const item *a, const item *b) {
    pst_cell key[PST_MAX_KEYS];
    uint32_t nulls = 0;
    r->seeker->key(r->seeker->ctx, r->places[b->at].key, key, &nulls);
    return compare_to(r, a, key, nulls);
}

/* Lets an item down to where no item below it comes behind it. */
static void sift(const run *r, item *items, uint32_t at, uint32_t n) {
    item moved = items[at];
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && compare_items(r, &items[child], &items[child + 1]) < 0)
            child++;
        if (compare_items(r, &moved, &items[child]) >= 0)
            break;
        items[at] = items[child];
    }
    items[at] = moved;
}

/* In place, and O(n log n) for whatever keys somebody has chosen. */
static void sort_crowd(const run *r, item *items, uint32_t n) {
    uint32_t sorted = 1;
    while (sorted < n && compare_items(r, &items[sorted - 1], &items[sorted]) <= 0)
        sorted++;
    if (sorted == n)
        return;
    for (uint32_t i = n / 2; i-- > 0;)
        sift(r, items, i, n);
    for (uint32_t left = n; left-- > 1;) {
        item largest = items[0];
        items[0] = items[left];
        items[left] = largest;
        sift(r, items, 0, left);
    }
}

/* How many of a sorted crowd come before the block's row; or, `with` it, not behind it. */
static uint32_t count_before(const run *r, const item *items, uint32_t n, uint32_t row, int with) {
    pst_cell key[PST_MAX_KEYS];
    uint32_t nulls, low = 0, high = n;
    pst_sst_view_key(&r->st->block.view, row, key, &nulls);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (compare_to(r, &items[middle], key, nulls) < with)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static pst_status look_up_crowd(run *r, const window *v, const item *items, uint32_t n,
                                uint32_t block) {
    const pst_place *p = &r->places[items->at];
    const pst_wanted place = {p->hash, p->key_group, 0, NULL};
    uint32_t rows, first = pst_search_find(&r->st->block, &place, &rows);
    pst_status s = PST_OK;
    if (rows) {
        uint32_t end = count_before(r, items, n, first + rows - 1, 1);
        for (uint32_t i = count_before(r, items, n, first, 0); !s && i < end; i++)
            s = find(r, v, &items[i]);
    }
    for (uint32_t i = 0; !s && i < n && is_last_block(v, items, block); i++)
        s = leave_file(r, items[i].at, r->st->files[v->file]);
    return s;
}

/* ---- memory ------------------------------------------------------------------------------------ */

static void free_block(pst_stack *st) {
    st->room.used -= st->block.raw.capacity;
    pst_search_free(&st->block);
}

/* ---- windows ----------------------------------------------------------------------------------- */

static uint64_t block_end(const pst_member *m, const window *v, uint32_t block) {
    pst_guide_block b = pst_guide_block_at(&m->guide->segments[v->segment],
                                           pst_member_entries(m, v->segment), block);
    return b.offset + b.stored;
}

/* What has arrived is damaged: once more, where that may help. */
static pst_status read_again(pst_stack *st, window *v, uint8_t *data) {
    pst_member *m = st->files[v->file];
    int sys_errno = 0;
    uint64_t size = v->blocks ? block_end(m, v, v->block + v->blocks - 1u) - v->offset
                              : pst_guide_filter_size(&m->guide->segments[v->segment]);
    pst_status s = pst_read_again(&m->file, v->offset, size, &v->mark, data, &sys_errno);
    return s == PST_IO ? fail(st, s, v->file, v->offset, sys_errno) : s;
}

static pst_status open_block(run *r, window *v, uint32_t block, uint8_t *data) {
    pst_stack *st = r->st;
    const pst_member *m = st->files[v->file];
    int32_t last_group;
    uint64_t last_hash;
    pst_guide_block b = pst_member_block(m, v->segment, block, &last_group, &last_hash);
    st->stats.blocks++;
    pst_status status = b.packed ? pst_allowance_room(&st->room, &st->block.raw, b.raw) : PST_OK;
    if (status)
        return status;
    uint8_t *stored = data + (b.offset - v->offset);
    status = pst_search_open(&st->block, m->guide, &b, last_group, last_hash, stored);
    for (int i = 0; status == PST_CORRUPT && i < PST_READ_TRIES; i++) {
        status = read_again(st, v, data);
        if (status)
            break;
        status = pst_search_open(&st->block, m->guide, &b, last_group, last_hash, stored);
    }
    return status == PST_CORRUPT ? fail(st, status, v->file, b.offset, 0) : status;
}

/* Searches the window's blocks for its items, whose blocks begin and end in ascending order. */
static pst_status search_window(run *r, window *v, uint8_t *data) {
    const item *low = &r->items[v->item], *end = low + v->items;
    /* While the first block is decompressed their memory comes. */
    for (const item *it = low; r->seeker->ahead && it < end && it < low + AHEAD; it++)
        r->seeker->ahead(r->seeker->ctx, r->places[it->at].key);
    for (uint32_t block = v->block; block < (uint32_t)v->block + v->blocks; block++) {
        while (!v->more && low < end && (uint32_t)low->block + low->blocks <= block)
            low++;
        if (low == end || (!v->more && low->block > block))
            continue;
        pst_status s = open_block(r, v, block, data);
        uint32_t n = 1;
        for (const item *it = low; !s && it < end && (v->more || it->block <= block); it += n) {
            n = v->more ? v->items : it->blocks > 1 ? crowd_of(r, it, end) : 1;
            if (n >= CROWD && r->seeker->key) {
                s = look_up_crowd(r, v, it, n, block);
                continue;
            }
            n = 1;
            if (r->seeker->ahead && end - it > AHEAD)
                r->seeker->ahead(r->seeker->ctx, r->places[it[AHEAD].at].key);
            s = look_up(r, v, it, block);
        }
        if (s)
            return s == PST_CORRUPT && r->st->detail.offset < 0
                       ? fail(r->st, s, v->file, v->offset, 0)
                       : s;
    }
    return PST_OK;
}

/* Marks the items of a segment that its filter does not have. */
static pst_status search_filter(run *r, window *v, uint8_t *filter) {
    pst_stack *st = r->st;
    const pst_member *m = st->files[v->file];
    const uint8_t *entries = pst_member_entries(m, v->segment);
    const pst_guide_segment *s = &m->guide->segments[v->segment];
    r->filters--;
    pst_status status = PST_OK;
    for (int i = 0; !status && pst_guide_check_filter(m->guide, v->segment, entries, filter); i++)
        status = i < PST_READ_TRIES ? read_again(st, v, filter) : PST_CORRUPT;
    if (status)
        return status == PST_CORRUPT ? fail(st, status, v->file, v->offset, 0) : status;
    for (uint32_t i = v->item; i < v->item + v->items; i++) {
        const pst_place *p = &r->places[r->items[i].at];
        if (!pst_guide_may_have(s, entries, filter, p->key_group, p->hash)) {
            status = leave_file(r, r->items[i].at, m);
            if (status)
                return status;
            r->items[i].segment = UINT32_MAX;
        }
    }
    return PST_OK;
}

/* ---- reads ------------------------------------------------------------------------------------- */

/* Tags of reads: a window's number, or parts of a guide. */
#define PIECE (UINT64_C(1) << 63)

static uint64_t piece_tag(int32_t file, uint32_t segment, int parts) {
    return PIECE | (uint64_t)parts << 48 | (uint64_t)file << 32 | segment;
}

static pst_status take_piece(run *r, const pst_arrival *a) {
    pst_stack *st = r->st;
    int32_t file = (int32_t)(a->tag >> 32 & UINT16_MAX);
    pst_detail detail = {-1, -1, -1, -1, -1};
    pst_status s = pst_member_take(st->files[file], (uint32_t)a->tag,
                                   (int)(a->tag >> 48 & UINT8_MAX), a, &detail);
    pst_reads_give(st->reads, a);
    r->pieces--;
    if (s) {
        st->detail = detail;
        st->detail.row = file;
    }
    return s;
}

/* Takes what arrives next. */
static pst_status take_one(run *r) {
    pst_arrival a;
    pst_reads_next(r->st->reads, &a);
    if (a.tag & PIECE)
        return take_piece(r, &a);
    uint32_t number = (uint32_t)a.tag;
    window *v = &r->windows[number];
    pst_status s;
    v->mark = a.mark;
    if (a.sys_errno)
        s = fail(r->st, PST_IO, v->file, v->offset, a.sys_errno);
    else
        s = v->blocks ? search_window(r, v, a.data) : search_filter(r, v, a.data);
    pst_reads_give(r->st->reads, &a);
    v->flies = 0;
    r->free_windows[r->n_free++] = number;
    return s;
}

/* Starts the read of a window, of `bytes` from v->offset on; *number is then its number. */
static pst_status start_window(run *r, const window *v, size_t bytes, uint32_t *number) {
    while (!r->n_free) {
        pst_status s = take_one(r);
        if (s)
            return s;
    }
    *number = r->free_windows[--r->n_free];
    r->windows[*number] = *v;
    r->windows[*number].flies = 1;
    r->st->stats.reads++;
    r->st->stats.bytes += bytes;
    for (;;) {
        pst_status s =
            pst_reads_start(r->st->reads, &r->st->files[v->file]->file, v->offset, bytes, *number);
        if (s != PST_BUSY)
            return s;
        s = take_one(r);
        if (s)
            return s;
    }
}

static uint64_t block_begin(const pst_member *m, const window *v, uint32_t block) {
    return pst_guide_block_at(&m->guide->segments[v->segment], pst_member_entries(m, v->segment),
                              block)
        .offset;
}

/* Reads the many blocks of a place, some at a time, in order, for the n items that are of it. */
static pst_status search_long(run *r, int32_t file, uint32_t index, uint32_t n) {
    const pst_member *m = r->st->files[file];
    const pst_place *p = &r->places[r->items[index].at];
    uint32_t n_segments, first = pst_guide_segments(m->guide, p->key_group, p->hash, &n_segments);
    for (uint32_t i = first; i < first + n_segments; i++) {
        window v = {.file = file, .segment = i, .item = index, .items = n, .more = 1};
        uint32_t blocks, block = pst_guide_blocks(&m->guide->segments[i], pst_member_entries(m, i),
                                                  p->key_group, p->hash, &blocks);
        for (uint32_t end = block + blocks; block < end; block += v.blocks) {
            uint32_t number;
            v.block = (uint16_t)block;
            v.offset = block_begin(m, &v, block);
            v.blocks = 1;
            while (block + v.blocks < end &&
                   block_end(m, &v, block + v.blocks) - v.offset <= WINDOW_BYTES)
                v.blocks++;
            pst_status s =
                start_window(r, &v, block_end(m, &v, block + v.blocks - 1u) - v.offset, &number);
            while (!s && r->windows[number].flies)
                s = take_one(r);
            if (s)
                return s;
        }
    }
    pst_status s = PST_OK;
    for (uint32_t i = index; !s && i < index + n; i++)
        s = leave_file(r, r->items[i].at, m);
    return s;
}

/* Whether block `block` to `last` of an item may be read with those of a window that ends at `end`;
 * if so *end is where it ends then. */
static int is_near(const run *r, const pst_member *m, const window *v, const item *it,
                   uint64_t *end) {
    uint32_t last = (uint32_t)it->block + it->blocks - 1;
    if (it->segment != v->segment || !it->blocks)
        return 0;
    if (last < (uint32_t)v->block + v->blocks)
        return 1;
    uint64_t from = block_begin(m, v, it->block) / PST_READ_ALIGN;
    uint64_t to = block_end(m, v, last);
    uint64_t pages = (*end + PST_READ_ALIGN - 1) / PST_READ_ALIGN;
    if (to - v->offset > WINDOW_BYTES || (from > pages && from - pages > r->gap_pages))
        return 0;
    *end = to;
    return 1;
}

/* Puts those crowds among the items from `i` on in order that have several blocks. */
static void sort_crowds(const run *r, uint32_t i) {
    for (uint32_t n; r->seeker->key && i < r->n_items; i += n) {
        n = r->items[i].blocks == 1 ? 1 : crowd_of(r, &r->items[i], &r->items[r->n_items]);
        if (n >= CROWD)
            sort_crowd(r, &r->items[i], n);
    }
}

/* Reads the blocks of the items of a file from `i` on. */
static pst_status read_items(run *r, int32_t file, uint32_t i) {
    const pst_member *m = r->st->files[file];
    pst_status s = PST_OK;
    sort_crowds(r, i);
    while (!s && i < r->n_items) {
        const item *it = &r->items[i];
        window v = {.file = file, .segment = it->segment, .item = i, .items = 1};
        v.block = it->block;
        v.blocks = it->blocks;
        uint64_t end = 0;
        if (v.blocks) {
            v.offset = block_begin(m, &v, v.block);
            end = block_end(m, &v, v.block + v.blocks - 1u);
        }
        if (!v.blocks || (v.blocks > 1 && end - v.offset > WINDOW_BYTES)) {
            uint32_t n = crowd_of(r, it, &r->items[r->n_items]);
            s = search_long(r, file, i, n);
            i += n;
            continue;
        }
        for (i++; i < r->n_items && is_near(r, m, &v, &r->items[i], &end); i++) {
            uint32_t last = (uint32_t)r->items[i].block + r->items[i].blocks;
            if (last > (uint32_t)v.block + v.blocks)
                v.blocks = (uint16_t)(last - v.block);
            v.items++;
        }
        uint32_t number;
        s = start_window(r, &v, end - v.offset, &number);
    }
    return s;
}

/* ---- rounds ------------------------------------------------------------------------------------ */

/* The segments that may have a place, of places that ascend. */
static uint32_t segments_of(const pst_guide *g, uint32_t near, const pst_place *p, uint32_t *n) {
    if (near + 1 < g->n_segments) {
        const pst_guide_segment *s = &g->segments[near];
        if (pst_place_compare(s->first_key_group, s->first_hash, p->key_group, p->hash) < 0 &&
            pst_place_compare(p->key_group, p->hash, s[1].first_key_group, s[1].first_hash) < 0) {
            *n = 1;
            return near;
        }
    }
    return pst_guide_segments(g, p->key_group, p->hash, n);
}

/* Whether a delta's filters have the place; *blind: one is not here that might say no. */
static int filter_has(const pst_member *m, uint32_t segment, uint32_t n, const pst_place *p,
                      uint8_t *blind) {
    *blind = 0;
    for (uint32_t i = segment; i < segment + n; i++) {
        const uint8_t *filter = pst_member_filter(m, i);
        *blind |= !filter;
        if (filter && pst_guide_may_have(&m->guide->segments[i], pst_member_entries(m, i), filter,
                                         p->key_group, p->hash))
            return 1;
    }
    return *blind;
}

static int is_within(run *r, const pst_member *m, const pst_place *p) {
    pst_cell cells[PST_MAX_KEYS];
    uint32_t nulls = 0;
    if (!r->seeker->key || (r->bounded == BOUNDED && !r->beyond))
        return 1;
    r->seeker->key(r->seeker->ctx, p->key, cells, &nulls);
    int within = pst_guide_is_within(m->guide, cells, nulls, r->st->n_keys);
    r->bounded += r->bounded < BOUNDED;
    r->beyond += !within;
    return within;
}

/* Whether the file may have the key, as far as memory says; `it` is then where. REQUIRES: the entries
 * of its segments are here. */
static int may_have(run *r, int32_t file, const pst_place *p, item *it, uint8_t *blind) {
    const pst_member *m = r->st->files[file];
    uint32_t n, blocks = 0;
    if (!pst_stack_counts(r->st, file, p->key_group))
        return 0;
    uint32_t segment = segments_of(m->guide, it->segment, p, &n);
    if (!n)
        return 0;
    it->segment = segment;
    it->blocks = 0;
    /* Filters know hashes: keys of one hash, which differ in their namespaces, the bounds may tell
     * apart. */
    if ((m->filtered && !filter_has(m, segment, n, p, blind)) || !is_within(r, m, p))
        return 0;
    if (n > 1)
        return 1;
    it->block =
        (uint16_t)pst_guide_blocks(&m->guide->segments[segment], pst_member_entries(m, segment),
                                   p->key_group, p->hash, &blocks);
    it->blocks = (uint16_t)blocks;
    return blocks > 0;
}

/* Of an item of a base's segment: does it pay to read the filter for n of them? Of `asked` keys that
 * bases were asked for, as many were absent as the stack's figures say. */
static int filter_pays(const run *r, const pst_member *m, const item *first, uint32_t n) {
    const pst_guide_segment *s = &m->guide->segments[first->segment];
    if (m->guide->made) /* it has none that could be read */
        return 0;
    uint64_t pages = pst_guide_filter_size(s) / PST_READ_ALIGN + 2;
    uint64_t saved = r->st->base_asked ? (uint64_t)n * r->st->base_absent / r->st->base_asked : 0;
    return saved * (r->gap_pages + 2) > r->gap_pages + pages;
}

/* Reads the filters of segments of which many keys are wanted that most likely are not there, and
 * drops the items that they do not have. */
static pst_status ask_filters(run *r, int32_t file, uint32_t first) {
    const pst_member *m = r->st->files[file];
    pst_status s = PST_OK;
    for (uint32_t i = first, n = 1; !s && i < r->n_items; i += n, n = 1) {
        uint32_t segment = r->items[i].segment, number;
        while (i + n < r->n_items && r->items[i + n].segment == segment && r->items[i + n].blocks)
            n++;
        if (!r->items[i].blocks || !filter_pays(r, m, &r->items[i], n))
            continue;
        const pst_guide_segment *g = &m->guide->segments[segment];
        window v = {.file = file, .segment = segment, .item = i, .items = n};
        v.offset = g->filter;
        r->filters++;
        r->st->stats.filters++;
        s = start_window(r, &v, pst_guide_filter_size(g), &number);
    }
    while (!s && r->filters)
        s = take_one(r);
    uint32_t kept = first;
    for (uint32_t i = first; i < r->n_items; i++)
        if (r->items[i].segment != UINT32_MAX)
            r->items[kept++] = r->items[i];
    r->n_items = kept;
    return s;
}

/* How many active keys there are of the place of one of them, as far as `most`. */
static uint32_t keys_of_place(const run *r, uint32_t i, uint64_t most) {
    const pst_place *p = &r->places[r->active[i]];
    uint32_t from = i, end = i + 1;
    for (; from > 0 && i - from < most; from--) {
        const pst_place *q = &r->places[r->active[from - 1]];
        if (q->hash != p->hash || q->key_group != p->key_group)
            break;
    }
    for (; end < r->n_active && end - from < most; end++) {
        const pst_place *q = &r->places[r->active[end]];
        if (q->hash != p->hash || q->key_group != p->key_group)
            break;
    }
    return end - from;
}

/* Whether files have so much at the key's place that it is left to whoever knows what is needed. */
static int is_long(const run *r, int32_t file, uint32_t i, const item *it) {
    const pst_place *p = &r->places[r->active[i]];
    wanted *w = &r->wanted[r->active[i]];
    if (!r->seeker->is_long)
        return 0;
    uint64_t bytes = 1;
    /* What lies in two blocks shares them with others. */
    if (!it->blocks || it->blocks > 2) {
        (void)pst_member_blocks(r->st->files[file], p->key_group, p->hash, &bytes);
        bytes += (uint64_t)w->kib << 10;
        w->kib = (uint16_t)(bytes >> 10 < UINT16_MAX ? bytes >> 10 : UINT16_MAX);
    }
    return PST_IS_LONG(bytes, 1, p->hash) &&
           PST_IS_LONG(bytes, keys_of_place(r, i, bytes / PST_LONG_BYTES + 1), p->hash) &&
           r->seeker->is_long(r->seeker->ctx, p->key);
}

static int asks_now(const wanted *w, int32_t file) {
    return !w->asks && !w->done && w->next >= file;
}

/* Reads what the guide lacks of a segment of which so many keys are wanted. */
static pst_status start_piece(run *r, int32_t file, uint32_t segment, uint32_t keys) {
    pst_member *m = r->st->files[file];
    int parts = pst_member_wants(m, segment, keys, r->gap_pages);
    pst_status s = parts ? PST_BUSY : PST_OK;
    while (s == PST_BUSY) {
        s = pst_member_start(m, segment, parts, piece_tag(file, segment, parts));
        if (s == PST_BUSY) {
            s = take_one(r);
            s = s ? s : PST_BUSY;
        } else {
            r->pieces += !s;
        }
    }
    return s;
}

/* Has in memory what the file's guide says of the active keys that may ask it now. Their places ascend,
 * and so do their segments. */
static pst_status bring_guide(run *r, int32_t file) {
    pst_member *m = r->st->files[file];
    uint32_t near = 0, keys = 0, segment = 0, next = 0; /* those before `next` were started */
    pst_status s = PST_OK;
    for (uint32_t i = 0; !s && m->lacking && i < r->n_active; i++) {
        const pst_place *p = &r->places[r->active[i]];
        if (!asks_now(&r->wanted[r->active[i]], file) ||
            !pst_stack_counts(r->st, file, p->key_group))
            continue;
        uint32_t n, from = segments_of(m->guide, near, p, &n);
        near = from;
        if (!n)
            continue;
        uint32_t last = from + n - 1;
        if (keys && last == segment) {
            keys++;
            continue;
        }
        if (keys) {
            s = start_piece(r, file, segment, keys);
            next = segment + 1;
        }
        for (from = from < next ? next : from; !s && from < last; from++)
            s = start_piece(r, file, from, 1);
        segment = last;
        keys = 1;
    }
    if (!s && keys)
        s = start_piece(r, file, segment, keys);
    int came = r->pieces > 0;
    while (!s && r->pieces)
        s = take_one(r);
    if (came)
        pst_member_settle(m);
    return s;
}

/* Asks a file for the active keys that may ask it now. */
static pst_status ask_file(run *r, int32_t file) {
    const pst_member *m = r->st->files[file];
    uint32_t first = r->n_items;
    item it = {0, 0, 0, 0};
    r->bounded = r->beyond = 0;
    pst_status status = bring_guide(r, file);
    if (status)
        return status;
    for (uint32_t i = 0; i < r->n_active; i++) {
        wanted *w = &r->wanted[r->active[i]];
        if (!asks_now(w, file))
            continue;
        it.at = r->active[i];
        if (!may_have(r, file, &r->places[it.at], &it, &w->blind))
            continue;
        if (is_long(r, file, i, &it)) {
            w->done = 1;
            continue;
        }
        w->asks = 1;
        w->next = (int16_t)(m->filtered ? file - 1 : NO_FILE); /* a base is whole */
        r->items[r->n_items++] = it;
    }
    r->st->stats.asked += r->n_items - first;
    if (m->filtered || first == r->n_items)
        return read_items(r, file, first);
    pst_status s = ask_filters(r, file, first);
    return s ? s : read_items(r, file, first);
}

static pst_status run_round(run *r) {
    pst_status s = PST_OK;
    uint32_t left = 0;
    r->n_items = 0;
    for (uint32_t i = 0; i < r->n_active; i++)
        r->wanted[r->active[i]].asks = 0;
    for (int32_t f = r->st->n - 1; !s && f >= 0 && r->n_items < r->n_active; f--)
        s = ask_file(r, f);
    for (uint32_t i = 0; !s && i < r->n_active; i++)
        if (!r->wanted[r->active[i]].asks && !r->wanted[r->active[i]].done)
            s = finish(r, r->active[i]);
    while (!s && pst_reads_pending(r->st->reads))
        s = take_one(r);
    for (uint32_t i = 0; i < r->n_active; i++)
        if (!r->wanted[r->active[i]].done)
            r->active[left++] = r->active[i];
    r->n_active = left;
    return s;
}

static pst_status run_slice(run *r, const pst_place *places, uint32_t n) {
    r->places = places;
    r->n_active = n;
    for (uint32_t i = 0; i < n; i++) {
        if (i && pst_place_compare(places[i - 1].key_group, places[i - 1].hash, places[i].key_group,
                                   places[i].hash) > 0)
            return PST_INVALID;
        r->wanted[i] = (wanted){.next = (int16_t)(r->st->n - 1)};
        r->active[i] = i;
    }
    pst_status s = PST_OK;
    while (!s && r->n_active)
        s = run_round(r);
    return s;
}

/* ---- searches ---------------------------------------------------------------------------------- */

/* Memory for slices of n keys, one piece for all. */
static pst_status set_up(run *r, pst_stack *st, uint32_t n) {
    size_t windows = WINDOWS * (sizeof(window) + sizeof(uint32_t));
    size_t bytes = windows + n * (sizeof(wanted) + sizeof(item) + sizeof(uint32_t));
    pst_status s = pst_allowance_room(&st->room, &st->memory, bytes);
    if (s)
        return s;
    r->st = st;
    r->windows = (window *)(void *)st->memory.data;
    r->wanted = (wanted *)(void *)(r->windows + WINDOWS);
    r->items = (item *)(void *)(r->wanted + n);
    r->active = (uint32_t *)(void *)(r->items + n);
    r->free_windows = r->active + n;
    for (r->n_free = 0; r->n_free < WINDOWS; r->n_free++)
        r->free_windows[r->n_free] = r->n_free;
    r->filters = r->pieces = 0;
    return PST_OK;
}

/* For many keys measured with the largest file. */
static uint32_t gap_of(pst_stack *st, size_t n) {
    pst_member *largest = st->files[0];
    for (int32_t i = 1; i < st->n; i++)
        if (st->files[i]->guide->info.file_bytes > largest->guide->info.file_bytes)
            largest = st->files[i];
    /* Nothing is brought to be measured. */
    int measured = n >= MEASURED_KEYS && !largest->file.extents;
    uint64_t bytes = measured ? largest->guide->info.file_bytes : 0;
    return pst_read_costs_gap(st->reads, &largest->file, bytes);
}

pst_status pst_stack_search(pst_stack *st, const pst_place *places, size_t n,
                            const pst_seeker *seeker) {
    run r;
    uint32_t slice = n < st->slice ? (uint32_t)n : st->slice;
    st->detail = (pst_detail){-1, -1, -1, -1, -1};
    pst_status s = n ? set_up(&r, st, slice) : PST_OK;
    if (s || !n)
        return s;
    s = pst_reads_enter(st->reads);
    if (s)
        return s;
    r.seeker = seeker;
    r.gap_pages = gap_of(st, n);
    st->stats.keys += n;
    for (size_t i = 0; !s && i < n; i += slice)
        s = run_slice(&r, places + i, n - i < slice ? (uint32_t)(n - i) : slice);
    pst_reads_leave(st->reads);
    if (st->block.raw.capacity > KEPT_BYTES)
        free_block(st);
    return s;
}

pst_status pst_found_record(const pst_found *f, uint32_t i, pst_record *record) {
    return i < f->rows ? pst_search_record(f->block, f->row + i, record) : PST_INVALID;
}
