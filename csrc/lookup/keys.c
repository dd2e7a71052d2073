#include "pystate.h"

#include <string.h>

#include "base/mem.h"
#include "file/sst_reader.h"
#include "key/hash.h"
#include "key/schema.h"
#include "snapshot/gather.h"

/* A file and its next record, which is none at the end. */
typedef struct file_keys {
    pst_sst_reader *reader;
    int ended;
    pst_record record;
} file_keys;

static int32_t keys_of(const pst_schema *schema) {
    return schema->n_keys - pst_schema_has_element(schema);
}

static int same_keys(const pst_schema *a, const pst_schema *b) {
    int32_t n = keys_of(a);
    if (n != keys_of(b) || pst_schema_hashed(a) != pst_schema_hashed(b))
        return 0;
    for (int32_t i = 0; i < n; i++)
        if (!pst_column_same_type(&a->keys[i], &b->keys[i]))
            return 0;
    return 1;
}

static pst_status advance(file_keys *f) {
    pst_status s = pst_sst_reader_next(f->reader, &f->record);
    f->ended = s == PST_NOT_FOUND;
    return f->ended ? PST_OK : s;
}

static pst_status begin(file_keys *f, pst_sst_reader *r, int32_t first_key_group,
                        int32_t last_key_group, const pst_hashes *hashes) {
    f->reader = r;
    pst_status s = pst_sst_reader_seek(r, first_key_group, last_key_group);
    if (!s && hashes)
        pst_sst_reader_narrow(r, hashes->first, hashes->last);
    return s ? s : advance(f);
}

static int comes_before(const pst_schema *schema, const pst_record *a, const pst_record *b) {
    uint32_t own = (UINT32_C(1) << schema->n_keys) - 1;
    if (a->key_group != b->key_group)
        return a->key_group < b->key_group;
    if (a->hash != b->hash)
        return a->hash < b->hash;
    return pst_key_compare(schema->keys, schema->n_keys, a->key, a->key_nulls & own, b->key,
                           b->key_nulls & own) < 0;
}

/* The file whose record is the first of all; NULL at the end. */
static file_keys *first_of(file_keys *files, int32_t n, const pst_schema *schema) {
    file_keys *first = NULL;
    for (int32_t i = 0; i < n; i++)
        if (!files[i].ended && (!first || comes_before(schema, &files[i].record, &first->record)))
            first = &files[i];
    return first;
}

static pst_status gather(pst_gatherer *g, file_keys *files, int32_t n) {
    pst_status s = PST_OK;
    for (file_keys *f; !s && (f = first_of(files, n, g->schema));) {
        const pst_record *r = &f->record;
        if (!pst_gather_is_last(g, r->hash, r->key, r->key_nulls))
            s = pst_gather_row(g, r->hash, r->key, r->key_nulls);
        if (!s)
            s = advance(f);
    }
    return s ? s : pst_gather_flush(g);
}

pst_status pst_gather_keys(pst_sst_reader *const *readers, int32_t n, int32_t first_key_group,
                           int32_t last_key_group, const pst_hashes *hashes, const pst_io *io) {
    if (n < 1 || first_key_group < 0 || first_key_group > last_key_group)
        return PST_INVALID;
    pst_schema schema = *pst_sst_reader_schema(readers[0]);
    int32_t max_parallelism = pst_sst_reader_info(readers[0])->max_parallelism;
    for (int32_t i = 1; i < n; i++)
        if (!same_keys(&schema, pst_sst_reader_schema(readers[i])) ||
            pst_sst_reader_info(readers[i])->max_parallelism != max_parallelism)
            return PST_SCHEMA;
    schema.n_keys = keys_of(&schema);
    schema.n_states = 0;
    pst_gatherer *g = pst_malloc(sizeof *g);
    file_keys *files = pst_malloc((size_t)n * sizeof *files);
    pst_status s = g && files ? PST_OK : PST_NO_MEMORY;
    for (int32_t i = 0; !s && i < n; i++)
        s = begin(&files[i], readers[i], first_key_group, last_key_group, hashes);
    if (!s) {
        s = pst_gatherer_init(g, &schema, NULL, io);
        if (!s)
            s = gather(g, files, n);
        pst_gatherer_free(g);
    }
    pst_free(files);
    pst_free(g);
    return s;
}
