/* fetch_world.h: a whole table, and beside it one of the same operator that keeps few rows, above
 * guided files in a folder; how epochs of both are sealed, merged, undone and begun anew. A second one
 * that keeps few rows may wait on another host, and takes what it missed from deltas.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_FETCH_WORLD_H
#define PST_TEST_FETCH_WORLD_H

#include <sys/stat.h>
#include <unistd.h>

#include "chain_compare.h"
#include "stack/stack.h"

enum { PAIR_FILES = 12, PAIR_UNDO = 2, PAIR_MISSED = 12 };

/* Files, oldest first. */
typedef struct pair_files {
    uint64_t number[PAIR_FILES];
    int n;
    int64_t timers_from[2]; /* of which there are no earlier timers */
} pair_files;

typedef struct pair {
    world *w;
    pst_table *whole;
    pst_table *cached;
    pst_stack *stack;
    char folder[64];
    char path[96]; /* of the cached table, if it is shared */
    int shared;
    uint64_t next; /* number of a file */
    pair_files now;
    pair_files before[PAIR_UNDO]; /* of the sealed epochs before the last one */
    pst_lineage lineage;
    pst_lineage lineages[PAIR_UNDO];
    int undoable;       /* by the whole table */
    int expired;        /* the files lack what nobody sees, and the whole table has it still */
    int settled;        /* by the cached one: rows that left ended what it could return to */
    pst_table *waiting; /* on another host */
    char waits_at[96];  /* its path */
    uint64_t missed[PAIR_MISSED]; /* the deltas of the epochs that it lacks, 0: an epoch has none */
    int n_missed;
    int lost; /* it lacks others, or has what was undone */
} pair;

/* What was tried, over all pairs. */
static struct {
    uint64_t epochs;
    uint64_t merges;
    uint64_t left;
    uint64_t undone;
    uint64_t returned;
    uint64_t anew;
    uint64_t killed;
    uint64_t faults;
    uint64_t refused;
    uint64_t batches;
    uint64_t fired;
    uint64_t expired;
    uint64_t refreshed;
} paired;

static inline void pair_must(const pair *p, pst_status s, const char *what) {
    if (CHECK_EQ(s, PST_OK))
        return;
    fprintf(stderr, "    %s: %s, seed %" PRIu64 "\n", what, pst_status_name(s), p->w->seed);
    exit(check_report());
}

static inline pst_lineage pair_lineage(pair *p) {
    pst_lineage l = {.epoch = ++p->next, .query = 9};
    memcpy(l.id, &l.epoch, sizeof l.epoch);
    return l;
}

static inline void pair_path(const pair *p, uint64_t number, char path[96]) {
    snprintf(path, 96, "%s/%" PRIu64 ".sst", p->folder, number);
}

/* ---- files ----------------------------------------------------------------------------------- */

static inline void pair_save(const pair *p, uint64_t number, const memory_file *f) {
    char path[96];
    pair_path(p, number, path);
    FILE *out = fopen(path, "wb");
    REQUIRE(out && fwrite(f->data, 1, f->size, out) == f->size && !fclose(out));
}

static inline memory_file pair_load(const pair *p, uint64_t number) {
    char path[96];
    memory_file f = {.calls_left = -1};
    struct stat st;
    pair_path(p, number, path);
    REQUIRE(!stat(path, &st));
    f.size = f.capacity = (size_t)st.st_size;
    f.data = malloc(f.size);
    FILE *in = fopen(path, "rb");
    REQUIRE(f.data && in && fread(f.data, 1, f.size, in) == f.size);
    fclose(in);
    return f;
}

static inline uint32_t pair_block_bytes(pair *p) {
    return world_one_in(p->w, 4) ? 65536 : 4096;
}

/* Deltas of a world have rows whole or not, as its number says. */
static inline uint64_t pair_whole_bytes(const pair *p) {
    static const uint64_t bytes[] = {0, 512, 1, 60, 0};
    return bytes[p->w->seed % (sizeof bytes / sizeof *bytes)];
}

/* A base without what the clock says that nobody sees. */
static inline pst_status pair_merge_expiring(pair *p, const pst_schema *schema, pst_file_info *info,
                                             pst_sst_reader *const *readers, int n,
                                             const pst_io *io) {
    pst_ttl ttl[PST_MAX_STATES];
    const pst_expiry expiry = {ttl, p->w->now};
    pst_sst_writer *writer = NULL;
    memset(ttl, 0, sizeof ttl);
    for (int32_t c = 1; c < p->w->schema.n_states; c++)
        if (p->w->columns[c].kind == PST_TIME)
            ttl[c - 1] = p->w->state_of[c - 1]->ttl;
    for (int i = 0; i < n; i++)
        info->null_entries |= pst_sst_reader_info(readers[i])->null_entries;
    pst_status s = pst_sst_writer_create(schema, info, io, &writer);
    if (!s)
        s = pst_merge_expiring(readers, NULL, n, &expiry, writer);
    if (!s)
        s = pst_sst_writer_finish(writer, info);
    pst_sst_writer_destroy(writer);
    p->expired = 1;
    paired.expired++;
    return s;
}

