/* long_files.h: a table of one operator above files, of which keys may have much.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_LONG_FILES_H
#define PST_TEST_LONG_FILES_H

#include <errno.h>
#include <fcntl.h>

#include "crash.h"
#include "fetch/items.h"
#include "forge.h"
#include "key/hash.h"
#include "ownership.h"
#include "reads/read.h"
#include "stack/stack.h"
#include "stack/walk.h"
#include "table_files.h"

#ifndef PST_LONG_SOME
#define PST_LONG_SOME 1
#endif

enum { LONG_FILES = 6 };

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

static inline void open_table(files *f, uint64_t limit) {
    f->t = files_open(f, limit);
    REQUIRE(!f->ttl || !pst_table_set_ttl(f->t, 0, f->ttl));
    pst_table_set_clock(f->t, &f->now);
    pst_table_set_whole_rows(f->t, 512);
}

static inline void begin_with(files *f, const pst_schema *schema, const pst_ttl *ttl,
                              uint64_t limit) {
    files_begin(f, schema);
    f->ttl = ttl;
    REQUIRE(!pst_budget_create((uint64_t)1 << 30, &f->budget));
    pst_reads_options o = {.pool_bytes = 1 << 20};
    REQUIRE(!pst_reads_create(&o, &f->reads));
    open_table(f, limit);
}

static inline void begin(files *f, uint64_t limit) {
    begin_with(f, &SCHEMA, NULL, limit);
}

static inline void end(files *f) {
    files_end(f);
    pst_reads_release(f->reads);
    pst_budget_release(f->budget);
}

static inline void seal(files *f) {
    files_seal(f, f->t);
    if (f->n == LONG_FILES)
        files_merge(f, f->next % 3 ? 0 : 2);
    files_set_stack(f);
}

static inline void leave(files *f, uint64_t rows) {
    pst_room wanted = {rows, 0}, left;
    if (!f->n)
        return;
    REQUIRE(!pst_table_leave(f->t, &wanted, &left));
    f->left += left.rows;
}

/* Another table over the files, without a row. */
static inline void anew(files *f, uint64_t limit) {
    pst_table_close(f->t);
    open_table(f, limit);
    REQUIRE(!pst_table_seal(f->t, &f->lineage, NULL));
    if (!f->n)
        return;
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
