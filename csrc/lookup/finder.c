#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "guide/sst_search.h"
#include "lookup/said.h"
#include "lookup/wanted.h"
#include "snapshot/gather.h"
#include "stack/blocks.h"

/* Invariants
 *  FN1. A finder reads only what stays as it is: the files of stacks, their parts that are in memory,
 *       and blocks. What a look-up changes is its own.
 *  FN2. What comes is what a table with the files of the key's range would have.
 *  FN3. A key's search ends when no older file can add anything to what was found.
 *  FN4. Where keys are to be at hand, no file is waited for, and little is read. */

enum {
    USUAL_BYTES = 1 << 20,   /* of what files say, before it is put together */
    AT_HAND_BYTES = 1 << 16, /* the most that files say of keys that are at hand */
    AT_HAND_SPENT = 1 << 19, /* the most bytes that are read and unpacked for them */
    AT_HAND_OPEN = 1 << 12,  /* to open a block that is kept takes as long as so many of them */
    SLOW_NS = 40000,         /* a read that takes longer is of the disk */
    AHEAD = 64               /* keys whose blocks the disk is then asked for ahead */
};

struct pst_finder {
    pst_stack **stacks;
    int32_t *bounds;
    int32_t *first_file; /* of each range, counted over all */
    int32_t n;
    pst_blocks *blocks;
    pst_budget *budget;
};

static int fits(const pst_stack *first, const pst_stack *st) {
    for (int32_t i = 0; i < st->n; i++)
        if (!pst_member_fits(st->files[i], &first->schema, first->max_parallelism))
            return 0;
    return 1;
}

static pst_status check_ranges(pst_stack *const *stacks, const int32_t *bounds, int32_t n) {
    if (n < 1)
        return PST_INVALID;
    for (int32_t i = 0; i < n; i++) {
        if (bounds[2 * i] > bounds[2 * i + 1] || (i && bounds[2 * i] <= bounds[2 * i - 1]))
            return PST_INVALID;
        for (int32_t f = 0; f < stacks[i]->n; f++)
            if (stacks[i]->files[f]->file.extents)
                return PST_INVALID;
        if (!fits(stacks[0], stacks[i]))
            return PST_SCHEMA;
    }
    return PST_OK;
}

pst_status pst_finder_create(pst_stack *const *stacks, const int32_t *bounds, int32_t n,
                             pst_blocks *blocks, pst_budget *budget, pst_finder **finder) {
    pst_status s = check_ranges(stacks, bounds, n);
    if (s)
        return s;
    pst_finder *f = pst_calloc(1, sizeof *f);
    if (!f)
        return PST_NO_MEMORY;
    size_t ranges = (size_t)n;
    f->stacks = pst_calloc(ranges, sizeof(pst_stack *));
    f->bounds = pst_malloc(2 * ranges * sizeof *f->bounds);
    f->first_file = pst_malloc(ranges * sizeof *f->first_file);
    if (!f->stacks || !f->bounds || !f->first_file) {
        pst_finder_destroy(f);
        return PST_NO_MEMORY;
    }
    memcpy(f->bounds, bounds, 2 * ranges * sizeof *f->bounds);
    for (int32_t file = 0; f->n < n; file += stacks[f->n++]->n) {
        f->first_file[f->n] = file;
        f->stacks[f->n] = pst_stack_retain(stacks[f->n]);
    }
    f->blocks = pst_blocks_retain(blocks);
    f->budget = pst_budget_retain(budget);
    *finder = f;
    return PST_OK;
}

void pst_finder_destroy(pst_finder *f) {
    if (!f)
        return;
    for (int32_t i = 0; i < f->n; i++)
        pst_stack_close(f->stacks[i]);
    pst_free((void *)f->stacks);
    pst_free(f->bounds);
    pst_free(f->first_file);
    pst_blocks_release(f->blocks);
    pst_budget_release(f->budget);
    pst_free(f);
}

/* ---- a look-up --------------------------------------------------------------------------------- */

