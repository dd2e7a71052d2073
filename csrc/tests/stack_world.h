/* stack_world.h: random files of one range, on disk and as the records in them; and what a search of
 * their stack finds, as files again.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_STACK_WORLD_H
#define PST_TEST_STACK_WORLD_H

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/coding.h"
#include "files.h"
#include "key/schema.h"
#include "stack/search.h"

enum { WORLD_FILES = 16, WORLD_GROUPS = 128 };

typedef enum world_style {
    WORLD_PLAIN,      /* a long, three states */
    WORLD_STRINGS,    /* strings */
    WORLD_NAMESPACES, /* a few hashes, many keys each */
    WORLD_ELEMENTS,   /* a value, a map and a list */
    WORLD_TIMERS,     /* a value, and timers that are elements */
    WORLD_STYLES
} world_style;

typedef struct world {
    world_style style;
    pst_column columns[8];
    pst_schema schema; /* of the files */
    pst_schema *made;
    char folder[200];
    char paths[WORLD_FILES][256];
    random_rows rows[WORLD_FILES];
    pst_stack_file files[WORLD_FILES];
    int32_t n;
    uint32_t block_bytes;
} world;

static inline int32_t world_keys(const world *w) {
    return w->schema.n_keys - (w->style == WORLD_ELEMENTS || w->style == WORLD_TIMERS);
}

static inline void world_schema(world *w, world_style style) {
    pst_column *c = w->columns;
    pst_schema s = {1, 3, c, c + 4, 0};
    memset(c, 0, sizeof w->columns);
    w->style = style;
    c[0] = (pst_column){.name = "id", .type = PST_INT64};
    c[1] = (pst_column){.name = "space", .type = PST_INT64};
    c[4] = (pst_column){.name = "count", .type = PST_INT64};
    c[5] = (pst_column){.name = "name", .type = PST_STRING};
    c[6] = (pst_column){.name = "size", .type = PST_INT32};
    if (style == WORLD_STRINGS)
        c[0].type = PST_STRING;
    if (style == WORLD_NAMESPACES) {
        s.n_keys = 2;
        s.n_hashed = 1;
    }
    if (style == WORLD_ELEMENTS) {
        c[5] =
            (pst_column){.name = "map", .type = PST_INT64, .kind = PST_MAP, .map_key = PST_INT64};
        c[6] = (pst_column){.name = "list", .type = PST_INT64, .kind = PST_LIST};
    }
    if (style == WORLD_TIMERS) {
        s.n_states = 2;
        c[5] = (pst_column){.name = "#timers", .type = PST_INT32, .kind = PST_TIMERS};
    }
    REQUIRE(!pst_file_schema_create(&s, &w->made));
    w->schema = *w->made;
}

/* ---- records ----------------------------------------------------------------------------------- */

static inline void put_bytes(byte_heap *h, pst_cell *cell, const void *data, uint32_t size) {
    uint8_t *p = heap_take(h, size);
    if (size)
        memcpy(p, data, size);
    cell->bytes = (pst_bytes){p, size};
}

/* The key of that number. */
static inline void world_key(const world *w, byte_heap *h, uint64_t id, pst_record *r) {
    char text[40];
    r->key[0].word[0] = w->style == WORLD_NAMESPACES ? id % 7 : id * 77;
    r->key[1].word[0] = id;
    if (w->style == WORLD_STRINGS) {
        int size = snprintf(text, sizeof text, "key %" PRIu64, id);
        put_bytes(h, &r->key[0], text, (uint32_t)size);
    }
    r->key_nulls = id == 5 ? 1 : 0;
    if (world_keys(w) < w->schema.n_keys)
        r->key_nulls |= 1u << world_keys(w);
    r->hash = pst_hash_key(w->schema.keys, pst_schema_hashed(&w->schema), r->key, r->key_nulls);
    r->key_group = pst_key_group(r->hash, WORLD_GROUPS);
}

