/* bench_files.h: a table above files in a folder that may be on a disk, for benchmarks.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_BENCH_FILES_H
#define PST_BENCH_FILES_H

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "files.h"
#include "stack/stack.h"

enum { GROUPS = 128, MOST_FILES = 12, BLOCK = 4096 };

typedef struct bench_files {
    pst_schema schema;
    pst_schema *in_files;
    pst_table *t;
    pst_stack *stack;
    pst_reads *reads;
    const char *folder;
    uint64_t numbers[MOST_FILES]; /* of files, oldest first */
    uint64_t deltas;              /* bytes of all but the first */
    uint64_t written;
    int n;
    uint64_t next;
} bench_files;

static inline void must(pst_status s, const char *what) {
    if (!s)
        return;
    fprintf(stderr, "%s: %s\n", what, pst_status_name(s));
    exit(1);
}

static inline double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void path_of(const bench_files *b, uint64_t number, char path[256]) {
    snprintf(path, 256, "%s/bench_%d_%" PRIu64 ".sst", b->folder, (int)getpid(), number);
}

static inline int write_out(void *ctx, const void *data, size_t size) {
    return fwrite(data, 1, size, ctx) != size;
}

static inline int read_in(void *ctx, uint64_t offset, void *data, size_t size) {
    return pread(fileno(ctx), data, size, (off_t)offset) != (ssize_t)size;
}

static inline int compress(void *ctx, const void *src, size_t size, void *dst, size_t *dst_size) {
    (void)ctx;
    *dst_size = lz4_pack(src, size, dst, *dst_size);
    return 0;
}

static inline int decompress(void *ctx, const void *src, size_t size, void *dst, size_t dst_size) {
    (void)ctx;
    return pst_sst_unpack(src, size, dst, dst_size) != size;
}

static inline pst_io open_file(const bench_files *b, uint64_t number, const char *mode) {
    char path[256];
    path_of(b, number, path);
    FILE *f = fopen(path, mode);
    if (!f)
        must(PST_IO, path);
    return (pst_io){f, write_out, read_in, compress, decompress, NULL, NULL};
}

/* All files from `from` on as one. */
static inline void bench_merge(bench_files *b, int from) {
    pst_sst_reader *readers[MOST_FILES];
    const int32_t *mapping[MOST_FILES] = {NULL};
    pst_io in[MOST_FILES];
    uint64_t number = ++b->next;
    pst_io io = open_file(b, number, "wb");
    pst_file_info info = {.kind = from ? PST_DELTA : PST_BASE,
                          .max_parallelism = GROUPS,
                          .last_key_group = GROUPS - 1,
                          .block_bytes = BLOCK};
    info.lineage.id[0] = 1;
    for (int i = from; i < b->n; i++) {
        in[i] = open_file(b, b->numbers[i], "rb");
        fseek(in[i].ctx, 0, SEEK_END);
        must(pst_sst_reader_open(&in[i], (uint64_t)ftell(in[i].ctx), &readers[i], NULL), "open");
    }
    must(file_merge(b->in_files, &info, readers + from, mapping, b->n - from, &io), "merge");
    for (int i = from; i < b->n; i++) {
        char path[256];
        pst_sst_reader_close(readers[i]);
        fclose(in[i].ctx);
        path_of(b, b->numbers[i], path);
        unlink(path);
    }
    fclose(io.ctx);
    b->numbers[from] = number;
    b->n = from + 1;
    b->deltas = from ? info.file_bytes : 0;
    b->written += info.file_bytes;
}

static inline void bench_set_stack(bench_files *b) {
    char paths[MOST_FILES][256];
    pst_stack_file files[MOST_FILES] = {{0}};
    pst_stack_options o = {.reads = b->reads};
    pst_stack *old = b->stack;
    for (int i = 0; i < b->n; i++) {
        path_of(b, b->numbers[i], paths[i]);
        files[i].path = paths[i];
    }
    must(pst_stack_open(b->in_files, GROUPS, files, b->n, &o, &b->stack, NULL), "stack");
    pst_lineage lineage;
    must(pst_table_lineage(b->t, 0, &lineage), "lineage");
    must(pst_table_set_stack(b->t, b->stack, &lineage), "set stack");
    pst_stack_close(old);
}

/* Seals what has changed as a file above the others. */
static inline void bench_seal(bench_files *b, pst_table *t) {
    pst_lineage l = {.epoch = ++b->next};
    pst_sealed *sealed = NULL;
    pst_file_info info = {.file_bytes = 0};
    memcpy(l.id, &b->next, sizeof b->next);
    must(pst_table_seal(t, &l, &sealed), "seal");
    if (pst_sealed_rows(sealed)) {
        pst_io io = open_file(b, b->next, "wb");
        pst_sealed_guide(sealed, BLOCK);
        must(pst_sealed_write(sealed, &io, &info), "write");
        fclose(io.ctx);
        b->numbers[b->n++] = b->next;
        b->deltas += info.file_bytes;
        b->written += info.file_bytes;
    }
    pst_sealed_destroy(sealed);
}

static inline pst_table *bench_open(const bench_files *b, uint64_t limit) {
    pst_table_options o = {
        .max_parallelism = GROUPS, .last_key_group = GROUPS - 1, .limit_bytes = limit};
    pst_table *t;
    must(pst_table_open(&b->schema, &o, &t, NULL, NULL), "table");
    return t;
}

/* Closes all of it, and removes the files. */
static inline void bench_close(bench_files *b) {
    pst_table_close(b->t);
    pst_stack_close(b->stack);
    pst_reads_release(b->reads);
    for (int i = 0; i < b->n; i++) {
        char path[256];
        path_of(b, b->numbers[i], path);
        unlink(path);
    }
    pst_file_schema_destroy(b->in_files);
}

#endif
