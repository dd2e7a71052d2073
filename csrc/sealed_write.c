/* sealed_write.c: a sealed epoch as a delta file: sorted, then written record by record. */
#include <string.h>

#include "hash.h"
#include "mem.h"
#include "schema.h"
#include "sealed.h"
#include "store.h"

enum { AHEAD = 32 };

/* An entry: its key group and its key's hash, which files are ordered by first, and its place. */
typedef struct item {
    uint64_t order; /* key group << 48 | hash >> 16 */
    uint64_t rest;  /* low half-word of the hash << 48 | word offset of the entry */
} item;

static item make_item(int32_t group, uint64_t hash, uint64_t at) {
    return (item){(uint64_t)group << 48 | hash >> 16, hash << 48 | at};
}

static uint64_t hash_of(const item *i) {
    return i->order << 16 | i->rest >> 48;
}

static const uint64_t *entry_of(const pst_sealed *s, const item *i) {
    return s->entries.words + (i->rest & ((UINT64_C(1) << 48) - 1));
}

static uint64_t entry_hash(const pst_sealed *s, const uint64_t *w) {
    if (s->key_kind == PST_KEY_WORD)
        return pst_key_row_hash(s->schema, w[0], (pst_bytes){NULL, 0}, (w[1] & PST_INFO_NULL) != 0);
    pst_bytes key = {s->bytes.data + w[1], (uint32_t)w[2]};
    return pst_key_row_hash(s->schema, w[0], key, 0);
}

/* Decodes the entry at w; returns the word after it. */
static const uint64_t *decode(const pst_sealed *s, const uint64_t *w, pst_record *r,
                              pst_status *st) {
    pst_bytes bytes = {NULL, 0};
    uint64_t key = w[0];
    r->hash = 0;
    if (s->key_kind == PST_KEY_BYTES) {
        bytes = (pst_bytes){s->bytes.data + w[1], (uint32_t)w[2]};
        w += 2;
    }
    uint64_t info = w[1];
    w += 2;
    r->op = info & PST_INFO_DELETE ? PST_DELETE : PST_PUT;
    r->changed = info >> 8 & 0x7F;
    r->present = info >> 16 & 0x7F;
    if (s->wide) {
        r->changed = *w++;
        r->present = *w++;
    }
    *st = pst_key_decode(s->schema, key, bytes, (info & PST_INFO_NULL) != 0, r->key, &r->key_nulls);
    for (uint64_t left = r->present; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        pst_cell *cell = &r->cells[i];
        if (!pst_type_width(s->schema->states[i].type)) {
            cell->bytes = (pst_bytes){s->bytes.data + w[0], (uint32_t)w[1]};
            w += 2;
            continue;
        }
        cell->word[0] = *w++;
        cell->word[1] = pst_is_wide_value(s->schema->states[i].type) ? *w++ : 0;
    }
    return w;
}

static const uint64_t *skip(const pst_sealed *s, const uint64_t *w) {
    w += s->key_kind == PST_KEY_BYTES ? 3 : 1;
    uint64_t present = *w++ >> 16 & 0x7F;
    if (s->wide) {
        present = w[1];
        w += 2;
    }
    for (; present; present &= present - 1)
        w += pst_is_wide_value(s->schema->states[__builtin_ctzll(present)].type) ? 2 : 1;
    return w;
}

/* Least significant digit first, 11 bits at a time; digits that all items share are skipped. */
static item *radix_sort(item *a, item *b, size_t n) {
    enum { DIGIT = 11, BUCKETS = 1 << DIGIT };
    for (int shift = 0; shift < 64; shift += DIGIT) {
        size_t count[BUCKETS] = {0};
        for (size_t i = 0; i < n; i++)
            count[a[i].order >> shift & (BUCKETS - 1)]++;
        if (count[a[0].order >> shift & (BUCKETS - 1)] == n)
            continue;
        size_t sum = 0;
        for (int k = 0; k < BUCKETS; k++) {
            size_t c = count[k];
            count[k] = sum;
            sum += c;
        }
        for (size_t i = 0; i < n; i++)
            b[count[a[i].order >> shift & (BUCKETS - 1)]++] = a[i];
        item *swap = a;
        a = b;
        b = swap;
    }
    return a;
}

/* Called for each i in turn: brings in the entry of an item further on, and the key of a nearer one,
 * whose entry is in cache by then. */
