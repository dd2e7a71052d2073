#include "key/key.h"

#include "base/coding.h"
#include "key/hash.h"
#include "key/siphash.h"
#include "key/xxh64.h"

static int is_bytes(pst_type type) {
    return type == PST_STRING || type == PST_BINARY || type == PST_OBJECT;
}

int pst_key_is_word(const pst_schema *schema) {
    pst_type type = schema->keys[0].type;
    return schema->n_keys == 1 && !is_bytes(type) && type != PST_DECIMAL;
}

int pst_key_is_plain(const pst_schema *schema) {
    return schema->n_keys == 1 && is_bytes(schema->keys[0].type);
}

static void append(pst_buffer *b, const void *data, size_t size) {
    if (size)
        memcpy(b->data + b->size, data, size);
    b->size += size;
}

pst_status pst_key_form(const pst_schema *schema, const pst_cell *cells, uint32_t nulls,
                        pst_buffer *buffer, pst_key *key) {
    key->word = 0;
    key->bytes = (pst_bytes){NULL, 0};
    key->null = 0;
    if (schema->n_keys == 1 && (nulls & 1)) {
        key->null = 1;
        return PST_OK;
    }
    if (pst_key_is_word(schema)) {
        key->word = pst_canonical_word(schema->keys[0].type, cells[0].word[0]);
        return PST_OK;
    }
    if (pst_key_is_plain(schema)) {
        key->bytes = cells[0].bytes;
        return key->bytes.size > PST_MAX_BYTES ? PST_TOO_LARGE : PST_OK;
    }
    size_t start = buffer->size;
    for (int32_t i = 0; i < schema->n_keys; i++) {
        pst_type type = schema->keys[i].type;
        uint8_t tag = !(nulls >> i & 1);
        size_t most = 32 + (is_bytes(type) && tag ? cells[i].bytes.size : 0);
        pst_status s = pst_buffer_reserve(buffer, buffer->size + most);
        if (s)
            return s;
        append(buffer, &tag, 1);
        if (!tag)
            continue;
        if (is_bytes(type)) {
            append(buffer, &cells[i].bytes.size, 4);
            append(buffer, cells[i].bytes.data, cells[i].bytes.size);
        } else if (type == PST_DECIMAL) {
            append(buffer, cells[i].word, 16);
        } else {
            uint64_t word = pst_canonical_word(type, cells[i].word[0]);
            buffer->size += pst_key_put_word(buffer->data + buffer->size - 1, word) - 1;
        }
    }
    if (buffer->size - start > PST_MAX_BYTES)
        return PST_TOO_LARGE;
    key->bytes = (pst_bytes){buffer->data + start, (uint32_t)(buffer->size - start)};
    return PST_OK;
}

pst_status pst_key_encode(const pst_schema *schema, const pst_cell *cells, uint32_t nulls,
                          pst_buffer *buffer, pst_key *key) {
    buffer->size = 0;
    pst_status s = pst_key_form(schema, cells, nulls, buffer, key);
    if (!s)
        key->hash = pst_hash_key(schema->keys, pst_schema_hashed(schema), cells, nulls);
    return s;
}

static int take(pst_bytes *from, void *to, uint32_t size) {
    if (from->size < size)
        return 0;
    memcpy(to, from->data, size);
    from->data += size;
    from->size -= size;
    return 1;
}

/* The inverse of pst_key_put_word, behind the tag. */
static int take_word(pst_bytes *from, uint8_t tag, uint64_t *word) {
    uint64_t folded[2];
    uint32_t size = tag - 1u;
    if (tag > PST_KEY_WORD_BYTES || from->size < size)
        return 0;
    pst_short_words(from->data, size, folded);
    from->data += size;
    from->size -= size;
    *word = folded[0] >> 1 ^ (UINT64_C(0) - (folded[0] & 1));
    return 1;
}

