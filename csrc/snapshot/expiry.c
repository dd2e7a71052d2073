#include "snapshot/expiry.h"

#include <string.h>

#include "base/mem.h"
#include "key/schema.h"

pst_status pst_expirer_init(pst_expirer *x, const pst_schema *schema, const pst_expiry *expiry) {
    *x = (pst_expirer){.schema = schema, .kept = -1, .has_element = pst_schema_has_element(schema)};
    if (!expiry)
        return PST_OK;
    x->ttl = expiry->ttl;
    x->clock = expiry->clock;
    for (int32_t i = 0; i < schema->n_states; i++) {
        int64_t duration = expiry->ttl[i].duration_ms;
        if (!duration)
            continue;
        if (duration < 0 || schema->states[i].kind > PST_MAP || i + 1 == schema->n_states ||
            schema->states[i + 1].kind != PST_TIME)
            return PST_INVALID;
        x->columns |= UINT64_C(1) << i;
    }
    return PST_OK;
}

void pst_expirer_free(pst_expirer *x) {
    pst_free(x->kept_bytes.data);
    pst_free(x->scratch.data);
}

int64_t pst_expirer_time(const pst_record *r, int32_t column) {
    int has = (int)((r->changed & r->present) >> (column + 1) & 1);
    return has ? (int64_t)r->cells[column + 1].word[0] : PST_NO_TIME;
}

uint64_t pst_expirer_row(const pst_expirer *x, const pst_record *r) {
    uint64_t hidden = 0;
    for (uint64_t left = x->columns & r->changed & r->present; left; left &= left - 1) {
        int32_t i = __builtin_ctzll(left);
        if (x->schema->states[i].kind == PST_VALUE &&
            pst_expirer_hides(x, i, pst_expirer_time(r, i)))
            hidden |= UINT64_C(3) << i;
    }
    return hidden;
}

/* ---- runs of items --------------------------------------------------------------------------- */

pst_status pst_expirer_run(const pst_expirer *x, int32_t column, pst_bytes run, uint64_t skip,
                           int *hidden) {
    const pst_column *c = &x->schema->states[column];
    pst_type type = (pst_type)c->map_key;
    pst_list_shape shape = {(uint16_t)(type == PST_FIXED ? c->width : pst_type_width(type)), 0};
    pst_packed p;
    pst_item item;
    pst_status s = pst_packed_open(&p, &shape, run);
    *hidden = !s && p.timed;
    for (uint64_t i = 0; *hidden && (s = pst_packed_next(&p, &item)) == PST_OK; i++)
        *hidden = i < skip || pst_expirer_hides(x, column, item.time);
    return s == PST_NOT_FOUND ? PST_OK : s;
}

/* The key of the record's row, in `scratch` or in the record's memory. */
static pst_status row_key(pst_expirer *x, const pst_record *r, pst_key *key) {
    pst_schema rows = *x->schema;
    rows.n_keys--;
    *key = (pst_key){.hash = r->hash};
    x->scratch.size = 0;
    return pst_key_form(&rows, r->key, r->key_nulls & ((UINT32_C(1) << rows.n_keys) - 1),
                        &x->scratch, key);
}

static pst_status keep_row(pst_expirer *x, const pst_key *key, int32_t column) {
    pst_status s = pst_buffer_reserve(&x->kept_bytes, key->bytes.size);
    if (s)
        return s;
    x->kept = column;
    x->kept_row = *key;
    if (key->bytes.size)
        x->kept_row.bytes.data = memcpy(x->kept_bytes.data, key->bytes.data, key->bytes.size);
    return PST_OK;
}

static pst_status run_goes(pst_expirer *x, const pst_record *r, int32_t column, int *gone) {
    pst_key key;
    pst_status s = row_key(x, r, &key);
    if (s || (x->kept == column && pst_key_same_form(&x->kept_row, &key)))
        return s;
    s = pst_expirer_run(x, column, r->cells[column].bytes, 0, gone);
    return s || *gone ? s : keep_row(x, &key, column);
}

pst_status pst_expirer_element(pst_expirer *x, const pst_record *r, int *gone) {
    uint64_t own = x->columns & r->changed;
    *gone = 0;
    if (!own || r->op != PST_PUT)
        return PST_OK;
    /* Of a sound element the first column that it carries is its state's (record.h). */
    int32_t i = __builtin_ctzll(r->changed);
    if (!(own >> i & 1))
        return PST_OK;
    if (x->schema->states[i].kind == PST_LIST)
        return r->present >> i & 1 ? run_goes(x, r, i, gone) : PST_CORRUPT;
    *gone = pst_expirer_hides(x, i, pst_expirer_time(r, i));
    return PST_OK;
}
