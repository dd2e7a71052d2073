#include "table/row.h"

#include "key/hash.h"

uint64_t pst_row_hash(const pst_table *t, const uint64_t *row) {
    uint64_t key = row[t->lay.key_offset / 8];
    if (t->lay.key_kind == PST_KEY_BYTES)
        return key;
    if (row[0] & PST_FLAG_NULL_KEY)
        return PST_HASH_SEED;
    return pst_hash_word(t->schema.keys[0].type, key, PST_HASH_SEED);
}