/* Some files that follow one another as one. */
static inline void pair_merge(pair *p) {
    world *w = p->w;
    int from = (int)world_below(w, (uint64_t)p->now.n), n = p->now.n - from;
    n = 1 + (int)world_below(w, (uint64_t)n);
    memory_file files[PAIR_FILES], out = {.calls_left = -1};
    pst_sst_reader *readers[PAIR_FILES];
    const int32_t *mapping[PAIR_FILES];
    pst_schema *schema = NULL;
    pst_io io = file_io(&out, world_one_in(w, 2));
    pst_file_info info = {.kind = from == 0 ? PST_BASE : PST_DELTA,
                          .max_parallelism = w->max_parallelism,
                          .first_key_group = w->first,
                          .last_key_group = w->last,
                          .block_bytes = pair_block_bytes(p)};
    info.lineage = pair_lineage(p);
    REQUIRE(pst_file_schema_create(&w->schema, &schema) == PST_OK);
    for (int i = 0; i < n; i++) {
        files[i] = pair_load(p, p->now.number[from + i]);
        mapping[i] = NULL;
        REQUIRE(file_open(&files[i], &readers[i]) == PST_OK);
    }
    if (from == 0 && pair_whole_bytes(p) && world_one_in(w, 2))
        pair_must(p, pair_merge_expiring(p, schema, &info, readers, n, &io), "merge what is left");
    else
        pair_must(p, file_merge(schema, &info, readers, mapping, n, &io), "merge");
    for (int i = 0; i < n; i++) {
        pst_sst_reader_close(readers[i]);
        file_free(&files[i]);
    }
    pst_file_schema_destroy(schema);
    p->now.number[from] = ++p->next;
    pair_save(p, p->next, &out);
    file_free(&out);
    memmove(p->now.number + from + 1, p->now.number + from + n,
            (size_t)(p->now.n - from - n) * sizeof *p->now.number);
    p->now.n -= n - 1;
    paired.merges++;
}

