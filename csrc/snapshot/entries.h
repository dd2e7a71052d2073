/* entries.h: the buffer of what an epoch changed, as gathering fills it and a writer reads it.
 *
 * Purpose: whoever gathers rows, in the general way or the one for rows of words, puts entries of one
 * form, and delta.c sorts and writes them without knowing how they came.
 *
 * Thread safety: as sealed.h says of a pst_sealed.
 */
#ifndef PST_ENTRIES_H
#define PST_ENTRIES_H

#include "base/budget.h"
#include "base/buffer.h"
#include "base/pool.h"
#include "elements/collections.h"
#include "key/key.h"
#include "key/schema.h"
#include "memory/handle.h"
#include "memory/huge.h"

/* Entries in gathering order, each `key part | info | cells of changed present columns`:
 * a word key is its word, a bytes key {hash, offset, size}; cells are one word, or two for
 * decimals and for bytes {offset, size}. Offsets point into `bytes`. */
struct pst_sealed {
    pst_pool *pool;
    pst_words entries;
    size_t n_words;
    pst_buffer bytes;
    pst_buffer scratch; /* for what is put together before it is kept */
    pst_charge charge;  /* of entries and bytes */
    uint64_t rows;
    uint64_t logical_bytes;
    pst_lineage lineage;
    uint64_t whole_bytes; /* rows with so many bytes of values are whole; 0: none is */
    uint64_t columns;     /* a bit per column that a whole row's record carries (GW1) */
    uint64_t times;       /* those of them that are times of values */
    pst_schema *schema;   /* of the file */
    pst_huge huge;        /* pages of a shared table's file, for the thread that writes */
    pst_key_kind key_kind;
    int wide;
    int tied;         /* words of bytes keys may be hashes of their own, see index.h */
    int null_entries; /* there is an entry of a map without a value */
    int32_t max_parallelism;
    int32_t first_key_group;
    int32_t last_key_group;
    uint32_t block_bytes; /* of the file, as in pst_file_info */
};

/* The info word: bit 0 delete, bit 1 null key, then for up to seven states changed << 8 and
 * present << 16. Wide rows have both masks in the next two words. */
enum { PST_INFO_DELETE = 1, PST_INFO_NULL = 2 };

/* Whether a cell takes two words of an entry. */
static inline int pst_is_wide_value(pst_type type) {
    return type == PST_DECIMAL || !pst_type_width(type);
}

/* Charges for what is written after one more entry. PST_LIMIT. */
static inline pst_status pst_sealed_charge(pst_sealed *s) {
    return pst_charge_raise(&s->charge, s->n_words * sizeof(uint64_t) + s->bytes.size);
}

#endif
