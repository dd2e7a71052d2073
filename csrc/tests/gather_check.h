/* gather_check.h: the rows of files that a gatherer gives, held against a table of the same files.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_GATHER_CHECK_H
#define PST_TEST_GATHER_CHECK_H

#include "chain_world.h"
#include "key/schema.h"
#include "snapshot/gather.h"

enum { GATHER_FILES = 8 };

/* A world's values, lists and maps, with or without their times and timers. */
typedef struct gather_world {
    pst_schema schema;
    pst_column columns[WORLD_COLUMNS];
    int expires[WORLD_COLUMNS];
    pst_ttl ttl[WORLD_COLUMNS];
    pst_clock now;
    int whole;
    int32_t max_parallelism, first, last;
} gather_world;

typedef struct gather_files {
    pst_sst_reader *readers[GATHER_FILES];
    int32_t columns[GATHER_FILES][PST_MAX_STATES];
    const int32_t *mapping[GATHER_FILES];
    int32_t n;
} gather_files;

/* What was found in all, for the claim that there was something to find. */
static struct {
    uint64_t batches, rows, values, items, entries, null_entries, trimmed, hidden_cells,
        hidden_rows;
} gathered_in_all;

typedef struct gather_sight {
    const gather_world *w;
    pst_table *t; /* NULL: only the form of batches is looked at */
    uint64_t rows;
    uint64_t cells;     /* values, items and entries */
    int64_t calls_left; /* before one fails; -1: none does */
    int cuts;           /* in how many parts the files are read, but for one */
    uint64_t random;
} gather_sight;

static inline void gather_world_of(const world *from, gather_world *w, int whole) {
    *w = (gather_world){.schema = from->schema,
                        .now = from->now,
                        .whole = whole,
                        .max_parallelism = from->max_parallelism,
                        .first = from->first,
                        .last = from->last};
    w->schema.states = w->columns;
    w->schema.n_states = 0;
    for (int32_t i = 0; i < from->schema.n_states; i++) {
        if (from->columns[i].kind > PST_MAP && !whole)
            continue;
        const world_state *state = from->columns[i].kind > PST_MAP ? NULL : from->state_of[i];
        w->expires[w->schema.n_states] = state && state->expires;
        if (state && state->timed && whole)
            w->ttl[w->schema.n_states] = state->ttl;
        w->columns[w->schema.n_states++] = from->columns[i];
    }
}

static inline pst_status gather_open(const gather_world *w, memory_file *files, int32_t n,
                                     gather_files *x) {
    pst_status s = PST_OK;
    *x = (gather_files){0};
    for (; x->n < n && !s; x->n++) {
        s = file_open(&files[x->n], &x->readers[x->n]);
        const pst_schema *from = s ? NULL : pst_sst_reader_schema(x->readers[x->n]);
        for (int32_t i = 0; from && i < from->n_states; i++) {
            int32_t to = w->schema.n_states - 1;
            while (to >= 0 && strcmp(from->states[i].name, w->columns[to].name) != 0)
                to--;
            x->columns[x->n][i] = to;
        }
        x->mapping[x->n] = x->columns[x->n];
    }
    return s;
}

static inline void gather_close(gather_files *x) {
    for (int32_t i = 0; i < x->n; i++)
        pst_sst_reader_close(x->readers[i]);
}

/* ---- batches --------------------------------------------------------------------------------- */

static inline pst_cell block_cell(const pst_block_column *c, pst_type type, uint32_t i) {
    pst_cell cell = {{0, 0}, {NULL, 0}};
    uint32_t width = pst_type_width(type), unused = width < 8 ? 64 - 8 * width : 0;
    if (!width)
        cell.bytes =
            (pst_bytes){c->values + c->offsets[i], (uint32_t)(c->offsets[i + 1] - c->offsets[i])};
    else if (type == PST_BOOL)
        cell.word[0] = c->values[i >> 3] >> (i & 7) & 1;
    else
        memcpy(cell.word, c->values + (size_t)i * width, width);
    if (width && type != PST_FLOAT32)
        cell.word[0] = (uint64_t)((int64_t)(cell.word[0] << unused) >> unused);
    return cell;
}

static inline int block_has(const pst_block_column *c, uint32_t i) {
    return !c->validity || (c->validity[i >> 3] >> (i & 7) & 1);
}

static inline int rises(const int32_t *offsets, uint32_t n, uint64_t end) {
    int falls = offsets[0] != 0;
    for (uint32_t i = 0; i < n; i++)
        falls |= offsets[i + 1] < offsets[i];
    return !falls && (uint64_t)offsets[n] == end;
}

static inline void check_form(const pst_block_column *c, pst_type type, uint32_t count) {
    uint32_t nulls = 0;
    CHECK_EQ(c->count, count);
    for (uint32_t i = 0; i < count; i++)
        nulls += !block_has(c, i);
    CHECK_EQ(nulls, c->nulls);
    if (count && !pst_type_width(type))
        CHECK(rises(c->offsets, count, c->values_bytes));
}

