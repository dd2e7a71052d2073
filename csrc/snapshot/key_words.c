#include "snapshot/key_words.h"

pst_key_words pst_key_words_of(const pst_schema *schema) {
    int element = pst_schema_has_element(schema);
    int32_t n = schema->n_keys - element;
    pst_key_words k = {0, n + (element ? PST_ELEMENT_WORDS : 0), pst_schema_hashed(schema), {0}};
    /* A single column that is not followed by an element has a simpler form. */
    if (n > PST_KEY_COLUMNS || schema->n_keys < 2 || k.hashed > n)
        return k;
    for (int32_t i = 0; i < n; i++) {
        k.type[i] = schema->keys[i].type;
        if (k.type[i] >= PST_DECIMAL)
            return k;
    }
    k.columns = n;
    return k;
}