/* Opens the files of now as the stack of the cached table. */
static inline void pair_set_stack(pair *p) {
    char paths[PAIR_FILES][96];
    pst_stack_file files[PAIR_FILES] = {{0}};
    pst_stack *stack = NULL, *old = p->stack;
    pst_stack_options o = {.slice_keys = (uint32_t)(16 + world_below(p->w, 20))};
    pst_schema *schema = NULL;
    pst_detail d;
    for (int i = 0; i < p->now.n; i++) {
        pair_path(p, p->now.number[i], paths[i]);
        files[i].path = paths[i];
    }
    REQUIRE(pst_file_schema_create(&p->w->schema, &schema) == PST_OK);
    if (p->now.n)
        pair_must(p, pst_stack_open(schema, p->w->max_parallelism, files, p->now.n, &o, &stack, &d),
                  "open the stack");
    pst_file_schema_destroy(schema);
    pst_lineage lineage;
    REQUIRE(pst_table_lineage(p->cached, 0, &lineage) == PST_OK);
    pair_must(p, pst_table_set_stack(p->cached, stack, &lineage), "set the stack");
    pst_stack_close(old);
    p->stack = stack;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static inline void pair_open_cached(pair *p) {
    static const pst_identity nobody = {.owner_pid = 1};
    world *w = p->w;
    pst_table_options o = {.max_parallelism = w->max_parallelism,
                           .first_key_group = w->first,
                           .last_key_group = w->last,
                           .limit_bytes = WORLD_LIMIT,
                           .path = p->shared ? p->path : NULL,
                           .identity = p->shared ? &nobody : NULL,
                           .lock_timeout_ms = 1000,
                           .create = 1};
    pair_must(p, pst_table_open(&w->schema, &o, &p->cached, NULL, NULL), "open");
    for (int32_t c = 1; c < w->schema.n_states; c++)
        if (w->columns[c].kind == PST_TIME)
            REQUIRE(pst_table_set_ttl(p->cached, c - 1, &w->state_of[c - 1]->ttl) == PST_OK);
    pst_table_set_clock(p->cached, &w->now);
    pst_table_set_whole_rows(p->cached, pair_whole_bytes(p));
}

static inline void pair_create(pair *p, uint64_t seed) {
    *p = (pair){.w = world_create(seed)};
    world *w = p->w;
    snprintf(p->folder, sizeof p->folder, "/dev/shm/pst_fetch_XXXXXX");
    REQUIRE(mkdtemp(p->folder));
    snprintf(p->path, sizeof p->path, "%s/live.table", p->folder);
    snprintf(p->waits_at, sizeof p->waits_at, "%s/waits.table", p->folder);
    p->shared = world_one_in(w, 2);
    /* A sweep gives times to what has none, and sees what is here alone. */
    if (w->now.processing_ms == PST_NO_TIME)
        w->now = (pst_clock){1000, 1000, 1000};
    /* How many items of a list that have expired are still there is a matter of its chunks. */
    for (int i = 0; i < w->n_states; i++)
        if (w->states[i].column.kind == PST_LIST)
            w->states[i].ttl.lenient = 0;
    p->whole = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_table_set_clock(p->whole, &w->now);
    pair_open_cached(p);
}

static inline void pair_destroy(pair *p) {
    char command[160];
    pst_table_close(p->cached);
    pst_table_close(p->waiting);
    pst_table_close(p->whole);
    pst_stack_close(p->stack);
    snprintf(command, sizeof command, "rm -r %s", p->folder);
    REQUIRE(!system(command));
    free(p->w);
}

/* A new table in the place of the cached one, above its files. */
static inline void pair_begin_anew(pair *p) {
    pst_table_close(p->cached);
    (void)unlink(p->path);
    pair_open_cached(p);
    pair_must(p, pst_table_seal(p->cached, &p->lineage, NULL), "seal nothing");
    if (p->now.n)
        pst_table_set_whole(p->cached, 0);
    for (int d = 0; d < 2 && p->now.n && p->w->has_timers && world_one_in(p->w, 2); d++)
        REQUIRE(!pst_table_set_horizon(p->cached, (pst_domain)d, p->now.timers_from[d]));
    pair_set_stack(p);
    p->settled = 0;
    paired.anew++;
}

/* The process is gone, and another one attaches: the open epoch is undone. */
static inline void pair_kill(pair *p) {
    if (!p->shared)
        return;
    pst_table_abandon(p->cached);
    pair_open_cached(p);
    pair_must(p, pst_table_rollback(p->whole, 0), "roll back");
    pair_set_stack(p);
    paired.killed++;
}

/* ---- another host ---------------------------------------------------------------------------- */

/* The table that waits lacks an epoch, whose delta has that number. */
static inline void pair_miss(pair *p, uint64_t number) {
    if (p->n_missed == PAIR_MISSED) {
        p->lost = 1;
        return;
    }
    p->missed[p->n_missed++] = number;
}

/* What it lacks, in the open epoch. */
static inline void pair_refresh(pair *p) {
    for (int i = 0; i < p->n_missed; i++) {
        pst_sst_reader *r = NULL;
        if (!p->missed[i])
            continue;
        memory_file f = pair_load(p, p->missed[i]);
        REQUIRE(file_open(&f, &r) == PST_OK);
        pair_must(p, pst_table_refresh(p->cached, r, NULL), "refresh");
        pst_sst_reader_close(r);
        file_free(&f);
        paired.refreshed++;
    }
}

/* Lists whose items expire are nothing that can be brought up to date. */
static inline int pair_is_refused(const pair *p) {
    for (int32_t c = 1; c < p->w->schema.n_states; c++)
        if (p->w->columns[c].kind == PST_TIME && p->w->columns[c - 1].kind == PST_LIST)
            return 1;
    return 0;
}

/* The next epoch is of the table that waits. */
static inline void pair_jump(pair *p) {
    char path[96];
    pst_table *from = p->cached;
    p->cached = p->waiting;
    p->waiting = from;
    memcpy(path, p->path, sizeof path);
    memcpy(p->path, p->waits_at, sizeof path);
    memcpy(p->waits_at, path, sizeof path);
    if (!p->cached || p->lost || pst_table_is_whole(p->cached) || pair_is_refused(p)) {
        if (p->cached && pair_is_refused(p))
            CHECK_EQ(pst_table_refresh(p->cached, NULL, NULL), PST_INVALID);
        pair_begin_anew(p);
    } else if (p->n_missed) {
        pst_table_set_clock(p->cached, &p->w->now);
        pair_refresh(p);
        if (world_one_in(p->w, 4)) {
            pair_must(p, pst_table_rollback(p->cached, 0), "roll back");
            pair_refresh(p);
        }
        pair_must(p, pst_table_seal(p->cached, &p->lineage, NULL), "seal what was missed");
        if (world_one_in(p->w, 4)) {
            pair_must(p, pst_table_rollback(p->cached, 1), "roll back");
            pair_refresh(p);
            pair_must(p, pst_table_seal(p->cached, &p->lineage, NULL), "seal it again");
        }
        pair_set_stack(p);
    } else {
        pst_table_set_clock(p->cached, &p->w->now);
        pair_set_stack(p);
    }
    p->settled = 0;
    p->n_missed = p->lost = 0;
}

/* ---- epochs ---------------------------------------------------------------------------------- */

static inline void pair_seal(pair *p) {
    pst_sealed *sealed = NULL, *all = NULL;
    memory_file f = {.calls_left = -1};
    pst_io io = file_io(&f, 1);
    pst_file_info info;
    int dirty = pst_table_dirty(p->cached);
    memmove(p->before + 1, p->before, sizeof *p->before);
    memmove(p->lineages + 1, p->lineages, sizeof *p->lineages);
    p->before[0] = p->now;
    p->lineages[0] = p->lineage;
    p->lineage = pair_lineage(p);
    pair_must(p, pst_table_seal(p->whole, &p->lineage, &all), "seal the whole one");
    pair_must(p, pst_table_seal(p->cached, &p->lineage, &sealed), "seal");
    /* Who writes deltas of dirty epochs alone loses none of the others'. */
    CHECK(dirty || !pst_sealed_rows(sealed));
    CHECK(dirty || p->expired || !pst_sealed_rows(all));
    pst_sealed_destroy(all);
    pair_miss(p, pst_sealed_rows(sealed) ? p->next + 1 : 0);
    if (pst_sealed_rows(sealed)) {
        pst_sealed_guide(sealed, pair_block_bytes(p));
        pair_must(p, pst_sealed_write(sealed, &io, &info), "write a delta");
        p->now.number[p->now.n++] = ++p->next;
        pair_save(p, p->next, &f);
    }
    pst_sealed_destroy(sealed);
    file_free(&f);
    for (int d = 0; d < 2; d++)
        p->now.timers_from[d] = pst_timers_from(p->cached, (pst_domain)d);
    p->undoable += p->undoable < PAIR_UNDO;
    p->settled += p->settled < PAIR_UNDO;
    while (p->now.n == PAIR_FILES || (p->now.n && world_one_in(p->w, 4)))
        pair_merge(p);
    pair_set_stack(p);
    paired.epochs++;
}

/* Rows with timers leave from the horizon on; where all timers were here that is set anew. */
static inline void pair_leave(pair *p) {
    pst_room left, wanted = {1 + world_below(p->w, WORLD_KEYS), 0};
    if (p->w->has_timers && world_one_in(p->w, 3))
        for (int d = 0; d < 2; d++) {
            int64_t horizon = (int64_t)world_below(p->w, 12) * 1000 - 3000;
            if (horizon < pst_table_horizon(p->cached, (pst_domain)d))
                REQUIRE(!pst_table_set_horizon(p->cached, (pst_domain)d, horizon));
        }
    if (!p->now.n)
        return;
    if (world_one_in(p->w, 3))
        wanted.rows = UINT64_MAX;
    pair_must(p, pst_table_leave(p->cached, &wanted, &left), "leave");
    if (left.rows)
        p->settled = 0;
    paired.left += left.rows;
}

/* Undoes the open epoch and some before it. */
static inline void pair_return(pair *p) {
    int back = (int)world_below(p->w, (uint64_t)p->undoable + 1);
    pair_must(p, pst_table_rollback(p->whole, back), "roll back");
    for (int i = 0; i < back; i++) {
        p->now = p->before[0];
        p->lineage = p->lineages[0];
        p->before[0] = p->before[1];
        p->lineages[0] = p->lineages[1];
    }
    p->lost |= back > p->n_missed;
    p->n_missed -= back < p->n_missed ? back : p->n_missed;
    p->undoable -= back;
    paired.returned += back > 0;
    paired.undone += back == 0;
    if (back > p->settled) {
        pair_begin_anew(p);
        return;
    }
    p->settled -= back;
    pair_must(p, pst_table_rollback(p->cached, back), "roll back the cached one");
    if (back)
        pair_set_stack(p);
}

static inline int pair_is_same(pair *p) {
    int same = same_tables(p->w, p->whole, p->cached, p->w->first, p->w->last);
    if (!same)
        fprintf(stderr, "    seed %" PRIu64 ", epoch %" PRIu64 "\n", p->w->seed, paired.epochs);
    return same;
}

#endif