PST_PREFETCH void bring(const pst_sealed *s, const item *items, size_t i, size_t n) {
    if (i + AHEAD < n)
        __builtin_prefetch(entry_of(s, &items[i + AHEAD]));
    if (s->key_kind == PST_KEY_BYTES && i + AHEAD / 2 < n)
        __builtin_prefetch(s->bytes.data + entry_of(s, &items[i + AHEAD / 2])[1]);
}

/* Of two items of one order. */
static int comes_before(const pst_sealed *s, const item *a, const item *b) {
    if (hash_of(a) != hash_of(b))
        return hash_of(a) < hash_of(b);
    pst_record x, y;
    pst_status st;
    (void)decode(s, entry_of(s, a), &x, &st);
    (void)decode(s, entry_of(s, b), &y, &st);
    return pst_key_compare(s->schema->keys, s->schema->n_keys, x.key, x.key_nulls, y.key,
                           y.key_nulls) < 0;
}

/* Where the ascending run ends that begins at `from`. */
static size_t run_end(const pst_sealed *s, const item *a, size_t from, size_t n) {
    while (++from < n && !comes_before(s, &a[from], &a[from - 1]))
        ;
    return from < n ? from : n;
}

static void merge_runs(const pst_sealed *s, item *a, size_t n_left, size_t n, item *room) {
    memcpy(room, a, n_left * sizeof *a);
    size_t left = 0, right = n_left, out = 0;
    while (left < n_left && right < n)
        a[out++] = comes_before(s, &a[right], &room[left]) ? a[right++] : room[left++];
    memcpy(a + out, room + left, (n_left - left) * sizeof *a);
}

/* Merges neighbouring runs until there is one. The elements of a key, which all have its hash, come
 * as one, and its timers as another. */
static void sort_tied(const pst_sealed *s, item *a, size_t n, item *room) {
    size_t runs;
    do {
        runs = 0;
        for (size_t from = 0, end; from < n; from = end, runs++) {
            size_t middle = end = run_end(s, a, from, n);
            if (middle == n)
                continue;
            end = run_end(s, a, middle, n);
            merge_runs(s, a + from, middle - from, end - from, room);
        }
    } while (runs > 1);
}

static void settle_ties(const pst_sealed *s, item *a, size_t n, item *room) {
    for (size_t from = 0, to; from < n; from = to) {
        bring(s, a, from, n);
        for (to = from + 1; to < n && a[to].order == a[from].order; to++)
            bring(s, a, to, n);
        if (to - from > 1)
            sort_tied(s, a + from, to - from, room);
    }
}

static pst_status write_sorted(const pst_sealed *s, const item *items, pst_sst_writer *writer) {
    pst_record *r = pst_malloc(sizeof *r);
    if (!r)
        return PST_NO_MEMORY;
    pst_status st = PST_OK;
    for (size_t i = 0; !st && i < s->rows; i++) {
        bring(s, items, i, (size_t)s->rows);
        (void)decode(s, entry_of(s, &items[i]), r, &st);
        r->hash = hash_of(&items[i]);
        r->key_group = pst_key_group(r->hash, s->max_parallelism);
        if (!st)
            st = pst_sst_writer_add(writer, r);
    }
    pst_free(r);
    return st;
}

pst_status pst_sealed_write(pst_sealed *s, const pst_io *io, pst_file_info *info) {
    pst_file_info out = {.kind = PST_DELTA,
                         .lineage = s->lineage,
                         .max_parallelism = s->max_parallelism,
                         .first_key_group = s->first_key_group,
                         .last_key_group = s->last_key_group};
    size_t n = (size_t)s->rows;
    item *items = pst_malloc(2 * n * sizeof *items);
    if (!items)
        return PST_NO_MEMORY;
    const uint64_t *w = s->entries.words;
    for (size_t i = 0; i < n; i++) {
        uint64_t hash = entry_hash(s, w);
        int32_t group = pst_key_group(hash, s->max_parallelism);
        items[i] = make_item(group, hash, (uint64_t)(w - s->entries.words));
        w = skip(s, w);
    }
    item *sorted = n ? radix_sort(items, items + n, n) : items;
    settle_ties(s, sorted, n, sorted == items ? items + n : items);
    pst_sst_writer *writer = NULL;
    pst_status st = pst_sst_writer_create(s->schema, &out, io, &writer);
    if (!st)
        st = write_sorted(s, sorted, writer);
    if (!st)
        st = pst_sst_writer_finish(writer, &out);
    pst_sst_writer_destroy(writer);
    pst_free(items);
    if (!st)
        *info = out;
    return st;
}
