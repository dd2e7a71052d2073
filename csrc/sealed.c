#include "sealed.h"

#include <pthread.h>
#include <string.h>

#include "alloc.h"
#include "hash.h"
#include "mem.h"
#include "schema.h"
#include "undo.h"
#include "value.h"

enum { POOL_BUFFERS = 3, AHEAD = 16 };

typedef struct buffer {
    uint64_t *words;
    size_t capacity; /* words */
} buffer;

struct pst_pool {
    pthread_mutex_t lock;
    int references;
    int n;
    buffer spare[POOL_BUFFERS];
};

/* Entries in gathering order, each `key part | info | cells of changed present columns`:
 * a word key is its word, a bytes key {hash, offset, size}; cells are one word, or two for
 * decimals and for bytes {offset, size}. Offsets point into `bytes`. */
struct pst_sealed {
    pst_pool *pool;
    buffer entries;
    size_t n_words;
    pst_key_buffer bytes;
    uint64_t rows;
    uint64_t logical_bytes;
    pst_lineage lineage;
    pst_schema schema;
    pst_key_kind key_kind;
    int wide;
    int32_t max_parallelism;
    int32_t first_key_group;
    int32_t last_key_group;
};

/* The info word: bit 0 delete, bit 1 null key, then for up to seven states changed << 8 and
 * present << 16. Wide rows have both masks in the next two words. */
enum { INFO_DELETE = 1, INFO_NULL = 2 };

pst_pool *pst_pool_create(void) {
    pst_pool *p = pst_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    if (pthread_mutex_init(&p->lock, NULL)) {
        pst_free(p);
        return NULL;
    }
    p->references = 1;
    return p;
}

static void pool_drop(pst_pool *p) {
    pthread_mutex_lock(&p->lock);
    int left = --p->references;
    pthread_mutex_unlock(&p->lock);
    if (left)
        return;
    for (int i = 0; i < p->n; i++)
        pst_free(p->spare[i].words);
    pthread_mutex_destroy(&p->lock);
    pst_free(p);
}

void pst_pool_release(pst_pool *p) {
    if (p)
        pool_drop(p);
}

static pst_status pool_take(pst_pool *p, size_t words, buffer *b) {
    *b = (buffer){NULL, 0};
    pthread_mutex_lock(&p->lock);
    p->references++;
    if (p->n)
        *b = p->spare[--p->n];
    pthread_mutex_unlock(&p->lock);
    if (b->capacity >= words)
        return PST_OK;
    pst_free(b->words);
    b->capacity = words;
    b->words = pst_malloc(words * sizeof *b->words);
    if (b->words)
        return PST_OK;
    pool_drop(p);
    return PST_NO_MEMORY;
}

static void pool_give(pst_pool *p, buffer b, size_t used) {
    /* One huge epoch must not pin its buffer for ever. */
    int keep = b.capacity <= ((size_t)1 << 20) || used * 8 >= b.capacity;
    pthread_mutex_lock(&p->lock);
    if (keep && p->n < POOL_BUFFERS) {
        p->spare[p->n++] = b;
        b.words = NULL;
    }
    pthread_mutex_unlock(&p->lock);
    pst_free(b.words);
    pool_drop(p);
}

void pst_sealed_destroy(pst_sealed *s) {
    if (!s)
        return;
    if (s->entries.words)
        pool_give(s->pool, s->entries, s->n_words);
    pst_free(s->bytes.data);
    pst_schema_clear(&s->schema);
    pst_free(s);
}

uint64_t pst_sealed_rows(const pst_sealed *s) {
    return s->rows;
}
uint64_t pst_sealed_bytes(const pst_sealed *s) {
    return s->logical_bytes;
}
const pst_lineage *pst_sealed_lineage(const pst_sealed *s) {
    return &s->lineage;
}

static pst_status keep_bytes(pst_sealed *s, const uint8_t *data, uint32_t size, uint64_t *to) {
    pst_key_buffer *b = &s->bytes;
    if (b->size + size > b->capacity) {
        size_t capacity = b->capacity ? b->capacity * 2 : 4096;
        while (capacity < b->size + size)
            capacity *= 2;
        uint8_t *grown = pst_realloc(b->data, capacity);
        if (!grown)
            return PST_NO_MEMORY;
        b->data = grown;
        b->capacity = capacity;
    }
    if (size)
        memcpy(b->data + b->size, data, size);
    to[0] = b->size;
    to[1] = size;
    b->size += size;
    return PST_OK;
}