/* What is open of a file. */
typedef struct look {
    pst_search search;
    pst_kept_block *block; /* that is searched; NULL: none is open */
    uint64_t offset;       /* its */
} look;

typedef struct finding {
    const pst_finder *f;
    const pst_stack *st; /* of the range at hand */
    int32_t range;
    pst_wanted_list wanted;
    pst_said said;
    uint64_t most;
    int at_hand;    /* nothing is waited for */
    uint64_t spent; /* of AT_HAND_SPENT */
    look **looks;   /* of the range's files; those that were asked */
    pst_allowance room;
    pst_buffer stored;
    uint32_t place; /* the key whose place is searched */
    uint32_t ahead; /* keys before it have been asked for */
    int slow;       /* the read before was of the disk */
    uint64_t covered;
    int any;
    uint32_t at;     /* the key of the row that was gathered last */
    int64_t *first;  /* row of each wanted key */
    uint32_t *count; /* of its rows */
    pst_gatherer gather;
    pst_record record;
    pst_detail detail;
} finding;

static pst_status fail(finding *x, pst_status s, int32_t file, uint64_t offset, int sys_errno) {
    int64_t number = x->f->first_file[x->range] + file;
    x->detail = (pst_detail){(int64_t)offset, number, -1, -1, sys_errno ? sys_errno : -1};
    return s;
}

/* ---- blocks ------------------------------------------------------------------------------------ */

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Reads the stored block; *data is where it lies. */
static pst_status read_stored(finding *x, int32_t file, const pst_guide_block *b,
                              const uint8_t **data) {
    int sys_errno = 0;
    int64_t begin = now_ns();
    pst_status s = pst_member_read(x->st->files[file], b->offset, b->stored, x->at_hand, &x->room,
                                   &x->stored, data, &sys_errno);
    x->slow = now_ns() - begin > SLOW_NS;
    return s == PST_IO ? fail(x, s, file, b->offset, sys_errno) : s;
}

static pst_status read_block(finding *x, int32_t file, const pst_guide_block *b,
                             const pst_block_name *name, pst_kept_block **made) {
    pst_kept_block *block;
    const uint8_t *stored;
    pst_status s = read_stored(x, file, b, &stored);
    if (!s)
        s = pst_blocks_make(x->f->blocks, name, &block);
    if (s)
        return s;
    s = pst_search_unpack(x->st->files[file]->guide, b, stored, pst_block_bytes(block));
    if (s) {
        pst_blocks_drop(x->f->blocks, block);
        return fail(x, s, file, b->offset, 0);
    }
    pst_blocks_keep(x->f->blocks, block, x->wanted.n);
    *made = block;
    return PST_OK;
}

static pst_status look_of(finding *x, int32_t file, look **found) {
    look *l = x->looks[file];
    if (!l) {
        pst_status s = pst_allowance_take(&x->room, sizeof *l);
        if (s)
            return s;
        l = pst_malloc(sizeof *l);
        if (!l)
            return PST_NO_MEMORY;
        l->search.raw = (pst_buffer){NULL, 0, 0};
        l->block = NULL;
        x->looks[file] = l;
    }
    *found = l;
    return PST_OK;
}

static void close_look(finding *x, look *l) {
    pst_blocks_drop(x->f->blocks, l->block);
    l->block = NULL;
}

