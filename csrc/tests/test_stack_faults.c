/* Stacks whose files, reads and memory fail: an error that names the file, or the same answer, and
 * the next search is as good as the first. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/budget.h"
#include "stack_world.h"

enum { BASE = 2000, KEYS = 400 };

static world the_world;
static uint64_t ids[KEYS];

static void make_world(world *w, world_style style, int32_t n, uint64_t seed) {
    uint64_t rng = seed;
    world_begin(w, style);
    for (int32_t i = 0; i < n; i++)
        world_write(w, i, &rng, i ? BASE / 8 : BASE, BASE, 100);
    for (int i = 0; i < KEYS; i++)
        ids[i] = check_random(&rng) % (2 * BASE);
}

static pst_status open_stack(const world *w, const pst_stack_options *o, pst_stack **st,
                             pst_detail *detail) {
    *st = NULL;
    pst_status s = pst_stack_open(&w->schema, WORLD_GROUPS, w->files, w->n, o, st, detail);
    CHECK_EQ(s == PST_OK, *st != NULL);
    return s;
}

static pst_status search(const world *w, pst_stack *st, const memory_file *whole,
                         int64_t fails_at) {
    finds f = finds_make(w, ids, KEYS);
    f.fails_at = fails_at;
    pst_status s = finds_search(&f, st, KEYS);
    if (!s)
        finds_check(&f, whole, KEYS);
    finds_free(&f);
    return s;
}

/* ---- reads that fail --------------------------------------------------------------------------- */

static int64_t hook_countdown;

static int64_t fail_once(const pst_read *r, int64_t result) {
    (void)r;
    return __atomic_fetch_sub(&hook_countdown, 1, __ATOMIC_RELAXED) == 0 ? -EIO : result;
}

static void run_reads(world *w, const memory_file *whole, int no_uring) {
    pst_reads_options ro = {.no_uring = no_uring, .threads = 3};
    pst_reads *reads = NULL;
    pst_stack *st;
    pst_detail detail;
    REQUIRE(!pst_reads_create(&ro, &reads));
    pst_stack_options o = {.reads = reads};
    int opened = 0, searched = 0;
    pst_read_hook = fail_once;
    for (int64_t i = 0; i < 100; i++) {
        hook_countdown = i;
        pst_status s = open_stack(w, &o, &st, &detail);
        if (s) {
            CHECK_EQ(s, PST_IO);
            CHECK_EQ(detail.sys_errno, EIO);
            CHECK(detail.row >= 0 && detail.row < w->n);
            opened++;
            continue;
        }
        hook_countdown = i - opened;
        s = search(w, st, whole, -1);
        CHECK(s == PST_OK || s == PST_IO);
        if (s) {
            const pst_detail *d = pst_stack_detail(st);
            CHECK_EQ(d->sys_errno, EIO);
            CHECK(d->row >= 0 && d->row < w->n && d->offset > 0);
            searched++;
        }
        hook_countdown = -1;
        CHECK_EQ(search(w, st, whole, -1), PST_OK);
        pst_stack_close(st);
    }
    pst_read_hook = NULL;
    CHECK(opened > 2 * w->n && searched > 2 * w->n);
    pst_reads_release(reads);
}

static void run_callback(world *w, const memory_file *whole) {
    pst_stack *st;
    REQUIRE(!open_stack(w, NULL, &st, NULL));
    for (int64_t i = 0; i < 100; i += 20) {
        CHECK_EQ(search(w, st, whole, i), PST_STALE);
        CHECK_EQ(search(w, st, whole, -1), PST_OK);
    }
    pst_place places[2] = {{5, 1, 0}, {4, 1, 1}};
    finds f = finds_make(w, ids, 2);
    pst_seeker seeker = {&f, finds_key, NULL, finds_found, finds_done};
    CHECK_EQ(pst_stack_search(st, places, 2, &seeker), PST_INVALID);
    finds_free(&f);
    pst_stack_close(st);
}

/* ---- damaged files ----------------------------------------------------------------------------- */

static off_t size_of(const char *path) {
    struct stat st;
    REQUIRE(!stat(path, &st));
    return st.st_size;
}

