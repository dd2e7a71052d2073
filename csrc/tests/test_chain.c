/* A chain of files against the table that wrote it. Random operators live through random epochs,
 * each written as a file; files that follow one another are merged, again and again, into deltas
 * and bases, whole or of some key groups; whatever is loaded from them, in parts and more than
 * once, must hold what the table holds. In between epochs are rolled back, states are declared
 * anew, memory is refused and limits are reached.
 *
 *   test_chain [worlds] [seed] [epochs]
 */
#include "chain_compare.h"

enum { WORLDS = 60, EPOCHS = 60, CHAIN = 10 };

/* What was tried, over all worlds. */
static struct {
    uint64_t epochs;
    uint64_t merges;
    uint64_t bases;
    uint64_t loads;
    uint64_t parts;
    uint64_t rolled_back;
    uint64_t undone;
    uint64_t declared;
    uint64_t dropped;
    uint64_t limits;
    uint64_t refused_steps;
    uint64_t refused_seals;
    uint64_t refused_writes;
    uint64_t refused_merges;
    uint64_t refused_loads;
} tried;

/* Files, oldest first; those that are owned go with it. */
typedef struct file_run {
    memory_file all[CHAIN];
    uint8_t owned[CHAIN];
    int n;
} file_run;

typedef struct chain {
    world *w;
    pst_table *live;
    pst_table *replica; /* loads every file once it is written; knows no time */
    file_run files;
    int32_t undoable; /* sealed epochs that both tables can undo, each a file at the chain's end */
} chain;

static pst_lineage next_lineage(void) {
    static uint64_t epoch;
    pst_lineage l = {.epoch = ++epoch, .query = 3};
    memcpy(l.id, &epoch, sizeof epoch);
    return l;
}

/* For what nothing can go on without. */
static void must(const world *w, pst_status s, const char *what) {
    if (CHECK_EQ(s, PST_OK))
        return;
    fprintf(stderr, "    %s: %s, seed %" PRIu64 "\n", what, pst_status_name(s), w->seed);
    exit(check_report());
}

/* Refuses an allocation to come, or all from it on. */
static void refuse_one_of(world *w, uint64_t n) {
    check_fail_alloc((int64_t)world_below(w, n), world_one_in(w, 2));
}

/* Whether the status is that of refused memory, counted if so; refuses no more. */
static int was_refused(pst_status s, uint64_t *count) {
    int refused = check_alloc_failed();
    check_fail_alloc(-1, 0);
    CHECK(!s || (s == PST_NO_MEMORY && refused));
    *count += s != PST_OK;
    return s != PST_OK;
}

/* Of a table the limit may come first. */
static pst_status unless_limit(pst_status s) {
    return s == PST_LIMIT ? PST_OK : s;
}

/* ---- merging --------------------------------------------------------------------------------- */

static pst_status try_merge(world *w, memory_file *files, int n, pst_file_info *info,
                            memory_file *out, int refusing) {
    int32_t columns[CHAIN][PST_MAX_STATES];
    const int32_t *mapping[CHAIN];
    pst_sst_reader *readers[CHAIN];
    pst_schema *schema = NULL;
    pst_io io = file_io(out, world_one_in(w, 2));
    REQUIRE(pst_file_schema_create(&w->schema, &schema) == PST_OK);
    for (int i = 0; i < n; i++) {
        REQUIRE(file_open(&files[i], &readers[i]) == PST_OK);
        mapping[i] = world_mapping(w, pst_sst_reader_schema(readers[i]), columns[i]);
    }
    info->lineage = next_lineage();
    if (refusing)
        refuse_one_of(w, 60);
    pst_status s = file_merge(schema, info, readers, mapping, n, &io);
    for (int i = 0; i < n; i++)
        pst_sst_reader_close(readers[i]);
    pst_file_schema_destroy(schema);
    return s;
}

/* Files that follow one another as one, of the schema of now. */
static memory_file merge_files(world *w, memory_file *files, int n, pst_file_kind kind,
                               int32_t first, int32_t last) {
    memory_file out = {.calls_left = -1};
    pst_file_info info = {.kind = kind,
                          .max_parallelism = w->max_parallelism,
                          .first_key_group = first,
                          .last_key_group = last,
                          .block_bytes = world_one_in(w, 2) ? 4096 : 0};
    int refusing = world_one_in(w, 4);
    pst_status s = try_merge(w, files, n, &info, &out, refusing);
    if (was_refused(s, &tried.refused_merges)) {
        out.size = 0;
        must(w, try_merge(w, files, n, &info, &out, 0), "merge");
    }
    tried.merges++;
    tried.bases += kind == PST_BASE;
    return out;
}