/* Opens a block of the file, unless it is. */
static pst_status open_block(finding *x, int32_t file, uint32_t segment, uint32_t block, look **l) {
    const pst_member *m = x->st->files[file];
    int32_t last_group;
    uint64_t last_hash;
    pst_guide_block b = pst_member_block(m, segment, block, &last_group, &last_hash);
    pst_status s = look_of(x, file, l);
    if (s || ((*l)->block && (*l)->offset == b.offset))
        return s;
    pst_block_name name = {pst_sst_seed(m->guide->info.lineage.id, b.offset), b.checksum, b.raw};
    pst_kept_block *kept = pst_blocks_take(x->f->blocks, &name);
    x->spent += kept ? AT_HAND_OPEN : b.stored + b.raw;
    if (x->at_hand && x->spent > AT_HAND_SPENT) {
        pst_blocks_drop(x->f->blocks, kept);
        return PST_NOT_HERE;
    }
    if (!kept)
        s = read_block(x, file, &b, &name, &kept);
    if (s)
        return s;
    close_look(x, *l);
    (*l)->block = kept;
    (*l)->offset = b.offset;
    s = pst_search_open_raw(&(*l)->search, m->guide, &b, last_group, last_hash,
                            pst_block_bytes(kept));
    return s ? fail(x, s, file, b.offset, 0) : PST_OK;
}

/* Asks the disk for blocks of the keys that follow, of the file that a slow one was in. */
static void read_ahead(finding *x, int32_t file, uint32_t end) {
    const pst_member *m = x->st->files[file];
    uint32_t until = end - x->place > AHEAD ? x->place + AHEAD : end;
    for (uint32_t i = x->ahead > x->place ? x->ahead : x->place + 1; i < until; i++) {
        const pst_wanted_key *k = &x->wanted.keys[i];
        uint32_t n, segment = pst_guide_segments(m->guide, k->key_group, k->hash, &n), blocks;
        if (!n || !pst_member_entries(m, segment))
            continue;
        uint32_t block =
            pst_guide_blocks(&m->guide->segments[segment], pst_member_entries(m, segment),
                             k->key_group, k->hash, &blocks);
        if (!blocks)
            continue;
        pst_guide_block b =
            pst_guide_block_at(&m->guide->segments[segment], pst_member_entries(m, segment), block);
        pst_read_file_ahead(&m->file, b.offset, b.stored);
    }
    x->ahead = until;
}

/* ---- keys -------------------------------------------------------------------------------------- */

static pst_status take_rows(finding *x, int32_t file, look *l, const pst_wanted *sought) {
    uint32_t n, row = pst_search_find(&l->search, sought, &n);
    for (uint32_t end = row + n; row < end; row++) {
        pst_status s = pst_search_record(&l->search, row, &x->record);
        if (s)
            return fail(x, s, file, l->offset, 0);
        if (!sought->key && !pst_wanted_has(&x->wanted, x->place, &x->record))
            continue;
        if (sought->key)
            x->covered = pst_stack_covered(x->st, x->covered, &x->record);
        x->any = 1;
        s = pst_said_add(&x->said, x->place, file, &x->record);
        if (!s && x->at_hand && x->said.parts.bytes.size > AT_HAND_BYTES)
            s = PST_NOT_HERE;
        if (s)
            return s;
    }
    return PST_OK;
}

static int may_have(const pst_member *m, uint32_t segment, const pst_wanted *sought) {
    const uint8_t *filter = m->filtered ? pst_member_filter(m, segment) : NULL;
    return !filter ||
           pst_guide_may_have(&m->guide->segments[segment], pst_member_entries(m, segment), filter,
                              sought->key_group, sought->hash);
}

static pst_status ask_file(finding *x, int32_t file, const pst_wanted *sought, uint32_t end) {
    pst_member *m = x->st->files[file];
    uint32_t n, segment = pst_guide_segments(m->guide, sought->key_group, sought->hash, &n);
    if (sought->key && !pst_guide_is_within(m->guide, sought->key, sought->nulls, x->st->n_keys))
        return PST_OK;
    if (x->at_hand && !pst_member_at_hand(m, segment, n))
        return PST_NOT_HERE;
    pst_detail detail = {-1, -1, -1, -1, -1};
    pst_status s = n && !x->at_hand ? pst_member_bring(m, segment, n, 1, &detail) : PST_OK;
    if (s == PST_IO || s == PST_CORRUPT)
        return fail(x, s, file, (uint64_t)detail.offset, detail.sys_errno);
    for (uint32_t i = segment; !s && i < segment + n; i++) {
        uint32_t blocks = 0, block = 0;
        if (may_have(m, i, sought))
            block = pst_guide_blocks(&m->guide->segments[i], pst_member_entries(m, i),
                                     sought->key_group, sought->hash, &blocks);
        for (uint32_t b = block; !s && b < block + blocks; b++) {
            look *l;
            s = open_block(x, file, i, b, &l);
            if (!s)
                s = take_rows(x, file, l, sought);
        }
    }
    if (!s && x->slow && !x->at_hand)
        read_ahead(x, file, end);
    x->slow = 0;
    return s;
}

