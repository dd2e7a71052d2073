/* steps.h: the files of a table that seals steps: written, merged, and set below it.
 */
#ifndef STEPS_H
#define STEPS_H

#include <sys/stat.h>
#include <unistd.h>

#include "base/schema.h"
#include "files.h"
#include "memory/handle.h"

enum { GROUPS = 8, MOST_FILES = 12 };

typedef struct stepped {
    pst_schema *in_files;
    pst_table *t;
    pst_stack *stack;
    char folder[64];
    uint64_t numbers[MOST_FILES];
    int n;
    uint64_t next;
} stepped;

static inline void path_of(const stepped *s, uint64_t number, char path[128]) {
    snprintf(path, 128, "%s/%" PRIu64 ".sst", s->folder, number);
}

static inline void save(stepped *s, const memory_file *f) {
    char path[128];
    path_of(s, ++s->next, path);
    FILE *out = fopen(path, "wb");
    REQUIRE(out && fwrite(f->data, 1, f->size, out) == f->size && !fclose(out));
    s->numbers[s->n++] = s->next;
}

/* All files as one base. */
static inline void merge(stepped *s) {
    memory_file in[MOST_FILES], out = {.calls_left = -1};
    pst_sst_reader *readers[MOST_FILES];
    pst_io io = file_io(&out, 1);
    pst_file_info info = {.kind = PST_BASE,
                          .max_parallelism = GROUPS,
                          .last_key_group = GROUPS - 1,
                          .block_bytes = 4096};
    info.lineage.id[0] = 1;
    for (int i = 0; i < s->n; i++) {
        char path[128];
        struct stat st;
        path_of(s, s->numbers[i], path);
        REQUIRE(!stat(path, &st));
        in[i] = (memory_file){.size = (size_t)st.st_size, .calls_left = -1};
        in[i].data = malloc(in[i].size);
        FILE *f = fopen(path, "rb");
        REQUIRE(in[i].data && f && fread(in[i].data, 1, in[i].size, f) == in[i].size);
        fclose(f);
        REQUIRE(!file_open(&in[i], &readers[i]));
    }
    REQUIRE(!file_merge(s->in_files, &info, readers, NULL, s->n, &io));
    for (int i = 0; i < s->n; i++) {
        pst_sst_reader_close(readers[i]);
        file_free(&in[i]);
    }
    s->n = 0;
    save(s, &out);
    file_free(&out);
}

static inline pst_lineage lineage_of(pst_table *t) {
    pst_lineage lineage;
    REQUIRE(!pst_table_lineage(t, 0, &lineage));
    return lineage;
}

static inline void set_stack(stepped *s) {
    char paths[MOST_FILES][128];
    pst_stack_file files[MOST_FILES] = {{0}};
    pst_stack *old = s->stack;
    if (!s->n)
        return;
    for (int i = 0; i < s->n; i++) {
        path_of(s, s->numbers[i], paths[i]);
        files[i].path = paths[i];
    }
    REQUIRE(!pst_stack_open(s->in_files, GROUPS, files, s->n, NULL, &s->stack, NULL));
    pst_lineage lineage = lineage_of(s->t);
    REQUIRE(!pst_table_set_stack(s->t, s->stack, &lineage));
    pst_stack_close(old);
}

static inline void seal(stepped *s, pst_table *t) {
    pst_lineage l = {.epoch = ++s->next};
    pst_sealed *sealed = NULL;
    memory_file f = {.calls_left = -1};
    pst_io io = file_io(&f, 1);
    pst_file_info info;
    memcpy(l.id, &s->next, sizeof s->next);
    REQUIRE(!pst_table_seal(t, &l, &sealed));
    if (pst_sealed_rows(sealed)) {
        pst_sealed_guide(sealed, 4096);
        REQUIRE(!pst_sealed_write(sealed, &io, &info));
        save(s, &f);
    }
    pst_sealed_destroy(sealed);
    file_free(&f);
    if (s->n == MOST_FILES)
        merge(s);
}

/* A folder for the files, whose rows have these columns. */
static inline void steps_begin(stepped *s, const pst_schema *schema) {
    memset(s, 0, sizeof *s);
    snprintf(s->folder, sizeof s->folder, "/dev/shm/pst_fetch_XXXXXX");
    REQUIRE(mkdtemp(s->folder));
    REQUIRE(!pst_file_schema_create(schema, &s->in_files));
}

static inline void steps_end(stepped *s) {
    char command[128];
    pst_table_close(s->t);
    pst_stack_close(s->stack);
    pst_file_schema_destroy(s->in_files);
    snprintf(command, sizeof command, "rm -r %s", s->folder);
    REQUIRE(!system(command));
}

#endif
