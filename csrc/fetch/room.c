#include "fetch/room.h"

#include "memory/size_class.h"
#include "memory/span.h"
#include "stack/stack.h"
#include "table/index.h"
#include "table/row.h"

/* Bytes of index that a row costs, at most: a shard is made anew when a ninth of it has come since
 * the last time, in pages that the window keeps. */
enum { ENTRY_MOST = 90 };

/* Rows that say little of others. */
enum { FEW = 256 };

/* Of a table's limit this part is kept for before-images: slots never become fewer soon, and many
 * rows of which few can be touched are of no use. But of a table that shares its limit not more than
 * a part of its own rows, as a small one must be of use, too. */
enum { LOGS_SHARE = 6, ROWS_SHARE = 3 };

/* In which it is looked how many rows are to leave. */
enum { PARTS = 16 };

/* Of the logs, when they are given back: a large page. */
#define LOG_KEPT ((uint64_t)2 << 20)

/* Spaces of this size grow by a quarter of it where they can, and near the limit by less. */
#define LARGE ((uint64_t)8 << 20)

/* Spans of which the last rows of some sizes take only a part. */
#define SPARE ((uint64_t)4 * PST_SPAN_GRANULES * PST_GRANULE)

typedef struct reckoning {
    uint64_t rows; /* that are here */
    uint64_t free_rows;
    uint64_t row_bytes;
    uint64_t block_bytes; /* of a row */
    uint64_t free_blocks; /* bytes that can be taken now, and once the epoch is settled */
    uint64_t listed;
    uint64_t spans;    /* bytes of them that are free for any size, and for rows and logs */
    uint64_t row_step; /* by which the rows grow */
    uint64_t heap_step;
    uint64_t record_bytes;
    uint64_t free_log;
    uint64_t logs;    /* what settling gives back */
    uint64_t reserve; /* what the logs want before the table gets more rows */
} reckoning;

static uint64_t less(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

/* What a row of the files has beside words, about: all that a table knows that has no rows yet. */
static uint64_t block_bytes_of_files(const pst_table *t) {
    uint64_t rows = 1, bytes = 0;
    if (!t->stack || (!t->lay.has_blocks && t->lay.key_kind == PST_KEY_WORD))
        return 0;
    for (int32_t i = 0; i < t->stack->n; i++) {
        rows += t->stack->files[i]->guide->info.rows;
        bytes += t->stack->files[i]->guide->info.raw_bytes;
    }
    return bytes / rows;
}

static uint64_t step_of(const pst_table *t, int space) {
    uint64_t have = t->h->committed[space];
    return have < LARGE ? SPARE / 4 : LARGE / 32;
}

static uint64_t limit_of(const pst_table *t) {
    if (t->arena.limit != UINT64_MAX)
        return t->arena.limit;
    return t->budget ? pst_budget_limit(t->budget) : 0;
}

/* Of the blocks that are listed those that are not kept for readers and for undoing. */
static uint64_t free_now(const pst_table *t) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < PST_CLASSES; c++) {
        const pst_ring *r = &t->m->rings[c];
        uint32_t names = r->sealed_tail[2] - r->head;
        bytes += less(names, t->m->stale[c]) * pst_class_size(c);
    }
    return bytes;
}

static void reckon(const pst_table *t, reckoning *r) {
    pst_resident here;
    pst_table_get_resident(t, &here);
    uint64_t log = t->h->committed[PST_SPACE_UNDO + (int)(t->h->active % PST_UNDO_LOGS)];
    *r = (reckoning){
        .rows = here.rows,
        .free_rows = here.free_rows,
        .row_bytes = t->lay.row_size,
        .block_bytes = here.rows > FEW ? here.block_bytes / here.rows : block_bytes_of_files(t),
        .free_blocks = free_now(t),
        .listed = here.free_block_bytes,
        .spans = pst_span_free_bytes(t),
        .row_step = step_of(t, PST_SPACE_ROWS),
        .heap_step = step_of(t, PST_SPACE_HEAP),
        .record_bytes = t->lay.record_size,
        .free_log = less(log, t->undo_count * t->lay.record_size),
    };
    for (int i = 0; i < PST_UNDO_LOGS; i++)
        r->logs += t->h->committed[PST_SPACE_UNDO + i];
    uint64_t most = limit_of(t) / LOGS_SHARE, some = t->h->committed[PST_SPACE_ROWS] / ROWS_SHARE;
    r->reserve = less(most < some ? most : some, r->logs);
    r->logs = less(r->logs, LOG_KEPT);
}