/* Puts one file in the place of several. */
static void merge_run(world *w, file_run *files, int from, int length, pst_file_kind kind,
                      int32_t first, int32_t last) {
    memory_file merged = merge_files(w, files->all + from, length, kind, first, last);
    int rest = from + length;
    for (int i = from; i < rest; i++)
        if (files->owned[i])
            file_free(&files->all[i]);
    files->all[from] = merged;
    files->owned[from] = 1;
    size_t left = (size_t)(files->n - rest);
    memmove(files->all + from + 1, files->all + rest, left * sizeof *files->all);
    memmove(files->owned + from + 1, files->owned + rest, left);
    files->n -= length - 1;
}

/* Some files, of which the first may become a base; at times only the key groups that are asked
 * for. */
static void merge_some(world *w, file_run *files, int32_t first, int32_t last) {
    int from = (int)world_below(w, (uint64_t)files->n);
    int length = 1 + (int)world_below(w, (uint64_t)(files->n - from));
    if (length > 4 && world_one_in(w, 2))
        length = 3;
    pst_file_kind kind = from == 0 && world_one_in(w, 2) ? PST_BASE : PST_DELTA;
    int part = world_one_in(w, 3);
    merge_run(w, files, from, length, kind, part ? first : w->first, part ? last : w->last);
}

/* ---- loading --------------------------------------------------------------------------------- */

static pst_status load(world *w, pst_table *t, memory_file *f, int32_t first, int32_t last) {
    int32_t columns[PST_MAX_STATES];
    pst_sst_reader *r = NULL;
    pst_status s = file_open(f, &r);
    if (!s)
        s = pst_sst_reader_seek(r, first, last);
    if (!s) {
        const pst_schema *schema = pst_sst_reader_schema(r);
        const int32_t *mapping = world_mapping(w, schema, columns);
        s = pst_table_load(t, r, mapping, schema->n_states, NULL);
    }
    pst_sst_reader_close(r);
    tried.loads++;
    return s;
}

static void seal(const world *w, pst_table *t) {
    pst_lineage l = next_lineage();
    must(w, pst_table_seal(t, &l, NULL), "seal what was loaded");
}

/* Whole or in two parts, once or twice: what is there already changes nothing. */
static void load_file(world *w, pst_table *t, memory_file *f) {
    int32_t first = t->first_key_group, last = t->last_key_group;
    int32_t middle = last;
    if (world_one_in(w, 3)) {
        middle = first + (int32_t)world_below(w, (uint64_t)(last - first) + 1);
        tried.parts += middle < last;
    }
    for (int twice = world_one_in(w, 5); twice >= 0; twice--) {
        must(w, load(w, t, f, first, middle), "load");
        if (middle < last)
            must(w, load(w, t, f, middle + 1, last), "load the rest");
    }
}

/* All files in turn, some of which begin to be loaded before there is memory enough. */
static void load_files(world *w, pst_table *t, file_run *files) {
    for (int i = 0; i < files->n; i++) {
        memory_file *f = &files->all[i];
        if (world_one_in(w, 6)) {
            if (pst_table_dirty(t))
                seal(w, t);
            refuse_one_of(w, 30);
            pst_status s = load(w, t, f, t->first_key_group, t->last_key_group);
            if (was_refused(s, &tried.refused_loads) && pst_table_dirty(t))
                CHECK_EQ(pst_table_seal(t, &(pst_lineage){.epoch = 1}, NULL), PST_POISONED);
            must(w, pst_table_rollback(t, 0), "roll back a load");
        }
        load_file(w, t, f);
        if (world_one_in(w, 3))
            seal(w, t);
    }
}

static void free_files(file_run *files) {
    for (int i = 0; i < files->n; i++)
        if (files->owned[i])
            file_free(&files->all[i]);
    files->n = 0;
}

/* A table of these key groups from the chain, with as many of its files merged as comes. */
static pst_table *restored(chain *c, int32_t first, int32_t last) {
    world *w = c->w;
    file_run files = c->files;
    int want = 1 + (int)world_below(w, (uint64_t)files.n + 1);
    memset(files.owned, 0, sizeof files.owned);
    while (files.n > want || (files.n > 0 && world_one_in(w, 3)))
        merge_some(w, &files, first, last);
    pst_table *t = world_open(w, first, last, WORLD_LIMIT);
    load_files(w, t, &files);
    free_files(&files);
    return t;
}

/* ---- the live table -------------------------------------------------------------------------- */

