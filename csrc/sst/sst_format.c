#include "sst/sst_format.h"

#include <string.h>

#include "base/coding.h"
#include "key/hash.h"
#include "key/schema.h"
#include "key/xxh64.h"

_Static_assert(sizeof(size_t) == 8, "sizes of sections and blocks are 64 bits");

static const uint8_t HEADER_MAGIC[8] = {0x89, 'P', 'S', 'T', '\r', '\n', 0x1a, '\n'};
static const uint8_t FOOTER_MAGIC[8] = {'p', 's', 't', ' ', 'e', 'n', 'd', '\n'};

enum { HASH_SPARK_XXH64 = 1 };

/* Offsets in the header. */
enum {
    H_VERSION = 8,
    H_KIND = 10,
    H_HASH = 11,
    H_SCHEMA_BYTES = 12,
    H_COMPATIBLE = 16,
    H_INCOMPATIBLE = 24,
    H_HASH_SEED = 32,
    H_MAX_PARALLELISM = 40,
    H_FIRST = 44,
    H_LAST = 48,
    H_BLOCK_BYTES = 52,
    H_ID = 56,
    H_PARENT = 72,
    H_EPOCH = 88,
    H_QUERY = 96,
    H_CHECKSUM = 120
};

/* Offsets in an index entry. */
enum {
    R_OFFSET = 0,
    R_STORED = 8,
    R_RAW = 16,
    R_CHECKSUM = 24,
    R_FIRST_HASH = 32,
    R_FIRST = 40,
    R_LAST = 44,
    R_PUTS = 48,
    R_DELETES = 52,
    R_CODEC = 56
};

/* Offsets in the footer. */
enum {
    F_INDEX = 0,
    F_BLOCKS = 8,
    F_PROPERTIES = 16,
    F_TAIL_CHECKSUM = 24,
    F_FILE_BYTES = 32,
    F_CHECKSUM = 48,
    F_MAGIC = 56
};

uint64_t pst_sst_seed(const uint8_t id[16], uint64_t offset) {
    return pst_xxh64(id, 16, offset);
}

void pst_sst_put_header(const pst_sst_header *h, uint8_t out[PST_SST_HEADER_BYTES]) {
    memset(out, 0, PST_SST_HEADER_BYTES);
    memcpy(out, HEADER_MAGIC, sizeof HEADER_MAGIC);
    pst_put_u16(out + H_VERSION, PST_SST_VERSION);
    out[H_KIND] = (uint8_t)h->kind;
    out[H_HASH] = HASH_SPARK_XXH64;
    pst_put_u32(out + H_SCHEMA_BYTES, h->schema_bytes);
    pst_put_u64(out + H_INCOMPATIBLE, h->features);
    pst_put_u64(out + H_HASH_SEED, PST_HASH_SEED);
    pst_put_u32(out + H_MAX_PARALLELISM, (uint32_t)h->max_parallelism);
    pst_put_u32(out + H_FIRST, (uint32_t)h->first_key_group);
    pst_put_u32(out + H_LAST, (uint32_t)h->last_key_group);
    pst_put_u32(out + H_BLOCK_BYTES, h->block_bytes);
    memcpy(out + H_ID, h->lineage.id, 16);
    memcpy(out + H_PARENT, h->lineage.parent, 16);
    pst_put_u64(out + H_EPOCH, h->lineage.epoch);
    pst_put_u64(out + H_QUERY, h->lineage.query);
    pst_put_u64(out + H_CHECKSUM, pst_xxh64(out, H_CHECKSUM, 0));
}

/* A guided file says how large its blocks are, and numbers its key groups in two bytes. */
static int blocks_are_valid(const pst_sst_header *h) {
    if (!(h->features & PST_SST_FEATURE_GUIDE))
        return !(h->features & PST_SST_FEATURE_TIMES);
    return h->block_bytes >= PST_SST_LEAST_BLOCK && h->block_bytes <= PST_SST_LARGEST_BLOCK &&
           h->max_parallelism <= PST_SST_GUIDED_GROUPS;
}

