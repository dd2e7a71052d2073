/* sealed_write.c: a sealed epoch as a delta file: sorted, then written record by record. */
#include <string.h>

#include "hash.h"
#include "mem.h"
#include "schema.h"
#include "sealed.h"

enum { AHEAD = 16 };

typedef struct item {
    uint64_t order; /* key group and the upper bits of the hash */
    uint64_t at;    /* word offset of the entry */
} item;

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

static int comes_before(const pst_sealed *s, uint64_t a, uint64_t b) {
    const uint64_t *x = s->entries.words + a, *y = s->entries.words + b;
    uint64_t hx = entry_hash(s, x), hy = entry_hash(s, y);
    if (hx != hy)
        return hx < hy;
    pst_record rx, ry;
    pst_status st;
    (void)decode(s, x, &rx, &st);
    (void)decode(s, y, &ry, &st);
    return pst_key_compare(s->schema->keys, s->schema->n_keys, rx.key, rx.key_nulls, ry.key,
                           ry.key_nulls) < 0;
}

/* Items whose upper bits agree, put into full order by insertion: runs are short, but for input
 * that was made to collide. */
static void settle_ties(const pst_sealed *s, item *a, size_t n) {
    for (size_t i = 1; i < n; i++)
        for (size_t k = i;
             k > 0 && a[k].order == a[k - 1].order && comes_before(s, a[k].at, a[k - 1].at); k--) {
            item swap = a[k];
            a[k] = a[k - 1];
            a[k - 1] = swap;
        }
}

static pst_status write_sorted(const pst_sealed *s, const item *items, pst_sst_writer *writer) {
    pst_record *r = pst_malloc(sizeof *r);
    if (!r)
        return PST_NO_MEMORY;
    pst_status st = PST_OK;
    for (size_t i = 0; !st && i < s->rows; i++) {
        if (i + AHEAD < s->rows)
            __builtin_prefetch(s->entries.words + items[i + AHEAD].at);
        const uint64_t *w = s->entries.words + items[i].at;
        (void)decode(s, w, r, &st);
        r->hash = entry_hash(s, w);
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
        uint64_t group = (uint64_t)pst_key_group(hash, s->max_parallelism);
        items[i] = (item){group << 48 | hash >> 16, (uint64_t)(w - s->entries.words)};
        w = skip(s, w);
    }
    item *sorted = n ? radix_sort(items, items + n, n) : items;
    settle_ties(s, sorted, n);
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