/* Which of the columns that are present before and after differ. */
static uint64_t compare_images(const pst_table *t, const uint64_t *row, const uint64_t *before,
                               uint64_t both) {
    const uint8_t *now = (const uint8_t *)row + t->lay.image_offset;
    const uint8_t *then = (const uint8_t *)before;
    uint64_t changed = 0;
    for (; both; both &= both - 1) {
        int i = __builtin_ctzll(both);
        const pst_field *f = &t->lay.fields[i];
        uint32_t at = f->offset - t->lay.image_offset;
        int same;
        if (f->width == 8)
            same = *(const uint64_t *)(now + at) == *(const uint64_t *)(then + at);
        else
            same = memcmp(now + at, then + at, f->width) == 0;
        if (!same && f->is_bytes) {
            const uint64_t *a = (const uint64_t *)(now + at), *b = (const uint64_t *)(then + at);
            pst_bytes old = {pst_ref_data(t->heap, b), pst_ref_size(b)};
            same = pst_ref_equals(t->heap, a, old);
        }
        if (!same)
            changed |= UINT64_C(1) << i;
    }
    return changed;
}

static pst_status emit(pst_sealed *s, const pst_table *t, const uint64_t *row, int deleted,
                       uint64_t changed, uint64_t present) {
    uint64_t *w = s->entries.words + s->n_words;
    const uint64_t *k = row + t->lay.key_offset / 8;
    pst_status st;
    uint32_t null = (uint32_t)row[0] & PST_FLAG_NULL_KEY;
    *w++ = k[0];
    s->logical_bytes += 8;
    if (s->key_kind == PST_KEY_BYTES) {
        st = keep_bytes(s, pst_ref_data(t->heap, k + 1), pst_ref_size(k + 1), w);
        if (st)
            return st;
        s->logical_bytes += w[1] - 8;
        w += 2;
    }
    *w++ = (deleted ? INFO_DELETE : 0u) | (null ? INFO_NULL : 0u) |
           (s->wide ? 0 : changed << 8 | present << 16);
    if (s->wide) {
        *w++ = changed;
        *w++ = present;
    }
    for (; present; present &= present - 1) {
        const pst_field *f = &t->lay.fields[__builtin_ctzll(present)];
        if (!f->is_bytes) {
            uint64_t word[2];
            pst_field_load(f, row, word);
            *w++ = word[0];
            if (f->width == 16)
                *w++ = word[1];
            s->logical_bytes += f->width;
            continue;
        }
        const uint64_t *ref = (const uint64_t *)((const uint8_t *)row + f->offset);
        st = keep_bytes(s, pst_ref_data(t->heap, ref), pst_ref_size(ref), w);
        if (st)
            return st;
        s->logical_bytes += w[1];
        w += 2;
    }
    s->n_words = (size_t)(w - s->entries.words);
    s->rows++;
    return PST_OK;
}

static pst_status gather_touched(pst_sealed *s, const pst_table *t) {
    for (uint64_t i = 0; i < t->undo_count; i++) {
        /* Rows by what the records say, records by their place: the hardware alone does not run
         * far enough ahead of either. */
        if (i + 4 * AHEAD < t->undo_count)
            __builtin_prefetch(pst_undo_record(t, t->undo, i + 4 * AHEAD));
        if (i + AHEAD < t->undo_count)
            pst_prefetch_row(t, (uint32_t)*pst_undo_record(t, t->undo, i + AHEAD));
        const uint64_t *record = pst_undo_record(t, t->undo, i);
        const uint64_t *row = pst_row(t, (uint32_t)record[0]);
        uint64_t before = t->lay.wide ? record[2] : (record[1] >> 1) & 0x7F;
        uint64_t after = pst_presence(&t->lay, row);
        uint64_t changed = (before ^ after) | compare_images(t, row, record + 2, before & after);
        if (!changed)
            continue;
        pst_status st =
            after ? emit(s, t, row, 0, changed, changed & after) : emit(s, t, row, 1, 0, 0);
        if (st)
            return st;
    }
    return PST_OK;
}