static void check_same(chain *c, pst_table *got, int32_t first, int32_t last, const char *what) {
    if (!CHECK(same_tables(c->w, c->live, got, first, last)))
        fprintf(stderr, "    %s, seed %" PRIu64 "\n", what, c->w->seed);
}

/* Goes on with a table from the chain. */
static void adopt(chain *c, pst_table *t) {
    seal(c->w, t);
    pst_table_close(c->live);
    pst_table_set_clock(t, &c->w->now);
    c->live = t;
    c->undoable = 0;
}

/* An operation for which there may be no memory. */
static void refused_step(chain *c) {
    world *w = c->w;
    refuse_one_of(w, 6);
    if (world_one_in(w, 2))
        world_step(w, c->live);
    else
        world_fire(w, c->live);
    (void)was_refused(unless_limit(w->failed), &tried.refused_steps);
}

static void work(chain *c, uint64_t most) {
    world *w = c->w;
    w->failed = PST_OK;
    for (uint64_t i = 0, n = 1 + world_below(w, most); i < n && !w->failed; i++) {
        world_step(w, c->live);
        if (world_one_in(w, 15))
            world_fire(w, c->live);
    }
    if (!w->failed && world_one_in(w, 3)) {
        world_pass_time(w, c->live);
        for (uint64_t n = world_below(w, 6); n > 0; n--)
            world_step(w, c->live);
    }
    if (!w->failed && world_one_in(w, 12))
        refused_step(c);
}

/* Takes the open epoch back. A table that has reached its limit may make room for one from the
 * chain. */
static void give_up(chain *c) {
    world *w = c->w;
    int limited = w->failed == PST_LIMIT;
    CHECK(!w->failed || limited || w->failed == PST_NO_MEMORY);
    must(w, pst_table_rollback(c->live, 0), "roll back");
    pst_table_set_clock(c->live, &w->now);
    check_same(c, c->replica, w->first, w->last, "rolled back");
    tried.rolled_back++;
    tried.limits += (uint64_t)limited;
    if (limited && world_one_in(w, 3))
        adopt(c, restored(c, w->first, w->last));
}

/* NULL: there was no room, for the seal or for operations after one that was refused. */
static pst_sealed *sealed_epoch(chain *c) {
    world *w = c->w;
    pst_lineage l = next_lineage();
    pst_sealed *sealed = NULL;
    if (world_one_in(w, 4)) {
        refuse_one_of(w, 20);
        w->failed = pst_table_seal(c->live, &l, &sealed);
        if (!was_refused(unless_limit(w->failed), &tried.refused_seals))
            return sealed;
        w->failed = PST_OK;
        if (world_one_in(w, 2))
            world_step(w, c->live);
    }
    if (!w->failed)
        w->failed = pst_table_seal(c->live, &l, &sealed);
    return sealed;
}

static void write_epoch(chain *c, pst_sealed *sealed) {
    world *w = c->w;
    memory_file f = {.calls_left = -1};
    pst_io io = file_io(&f, world_one_in(w, 2));
    pst_file_info info;
    pst_sealed_guide(sealed, world_one_in(w, 2) ? 4096 : 0);
    if (world_one_in(w, 4))
        refuse_one_of(w, 25);
    if (was_refused(pst_sealed_write(sealed, &io, &info), &tried.refused_writes)) {
        f.size = 0;
        must(w, pst_sealed_write(sealed, &io, &info), "write");
    }
    pst_sealed_destroy(sealed);
    c->files.owned[c->files.n] = 1;
    c->files.all[c->files.n++] = f;
    c->undoable++;
    tried.epochs++;
}

static void undo_epochs(chain *c) {
    int32_t back = 1 + (int32_t)world_below(c->w, c->undoable > 2 ? 2 : 1);
    must(c->w, pst_table_rollback(c->live, back), "undo");
    must(c->w, pst_table_rollback(c->replica, back), "undo in the replica");
    pst_table_set_clock(c->live, &c->w->now);
    for (int32_t i = 0; i < back; i++)
        file_free(&c->files.all[--c->files.n]);
    c->undoable = 0;
    tried.undone++;
}

/* Room for more files, by merging some for good. */
static void compact(chain *c) {
    world *w = c->w;
    int from = world_one_in(w, 3) ? (int)world_below(w, CHAIN - 1) : 0;
    int length = 2 + (int)world_below(w, (uint64_t)(CHAIN - from - 1));
    pst_file_kind kind = from == 0 && !world_one_in(w, 3) ? PST_BASE : PST_DELTA;
    merge_run(w, &c->files, from, length, kind, w->first, w->last);
    c->undoable = 0;
}

