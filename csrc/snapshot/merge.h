/* merge.h: where the records of a merge go.
 *
 * Purpose: one merge of files makes a file of them, or rows for whoever reads them without a table.
 *
 * Thread safety: a merge belongs to one thread.
 *
 * Invariants
 *  MG1. A sink gets the records of a base or a delta in the order of files, each key once: a row
 *       before its elements, and of these only what is still there.
 *  MG2. A stretch begins behind the record that was added last, and its rows are those of one
 *       source: no other one has a row of their hashes, and nothing that was merged before hides
 *       them.
 */
#ifndef PST_MERGE_H
#define PST_MERGE_H

#include "file/sst_reader.h"
#include "sst/record.h"

/* Records that are in memory, in the order of files. */
typedef struct pst_records {
    void *ctx;
    /* PST_NOT_FOUND at the end. The record is valid until the next call. */
    pst_status (*next)(void *ctx, pst_record *record);
} pst_records;

typedef struct pst_source {
    pst_sst_reader *reader; /* NULL: it is `records` */
    pst_records records;
    int rows_only;      /* without the element column that the sink has */
    int drops_elements; /* with one that the sink does not have: all of its states are dropped */
    int splits;         /* has fewer key groups than the sink, each of them several of its */
    const int32_t *columns;     /* NULL: the identity */
    uint64_t taken;             /* a bit per state column of the sink's that it has */
    int32_t at[PST_MAX_STATES]; /* its state that is the sink's, or -1 */
    int timeless;               /* a state of it has no time, and has one in the sink */
    pst_record *record;
    pst_dropped dropped;
} pst_source;

/* The sink's column that is the source's column i, or -1. */
static inline int32_t pst_source_column(const pst_source *s, int32_t i) {
    return s->columns ? s->columns[i] : i;
}

typedef struct pst_sink {
    void *ctx;
    const pst_schema *schema; /* as files have it */
    const pst_file_info *info;
    /* Of the first key group only hashes from this one on, and of the last one only up to that. */
    uint64_t first_hash;
    uint64_t last_hash;
    /* Takes a record; of a list's items those below the number `start` are gone. */
    pst_status (*add)(void *ctx, const pst_record *record, uint64_t start);
    /* May take the next rows of a source that is a reader at once, as far as they come before those of `next`,
     * which is NULL where no other source has any. What it leaves comes record by record. */
    pst_status (*stretch)(void *ctx, const pst_source *s, const pst_record *next);
} pst_sink;

/* As pst_merge. */
pst_status pst_merge_into(pst_sst_reader *const *readers, const int32_t *const *columns, int32_t n,
                          const pst_sink *sink);
/* The same of n sources of records with the sink's schema and key groups, none of them NULL. */
pst_status pst_merge_records(const pst_records *sources, int32_t n, const pst_sink *sink);

#endif