static void flip(const char *path, off_t at, uint8_t mask) {
    uint8_t byte;
    int fd = open(path, O_RDWR);
    REQUIRE(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= mask;
    REQUIRE(pwrite(fd, &byte, 1, at) == 1);
    fsync(fd);
    close(fd);
}

static void run_damage(world *w, const memory_file *whole) {
    uint64_t rng = 4;
    int refused = 0, wrong = 0;
    for (int i = 0; i < 60; i++) {
        int32_t file = (int32_t)(check_random(&rng) % (uint64_t)w->n);
        off_t at = (off_t)(check_random(&rng) % (uint64_t)size_of(w->paths[file]));
        uint8_t mask = (uint8_t)(1 << check_random(&rng) % 8);
        int early = i % 2;
        pst_stack *st = NULL;
        pst_detail detail;
        if (early)
            flip(w->paths[file], at, mask);
        pst_status s = open_stack(w, NULL, &st, &detail);
        if (!early)
            flip(w->paths[file], at, mask);
        if (!s) {
            s = search(w, st, whole, -1);
            detail = *pst_stack_detail(st);
        }
        refused += s != PST_OK;
        wrong += s && s != PST_CORRUPT && s != PST_NEWER_FORMAT && s != PST_SCHEMA;
        if (s)
            CHECK_EQ(detail.row, file);
        pst_stack_close(st);
        flip(w->paths[file], at, mask);
    }
    CHECK(refused > 10);
    CHECK_EQ(wrong, 0);
}

static void run_cut(world *w, const memory_file *whole) {
    pst_stack *st;
    pst_detail detail;
    off_t size = size_of(w->paths[1]);
    uint8_t *bytes = malloc((size_t)size);
    int fd = open(w->paths[1], O_RDWR);
    REQUIRE(bytes && fd >= 0 && read(fd, bytes, (size_t)size) == size);
    REQUIRE(!open_stack(w, NULL, &st, NULL));
    REQUIRE(!ftruncate(fd, 300));
    CHECK_EQ(search(w, st, whole, -1), PST_IO);
    CHECK_EQ(pst_stack_detail(st)->sys_errno, ENODATA);
    CHECK_EQ(pst_stack_detail(st)->row, 1);
    pst_stack_close(st);
    CHECK_EQ(open_stack(w, NULL, &st, &detail), PST_CORRUPT);
    CHECK_EQ(detail.row, 1);
    REQUIRE(pwrite(fd, bytes, (size_t)size, 0) == size);
    close(fd);
    REQUIRE(!open_stack(w, NULL, &st, NULL));
    CHECK_EQ(search(w, st, whole, -1), PST_OK);
    pst_stack_close(st);
    free(bytes);
}

/* ---- what a stack does not take ---------------------------------------------------------------- */

static void run_refused(world *w) {
    pst_stack *st;
    pst_detail detail;
    pst_schema other = w->schema;
    pst_column states[8];
    pst_stack_file files[3] = {w->files[0], w->files[1], w->files[2]};
    memcpy(states, other.states, (size_t)other.n_states * sizeof *states);
    states[0].name = "other";
    other.states = states;
    CHECK_EQ(pst_stack_open(&other, WORLD_GROUPS, files, 3, NULL, &st, &detail), PST_SCHEMA);
    CHECK_EQ(detail.row, 0);
    states[0].name = "count";
    states[0].type = PST_INT32;
    CHECK_EQ(pst_stack_open(&other, WORLD_GROUPS, files, 3, NULL, &st, &detail), PST_SCHEMA);
    other.n_states--;
    CHECK_EQ(pst_stack_open(&other, WORLD_GROUPS, files, 3, NULL, &st, &detail), PST_SCHEMA);
    CHECK_EQ(pst_stack_open(&w->schema, 64, files, 3, NULL, &st, &detail), PST_SCHEMA);
    CHECK_EQ(pst_stack_open(&w->schema, WORLD_GROUPS, files, 0, NULL, &st, &detail), PST_INVALID);
    files[2].path = "/nowhere/at/all";
    CHECK_EQ(pst_stack_open(&w->schema, WORLD_GROUPS, files, 3, NULL, &st, &detail), PST_NOT_FOUND);
    CHECK_EQ(detail.row, 2);
    CHECK_EQ(detail.sys_errno, ENOENT);
    files[2] = w->files[2];
    int32_t ranges[] = {5, 4};
    files[1].ranges = ranges;
    files[1].n_ranges = 1;
    CHECK_EQ(pst_stack_open(&w->schema, WORLD_GROUPS, files, 3, NULL, &st, &detail), PST_INVALID);
    ranges[1] = WORLD_GROUPS;
    CHECK_EQ(pst_stack_open(&w->schema, WORLD_GROUPS, files, 3, NULL, &st, &detail), PST_INVALID);
    pst_stack_options o = {.slice_keys = 1};
    CHECK_EQ(pst_stack_open(&w->schema, WORLD_GROUPS, files, 1, &o, &st, NULL), PST_INVALID);
}

static void run_unguided(void) {
    world *w = &the_world;
    pst_stack *st;
    pst_detail detail;
    uint64_t rng = 1;
    world_begin(w, WORLD_PLAIN);
    world_write(w, 0, &rng, 100, 100, 0);
    w->block_bytes = 0;
    world_write(w, 1, &rng, 100, 100, 0);
    CHECK_EQ(open_stack(w, NULL, &st, &detail), PST_SCHEMA);
    CHECK_EQ(detail.row, 1);
    world_free(w);
}

/* ---- key groups -------------------------------------------------------------------------------- */

static void run_groups(world *w) {
    static const int32_t RANGES[3][4] = {{0, 50, 60, 127}, {10, 20, 40, 40}, {0, 127, 30, 35}};
    memory_file whole = {.calls_left = -1};
    random_rows kept[WORLD_FILES];
    pst_stack *st;
    for (int32_t i = 0; i < w->n; i++) {
        const int32_t *ranges = RANGES[i % 3];
        w->files[i].ranges = ranges;
        w->files[i].n_ranges = 2;
        kept[i] = (random_rows){malloc(w->rows[i].n * sizeof(pst_record)), 0, NULL};
        REQUIRE(kept[i].rows);
        for (size_t k = 0; k < w->rows[i].n; k++) {
            int32_t g = w->rows[i].rows[k].key_group;
            if ((g >= ranges[0] && g <= ranges[1]) || (g >= ranges[2] && g <= ranges[3]))
                kept[i].rows[kept[i].n++] = w->rows[i].rows[k];
        }
    }
    world_merge(w, kept, &whole);
    REQUIRE(!open_stack(w, NULL, &st, NULL));
    CHECK_EQ(search(w, st, &whole, -1), PST_OK);
    pst_stack_close(st);
    file_free(&whole);
    for (int32_t i = 0; i < w->n; i++) {
        free(kept[i].rows);
        w->files[i].ranges = NULL;
        w->files[i].n_ranges = 0;
    }
}

/* ---- memory ------------------------------------------------------------------------------------ */

/* A stack of open files. */
static void run_memory_of_open(world *w, const memory_file *whole) {
    pst_stack_file files[WORLD_FILES];
    const int32_t all[] = {0, WORLD_GROUPS - 1};
    pst_stack_options o = {0};
    pst_stack *st = NULL;
    REQUIRE(!pst_reads_create(NULL, &o.reads));
    for (int32_t i = 0; i < w->n; i++) {
        files[i] = (pst_stack_file){.ranges = all, .n_ranges = 1};
        REQUIRE(
            !pst_member_open(&w->schema, WORLD_GROUPS, w->paths[i], &o, &files[i].member, NULL));
    }
    for (int64_t i = 0; !st; i++) {
        check_fail_alloc(i, 0);
        pst_status s = pst_stack_open(&w->schema, WORLD_GROUPS, files, w->n, &o, &st, NULL);
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(s, refused ? PST_NO_MEMORY : PST_OK);
        REQUIRE(i < 100);
    }
    for (int32_t i = 0; i < w->n; i++)
        pst_member_release(files[i].member);
    CHECK_EQ(search(w, st, whole, -1), PST_OK);
    pst_stack_close(st);
    pst_reads_release(o.reads);
}

static void run_memory(world *w, const memory_file *whole) {
    pst_budget *budget = NULL;
    pst_budget_stats stats;
    REQUIRE(!pst_budget_create(64 << 20, &budget));
    for (int64_t i = 0; i < 500; i++) {
        pst_stack_options o = {.budget = budget};
        pst_stack *st = NULL;
        check_fail_alloc(i, (int)(i & 1));
        pst_status s = open_stack(w, &o, &st, NULL);
        if (!s) {
            finds f = {.w = w};
            pst_seeker seeker = {&f, finds_key, NULL, finds_found, finds_done};
            pst_place *places = world_places(w, ids, KEYS);
            f = finds_make(w, ids, KEYS);
            s = pst_stack_search(st, places, KEYS, &seeker);
            finds_free(&f);
            free(places);
        }
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK(s == (refused ? PST_NO_MEMORY : PST_OK) || (refused && !s));
        if (st)
            CHECK_EQ(search(w, st, whole, -1), PST_OK);
        pst_stack_close(st);
        pst_budget_get_stats(budget, &stats);
        CHECK_EQ(stats.private_bytes, 0);
        if (!refused)
            break;
        CHECK(i < 499);
    }
    pst_budget_release(budget);
    REQUIRE(!pst_budget_create(2 << 20, &budget));
    pst_stack_options o = {.budget = budget};
    pst_stack *st;
    REQUIRE(!open_stack(w, &o, &st, NULL));
    CHECK_EQ(search(w, st, whole, -1), PST_LIMIT);
    pst_stack_close(st);
    pst_budget_release(budget);
}

/* ---- copies of guides -------------------------------------------------------------------------- */

static uint32_t open_with(const world *w, const char *guides, const memory_file *whole,
                          pst_stack_stats *stats) {
    pst_stack_options o = {.guides = guides};
    pst_stack *st;
    REQUIRE(!open_stack(w, &o, &st, NULL));
    CHECK_EQ(search(w, st, whole, -1), PST_OK);
    pst_stack_get_stats(st, stats);
    pst_stack_close(st);
    return stats->guides_made;
}

static void copy_path(const world *w, const char *guides, int32_t file, char *path) {
    uint8_t id[16];
    int fd = open(w->paths[file], O_RDONLY);
    REQUIRE(fd >= 0 && pread(fd, id, 16, 56) == 16);
    close(fd);
    path += sprintf(path, "%s", guides);
    for (int i = 0; i < 16; i++)
        path += sprintf(path, "%02x", id[i]);
    sprintf(path, ".guide");
}

/* What killed processes have left goes when a copy is made; not what somebody writes, and nothing
 * else. */
static void run_left(const world *w, const char *guides, const memory_file *whole) {
    char path[300], left[320], held[320], foreign[320], copy[300], other[640];
    pst_stack_stats stats;
    copy_path(w, guides, 0, path);
    copy_path(w, guides, 1, copy);
    sprintf(left, "%s.abcdef", path);
    sprintf(held, "%s.ABCDEF", path);
    sprintf(foreign, "%s.abc", path);
    sprintf(other, "%s/guides/00128-00255-%s.abcdef", w->folder, strstr(path, "00127-") + 6);
    int fd = open(held, O_CREAT | O_RDWR, 0600);
    REQUIRE(fd >= 0 && !flock(fd, LOCK_EX));
    close(open(left, O_CREAT | O_RDWR, 0600));
    close(open(foreign, O_CREAT | O_RDWR, 0600));
    close(open(other, O_CREAT | O_RDWR, 0600)); /* of another range */
    CHECK_EQ(open_with(w, guides, whole, &stats), 0);
    CHECK(!access(left, F_OK)); /* no copy was made */
    REQUIRE(!unlink(copy));
    CHECK(open_with(w, guides, whole, &stats) > 1);
    CHECK(access(left, F_OK) && !access(held, F_OK) && !access(foreign, F_OK));
    CHECK(!access(path, F_OK) && !access(copy, F_OK));
    close(fd);
    REQUIRE(!unlink(copy));
    CHECK(open_with(w, guides, whole, &stats) > 1);
    CHECK(access(held, F_OK));
    REQUIRE(!unlink(foreign) && !unlink(other));
}

/* There is no room for more of a copy, or for one: it is as if there were none. */
static void run_full(const world *w, const char *guides, const memory_file *whole) {
    pst_stack_options o = {.guides = guides};
    pst_stack_stats stats;
    struct rlimit before, none;
    pst_stack *st;
    char path[300];
    for (int32_t i = 0; i < w->n; i++) {
        copy_path(w, guides, i, path);
        REQUIRE(!unlink(path));
    }
    signal(SIGXFSZ, SIG_IGN);
    REQUIRE(!getrlimit(RLIMIT_FSIZE, &before));
    none = before;
    none.rlim_cur = 0;
    REQUIRE(!setrlimit(RLIMIT_FSIZE, &none));
    CHECK_EQ(open_with(w, guides, whole, &stats), 0);
    REQUIRE(!setrlimit(RLIMIT_FSIZE, &before));
    REQUIRE(!open_stack(w, &o, &st, NULL));
    REQUIRE(!setrlimit(RLIMIT_FSIZE, &none));
    CHECK_EQ(search(w, st, whole, -1), PST_OK);
    pst_stack_get_stats(st, &stats);
    CHECK_EQ(stats.guides_made, w->n); /* without a part */
    CHECK(stats.private_bytes > stats.guide_bytes);
    pst_stack_close(st);
    REQUIRE(!setrlimit(RLIMIT_FSIZE, &before));
    CHECK(open_with(w, guides, whole, &stats) > 0);
    CHECK_EQ(open_with(w, guides, whole, &stats), 0);
}

/* Whoever is second takes what the first one has put. What lost its name to another one is put no more. */
static void run_two(const world *w, const char *guides, const memory_file *whole) {
    pst_stack_options o = {.guides = guides};
    pst_stack_stats stats;
    pst_stack *first, *second;
    char path[300];
    copy_path(w, guides, 0, path);
    REQUIRE(!unlink(path));
    REQUIRE(!open_stack(w, &o, &first, NULL) && !open_stack(w, &o, &second, NULL));
    CHECK(open_with(w, guides, whole, &stats) > 0);
    CHECK_EQ(search(w, second, whole, -1), PST_OK);
    pst_stack_get_stats(second, &stats);
    CHECK_EQ(stats.guides_made, 0);
    pst_stack_close(second);
    pst_stack_close(first);
    REQUIRE(!unlink(path) && !open_stack(w, &o, &first, NULL));
    REQUIRE(!unlink(path) && !open_stack(w, &o, &second, NULL));
    CHECK_EQ(search(w, first, whole, -1), PST_OK);
    pst_stack_get_stats(first, &stats);
    CHECK_EQ(stats.guides_made, 1); /* when it was opened */
    CHECK(open_with(w, guides, whole, &stats) > 0);
    CHECK_EQ(search(w, second, whole, -1), PST_OK);
    pst_stack_close(second);
    pst_stack_close(first);
    CHECK_EQ(open_with(w, guides, whole, &stats), 0);
}

static void run_guides(world *w, const memory_file *whole) {
    char folder[220], guides[240], path[300], other[300];
    pst_stack_stats own, made, mapped, again;
    uint64_t rng = 8;
    uint32_t damaged = 0;
    snprintf(folder, sizeof folder, "%s/guides", w->folder);
    snprintf(guides, sizeof guides, "%s/00000-00127-", folder);
    CHECK_EQ(open_with(w, guides, whole, &own), 0); /* there is no such folder */
    REQUIRE(!mkdir(folder, 0700));
    CHECK(open_with(w, guides, whole, &made) > (uint32_t)w->n);
    CHECK_EQ(open_with(w, guides, whole, &mapped), 0);
    CHECK_EQ(own.guide_bytes, mapped.guide_bytes);
    CHECK(own.private_bytes >= own.guide_bytes + mapped.private_bytes);
    CHECK_EQ(made.private_bytes, mapped.private_bytes);
    for (int i = 0; i < 30; i++) { /* damaged, behind the header */
        int32_t file = (int32_t)(check_random(&rng) % (uint64_t)w->n);
        copy_path(w, guides, file, path);
        flip(path, (off_t)(64 + check_random(&rng) % (uint64_t)(size_of(path) - 64)), 16);
        uint32_t put = open_with(w, guides, whole, &again);
        CHECK(put <= 2); /* entries with their filter; or nobody has wanted it */
        damaged += put > 0;
        CHECK_EQ(open_with(w, guides, whole, &again), 0);
    }
    CHECK(damaged > 15);
    copy_path(w, guides, 0, path);
    flip(path, 20, 16);
    CHECK(open_with(w, guides, whole, &again) > 1);
    REQUIRE(!truncate(path, 0));
    CHECK(open_with(w, guides, whole, &again) > 1);
    copy_path(w, guides, 1, path);
    copy_path(w, guides, 2, other);
    REQUIRE(!rename(path, other)); /* another file's */
    CHECK(open_with(w, guides, whole, &again) > 3);
    REQUIRE(!unlink(path) && !symlink(other, path));
    CHECK(open_with(w, guides, whole, &again) > 1);
    REQUIRE(!chmod(other, 0620)); /* others could write to it */
    CHECK(open_with(w, guides, whole, &again) > 1);
    CHECK_EQ(open_with(w, guides, whole, &again), 0);
    CHECK_EQ(again.guide_bytes, own.guide_bytes);
    run_full(w, guides, whole);
    run_two(w, guides, whole);
    run_left(w, guides, whole);
    pst_budget *budget = NULL;
    pst_budget_stats stats;
    REQUIRE(!pst_budget_create(64 << 20, &budget) && !pst_budget_add_home(budget, folder, 0));
    pst_budget_get_stats(budget, &stats);
    CHECK(stats.shared_bytes >= again.guide_bytes);
    pst_budget_release(budget);
}

/* ---- single keys, children --------------------------------------------------------------------- */

static void run_get(world *w, const memory_file *whole) {
    memory_file all = *whole;
    pst_sst_reader *r;
    pst_stack *st;
    pst_record row, got, key;
    byte_heap *h = calloc(1, sizeof *h);
    uint8_t there[2 * BASE] = {0};
    int has_element = world_keys(w) < w->schema.n_keys;
    REQUIRE(h && !file_open(&all, &r) && !open_stack(w, NULL, &st, NULL));
    while (!pst_sst_reader_next(r, &row)) {
        if (has_element && !(row.key_nulls >> world_keys(w) & 1))
            continue;
        for (uint64_t id = 0; id < BASE; id++) {
            memset(&key, 0, sizeof key);
            world_key(w, h, id, &key);
            if (key.hash == row.hash && !pst_key_compare(w->schema.keys, world_keys(w), key.key,
                                                         key.key_nulls, row.key, row.key_nulls)) {
                there[id] = 1;
                break;
            }
            heap_free(h);
        }
        CHECK_EQ(pst_stack_get(st, key.key, key.key_nulls & 1, &got), PST_OK);
        row.changed = row.present;
        got.changed = got.present;
        CHECK(same_row(&w->schema, &row, &got));
        heap_free(h);
    }
    pst_sst_reader_close(r);
    for (uint64_t id = 0; id < 2 * BASE; id += 7) {
        memset(&key, 0, sizeof key);
        world_key(w, h, id, &key);
        pst_status s = pst_stack_get(st, key.key, key.key_nulls & 1, &got);
        CHECK(s == PST_OK || s == PST_NOT_FOUND);
        if (!there[id])
            CHECK(s == PST_NOT_FOUND || (has_element && !got.present));
        heap_free(h);
    }
    free(h);
    pst_stack_close(st);
}

/* Searches with a stack of its own, of files that others look into, too. */
typedef struct sharer {
    const world *w;
    const memory_file *whole;
    pst_stack *st;
} sharer;

static void *search_shared(void *arg) {
    sharer *s = arg;
    for (int i = 0; i < 3; i++)
        CHECK_EQ(search(s->w, s->st, s->whole, -1), PST_OK);
    return NULL;
}

/* Whoever comes first brings a part, and the others find it. */
static void run_threads(const world *w, const memory_file *whole) {
    enum { THREADS = 4 };
    pst_member *members[WORLD_FILES];
    pst_stack_file files[WORLD_FILES] = {{0}};
    pthread_t threads[THREADS];
    sharer s[THREADS];
    pst_reads *reads = NULL;
    pst_stack_stats stats;
    uint64_t guide_bytes = 0;
    REQUIRE(!pst_reads_create(NULL, &reads));
    pst_stack_options o = {.reads = reads};
    for (int32_t i = 0; i < w->n; i++) {
        REQUIRE(!pst_member_open(&w->schema, WORLD_GROUPS, w->paths[i], &o, &members[i], NULL));
        files[i].member = members[i];
    }
    for (int i = 0; i < THREADS; i++) {
        s[i] = (sharer){w, whole, NULL};
        REQUIRE(!pst_stack_open(&w->schema, WORLD_GROUPS, files, w->n, &o, &s[i].st, NULL));
        REQUIRE(!pthread_create(&threads[i], NULL, search_shared, &s[i]));
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        pst_stack_get_stats(s[i].st, &stats);
        CHECK(stats.guide_bytes > 0 && (!i || stats.guide_bytes == guide_bytes));
        guide_bytes = stats.guide_bytes;
    }
    for (int32_t i = 0; i < w->n; i++)
        CHECK(members[i]->part_bytes <= members[i]->image_bytes);
    for (int i = 0; i < THREADS; i++)
        pst_stack_close(s[i].st);
    for (int32_t i = 0; i < w->n; i++)
        pst_member_release(members[i]);
    pst_reads_release(reads);
}

/* ASan's allocator stays locked in a child, if a thread was in it; TSan knows no threads after a fork. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* Searches with a stack of its own until it is told to end; all stacks share the reads. */
typedef struct searcher {
    const world *w;
    const memory_file *whole;
    pst_stack *st;
    int rounds;
    atomic_uint failed;
} searcher;

static void *search_often(void *arg) {
    searcher *s = arg;
    for (int i = 0; i < s->rounds; i++)
        atomic_fetch_add(&s->failed, search(s->w, s->st, s->whole, -1) != PST_OK);
    return NULL;
}

static void start_searchers(searcher *s, pthread_t *threads, int n) {
    for (int i = 0; i < n; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, search_often, &s[i]));
}