static pst_status gather_inserted(pst_sealed *s, const pst_table *t, uint32_t slot) {
    const uint64_t *row = pst_row(t, slot);
    uint64_t present = pst_presence(&t->lay, row);
    return present ? emit(s, t, row, 0, present, present) : PST_OK;
}

static pst_status gather(pst_sealed *s, const pst_table *t) {
    const pst_meta *before = pst_meta_of(t, t->h->sealed);
    uint32_t from = before->rings[PST_RING_SLOTS].head, to = t->m->rings[PST_RING_SLOTS].head;
    size_t per_row = 1 + (s->key_kind == PST_KEY_BYTES ? 2u : 0u) + (s->wide ? 2u : 0u);
    for (int32_t i = 0; i < t->lay.n_states; i++)
        per_row += t->lay.fields[i].width == 16 ? 2 : 1;
    size_t rows = (size_t)(t->undo_count + (t->m->slots - before->slots) + (to - from));
    pst_status st = pool_take(t->pool, rows * (per_row + 1) + 1, &s->entries);
    if (st)
        return st;
    s->pool = t->pool;
    st = gather_touched(s, t);
    for (uint32_t p = from; !st && p != to; p++)
        st = gather_inserted(s, t, pst_ring_at(t, PST_RING_SLOTS, p));
    for (uint32_t slot = before->slots; !st && slot < t->m->slots; slot++)
        st = gather_inserted(s, t, slot);
    return st;
}

pst_status pst_sealed_gather(pst_table *t, const pst_lineage *lineage, pst_sealed **sealed) {
    pst_sealed *s = pst_calloc(1, sizeof *s);
    if (!s)
        return PST_NO_MEMORY;
    pst_status st = pst_schema_copy(&t->schema, &s->schema);
    if (!st) {
        s->lineage = *lineage;
        s->key_kind = t->lay.key_kind;
        s->wide = t->lay.wide;
        s->max_parallelism = t->max_parallelism;
        s->first_key_group = t->first_key_group;
        s->last_key_group = t->last_key_group;
        st = gather(s, t);
    }
    if (st) {
        pst_sealed_destroy(s);
        return st;
    }
    *sealed = s;
    return PST_OK;
}

/* ---- writing ------------------------------------------------------------------------------- */

typedef struct item {
    uint64_t order; /* key group and the upper bits of the hash */
    uint64_t at;    /* word offset of the entry */
} item;

static uint64_t entry_hash(const pst_sealed *s, const uint64_t *w) {
    if (s->key_kind == PST_KEY_BYTES)
        return w[0];
    if (w[1] & INFO_NULL)
        return PST_HASH_SEED;
    return pst_hash_word(s->schema.keys[0].type, w[0], PST_HASH_SEED);
}

static int is_wide_value(pst_type type) {
    return type == PST_DECIMAL || !pst_type_width(type);
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
    r->op = info & INFO_DELETE ? PST_DELETE : PST_PUT;
    r->changed = info >> 8 & 0x7F;
    r->present = info >> 16 & 0x7F;
    if (s->wide) {
        r->changed = *w++;
        r->present = *w++;
    }
    *st = pst_key_decode(&s->schema, key, bytes, (info & INFO_NULL) != 0, r->key, &r->key_nulls);
    for (uint64_t left = r->present; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        pst_cell *cell = &r->cells[i];
        if (!pst_type_width(s->schema.states[i].type)) {
            cell->bytes = (pst_bytes){s->bytes.data + w[0], (uint32_t)w[1]};
            w += 2;
            continue;
        }
        cell->word[0] = *w++;
        cell->word[1] = is_wide_value(s->schema.states[i].type) ? *w++ : 0;
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
        w += is_wide_value(s->schema.states[__builtin_ctzll(present)].type) ? 2 : 1;
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
    return pst_key_compare(s->schema.keys, s->schema.n_keys, rx.key, rx.key_nulls, ry.key,
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
    pst_status st = pst_sst_writer_create(&s->schema, &out, io, &writer);
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