/* From here on the operator has other states: both tables come from the chain. What is dropped goes
 * from all files at once: parts of it in some would be found again when it comes back. */
static void declare(chain *c) {
    world *w = c->w;
    if (world_one_in(w, 2))
        w->values_only = 0;
    int dropped = world_declare(w);
    adopt(c, restored(c, w->first, w->last));
    pst_table_close(c->replica);
    c->replica = world_open(w, w->first, w->last, WORLD_LIMIT);
    for (int i = 0; i < c->files.n; i++)
        must(w, load(w, c->replica, &c->files.all[i], w->first, w->last), "load the replica");
    seal(w, c->replica);
    check_same(c, c->replica, w->first, w->last, "declared anew");
    if (dropped && c->files.n)
        merge_run(w, &c->files, 0, c->files.n, PST_BASE, w->first, w->last);
    tried.dropped += (uint64_t)dropped;
    tried.declared++;
}

/* All of the range from the chain, and a part of it. */
static void check_restored(chain *c) {
    world *w = c->w;
    for (int part = 0; part < 2; part++) {
        int32_t first = w->first, last = w->last;
        if (part) {
            first += (int32_t)world_below(w, (uint64_t)(last - first) + 1);
            last = first + (int32_t)world_below(w, (uint64_t)(last - first) + 1);
        }
        pst_table *t = restored(c, first, last);
        check_same(c, t, first, last, part ? "a part" : "the whole");
        if (!part && world_one_in(w, 2 * w->lasts))
            adopt(c, t);
        else
            pst_table_close(t);
    }
}

static void run_epoch(chain *c, uint64_t most) {
    world *w = c->w;
    work(c, most);
    pst_sealed *sealed = w->failed || world_one_in(w, 9) ? NULL : sealed_epoch(c);
    if (!sealed) {
        give_up(c);
        return;
    }
    write_epoch(c, sealed);
    load_file(w, c->replica, &c->files.all[c->files.n - 1]);
    seal(w, c->replica);
    if (c->undoable > 1 && world_one_in(w, 12))
        undo_epochs(c);
    check_same(c, c->replica, w->first, w->last, "the replica");
    check_restored(c);
    if (c->files.n == CHAIN)
        compact(c);
    if (world_one_in(w, w->lasts))
        declare(c);
}

static void run_world(uint64_t seed, int epochs) {
    chain c = {.w = world_create(seed)};
    world *w = c.w;
    uint64_t most = world_one_in(w, 3) ? 40 : 6;
    c.live = world_open(w, w->first, w->last, w->limit_bytes);
    c.replica = world_open(w, w->first, w->last, WORLD_LIMIT);
    pst_table_set_clock(c.live, &w->now);
    for (int i = 0; i < epochs && check_failed == 0; i++)
        run_epoch(&c, most);
    free_files(&c.files);
    pst_table_close(c.live);
    pst_table_close(c.replica);
    free(w);
}

/* All that is claimed above came up; runs of other worlds say how often. */
static void check_coverage(int expected) {
    const struct {
        const char *what;
        uint64_t count;
    } all[] = {
        {"epochs", tried.epochs},
        {"merges", tried.merges},
        {"bases", tried.bases},
        {"loads", tried.loads},
        {"files loaded in parts", tried.parts},
        {"epochs rolled back", tried.rolled_back},
        {"sealed epochs undone", tried.undone},
        {"declarations", tried.declared},
        {"declarations without what was there", tried.dropped},
        {"limits", tried.limits},
        {"refused operations", tried.refused_steps},
        {"refused seals", tried.refused_seals},
        {"refused writes", tried.refused_writes},
        {"refused merges", tried.refused_merges},
        {"refused loads", tried.refused_loads},
        {"values", compared.values},
        {"items", compared.items},
        {"entries", compared.entries},
        {"entries without a value", compared.null_entries},
        {"times of values", compared.value_times},
        {"times of items", compared.item_times},
        {"times of entries", compared.entry_times},
        {"expired", compared.expired},
        {"null keys", compared.null_keys},
        {"timers", compared.timers},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int missing = expected && !CHECK(all[i].count > 0);
        if (missing || !expected)
            fprintf(stderr, "    %s: %" PRIu64 "\n", all[i].what, all[i].count);
    }
}

int main(int argc, char **argv) {
    int worlds = argc > 1 ? atoi(argv[1]) : WORLDS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int epochs = argc > 3 ? atoi(argv[3]) : EPOCHS;
    for (int i = 0; i < worlds && check_failed == 0; i++)
        run_world(seed++, epochs);
    if (check_failed == 0)
        check_coverage(argc == 1);
    return check_report();
}