/* Keeps what the files say of the key, or of all keys of its place. */
static pst_status find_key(finding *x, uint32_t end) {
    pst_cell cells[PST_MAX_KEYS];
    const pst_stack *st = x->st;
    const pst_wanted_key *k = &x->wanted.keys[x->place];
    pst_wanted sought = {k->hash, k->key_group, 0, NULL};
    pst_status s = PST_OK;
    if (!x->wanted.every) {
        pst_wanted_cells(&x->wanted, x->place, cells, &sought.nulls);
        sought.key = cells;
    }
    x->covered = 0;
    x->any = 0;
    for (int32_t f = st->n - 1; !s && f >= 0; f--) {
        if (!pst_stack_counts(st, f, k->key_group))
            continue;
        s = ask_file(x, f, &sought, end);
        if (!st->files[f]->filtered || (sought.key && x->any && !(st->all & ~x->covered)))
            break; /* a base is whole */
    }
    return s;
}

/* ---- rows -------------------------------------------------------------------------------------- */

/* Rows come in the order of the wanted keys. */
static pst_status add_record(void *ctx, const pst_record *r, uint64_t start) {
    finding *x = ctx;
    uint64_t before = x->gather.begun;
    pst_status s = pst_gather_record(&x->gather, r, start);
    if (s || x->gather.begun == before)
        return s;
    while (x->at < x->wanted.n && !pst_wanted_is(&x->wanted, x->at, r))
        x->at++;
    if (x->at == x->wanted.n)
        return PST_CORRUPT;
    if (!x->count[x->at]++)
        x->first[x->at] = (int64_t)before;
    return PST_OK;
}

/* Makes rows of what was kept of keys. */
static pst_status put_together(finding *x, uint32_t from, uint32_t end) {
    const pst_stack *st = x->st;
    pst_file_info info = {.kind = PST_BASE,
                          .max_parallelism = st->max_parallelism,
                          .last_key_group = st->max_parallelism - 1};
    pst_sink sink = {
        .ctx = x, .schema = &st->schema, .info = &info, .last_hash = UINT64_MAX, .add = add_record};
    if (!x->said.parts.bytes.size)
        return PST_OK;
    pst_status s = pst_said_merge(&x->said, from, end, st->n, &sink);
    pst_said_clear(&x->said, from, end);
    return s;
}

static pst_status open_range(finding *x, int32_t range) {
    x->range = range;
    x->st = x->f->stacks[range];
    x->ahead = 0;
    x->looks = pst_calloc((size_t)x->st->n, sizeof *x->looks);
    return x->looks ? PST_OK : PST_NO_MEMORY;
}

static void close_range(finding *x) {
    for (int32_t i = 0; x->looks && i < x->st->n; i++) {
        if (!x->looks[i])
            continue;
        close_look(x, x->looks[i]);
        x->room.used -= sizeof(look);
        pst_free(x->looks[i]);
    }
    pst_free((void *)x->looks);
    x->looks = NULL;
}

/* Looks up the keys from `from` to before `end`, which lie in the range. */
static pst_status find_in_range(finding *x, int32_t range, uint32_t from, uint32_t end) {
    pst_status s = open_range(x, range);
    uint32_t kept = from;
    for (uint32_t i = from, next; !s && i < end; i = next) {
        next = x->wanted.every ? x->wanted.keys[i].end : i + 1;
        x->place = i;
        s = find_key(x, end);
        if (!s && (next == end || x->said.parts.bytes.size > x->most)) {
            s = put_together(x, kept, next);
            kept = next;
        }
    }
    close_range(x);
    return s;
}