pst_status pst_key_decode(const pst_schema *schema, uint64_t word, pst_bytes bytes, int null,
                          pst_cell *cells, uint32_t *nulls) {
    *nulls = 0;
    if (schema->n_keys == 1 && null) {
        *nulls = 1;
        return PST_OK;
    }
    if (pst_key_is_word(schema)) {
        cells[0].word[0] = word;
        cells[0].word[1] = 0;
        return PST_OK;
    }
    if (pst_key_is_plain(schema)) {
        cells[0].bytes = bytes;
        return PST_OK;
    }
    for (int32_t i = 0; i < schema->n_keys; i++) {
        uint8_t tag;
        if (!take(&bytes, &tag, 1))
            return PST_CORRUPT;
        if (!tag) {
            *nulls |= UINT32_C(1) << i;
            continue;
        }
        pst_type type = schema->keys[i].type;
        cells[i].word[1] = 0;
        if (!is_bytes(type) && type != PST_DECIMAL) {
            if (!take_word(&bytes, tag, cells[i].word))
                return PST_CORRUPT;
        } else if (tag > 1) {
            return PST_CORRUPT;
        } else if (is_bytes(type)) {
            uint32_t size;
            if (!take(&bytes, &size, 4) || size > bytes.size)
                return PST_CORRUPT;
            cells[i].bytes = (pst_bytes){bytes.data, size};
            bytes.data += size;
            bytes.size -= size;
        } else if (!take(&bytes, cells[i].word, 16)) {
            return PST_CORRUPT;
        }
    }
    return bytes.size ? PST_CORRUPT : PST_OK;
}

size_t pst_key_last(const pst_schema *schema, pst_bytes bytes) {
    size_t at = 0;
    for (int32_t i = 0; i < schema->n_keys - 1 && at < bytes.size; i++) {
        pst_type type = schema->keys[i].type;
        uint8_t tag = bytes.data[at++];
        uint32_t size = type == PST_DECIMAL ? 16 : tag - 1u;
        if (tag && is_bytes(type)) {
            if (bytes.size - at < sizeof size)
                return bytes.size;
            memcpy(&size, bytes.data + at, sizeof size);
            at += sizeof size;
        }
        at += tag ? size : 0;
    }
    return at < bytes.size ? at : bytes.size;
}

/* The nearest number to `mixed` whose key group is that of `hash`. */
static uint64_t keep_group(uint64_t hash, uint64_t mixed, int32_t max_parallelism) {
    uint64_t mask = (uint64_t)max_parallelism - 1;
    if (!(mask & (uint64_t)max_parallelism))
        return (mixed & ~mask) | (hash & mask);
    int64_t near = (int64_t)mixed, moved;
    int64_t by =
        pst_key_group(hash, max_parallelism) - (int64_t)pst_key_group(mixed, max_parallelism);
    /* At the ends of the range the neighbour of the same group lies on the other side. */
    if (__builtin_add_overflow(near, by, &moved))
        moved = near + (by > 0 ? by - max_parallelism : by + max_parallelism);
    return (uint64_t)moved;
}

uint64_t pst_key_spread(uint64_t hash, pst_bytes bytes, int32_t max_parallelism) {
    if (bytes.size > 16)
        return keep_group(hash, pst_xxh64(bytes.data, bytes.size, hash), max_parallelism);
    /* Most are an id and a time, each in a few bytes. */
    uint64_t words[2];
    pst_short_words(bytes.data, bytes.size, words);
    uint64_t both = words[0] ^ pst_xxh64_rotl((words[1] + bytes.size) * PST_XXH_P3, 32);
    return keep_group(hash, pst_xxh64_long((int64_t)both, hash), max_parallelism);
}

uint64_t pst_key_untied(const uint64_t secret[2], uint64_t hash, pst_bytes bytes,
                        int32_t max_parallelism) {
    return keep_group(hash, pst_siphash(bytes.data, bytes.size, secret), max_parallelism);
}

uint64_t pst_key_row_hash(const pst_schema *schema, uint64_t word, pst_bytes bytes, int null,
                          int tied) {
    if (pst_key_is_word(schema))
        return null ? PST_HASH_SEED : pst_hash_word(schema->keys[0].type, word, PST_HASH_SEED);
    if (!pst_key_has_namespace(schema) && !tied)
        return word;
    pst_cell cells[PST_MAX_KEYS];
    uint32_t nulls;
    if (pst_key_decode(schema, word, bytes, null, cells, &nulls))
        return word;
    return pst_hash_key(schema->keys, pst_schema_hashed(schema), cells, nulls);
}