/* Spaces grow by steps. */
static uint64_t grown(uint64_t bytes, uint64_t step) {
    return (bytes + step - 1) / step * step;
}

/* Bytes that n more rows would take from the system or of free spans, and so many touches besides. */
static uint64_t bytes_for(const reckoning *r, uint64_t n, uint64_t touches) {
    uint64_t index = n * ENTRY_MOST, all = (r->rows + n) * PST_ENTRY_SHARE;
    uint64_t rows = grown(less(n, r->free_rows) * r->row_bytes, r->row_step);
    uint64_t blocks =
        grown(less(n * r->block_bytes + (index < all ? index : all), r->free_blocks), r->heap_step);
    uint64_t log = less((n + touches) * r->record_bytes, r->free_log);
    if (rows + blocks + log == 0)
        return 0;
    int grows = rows || n * r->block_bytes > r->free_blocks;
    return SPARE + rows + blocks + (grows && r->reserve > log ? r->reserve : log);
}

/* Whether so many bytes would be granted if `more` came back. What is there already need not be: a table
 * may be above its limit, as what makes room passes it. */
static int is_granted(pst_table *t, uint64_t bytes, uint64_t more) {
    pst_arena *a = &t->arena;
    uint64_t over = less(a->committed_total, a->limit);
    if (!bytes)
        return 1;
    return over && bytes < more ? over <= more - bytes : pst_arena_has_room(a, less(bytes, more));
}

static uint32_t share_of(pst_table *t, const reckoning *r, uint64_t rows, uint64_t touches,
                         uint64_t more) {
    uint32_t low = 0, high = PST_ROOM_ALL; /* `low` fits */
    more += r->spans;
    if (touches > less(r->rows, t->undo_count))
        touches = less(r->rows, t->undo_count);
    if (is_granted(t, bytes_for(r, rows, touches), more))
        return PST_ROOM_ALL;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        uint64_t bytes =
            bytes_for(r, rows * middle / PST_ROOM_ALL, touches * middle / PST_ROOM_ALL);
        if (is_granted(t, bytes, more))
            low = middle;
        else
            high = middle;
    }
    return low;
}

uint32_t pst_room_share(pst_table *t, uint64_t rows, uint64_t touches) {
    reckoning r;
    reckon(t, &r);
    return share_of(t, &r, rows, touches, 0);
}

pst_status pst_room_for_blocks(pst_table *t, uint64_t bytes) {
    uint64_t more = less(bytes, free_now(t));
    if (!more || pst_arena_has_room(&t->arena, SPARE + more))
        return PST_OK;
    t->arena.refused = bytes;
    return PST_LIMIT;
}

/* If so many rows had left, and the logs were given back. */
static uint32_t share_after(pst_table *t, const reckoning *r, uint64_t keys, uint64_t left) {
    reckoning after = *r;
    after.rows -= left;
    after.free_rows += left;
    after.free_blocks = r->listed + left * r->block_bytes;
    after.free_log = 0;
    return share_of(t, &after, keys, 0, r->logs);
}

/* As few rows as make nearly as much room as all of them would. Slots stay the table's, so what
 * leaves makes room for rows and their blocks, and for a smaller index, but not for before-images. */
static void choose(pst_table *t, const reckoning *r, uint64_t keys, pst_room *leave) {
    uint32_t most = share_after(t, r, keys, r->rows), part = 1;
    while (part < PARTS && share_after(t, r, keys, r->rows / PARTS * part) < most - most / 4)
        part++;
    leave->rows = part == PARTS ? r->rows : r->rows / PARTS * part;
    /* Of rows that differ much some may have next to nothing. */
    leave->bytes = leave->rows * (r->row_bytes + PST_ENTRY_SHARE + r->block_bytes);
}

pst_status pst_table_room(pst_table *t, uint64_t keys, uint64_t *fits, pst_room *leave) {
    if (!t->attached)
        return PST_INVALID;
    reckoning r;
    reckon(t, &r);
    *fits = keys * share_of(t, &r, keys, 0, 0) / PST_ROOM_ALL;
    *leave = (pst_room){0, 0};
    if (*fits == keys)
        return PST_OK;
    choose(t, &r, keys, leave);
    return PST_OK;
}