static inline void draw_state(const world *w, byte_heap *h, uint64_t *rng, int32_t i, int whole,
                              pst_record *r) {
    char text[256];
    uint32_t longest = w->style == WORLD_NAMESPACES ? 256 : 64;
    const pst_column *c = &w->schema.states[i];
    uint64_t bit = UINT64_C(1) << i, n = check_random(rng);
    if (c->kind == PST_TIMERS || (!whole && n % 3 == 0))
        return;
    if (c->kind == PST_MAP || c->kind == PST_LIST) {
        if (whole || n % 3 == 1)
            r->changed |= bit; /* void */
        return;
    }
    r->changed |= bit;
    if (n % 11 == 0)
        return;
    r->present |= bit;
    r->cells[i].word[0] = (n >> 8) % 1000;
    if (c->type == PST_STRING) {
        memset(text, (int)('a' + n % 26), sizeof text);
        put_bytes(h, &r->cells[i], text, (uint32_t)(n >> 16) % longest);
    }
}

static inline void draw_row(const world *w, byte_heap *h, uint64_t *rng, uint64_t id,
                            pst_record *r) {
    int whole = check_random(rng) % 3 == 0;
    world_key(w, h, id, r);
    r->op = check_random(rng) % 6 == 0 ? PST_DELETE : PST_PUT;
    for (int32_t i = 0; r->op == PST_PUT && i < w->schema.n_states; i++)
        draw_state(w, h, rng, i, whole, r);
}

/* An entry of the map, or a timer. */
static inline void draw_element(const world *w, byte_heap *h, uint64_t *rng, uint64_t id,
                                uint64_t which, pst_record *r) {
    uint8_t element[13];
    world_key(w, h, id, r);
    r->key_nulls &= ~(1u << world_keys(w));
    r->op = check_random(rng) % 4 == 0 ? PST_DELETE : PST_PUT;
    if (r->op == PST_PUT) {
        r->changed = r->present = 2;
        r->cells[1].word[0] = w->style == WORLD_TIMERS ? 1 : check_random(rng) % 1000;
    }
    if (w->style == WORLD_ELEMENTS) {
        pst_put_big(element, pst_collection_id("map"), 4);
        pst_put_big(element + 4, which, 8);
        put_bytes(h, &r->key[world_keys(w)], element, 12);
    } else {
        pst_put_big(element, PST_TIMERS_ID, 4);
        element[4] = which & 1;
        pst_put_big(element + 5, which ^ UINT64_C(1) << 63, 8);
        put_bytes(h, &r->key[world_keys(w)], element, 13);
    }
}

/* Up to n records of keys below `domain`; the key `wide` has up to `entries` elements. */
static inline random_rows world_draw(const world *w, uint64_t *rng, size_t n, uint64_t domain,
                                     size_t entries) {
    size_t most = 2 * n + entries + 16, made = 0;
    random_rows out = {calloc(2 * most, sizeof(pst_record)), 0, calloc(1, sizeof(byte_heap))};
    REQUIRE(out.rows && out.heap);
    int has_element = world_keys(w) < w->schema.n_keys;
    for (size_t i = 0; i < n; i++) {
        uint64_t id = check_random(rng) % domain;
        if (!has_element || check_random(rng) % 3)
            draw_row(w, out.heap, rng, id, &out.rows[made++]);
        else
            draw_element(w, out.heap, rng, id, check_random(rng) % 6, &out.rows[made++]);
    }
    for (size_t i = 0; has_element && i < entries; i++)
        draw_element(w, out.heap, rng, 3, i, &out.rows[made++]);
    sort_rows(&w->schema, out.rows, out.rows + most, made);
    for (size_t i = 0; i < made; i++)
        if (out.n == 0 || compare_rows(&w->schema, &out.rows[out.n - 1], &out.rows[i]) != 0)
            out.rows[out.n++] = out.rows[i];
    /* A file has no record that says nothing. */
    size_t kept = 0;
    for (size_t i = 0; i < out.n; i++)
        if (out.rows[i].op == PST_DELETE || out.rows[i].changed)
            out.rows[kept++] = out.rows[i];
    out.n = kept;
    return out;
}