pst_status pst_sst_get_header(const uint8_t in[PST_SST_HEADER_BYTES], pst_sst_header *h) {
    if (memcmp(in, HEADER_MAGIC, sizeof HEADER_MAGIC) != 0)
        return PST_CORRUPT;
    if (pst_get_u64(in + H_CHECKSUM) != pst_xxh64(in, H_CHECKSUM, 0))
        return PST_CORRUPT;
    if (pst_get_u16(in + H_VERSION) > PST_SST_VERSION ||
        (pst_get_u64(in + H_INCOMPATIBLE) & ~PST_SST_KNOWN_FEATURES) != 0 ||
        in[H_HASH] != HASH_SPARK_XXH64 || pst_get_u64(in + H_HASH_SEED) != PST_HASH_SEED)
        return PST_NEWER_FORMAT;
    h->kind = (pst_file_kind)in[H_KIND];
    h->schema_bytes = pst_get_u32(in + H_SCHEMA_BYTES);
    h->features = pst_get_u64(in + H_INCOMPATIBLE);
    h->block_bytes = h->features & PST_SST_FEATURE_GUIDE ? pst_get_u32(in + H_BLOCK_BYTES) : 0;
    h->max_parallelism = (int32_t)pst_get_u32(in + H_MAX_PARALLELISM);
    h->first_key_group = (int32_t)pst_get_u32(in + H_FIRST);
    h->last_key_group = (int32_t)pst_get_u32(in + H_LAST);
    memcpy(h->lineage.id, in + H_ID, 16);
    memcpy(h->lineage.parent, in + H_PARENT, 16);
    h->lineage.epoch = pst_get_u64(in + H_EPOCH);
    h->lineage.query = pst_get_u64(in + H_QUERY);
    int valid = pst_get_u16(in + H_VERSION) > 0 && (h->kind == PST_DELTA || h->kind == PST_BASE) &&
                h->first_key_group >= 0 && h->first_key_group <= h->last_key_group &&
                h->last_key_group < h->max_parallelism && h->schema_bytes > 0 &&
                h->schema_bytes % PST_SST_ALIGN == 0 && h->schema_bytes <= PST_SST_MAX_SCHEMA &&
                blocks_are_valid(h);
    return valid ? PST_OK : PST_CORRUPT;
}

static const pst_column *column_at(const pst_schema *schema, int32_t i) {
    return i < schema->n_keys ? &schema->keys[i] : &schema->states[i - schema->n_keys];
}

/* What the feature KINDS adds behind a column's name. */
enum { COLUMN_EXTRA = 6 };

static size_t ddl_bytes(const pst_column *c) {
    size_t length = c->ddl ? strlen(c->ddl) : 0;
    return length ? pst_varint_size(length) + length + 1 : 1;
}

uint32_t pst_sst_schema_bytes(const pst_schema *schema) {
    int plain = pst_schema_is_plain(schema);
    uint64_t size = plain ? 2 : 3;
    for (int32_t i = 0; i < schema->n_keys + schema->n_states; i++) {
        const pst_column *c = column_at(schema, i);
        size_t length = strlen(c->name);
        if (length > PST_SST_MAX_NAME || (c->ddl && strlen(c->ddl) > PST_SST_MAX_NAME))
            return 0;
        size += 4 + pst_varint_size(length) + length + 1;
        size += plain ? 0 : COLUMN_EXTRA + ddl_bytes(c);
    }
    return (uint32_t)pst_sst_align(size + 8);
}

static uint8_t *put_text(uint8_t *p, const char *text, size_t length) {
    p += pst_put_varint(p, length);
    memcpy(p, text, length + 1);
    return p + length + 1;
}

static uint8_t *put_extra(uint8_t *p, const pst_column *c) {
    size_t length = c->ddl ? strlen(c->ddl) : 0;
    *p++ = c->map_key;
    *p++ = c->map_precision;
    *p++ = c->map_scale;
    *p++ = 0;
    pst_put_u16(p, c->width);
    p += 2;
    if (length)
        return put_text(p, c->ddl, length);
    *p++ = 0;
    return p;
}

