/* sealed_write.c: a sealed epoch as a delta file: in order, and many rows at a time. */
#include <string.h>

#include "base/mem.h"
#include "base/schema.h"
#include "memory/store.h"
#include "snapshot/sealed_order.h"

enum { CHUNK = 128 };

typedef struct writing {
    pst_order order;
    pst_sst_writer *writer;
    int columnar; /* rows with one key column need not be decoded */
    uint64_t last_hash;
    pst_record record;
} writing;

static pst_status write_record(writing *x, const uint64_t *w, uint64_t hash) {
    const pst_plan *p = pst_order_plan(&x->order, w);
    pst_record *r = &x->record;
    pst_status st = pst_order_decode(&x->order, w, r);
    r->hash = hash;
    r->key_group = pst_key_group(hash, x->order.s->max_parallelism);
    r->op = p->rows.op;
    r->changed = p->changed;
    r->present = p->present;
    for (uint64_t left = p->present; left; left &= left - 1) {
        int k = __builtin_ctzll(left);
        pst_type type = x->order.s->schema->states[k].type;
        const uint64_t *word = w + p->rows.at[k];
        if (!pst_type_width(type)) {
            r->cells[k].bytes = (pst_bytes){x->order.s->bytes.data + word[0], (uint32_t)word[1]};
            continue;
        }
        r->cells[k].word[0] = word[0];
        r->cells[k].word[1] = pst_is_wide_value(type) ? word[1] : 0;
    }
    x->last_hash = hash;
    return st ? st : pst_sst_writer_add(x->writer, r);
}

static int same_kind(const writing *x, const uint64_t *v, const uint64_t *w) {
    uint32_t at = x->order.info_at;
    return v[at] == w[at] &&
           (!x->order.s->wide || (v[at + 1] == w[at + 1] && v[at + 2] == w[at + 2]));
}

/* How many of the rows can be written together with the first. `keys` are theirs, if they are words,
 * or NULL. */
static uint32_t alike(const writing *x, const uint64_t *const *words, const uint64_t *hash,
                      const uint64_t *const *keys, uint32_t n) {
    uint64_t before = x->last_hash;
    uint32_t i = 0;
    if (x->order.key_words.columns) {
        while (i < n && keys[i] && same_kind(x, words[0], words[i]))
            i++;
        return i;
    }
    if (!x->columnar || words[0][x->order.info_at] & PST_INFO_NULL)
        return 0;
    for (; i < n && hash[i] != before && same_kind(x, words[0], words[i]); i++)
        before = hash[i];
    return i;
}

/* Prefetches what is written after the chunk that begins at `done`: the entries of the one after
 * the next, and the bytes of the next, whose entries are in cache by then. A row's bytes a few rows
 * after its entry would wait for it, since prefetching is all that is done in between. */
static void bring_chunks(writing *x, size_t done) {
    size_t n = x->order.n_items, from = done ? done + 2 * CHUNK : 0, to = done + 3 * CHUNK;
    for (size_t i = from; i < to && i < n; i++)
        pst_order_bring_entry(&x->order, i);
    from = done ? done + CHUNK : 0;
    to = done + 2 * CHUNK;
    for (size_t i = from; x->order.s->bytes.size && i < to && i < n; i++)
        pst_order_bring_bytes(&x->order, i);
}

static pst_status write_sorted(writing *x) {
    const uint64_t *words[CHUNK], *keys[CHUNK];
    uint64_t hash[CHUNK], key_words[CHUNK][PST_KEY_WORDS];
    size_t rows = x->order.n_items;
    pst_status st = PST_OK;
    for (size_t done = 0; !st && done < rows; done += CHUNK) {
        uint32_t n = rows - done < CHUNK ? (uint32_t)(rows - done) : CHUNK;
        bring_chunks(x, done);
        for (uint32_t i = 0; i < n; i++) {
            words[i] = pst_order_entry(&x->order, x->order.items[done + i]);
            hash[i] = pst_order_hash(&x->order, words[i]);
            keys[i] = pst_order_words(&x->order, words[i], key_words[i]) ? key_words[i] : NULL;
        }
        for (uint32_t i = 0, together; !st && i < n; i += together ? together : 1) {
            together = alike(x, words + i, hash + i, keys + i, n - i);
            if (!together) {
                st = write_record(x, words[i], hash[i]);
                continue;
            }
            pst_rows part = pst_order_plan(&x->order, words[i])->rows;
            part.words = words + i;
            part.keys = x->order.key_words.columns ? keys + i : NULL;
            part.hash = hash + i;
            part.n = together;
            st = pst_sst_writer_add_rows(x->writer, &part);
            x->last_hash = hash[i + together - 1];
        }
    }
    return st;
}

pst_status pst_sealed_write(pst_sealed *s, const pst_io *io, pst_file_info *info) {
    pst_file_info out = {.kind = PST_DELTA,
                         .lineage = s->lineage,
                         .max_parallelism = s->max_parallelism,
                         .first_key_group = s->first_key_group,
                         .last_key_group = s->last_key_group,
                         .null_entries = s->null_entries};
    writing *x = pst_calloc(1, sizeof *x);
    if (!x)
        return PST_NO_MEMORY;
    x->columnar = s->schema->n_keys == 1 && s->schema->keys[0].type != PST_DECIMAL;
    pst_io own = *io;
    own.budget = io->budget ? io->budget : s->charge.budget;
    pst_status st = pst_sst_writer_create(s->schema, &out, &own, &x->writer);
    if (!st)
        st = pst_order_begin(&x->order, s, s->charge.budget);
    while (!st && pst_order_next(&x->order))
        st = write_sorted(x);
    if (!st)
        st = pst_sst_writer_finish(x->writer, &out);
    pst_sst_writer_destroy(x->writer);
    pst_order_end(&x->order);
    pst_free(x);
    pst_huge_make(&s->huge);
    if (!st)
        *info = out;
    return st;
}
