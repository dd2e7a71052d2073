/* table_files.h: a table above files in a folder: they are written as epochs are sealed, merged, and
 * set below the table as a stack. What is not asked for stays zero: a budget, reads, states that expire.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_TABLE_FILES_H
#define PST_TEST_TABLE_FILES_H

#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "key/schema.h"
#include "memory/handle.h"

enum { GROUPS = 8, MOST_FILES = 12 };

typedef struct files {
    const pst_schema *schema;
    const pst_ttl *ttl; /* of the first state; NULL: none */
    pst_clock now;
    pst_clock sealed_at;
    pst_schema *in_files;
    char folder[40];
    uint64_t number[MOST_FILES]; /* oldest first */
    int n;
    int keeps;     /* of the oldest files, which too many are not merged with */
    uint64_t next; /* epoch, and number of a file */
    pst_lineage lineage;
    pst_budget *budget;
    pst_reads *reads;
    pst_stack *stack;
    pst_table *t;
    uint64_t left; /* rows */
} files;

/* A folder for the files of a table with this schema. */
static inline void files_begin(files *f, const pst_schema *schema) {
    *f = (files){.schema = schema, .now = {PST_NO_TIME, PST_NO_TIME, PST_NO_TIME}};
    snprintf(f->folder, sizeof f->folder, "/dev/shm/pst_files_XXXXXX");
    REQUIRE(mkdtemp(f->folder));
    REQUIRE(!pst_file_schema_create(schema, &f->in_files));
}

static inline pst_table *files_open(const files *f, uint64_t limit) {
    pst_table_options o = {
        .max_parallelism = GROUPS, .last_key_group = GROUPS - 1, .limit_bytes = limit};
    pst_table *t = NULL;
    REQUIRE(!pst_table_open(f->schema, &o, &t, NULL, NULL));
    return t;
}

static inline void files_end(files *f) {
    char command[96];
    pst_table_close(f->t);
    pst_stack_close(f->stack);
    pst_file_schema_destroy(f->in_files);
    snprintf(command, sizeof command, "rm -r %s", f->folder);
    REQUIRE(!system(command));
}

static inline void files_path(const files *f, uint64_t number, char path[96]) {
    snprintf(path, 96, "%s/%" PRIu64 ".sst", f->folder, number);
}

static inline void files_save(files *f, const memory_file *m) {
    char path[96];
    files_path(f, ++f->next, path);
    FILE *out = fopen(path, "wb");
    REQUIRE(out && fwrite(m->data, 1, m->size, out) == m->size && !fclose(out));
    f->number[f->n++] = f->next;
}

static inline memory_file files_load(const files *f, uint64_t number) {
    char path[96];
    struct stat st;
    memory_file m = {.calls_left = -1};
    files_path(f, number, path);
    REQUIRE(!stat(path, &st));
    m.size = (size_t)st.st_size;
    m.data = malloc(m.size);
    FILE *in = fopen(path, "rb");
    REQUIRE(m.data && in && fread(m.data, 1, m.size, in) == m.size);
    fclose(in);
    return m;
}

/* As file_merge; a base has nothing that had expired when the newest epoch was sealed. */
static inline pst_status files_merge_open(const files *f, pst_file_info *info,
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

/* The files from `from` on as one: a base of all, or a delta. */
static inline void files_merge(files *f, int from) {
    memory_file in[MOST_FILES], out = {.calls_left = -1};
    pst_sst_reader *readers[MOST_FILES];
    pst_io io = file_io(&out, 1);
    pst_file_info info = {.kind = from ? PST_DELTA : PST_BASE,
                          .max_parallelism = GROUPS,
                          .last_key_group = GROUPS - 1,
                          .block_bytes = 4096};
    int n = f->n - from;
    for (int i = 0; i < n; i++) {
        char path[96];
        in[i] = files_load(f, f->number[from + i]);
        files_path(f, f->number[from + i], path);
        REQUIRE(!unlink(path));
        REQUIRE(!file_open(&in[i], &readers[i]));
    }
    memcpy(info.lineage.id, &f->next, sizeof f->next);
    REQUIRE(!files_merge_open(f, &info, readers, n, &io));
    for (int i = 0; i < n; i++) {
        pst_sst_reader_close(readers[i]);
        file_free(&in[i]);
    }
    f->n = from;
    files_save(f, &out);
    file_free(&out);
}

static inline pst_lineage lineage_of(pst_table *t) {
    pst_lineage lineage;
    REQUIRE(!pst_table_lineage(t, 0, &lineage));
    return lineage;
}

/* Sets the files below the table, if there are any. */
static inline void files_set_stack(files *f) {
    char paths[MOST_FILES][96];
    pst_stack_file named[MOST_FILES] = {{0}};
    pst_stack_options o = {.reads = f->reads, .budget = f->budget};
    pst_stack *old = f->stack;
    if (!f->n)
        return;
    for (int i = 0; i < f->n; i++) {
        files_path(f, f->number[i], paths[i]);
        named[i].path = paths[i];
    }
    REQUIRE(!pst_stack_open(f->in_files, GROUPS, named, f->n, &o, &f->stack, NULL));
    pst_lineage lineage = lineage_of(f->t);
    REQUIRE(!pst_table_set_stack(f->t, f->stack, &lineage));
    pst_stack_close(old);
}

/* Seals a table, and writes a file of what has changed, if anything has. Too many become one. */
static inline void files_seal(files *f, pst_table *t) {
    memory_file m = {.calls_left = -1};
    pst_io io = file_io(&m, 1);
    pst_sealed *sealed = NULL;
    pst_file_info info;
    f->lineage = (pst_lineage){.epoch = f->next + 1};
    memcpy(f->lineage.id, &f->lineage.epoch, sizeof f->lineage.epoch);
    f->sealed_at = f->now;
    REQUIRE(!pst_table_seal(t, &f->lineage, &sealed));
    if (pst_sealed_rows(sealed)) {
        pst_sealed_guide(sealed, 4096);
        REQUIRE(!pst_sealed_write(sealed, &io, &info));
        files_save(f, &m);
    } else {
        f->next++;
    }
    pst_sealed_destroy(sealed);
    file_free(&m);
    if (f->n == MOST_FILES)
        files_merge(f, f->keeps);
}

#endif