void pst_sst_put_schema(const pst_schema *schema, const uint8_t id[16], uint8_t *out, size_t size) {
    int plain = pst_schema_is_plain(schema);
    memset(out, 0, size);
    uint8_t *p = out;
    *p++ = (uint8_t)schema->n_keys;
    *p++ = (uint8_t)schema->n_states;
    if (!plain)
        *p++ = (uint8_t)pst_schema_hashed(schema);
    for (int32_t i = 0; i < schema->n_keys + schema->n_states; i++) {
        const pst_column *c = column_at(schema, i);
        *p++ = (uint8_t)c->type;
        *p++ = c->precision;
        *p++ = c->scale;
        *p++ = c->kind;
        p = put_text(p, c->name, strlen(c->name));
        if (!plain)
            p = put_extra(p, c);
    }
    pst_put_u64(out + size - 8, pst_xxh64(out, size - 8, pst_sst_seed(id, PST_SST_HEADER_BYTES)));
}

/* A text whose length was read, or NULL. */
static const char *get_text(pst_cursor *c, uint64_t length) {
    const uint8_t *text = length > PST_SST_MAX_NAME ? NULL : pst_cursor_bytes(c, length + 1);
    if (!text || memchr(text, 0, length + 1) != text + length)
        return NULL;
    return (const char *)text;
}

static pst_status get_column(pst_cursor *c, uint64_t features, pst_column *column) {
    column->type = (pst_type)pst_cursor_u8(c);
    column->precision = pst_cursor_u8(c);
    column->scale = pst_cursor_u8(c);
    uint8_t kind = pst_cursor_u8(c);
    column->name = get_text(c, pst_cursor_varint(c));
    if (!column->name)
        return PST_CORRUPT;
    if (!(features & PST_SST_FEATURE_KINDS))
        return PST_OK;
    column->kind = kind;
    column->map_key = pst_cursor_u8(c);
    column->map_precision = pst_cursor_u8(c);
    column->map_scale = pst_cursor_u8(c);
    (void)pst_cursor_u8(c);
    const uint8_t *width = pst_cursor_bytes(c, 2);
    uint64_t length = pst_cursor_varint(c);
    if (!width)
        return PST_CORRUPT;
    column->width = pst_get_u16(width);
    column->ddl = length ? get_text(c, length) : NULL;
    return length && !column->ddl ? PST_CORRUPT : PST_OK;
}

pst_status pst_sst_get_schema(const uint8_t *in, size_t size, const uint8_t id[16],
                              uint64_t features, pst_schema *schema) {
    uint64_t seed = pst_sst_seed(id, PST_SST_HEADER_BYTES);
    if (size < 8 || pst_get_u64(in + size - 8) != pst_xxh64(in, size - 8, seed))
        return PST_CORRUPT;
    pst_cursor c = pst_cursor_over(in, size - 8);
    pst_column columns[PST_MAX_KEYS + PST_MAX_STATES];
    memset(columns, 0, sizeof columns);
    int32_t n_keys = pst_cursor_u8(&c);
    int32_t n_states = pst_cursor_u8(&c);
    if (n_keys > PST_MAX_KEYS || n_states > PST_MAX_STATES)
        return PST_CORRUPT;
    pst_schema view = {n_keys, n_states, columns, columns + n_keys, 0};
    if (features & PST_SST_FEATURE_KINDS)
        view.n_hashed = pst_cursor_u8(&c);
    for (int32_t i = 0; i < n_keys + n_states; i++)
        if (get_column(&c, features, &columns[i]))
            return PST_CORRUPT;
    if (c.bad || pst_schema_check(&view))
        return PST_CORRUPT;
    return pst_schema_copy(&view, schema);
}