static int end_searchers(searcher *s, pthread_t *threads, int n) {
    int failed = 0;
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        failed += (int)atomic_load(&s[i].failed);
    }
    return failed;
}

/* Stacks that were used before a fork, on threads, while others search: in the child, on threads, too. */
static void run_fork_threads(const world *w, const memory_file *whole) {
    enum { STACKS = 4 };
    pst_reads *reads = NULL;
    searcher s[STACKS];
    pthread_t threads[STACKS];
    REQUIRE(!pst_reads_create(NULL, &reads));
    pst_stack_options o = {.reads = reads};
    for (int i = 0; i < STACKS; i++) {
        s[i] = (searcher){.w = w, .whole = whole, .rounds = 8};
        REQUIRE(!open_stack(w, &o, &s[i].st, NULL));
        CHECK_EQ(search(w, s[i].st, whole, -1), PST_OK);
    }
    start_searchers(s, threads, 2);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            for (int i = 2; i < STACKS; i++)
                s[i].rounds = 2;
            start_searchers(s + 2, threads + 2, 2);
            int failed = end_searchers(s + 2, threads + 2, 2);
            for (int i = 2; i < STACKS; i++)
                pst_stack_close(s[i].st);
            _exit(failed || atomic_load(&check_failed));
        }
        int status = 1;
        waitpid(child, &status, 0);
        CHECK_EQ(status, 0);
    }
    CHECK_EQ(end_searchers(s, threads, 2), 0);
    for (int i = 0; i < STACKS; i++)
        pst_stack_close(s[i].st);
    pst_reads_release(reads);
}
#endif