/* ---- files ------------------------------------------------------------------------------------- */

static inline void world_write(world *w, int32_t i, uint64_t *rng, size_t n, uint64_t domain,
                               size_t entries) {
    memory_file f = {.calls_left = -1};
    row_style style = {.max_parallelism = WORLD_GROUPS, .last_key_group = WORLD_GROUPS - 1};
    pst_file_kind kind = i ? PST_DELTA : PST_BASE;
    pst_file_info info = info_of(kind, &style, (uint8_t)(i + 1));
    pst_io io = file_io(&f, 1);
    info.block_bytes = w->block_bytes;
    for (int k = 8; k < 16; k++)
        info.lineage.id[k] = (uint8_t)check_random(rng);
    w->rows[i] = world_draw(w, rng, n, domain, entries);
    if (kind == PST_BASE) {
        size_t kept = 0; /* puts that have something */
        as_stored(kind, &w->rows[i]);
        for (size_t k = 0; k < w->rows[i].n; k++)
            if (w->rows[i].rows[k].changed)
                w->rows[i].rows[kept++] = w->rows[i].rows[k];
        w->rows[i].n = kept;
    }
    REQUIRE(!write_rows(&w->schema, &info, &io, w->rows[i].rows, w->rows[i].n));
    snprintf(w->paths[i], sizeof w->paths[i], "%s/file%d", w->folder, i);
    int fd = open(w->paths[i], O_CREAT | O_TRUNC | O_WRONLY, 0600);
    REQUIRE(fd >= 0 && write(fd, f.data, f.size) == (ssize_t)f.size);
    close(fd);
    w->files[i] = (pst_stack_file){.path = w->paths[i]};
    w->n = i + 1;
    file_free(&f);
}

static inline void world_folder(world *w) {
    const char *tmp = getenv("TMPDIR");
    snprintf(w->folder, sizeof w->folder, "%s/pst_stack_XXXXXX", tmp ? tmp : "/tmp");
    REQUIRE(mkdtemp(w->folder));
}

/* One without files, which are to have guides. */
static inline void world_begin(world *w, world_style style) {
    memset(w, 0, sizeof *w);
    world_schema(w, style);
    world_folder(w);
    w->block_bytes = 4096;
}

static inline void world_free(world *w) {
    char command[256];
    for (int32_t i = 0; i < w->n; i++)
        rows_free(&w->rows[i]);
    pst_file_schema_destroy(w->made);
    snprintf(command, sizeof command, "rm -rf %s", w->folder);
    REQUIRE(system(command) == 0);
}

/* ---- what a search finds ----------------------------------------------------------------------- */

typedef struct finds {
    const world *w;
    const uint64_t *ids; /* the wanted keys */
    byte_heap *scratch;  /* of their bytes */
    random_rows rows[WORLD_FILES];
    size_t room[WORLD_FILES];
    int32_t *newest; /* of each key, the file that was told last */
    uint8_t *done;
    uint64_t out_of_order;
    uint64_t calls;
    int64_t fails_at; /* a call that fails, or -1 */
} finds;

static inline void copy_record(const world *w, byte_heap *h, const pst_record *from,
                               pst_record *to) {
    *to = *from;
    for (int32_t k = 0; k < w->schema.n_keys; k++)
        if (w->schema.keys[k].type >= PST_STRING && !(from->key_nulls >> k & 1))
            put_bytes(h, &to->key[k], from->key[k].bytes.data, from->key[k].bytes.size);
    for (int32_t i = 0; i < w->schema.n_states; i++)
        if (w->schema.states[i].type >= PST_STRING && from->present >> i & 1)
            put_bytes(h, &to->cells[i], from->cells[i].bytes.data, from->cells[i].bytes.size);
}

