#include "snapshot/sealed_entry.h"

#include <string.h>

#include "base/key.h"
#include "base/mem.h"

/* One column's part of the encoding in key.c. */
static uint8_t *put_part(uint8_t *p, pst_bytes b) {
    *p++ = 1;
    memcpy(p, &b.size, 4);
    if (b.size)
        memcpy(p + 4, b.data, b.size);
    return p + 4 + b.size;
}

/* Keeps the file's key of a row, or of one of its elements (data not NULL): {hash, offset,
 * size}. */
static pst_status keep_key(pst_sealed *s, const pst_table *t, const uint64_t *row,
                           pst_bytes element, uint64_t *w) {
    const uint64_t *k = row + t->lay.key_offset / 8;
    int word = t->lay.key_kind == PST_KEY_WORD, null = (row[0] & PST_FLAG_NULL_KEY) != 0;
    pst_bytes own = {NULL, 0};
    if (!word)
        own = (pst_bytes){pst_ref_data(t->heap, k + 1), pst_ref_size(k + 1)};
    /* The form of one string column is its bytes alone; all others are tagged already. */
    int plain = t->schema.n_keys == 1 && t->schema.keys[0].type != PST_DECIMAL;
    size_t room = 16 + (size_t)own.size + element.size + 8;
    uint8_t small[512], *form = room <= sizeof small ? small : pst_malloc(room), *p = form;
    if (!form)
        return PST_NO_MEMORY;
    if (null) {
        *p++ = 0;
    } else if (word) {
        p += pst_key_put_word(p, k[0]);
    } else if (plain) {
        p = put_part(p, own);
    } else {
        memcpy(p, own.data, own.size);
        p += own.size;
    }
    if (element.data)
        p = put_part(p, element);
    else
        *p++ = 0;
    w[0] = 0; /* the writer hashes the columns that are hashed */
    pst_status st = pst_sealed_keep(s, form, (size_t)(p - form), w + 1);
    s->logical_bytes += (word ? 8 : own.size) + element.size;
    if (form != small)
        pst_free(form);
    return st;
}

uint64_t *pst_entry_info(const pst_sealed *s, uint64_t *w, pst_record_op op, uint64_t changed,
                         uint64_t present) {
    *w++ = (op == PST_DELETE ? PST_INFO_DELETE : 0u) | (s->wide ? 0 : changed << 8 | present << 16);
    if (s->wide) {
        *w++ = changed;
        *w++ = present;
    }
    return w;
}

enum { ENTRY_WORDS = 6 }; /* key, info and masks */

pst_status pst_entry_begin(pst_sealed *s, const pst_table *t, const uint64_t *row,
                           pst_bytes element, size_t cells, uint64_t **w) {
    pst_status st = pst_sealed_reserve(s, ENTRY_WORDS + cells);
    *w = s->entries.words + s->n_words;
    return st ? st : keep_key(s, t, row, element, *w);
}

void pst_entry_end(pst_sealed *s, const uint64_t *w) {
    s->n_words = (size_t)(w - s->entries.words);
    s->rows++;
}