static inline void check_elements(gather_sight *x, int32_t i, const pst_block_column *ends,
                                  const pst_block_column *keys, const pst_block_column *values,
                                  uint32_t row) {
    const pst_column *c = &x->w->columns[i];
    const pst_column name = {.type = (pst_type)c->map_key};
    uint32_t at = (uint32_t)ends->offsets[row], end = (uint32_t)ends->offsets[row + 1];
    uint64_t there = 0;
    pst_elements *walk = NULL;
    pst_cell key, value;
    CHECK_EQ(pst_elements_count(x->t, i, &there), PST_OK);
    REQUIRE(pst_elements_create(x->t, &walk) == PST_OK);
    CHECK_EQ(pst_elements_start(walk, i), PST_OK);
    /* A table gives items up that have gone by whole chunks. */
    CHECK(there == end - at || (there > end - at && c->kind == PST_LIST && x->w->expires[i]));
    for (; there > end - at; there--, gathered_in_all.trimmed++)
        CHECK_EQ(pst_elements_next(walk, &key, &value), PST_OK);
    for (; at < end; at++) {
        if (!CHECK_EQ(pst_elements_next(walk, &key, &value), PST_OK))
            break;
        int has = !pst_elements_is_null(walk);
        pst_cell found = block_cell(values, c->type, at);
        CHECK_EQ(has, block_has(values, at));
        CHECK(!has || same_cell(c, &found, &value));
        gathered_in_all.null_entries += (uint64_t)!has;
        if (c->kind == PST_MAP) {
            found = block_cell(keys, name.type, at);
            CHECK(same_cell(&name, &found, &key));
        }
        *(c->kind == PST_MAP ? &gathered_in_all.entries : &gathered_in_all.items) += 1;
    }
    pst_elements_destroy(walk);
}

static inline void check_row(gather_sight *x, const pst_block_column *columns, uint32_t row) {
    pst_cell key[PST_MAX_KEYS], value;
    uint32_t nulls = 0;
    int any = 0;
    for (int32_t k = 0; k < x->w->schema.n_keys; k++, columns++) {
        key[k] = block_cell(columns, x->w->schema.keys[k].type, row);
        nulls |= (uint32_t)!block_has(columns, row) << k;
    }
    if (x->t && !CHECK_EQ(pst_key_set(x->t, key, nulls), PST_OK))
        return;
    for (int32_t i = 0; i < x->w->schema.n_states; i++, columns++) {
        const pst_column *c = &x->w->columns[i];
        if (c->kind > PST_MAP) {
            columns--;
            continue;
        }
        if (c->kind == PST_VALUE) {
            int has = block_has(columns, row);
            any |= has;
            if (!x->t)
                continue;
            CHECK_EQ(pst_value_get(x->t, i, &value), has ? PST_OK : PST_NOT_FOUND);
            pst_cell found = block_cell(columns, c->type, row);
            CHECK(!has || same_cell(c, &found, &value));
            gathered_in_all.values += (uint64_t)has;
            continue;
        }
        const pst_block_column *ends = columns++, *keys = columns;
        columns += c->kind == PST_MAP;
        any |= ends->offsets[row] < ends->offsets[row + 1];
        if (x->t)
            check_elements(x, i, ends, keys, columns, row);
    }
    CHECK(any);
}

static inline int see_batch(void *ctx, uint32_t rows, const pst_block_column *columns, int32_t n) {
    gather_sight *x = ctx;
    const pst_block_column *c = columns;
    if (x->calls_left >= 0 && x->calls_left-- == 0)
        return 1;
    CHECK(rows > 0 && rows <= PST_GATHER_ROWS);
    for (int32_t k = 0; k < x->w->schema.n_keys; k++)
        check_form(c++, x->w->schema.keys[k].type, rows);
    for (int32_t i = 0; i < x->w->schema.n_states; i++) {
        const pst_column *column = &x->w->columns[i];
        uint32_t count = rows;
        if (column->kind > PST_MAP)
            continue;
        if (column->kind != PST_VALUE) {
            CHECK(!c->values && c->count == rows);
            count = (uint32_t)c->offsets[rows];
            CHECK(rises(c->offsets, rows, count));
            c++;
        }
        if (column->kind == PST_MAP)
            check_form(c++, (pst_type)column->map_key, count);
        x->cells += count - (column->kind == PST_VALUE ? c->nulls : 0);
        check_form(c++, column->type, count);
    }
    CHECK_EQ(c - columns, n);
    for (uint32_t i = 0; i < rows; i++)
        check_row(x, columns, i);
    x->rows += rows;
    gathered_in_all.batches++;
    gathered_in_all.rows += rows;
    return 0;
}

static inline pst_status gather(gather_sight *x, gather_files *files) {
    pst_io io = {.ctx = x, .block = see_batch};
    const gather_world *w = x->w;
    x->rows = x->cells = 0;
    pst_expiry expiry = {w->ttl, w->now};
    /* In parts that a key group and a hash cut. */
    int32_t first = w->first;
    pst_hashes hashes = {0, UINT64_MAX};
    pst_status s = PST_OK;
    for (int i = 0; !s && i < x->cuts; i++) {
        int32_t last = first + (int32_t)(x->random % (uint64_t)(w->last - first + 1));
        uint64_t hash = check_random(&x->random);
        if (last == first && hash <= hashes.first)
            continue;
        hashes.last = hash - 1;
        s = pst_gather(files->readers, files->mapping, files->n, &w->schema,
                       w->whole ? &expiry : NULL, w->max_parallelism, first, last, &hashes, &io);
        first = last;
        hashes.first = hash;
    }
    hashes.last = UINT64_MAX;
    return s ? s
             : pst_gather(files->readers, files->mapping, files->n, &w->schema,
                          w->whole ? &expiry : NULL, w->max_parallelism, first, w->last,
                          x->cuts ? &hashes : NULL, &io);
}

#endif
