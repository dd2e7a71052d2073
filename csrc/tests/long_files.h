/* long_files.h: a table of one operator above files, of which keys may have much.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_LONG_FILES_H
#define PST_TEST_LONG_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/schema.h"
#include "crash.h"
#include "fetch/items.h"
#include "forge.h"
#include "ownership.h"
#include "stack/read.h"
#include "stack/stack.h"
#include "stack/walk.h"

#ifndef PST_LONG_SOME
#define PST_LONG_SOME 1
#endif

enum { GROUPS = 4, MOST_FILES = 6 };

static const pst_column KEYS[] = {{.name = "k", .type = PST_INT64},
                                  {.name = "n", .type = PST_INT64}};
static const pst_column STATES[] = {
    {.name = "a", .type = PST_INT64},
    {.name = "l", .type = PST_INT64, .kind = PST_LIST},
    {.name = "s", .type = PST_STRING, .kind = PST_LIST},
    {.name = "m", .type = PST_INT64, .kind = PST_MAP, .map_key = PST_INT64},
    {.name = "w", .type = PST_STRING, .kind = PST_MAP, .map_key = PST_STRING}};
enum { A, L, S, M, W };
/* The second column is a namespace: all keys with one `k` lie under one hash. */
static const pst_schema SCHEMA = {2, 5, KEYS, STATES, 1};

typedef struct files {
    const pst_schema *schema;
    const pst_ttl *ttl; /* of the first state; NULL: none */
    pst_clock now;
    pst_clock sealed_at;
    pst_schema *in_files;
    char folder[40];
    uint64_t number[MOST_FILES];
    int n;
    uint64_t next; /* epoch, and number of a file */
    pst_lineage lineage;
    pst_budget *budget;
    pst_reads *reads;
    pst_stack *stack;
    pst_table *t;
    uint64_t left; /* rows */
} files;

static inline void open_table(files *f, uint64_t limit) {
    pst_table_options o = {
        .max_parallelism = GROUPS, .last_key_group = GROUPS - 1, .limit_bytes = limit};
    REQUIRE(!pst_table_open(f->schema, &o, &f->t, NULL, NULL));
    REQUIRE(!f->ttl || !pst_table_set_ttl(f->t, 0, f->ttl));
    pst_table_set_clock(f->t, &f->now);
    pst_table_set_whole_rows(f->t, 512);
}

static inline void begin_with(files *f, const pst_schema *schema, const pst_ttl *ttl,
                              uint64_t limit) {
    *f = (files){.schema = schema, .ttl = ttl, .now = {PST_NO_TIME, PST_NO_TIME, PST_NO_TIME}};
    snprintf(f->folder, sizeof f->folder, "/dev/shm/pst_long_XXXXXX");
    REQUIRE(mkdtemp(f->folder));
    REQUIRE(!pst_file_schema_create(schema, &f->in_files));
    REQUIRE(!pst_budget_create((uint64_t)1 << 30, &f->budget));
    pst_reads_options o = {.pool_bytes = 1 << 20};
    REQUIRE(!pst_reads_create(&o, &f->reads));
    open_table(f, limit);
}

static inline void begin(files *f, uint64_t limit) {
    begin_with(f, &SCHEMA, NULL, limit);
}

static inline void end(files *f) {
    char command[96];
    pst_table_close(f->t);
    pst_stack_close(f->stack);
    pst_reads_release(f->reads);
    pst_budget_release(f->budget);
    pst_file_schema_destroy(f->in_files);
    snprintf(command, sizeof command, "rm -r %s", f->folder);
    REQUIRE(!system(command));
}

static inline void path_of(const files *f, uint64_t number, char path[96]) {
    snprintf(path, 96, "%s/%" PRIu64 ".sst", f->folder, number);
}

static inline void save(files *f, const memory_file *m) {
    char path[96];
    path_of(f, ++f->next, path);
    FILE *out = fopen(path, "wb");
    REQUIRE(out && fwrite(m->data, 1, m->size, out) == m->size && !fclose(out));
    f->number[f->n++] = f->next;
}

static inline void set_stack(files *f) {
    char paths[MOST_FILES][96];
    pst_stack_file named[MOST_FILES] = {{0}};
    pst_stack_options o = {.reads = f->reads, .budget = f->budget};
    pst_stack *stack = NULL;
    for (int i = 0; i < f->n; i++) {
        path_of(f, f->number[i], paths[i]);
        named[i].path = paths[i];
    }
    REQUIRE(!pst_stack_open(f->in_files, GROUPS, named, f->n, &o, &stack, NULL));
    REQUIRE(!pst_table_set_stack(f->t, stack, &f->lineage));
    pst_stack_close(f->stack);
    f->stack = stack;
}