static void run_fork(world *w, const memory_file *whole) {
    pst_stack *st;
    REQUIRE(!open_stack(w, NULL, &st, NULL));
    CHECK_EQ(search(w, st, whole, -1), PST_OK);
    pid_t child = fork();
    if (child == 0)
        _exit(search(w, st, whole, -1) == PST_OK && atomic_load(&check_failed) == 0 ? 0 : 1);
    int status = 1;
    CHECK_EQ(search(w, st, whole, -1), PST_OK);
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    pst_stack_close(st);
}

int main(void) {
    world *w = &the_world;
    static const world_style STYLES[] = {WORLD_STRINGS, WORLD_ELEMENTS};
    for (int i = 0; i < 2; i++) {
        memory_file whole = {.calls_left = -1};
        make_world(w, STYLES[i], 4, 21 + (uint64_t)i);
        world_merge(w, w->rows, &whole);
        run_reads(w, &whole, 0);
        run_reads(w, &whole, 1);
        run_callback(w, &whole);
        run_memory(w, &whole);
        run_memory_of_open(w, &whole);
        run_guides(w, &whole);
        run_groups(w);
        run_get(w, &whole);
        run_threads(w, &whole);
        run_fork(w, &whole);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        run_fork_threads(w, &whole);
#endif
        run_refused(w);
        run_damage(w, &whole);
        run_cut(w, &whole);
        file_free(&whole);
        world_free(w);
    }
    memory_file whole = {.calls_left = -1};
    make_world(w, WORLD_TIMERS, 4, 31);
    world_merge(w, w->rows, &whole);
    run_get(w, &whole);
    file_free(&whole);
    world_free(w);
    run_unguided();
    return check_report();
}