static pst_status find_all(finding *x) {
    const pst_wanted_list *w = &x->wanted;
    pst_status s = PST_OK;
    uint32_t i = 0;
    for (int32_t range = 0; !s && range < x->f->n; range++) {
        while (i < w->n && w->keys[i].key_group < x->f->bounds[2 * range])
            i++;
        uint32_t end = i;
        while (end < w->n && w->keys[end].key_group <= x->f->bounds[2 * range + 1])
            end++;
        if (end > i)
            s = find_in_range(x, range, i, end);
        i = end;
    }
    return s ? s : pst_gather_flush(&x->gather);
}

/* ---- finders ----------------------------------------------------------------------------------- */

static pst_status set_up(finding *x, const pst_wanted_keys *wanted, const pst_expiry *expiry,
                         const pst_io *io, uint32_t *numbers) {
    const pst_stack *st = x->f->stacks[0];
    x->at_hand = wanted->at_hand;
    x->most = wanted->most_bytes ? wanted->most_bytes : USUAL_BYTES;
    pst_status s = pst_gatherer_init(&x->gather, &st->schema, expiry, io);
    if (wanted->states) {
        x->gather.value_columns &= wanted->states;
        x->gather.collections &= wanted->states;
    }
    if (!s)
        s = pst_wanted_make(&x->wanted, &st->schema, st->max_parallelism, wanted, x->f->budget,
                            numbers);
    if (!s)
        s = pst_said_init(&x->said, st, x->wanted.n);
    if (s)
        return s;
    x->first = pst_malloc((x->wanted.n + (size_t)1) * sizeof *x->first);
    x->count = pst_calloc(x->wanted.n + (size_t)1, sizeof *x->count);
    return x->first && x->count ? PST_OK : PST_NO_MEMORY;
}

static void tear_down(finding *x) {
    pst_free(x->first);
    pst_free(x->count);
    pst_said_free(&x->said);
    pst_wanted_free(&x->wanted);
    pst_gatherer_free(&x->gather);
    pst_buffer_free(&x->stored);
    pst_charge_drop(&x->room.charge);
    pst_budget_release(x->room.charge.budget);
    pst_free(x);
}

static finding *make_finding(const pst_finder *f) {
    finding *x = pst_malloc(sizeof *x);
    if (!x)
        return NULL;
    memset(x, 0, offsetof(finding, gather));
    x->f = f;
    x->room.charge = (pst_charge){pst_budget_retain(f->budget), 0, PST_SMALL_BUFFER};
    x->detail = (pst_detail){-1, -1, -1, -1, -1};
    return x;
}

pst_status pst_finder_find(const pst_finder *f, const pst_wanted_keys *wanted,
                           const pst_expiry *expiry, const pst_io *io, int64_t *rows,
                           pst_detail *detail) {
    int64_t n = wanted->n_columns > 0 ? wanted->columns[0].length : 0;
    if (n < 0 || n >= UINT32_MAX || wanted->n_columns < 1)
        return PST_INVALID;
    uint32_t *numbers = pst_malloc(((size_t)n + 1) * sizeof *numbers);
    finding *x = numbers ? make_finding(f) : NULL;
    if (!x) {
        pst_free(numbers);
        return PST_NO_MEMORY;
    }
    pst_status s = set_up(x, wanted, expiry, io, numbers);
    if (!s)
        s = find_all(x);
    for (int64_t i = 0; !s && i < n; i++) {
        uint32_t count = x->count[numbers[i]];
        rows[2 * i] = count ? x->first[numbers[i]] : -1;
        rows[2 * i + 1] = count;
    }
    if (detail)
        *detail = x->detail;
    tear_down(x);
    pst_free(numbers);
    return s;
}