/* As file_merge; a base has nothing that had expired when the newest epoch was sealed. */
static inline pst_status merge_files(const files *f, pst_file_info *info,
                                     pst_sst_reader *const *readers, int n, const pst_io *io) {
    pst_ttl ttl[PST_MAX_STATES] = {{0}};
    pst_expiry expiry = {ttl, f->sealed_at};
    pst_sst_writer *w = NULL;
    if (!f->ttl || info->kind != PST_BASE)
        return file_merge(f->in_files, info, readers, NULL, n, io);
    ttl[0] = *f->ttl;
    pst_status s = pst_sst_writer_create(f->in_files, info, io, &w);
    if (!s)
        s = pst_merge_expiring(readers, NULL, n, &expiry, w);
    if (!s)
        s = pst_sst_writer_finish(w, info);
    pst_sst_writer_destroy(w);
    return s;
}

/* Merges files from that one on. */
static inline void merge(files *f, int from) {
    memory_file in[MOST_FILES], out = {.calls_left = -1};
    pst_sst_reader *readers[MOST_FILES];
    pst_io io = file_io(&out, 1);
    pst_file_info info = {.kind = from ? PST_DELTA : PST_BASE,
                          .max_parallelism = GROUPS,
                          .last_key_group = GROUPS - 1,
                          .block_bytes = 4096};
    int n = f->n - from;
    for (int i = 0; i < n; i++) {
        struct stat st;
        char path[96];
        path_of(f, f->number[from + i], path);
        REQUIRE(!stat(path, &st));
        in[i] = (memory_file){.calls_left = -1, .size = (size_t)st.st_size};
        in[i].data = malloc(in[i].size);
        FILE *file = fopen(path, "rb");
        REQUIRE(in[i].data && file && fread(in[i].data, 1, in[i].size, file) == in[i].size);
        fclose(file);
        REQUIRE(!unlink(path));
        REQUIRE(file_open(&in[i], &readers[i]) == PST_OK);
    }
    memcpy(info.lineage.id, &f->next, sizeof f->next);
    REQUIRE(!merge_files(f, &info, readers, n, &io));
    for (int i = 0; i < n; i++) {
        pst_sst_reader_close(readers[i]);
        file_free(&in[i]);
    }
    f->n = from;
    save(f, &out);
    file_free(&out);
}

static inline void seal(files *f) {
    memory_file m = {.calls_left = -1};
    pst_io io = file_io(&m, 0);
    pst_sealed *sealed = NULL;
    pst_file_info info;
    f->lineage = (pst_lineage){.epoch = f->next + 1};
    memcpy(f->lineage.id, &f->lineage.epoch, sizeof f->lineage.epoch);
    f->sealed_at = f->now;
    REQUIRE(!pst_table_seal(f->t, &f->lineage, &sealed));
    pst_sealed_guide(sealed, 4096);
    REQUIRE(!pst_sealed_write(sealed, &io, &info));
    pst_sealed_destroy(sealed);
    save(f, &m);
    file_free(&m);
    if (f->n == MOST_FILES)
        merge(f, f->next % 3 ? 0 : 2);
    set_stack(f);
}

static inline void leave(files *f, uint64_t rows) {
    pst_room wanted = {rows, 0}, left;
    REQUIRE(!pst_table_leave(f->t, &wanted, &left));
    f->left += left.rows;
}

/* Another table over the files, without a row. */
static inline void anew(files *f, uint64_t limit) {
    pst_table_close(f->t);
    open_table(f, limit);
    REQUIRE(!pst_table_seal(f->t, &f->lineage, NULL));
    pst_table_set_whole(f->t, 0);
    REQUIRE(!pst_table_set_stack(f->t, f->stack, &f->lineage));
}

static inline pst_status set_key(pst_table *t, uint64_t k, uint64_t n) {
    pst_cell key[2] = {{{k, 0}, {NULL, 0}}, {{n, 0}, {NULL, 0}}};
    return pst_key_set(t, key, 0);
}

/* From `k` on the first of which files may have much (PST_LONG_SOME). */
static inline uint64_t long_key(uint64_t k) {
    for (;; k++) {
        pst_cell key = {{k, 0}, {NULL, 0}};
        if (pst_hash_key(KEYS, 1, &key, 0) % PST_LONG_SOME == 0)
            return k;
    }
}

static inline uint64_t reads_of(const files *f) {
    pst_reads_stats stats;
    pst_reads_get_stats(f->reads, &stats);
    return stats.reads;
}

#endif