static inline void finds_key(void *ctx, uint32_t key, pst_cell *cells, uint32_t *nulls) {
    finds *f = ctx;
    pst_record r = {0};
    world_key(f->w, f->scratch, f->ids[key], &r);
    memcpy(cells, r.key, (size_t)world_keys(f->w) * sizeof *cells);
    *nulls = r.key_nulls & ((1u << world_keys(f->w)) - 1);
}

static inline pst_status finds_found(void *ctx, const pst_found *found) {
    finds *f = ctx;
    random_rows *rows = &f->rows[found->file];
    if (f->calls++ == (uint64_t)f->fails_at)
        return PST_STALE;
    f->out_of_order += f->done[found->key] || found->file > f->newest[found->key] || !found->rows;
    f->newest[found->key] = found->file;
    for (uint32_t i = 0; i < found->rows; i++) {
        pst_record r;
        if (i)
            REQUIRE(!pst_found_record(found, i, &r));
        if (rows->n == f->room[found->file]) {
            f->room[found->file] = 2 * rows->n + 64;
            rows->rows = realloc(rows->rows, f->room[found->file] * sizeof *rows->rows);
            REQUIRE(rows->rows);
        }
        copy_record(f->w, rows->heap, i ? &r : found->record, &rows->rows[rows->n++]);
    }
    return PST_OK;
}

static inline pst_status finds_done(void *ctx, uint32_t key, int any) {
    finds *f = ctx;
    f->out_of_order += f->done[key] || any != (f->newest[key] < WORLD_FILES);
    f->done[key] = 1;
    return PST_OK;
}

static inline finds finds_make(const world *w, const uint64_t *ids, size_t n) {
    finds f = {.w = w, .ids = ids, .fails_at = -1};
    f.scratch = calloc(1, sizeof *f.scratch);
    f.newest = malloc((n + 1) * sizeof *f.newest);
    f.done = calloc(n + 1, 1);
    REQUIRE(f.scratch && f.newest && f.done);
    for (size_t i = 0; i < n; i++)
        f.newest[i] = WORLD_FILES;
    for (int32_t i = 0; i < w->n; i++) {
        f.rows[i].heap = calloc(1, sizeof(byte_heap));
        REQUIRE(f.rows[i].heap);
    }
    return f;
}

static inline void finds_free(finds *f) {
    for (int32_t i = 0; i < f->w->n; i++)
        rows_free(&f->rows[i]);
    heap_free(f->scratch);
    free(f->scratch);
    free(f->newest);
    free(f->done);
}

static int by_place(const void *a, const void *b) {
    const pst_place *x = a, *y = b;
    int d = pst_place_compare(x->key_group, x->hash, y->key_group, y->hash);
    return d ? d : (x->key > y->key) - (x->key < y->key);
}

/* The places of wanted keys, in the order of files. */
static inline pst_place *world_places(const world *w, const uint64_t *ids, size_t n) {
    pst_place *places = malloc((n + 1) * sizeof *places);
    byte_heap *h = calloc(1, sizeof *h);
    REQUIRE(places && h);
    for (size_t i = 0; i < n; i++) {
        pst_record r = {0};
        world_key(w, h, ids[i], &r);
        heap_free(h);
        places[i] = (pst_place){r.hash, r.key_group, (uint32_t)i};
    }
    free(h);
    qsort(places, n, sizeof *places, by_place);
    return places;
}

static inline pst_status finds_search(finds *f, pst_stack *st, size_t n) {
    pst_place *places = world_places(f->w, f->ids, n);
    pst_seeker seeker = {f, finds_key, NULL, finds_found, finds_done};
    pst_status s = pst_stack_search(st, places, n, &seeker);
    free(places);
    return s;
}

