#include "schema.h"

#include <string.h>

#include "mem.h"
#include "xxh64.h"

uint32_t pst_type_width(pst_type type) {
    switch (type) {
    case PST_BOOL:
    case PST_INT8:
        return 1;
    case PST_INT16:
        return 2;
    case PST_INT32:
    case PST_FLOAT32:
    case PST_DATE32:
        return 4;
    case PST_INT64:
    case PST_FLOAT64:
    case PST_TIMESTAMP:
        return 8;
    case PST_DECIMAL:
        return 16;
    case PST_STRING:
    case PST_BINARY:
    case PST_OBJECT:
        return 0;
    }
    return 0;
}

static pst_status check_columns(const pst_column *c, int32_t n, int is_key) {
    for (int32_t i = 0; i < n; i++) {
        if (!c[i].name || c[i].type < PST_BOOL || c[i].type > PST_OBJECT)
            return PST_INVALID;
        if (is_key && c[i].type == PST_OBJECT)
            return PST_INVALID;
        if (c[i].type == PST_DECIMAL && (c[i].precision < 1 || c[i].precision > 38))
            return PST_INVALID;
    }
    return PST_OK;
}

pst_status pst_schema_check(const pst_schema *s) {
    if (s->n_keys < 1 || s->n_keys > PST_MAX_KEYS)
        return PST_INVALID;
    if (s->n_states < 0 || s->n_states > PST_MAX_STATES)
        return PST_INVALID;
    pst_status st = check_columns(s->keys, s->n_keys, 1);
    return st ? st : check_columns(s->states, s->n_states, 0);
}

pst_status pst_schema_copy(const pst_schema *from, pst_schema *to) {
    size_t n = (size_t)(from->n_keys + from->n_states), names = 0;
    for (size_t i = 0; i < n; i++) {
        const pst_column *c =
            (int32_t)i < from->n_keys ? &from->keys[i] : &from->states[(int32_t)i - from->n_keys];
        names += strlen(c->name) + 1;
    }
    pst_column *columns = pst_malloc(n * sizeof *columns + names);
    if (!columns)
        return PST_NO_MEMORY;
    char *text = (char *)(columns + n);
    for (size_t i = 0; i < n; i++) {
        const pst_column *c =
            (int32_t)i < from->n_keys ? &from->keys[i] : &from->states[(int32_t)i - from->n_keys];
        size_t size = strlen(c->name) + 1;
        columns[i] = *c;
        columns[i].name = memcpy(text, c->name, size);
        text += size;
    }
    *to = (pst_schema){from->n_keys, from->n_states, columns, columns + from->n_keys};
    return PST_OK;
}

void pst_schema_clear(pst_schema *schema) {
    pst_free((void *)(uintptr_t)schema->keys);
    *schema = (pst_schema){0, 0, NULL, NULL};
}

uint64_t pst_schema_fingerprint(const pst_schema *s) {
    uint64_t h = pst_xxh64_long(s->n_keys, 0);
    for (int32_t i = 0; i < s->n_keys + s->n_states; i++) {
        const pst_column *c = i < s->n_keys ? &s->keys[i] : &s->states[i - s->n_keys];
        h = pst_xxh64(c->name, strlen(c->name) + 1, h);
        h = pst_xxh64_long((int64_t)c->type << 16 | c->precision << 8 | c->scale, h);
        h = pst_xxh64_long(c->has_default, h);
        h = pst_xxh64(c->default_word, sizeof c->default_word, h);
    }
    return h;
}
