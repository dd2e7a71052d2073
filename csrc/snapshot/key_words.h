/* key_words.h: keys of several columns of which each is a word, as windows have them, and behind
 * them an element's few bytes.
 *
 * Purpose: such keys without going through cells, as most of a row's time would go there.
 *
 * Thread safety: pure functions.
 */
#ifndef PST_KEY_WORDS_H
#define PST_KEY_WORDS_H

#include <string.h>

#include "base/key.h"
#include "base/schema.h"
#include "base/words.h"

enum { PST_KEY_COLUMNS = 3, PST_KEY_WORDS = PST_KEY_COLUMNS + PST_ELEMENT_WORDS };

/* The columns of a file's keys that are words: all of them, but for an element behind them. As words
 * that compare as the keys do, an element is as in pst_rows. */
typedef struct pst_key_words {
    int32_t columns; /* 0: keys are not such */
    int32_t words;
    int32_t hashed;
    pst_type type[PST_KEY_COLUMNS];
} pst_key_words;

pst_key_words pst_key_words_of(const pst_schema *schema);

/* The element, behind the columns: a tag, a size and its bytes, or the tag alone. */
static inline int pst_key_words_element(const uint8_t *p, const uint8_t *end, uint64_t *words) {
    words[0] = words[1] = words[2] = 0;
    if (end - p == 1 && !*p)
        return 1;
    enum { HEAD = 5, MOST = 16 };
    uint64_t bytes[2];
    size_t size = (size_t)(end - p) - HEAD;
    if (end - p < HEAD || size > MOST)
        return 0;
    pst_short_words(p + HEAD, size, bytes);
    words[0] = __builtin_bswap64(bytes[0]);
    words[1] = __builtin_bswap64(bytes[1]);
    words[2] = 1 + size;
    return 1;
}

/* Takes a canonical form apart; 0 where a column is null or an element is long. Eight bytes behind
 * the form can be read. */
static inline int pst_key_words_take(const pst_key_words *k, pst_bytes form, uint64_t *words) {
    const uint8_t *p = form.data, *end = p + form.size;
    for (int32_t i = 0; i < k->columns; i++) {
        uint32_t size = *p - 1u;
        uint64_t folded;
        if (p == end || size >= PST_KEY_WORD_BYTES)
            return 0;
        memcpy(&folded, p + 1, sizeof folded);
        /* C has no shift by 64. */
        folded &= ~(~UINT64_C(0) << 4 * size << 4 * size);
        words[i] = folded >> 1 ^ (UINT64_C(0) - (folded & 1));
        p += 1 + size;
    }
    return k->words > k->columns ? pst_key_words_element(p, end, words + k->columns) : p == end;
}

/* Spark's hash. */
static inline uint64_t pst_key_words_hash(const pst_key_words *k, const uint64_t *words) {
    uint64_t hash = PST_HASH_SEED;
    for (int32_t i = 0; i < k->hashed; i++)
        hash = pst_hash_word(k->type[i], words[i], hash);
    return hash;
}

/* As pst_key_compare. */
static inline int pst_key_words_compare(const pst_key_words *k, const uint64_t *a,
                                        const uint64_t *b) {
    for (int32_t i = 0; i < k->words; i++)
        if (a[i] != b[i])
            return a[i] < b[i] ? -1 : 1;
    return 0;
}

#endif