/* Merges files of some rows each into the base that they make. */
static inline void world_merge(const world *w, const random_rows *rows, memory_file *out) {
    row_style style = {.max_parallelism = WORLD_GROUPS, .last_key_group = WORLD_GROUPS - 1};
    memory_file files[WORLD_FILES] = {{.calls_left = -1}};
    pst_sst_reader *readers[WORLD_FILES];
    for (int32_t i = 0; i < w->n; i++) {
        files[i] = (memory_file){.calls_left = -1};
        pst_file_info info = info_of(i ? PST_DELTA : PST_BASE, &style, (uint8_t)(i + 1));
        pst_io io = file_io(&files[i], 0);
        REQUIRE(!write_rows(&w->schema, &info, &io, rows[i].rows, rows[i].n));
        REQUIRE(!file_open(&files[i], &readers[i]));
    }
    pst_file_info info = info_of(PST_BASE, &style, 99);
    pst_io io = file_io(out, 0);
    REQUIRE(!file_merge(&w->schema, &info, readers, NULL, w->n, &io));
    for (int32_t i = 0; i < w->n; i++) {
        pst_sst_reader_close(readers[i]);
        file_free(&files[i]);
    }
}

/* The next record of a merged file whose key is wanted; PST_NOT_FOUND at the end. */
static inline pst_status next_wanted(const world *w, pst_sst_reader *r, const pst_place *places,
                                     const uint64_t *ids, size_t n, pst_record *record) {
    byte_heap *h = calloc(1, sizeof *h);
    pst_status s;
    REQUIRE(h);
    while (!(s = pst_sst_reader_next(r, record))) {
        size_t low = 0, high = n;
        int found = 0;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (pst_place_compare(places[middle].key_group, places[middle].hash, record->key_group,
                                  record->hash) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        for (; !found && low < n && places[low].hash == record->hash; low++) {
            pst_record key = {0};
            world_key(w, h, ids[places[low].key], &key);
            found = !pst_key_compare(w->schema.keys, world_keys(w), key.key, key.key_nulls,
                                     record->key, record->key_nulls);
            heap_free(h);
        }
        if (found)
            break;
    }
    free(h);
    return s;
}

/* Whether what was found makes the same rows as all of the files. */
static inline void finds_check(finds *f, const memory_file *whole, size_t n) {
    const world *w = f->w;
    memory_file all = *whole, own = {.calls_left = -1};
    pst_sst_reader *a, *b;
    pst_place *places = world_places(w, f->ids, n);
    uint64_t equal = 0, rows = 0;
    for (int32_t i = 0; i < w->n; i++) {
        random_rows *r = &f->rows[i];
        pst_record *spare = malloc((r->n + 1) * sizeof *spare);
        size_t kept = 0;
        REQUIRE(spare);
        sort_rows(&w->schema, r->rows, spare, r->n);
        for (size_t k = 0; k < r->n; k++) /* a key may be wanted twice */
            if (!kept || compare_rows(&w->schema, &r->rows[kept - 1], &r->rows[k]))
                r->rows[kept++] = r->rows[k];
        r->n = kept;
        free(spare);
    }
    world_merge(w, f->rows, &own);
    REQUIRE(!file_open(&all, &a) && !file_open(&own, &b));
    pst_record x, y;
    for (;;) {
        pst_status s = next_wanted(w, a, places, f->ids, n, &x);
        CHECK_EQ(pst_sst_reader_next(b, &y), s);
        if (s)
            break;
        rows++;
        equal += (uint64_t)same_row(&w->schema, &x, &y);
    }
    CHECK_EQ(equal, rows);
    CHECK_EQ(f->out_of_order, 0);
    for (size_t i = 0; i < n; i++)
        rows -= f->done[i] == 0;
    CHECK_EQ(equal, rows);
    pst_sst_reader_close(a);
    pst_sst_reader_close(b);
    file_free(&own);
    free(places);
}

#endif