void pst_sst_put_ref(const pst_sst_ref *r, uint8_t out[PST_SST_REF_BYTES]) {
    memset(out, 0, PST_SST_REF_BYTES);
    pst_put_u64(out + R_OFFSET, r->offset);
    pst_put_u64(out + R_STORED, r->stored);
    pst_put_u64(out + R_RAW, r->raw);
    pst_put_u64(out + R_CHECKSUM, r->checksum);
    pst_put_u64(out + R_FIRST_HASH, r->first_hash);
    pst_put_u32(out + R_FIRST, (uint32_t)r->first_key_group);
    pst_put_u32(out + R_LAST, (uint32_t)r->last_key_group);
    pst_put_u32(out + R_PUTS, r->puts);
    pst_put_u32(out + R_DELETES, r->deletes);
    out[R_CODEC] = (uint8_t)r->codec;
}

pst_status pst_sst_get_ref(const uint8_t in[PST_SST_REF_BYTES], pst_sst_ref *r) {
    r->offset = pst_get_u64(in + R_OFFSET);
    r->stored = pst_get_u64(in + R_STORED);
    r->raw = pst_get_u64(in + R_RAW);
    r->checksum = pst_get_u64(in + R_CHECKSUM);
    r->first_hash = pst_get_u64(in + R_FIRST_HASH);
    r->first_key_group = (int32_t)pst_get_u32(in + R_FIRST);
    r->last_key_group = (int32_t)pst_get_u32(in + R_LAST);
    r->puts = pst_get_u32(in + R_PUTS);
    r->deletes = pst_get_u32(in + R_DELETES);
    r->codec = (pst_sst_codec)in[R_CODEC];
    uint64_t rows = (uint64_t)r->puts + r->deletes;
    if (rows == 0 || rows > PST_SST_BLOCK_ROWS || r->first_key_group > r->last_key_group)
        return PST_CORRUPT;
    if (r->codec == PST_CODEC_RAW)
        return r->raw == r->stored ? PST_OK : PST_CORRUPT;
    if (r->codec != PST_CODEC_LZ4 || r->stored == 0 || r->raw > PST_SST_LZ4_MAX_INPUT)
        return PST_CORRUPT;
    return r->raw / PST_SST_LZ4_RATIO <= r->stored ? PST_OK : PST_CORRUPT;
}

static uint8_t *put_number(uint8_t *p, uint8_t tag, uint64_t value) {
    *p++ = tag;
    *p++ = (uint8_t)pst_varint_size(value);
    return p + pst_put_varint(p, value);
}

size_t pst_sst_put_properties(const pst_sst_totals *t, const pst_lineage *lineage,
                              const pst_sst_guided_properties *guided,
                              uint8_t out[PST_SST_MAX_PROPERTIES]) {
    memset(out, 0, PST_SST_MAX_PROPERTIES);
    uint8_t *p = put_number(out, PST_PROPERTY_PUTS, t->puts);
    p = put_number(p, PST_PROPERTY_DELETES, t->deletes);
    p = put_number(p, PST_PROPERTY_RAW, t->raw);
    p = put_number(p, PST_PROPERTY_STORED, t->stored);
    *p++ = PST_PROPERTY_PARENT;
    *p++ = 16;
    memcpy(p, lineage->parent, 16);
    p += 16;
    if (guided) {
        *p++ = PST_PROPERTY_BOUNDS;
        p += pst_put_varint(p, guided->bounds_size);
        memcpy(p, guided->bounds, guided->bounds_size);
        p += guided->bounds_size;
    }
    if (guided && guided->times) {
        *p++ = PST_PROPERTY_TIMES;
        *p++ = PST_SST_TIMES_BYTES;
        memcpy(p, guided->times, PST_SST_TIMES_BYTES);
        p += PST_SST_TIMES_BYTES;
    }
    p++; /* the end tag */
    return (size_t)pst_sst_align((uint64_t)(p - out));
}

pst_status pst_sst_check_properties(const uint8_t *in, size_t size, const pst_sst_totals *t,
                                    const pst_lineage *lineage) {
    const uint64_t expected[] = {0, t->puts, t->deletes, t->raw, t->stored};
    pst_cursor c = pst_cursor_over(in, size);
    unsigned seen = 0;
    for (;;) {
        uint64_t tag = pst_cursor_varint(&c);
        if (tag == 0)
            break;
        uint64_t length = pst_cursor_varint(&c);
        const uint8_t *value = pst_cursor_bytes(&c, length);
        if (!value)
            return PST_CORRUPT;
        if (tag <= PST_PROPERTY_STORED) {
            pst_cursor v = pst_cursor_over(value, length);
            if (pst_cursor_varint(&v) != expected[tag] || v.bad || pst_cursor_left(&v) > 0)
                return PST_CORRUPT;
        } else if (tag == PST_PROPERTY_PARENT) {
            if (length != 16 || memcmp(value, lineage->parent, 16) != 0)
                return PST_CORRUPT;
        }
        if (tag <= PST_PROPERTY_PARENT)
            seen |= 1u << tag;
    }
    return !c.bad && seen == 0x3e ? PST_OK : PST_CORRUPT;
}

const uint8_t *pst_sst_property_value(const uint8_t *in, size_t size, pst_sst_property tag,
                                      size_t *length) {
    pst_cursor c = pst_cursor_over(in, size);
    for (;;) {
        uint64_t found = pst_cursor_varint(&c);
        if (found == 0)
            return NULL;
        uint64_t bytes = pst_cursor_varint(&c);
        const uint8_t *value = pst_cursor_bytes(&c, bytes);
        *length = bytes;
        if (!value || found == (uint64_t)tag)
            return value;
    }
}

void pst_sst_put_footer(const pst_sst_footer *f, const uint8_t id[16],
                        uint8_t out[PST_SST_FOOTER_BYTES]) {
    memset(out, 0, PST_SST_FOOTER_BYTES);
    pst_put_u64(out + F_INDEX, f->index_offset);
    pst_put_u64(out + F_BLOCKS, f->blocks);
    pst_put_u64(out + F_PROPERTIES, f->properties_bytes);
    pst_put_u64(out + F_TAIL_CHECKSUM, f->tail_checksum);
    pst_put_u64(out + F_FILE_BYTES, f->file_bytes);
    uint64_t seed = pst_sst_seed(id, f->file_bytes - PST_SST_FOOTER_BYTES);
    pst_put_u64(out + F_CHECKSUM, pst_xxh64(out, F_CHECKSUM, seed));
    memcpy(out + F_MAGIC, FOOTER_MAGIC, sizeof FOOTER_MAGIC);
}

pst_status pst_sst_get_footer(const uint8_t in[PST_SST_FOOTER_BYTES], const uint8_t id[16],
                              uint64_t data_offset, uint64_t file_bytes, pst_sst_footer *f) {
    uint64_t end = file_bytes - PST_SST_FOOTER_BYTES;
    if (memcmp(in + F_MAGIC, FOOTER_MAGIC, sizeof FOOTER_MAGIC) != 0)
        return PST_CORRUPT;
    if (pst_get_u64(in + F_CHECKSUM) != pst_xxh64(in, F_CHECKSUM, pst_sst_seed(id, end)))
        return PST_CORRUPT;
    f->index_offset = pst_get_u64(in + F_INDEX);
    f->blocks = pst_get_u64(in + F_BLOCKS);
    f->properties_bytes = pst_get_u64(in + F_PROPERTIES);
    f->tail_checksum = pst_get_u64(in + F_TAIL_CHECKSUM);
    f->file_bytes = pst_get_u64(in + F_FILE_BYTES);
    if (f->file_bytes != file_bytes || f->index_offset < data_offset || f->index_offset > end)
        return PST_CORRUPT;
    uint64_t tail = end - f->index_offset;
    if (f->blocks > tail / PST_SST_REF_BYTES ||
        f->properties_bytes != tail - f->blocks * PST_SST_REF_BYTES)
        return PST_CORRUPT;
    return PST_OK;
}
