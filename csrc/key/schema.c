#include "key/schema.h"

#include <string.h>

#include "base/mem.h"
#include "key/xxh64.h"

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
    case PST_FIXED:
    case PST_NESTED:
        return 0;
    }
    return 0;
}

static int is_type(uint8_t type, uint8_t precision) {
    if (type < PST_BOOL || type > PST_NESTED)
        return 0;
    return type != PST_DECIMAL || (precision >= 1 && precision <= 38);
}

static pst_status check_key(const pst_column *c) {
    if (!c->name || c->kind != PST_VALUE || c->type > PST_BINARY)
        return PST_INVALID;
    return is_type((uint8_t)c->type, c->precision) ? PST_OK : PST_INVALID;
}

pst_status pst_column_check(const pst_column *c) {
    if (!c->name || !is_type((uint8_t)c->type, c->precision))
        return PST_INVALID;
    if (c->type == PST_FIXED && (!c->width || c->width % 8 || c->width > PST_MAX_FIXED))
        return PST_INVALID;
    return PST_OK;
}

static pst_status check_state(const pst_column *c, const pst_column *before) {
    if (pst_column_check(c))
        return PST_INVALID;
    switch ((pst_kind)c->kind) {
    case PST_VALUE:
    case PST_LIST:
        return PST_OK;
    case PST_MAP:
        return c->map_key <= PST_BINARY && is_type(c->map_key, c->map_precision) ? PST_OK
                                                                                 : PST_INVALID;
    case PST_TIME:
        return before && before->kind <= PST_MAP && c->type == PST_INT64 ? PST_OK : PST_INVALID;
    case PST_TIMERS:
        return PST_OK;
    case PST_TIMER:
        return before && before->kind == PST_TIMERS && c->type == PST_INT64 ? PST_OK : PST_INVALID;
    }
    return PST_INVALID;
}

static int same_decimal(uint8_t type, uint8_t a_precision, uint8_t a_scale, uint8_t b_precision,
                        uint8_t b_scale) {
    return type != PST_DECIMAL || (a_precision == b_precision && a_scale == b_scale);
}

int pst_column_same_type(const pst_column *a, const pst_column *b) {
    return a->type == b->type && a->kind == b->kind && a->width == b->width &&
           a->map_key == b->map_key &&
           same_decimal((uint8_t)a->type, a->precision, a->scale, b->precision, b->scale) &&
           same_decimal(a->map_key, a->map_precision, a->map_scale, b->map_precision, b->map_scale);
}

pst_status pst_schema_check(const pst_schema *s) {
    if (s->n_keys < 1 || s->n_keys > PST_MAX_KEYS)
        return PST_INVALID;
    if (s->n_states < 0 || s->n_states > PST_MAX_STATES)
        return PST_INVALID;
    if (s->n_hashed < 0 || s->n_hashed > s->n_keys)
        return PST_INVALID;
    pst_status st = PST_OK;
    for (int32_t i = 0; !st && i < s->n_keys; i++)
        st = check_key(&s->keys[i]);
    int timers = 0;
    for (int32_t i = 0; !st && i < s->n_states; i++) {
        st = check_state(&s->states[i], i ? &s->states[i - 1] : NULL);
        timers += s->states[i].kind == PST_TIMERS;
    }
    return timers > 1 ? PST_INVALID : st;
}

static const pst_column *column_at(const pst_schema *s, int32_t i) {
    return i < s->n_keys ? &s->keys[i] : &s->states[i - s->n_keys];
}

int pst_schema_is_plain(const pst_schema *s) {
    for (int32_t i = 0; i < s->n_keys + s->n_states; i++) {
        const pst_column *c = column_at(s, i);
        if (c->kind != PST_VALUE || c->type > PST_OBJECT || c->ddl)
            return 0;
    }
    return pst_schema_hashed(s) == s->n_keys;
}

static char *keep_text(char **room, const char *text) {
    size_t size = strlen(text) + 1;
    char *kept = memcpy(*room, text, size);
    *room += size;
    return kept;
}

pst_status pst_schema_copy(const pst_schema *from, pst_schema *to) {
    int32_t n = from->n_keys + from->n_states;
    size_t text = 0;
    for (int32_t i = 0; i < n; i++) {
        const pst_column *c = column_at(from, i);
        text += strlen(c->name) + 1 + (c->ddl ? strlen(c->ddl) + 1 : 0);
    }
    pst_column *columns = pst_malloc((size_t)n * sizeof *columns + text);
    if (!columns)
        return PST_NO_MEMORY;
    char *room = (char *)(columns + n);
    for (int32_t i = 0; i < n; i++) {
        const pst_column *c = column_at(from, i);
        columns[i] = *c;
        columns[i].name = keep_text(&room, c->name);
        if (c->ddl)
            columns[i].ddl = keep_text(&room, c->ddl);
    }
    *to = *from;
    to->keys = columns;
    to->states = columns + from->n_keys;
    return PST_OK;
}

void pst_schema_clear(pst_schema *schema) {
    pst_free((void *)(uintptr_t)schema->keys);
    *schema = (pst_schema){0};
}

uint64_t pst_schema_fingerprint(const pst_schema *s) {
    uint64_t h = pst_xxh64_long((int64_t)pst_schema_hashed(s) << 32 | s->n_keys, 0);
    for (int32_t i = 0; i < s->n_keys + s->n_states; i++) {
        const pst_column *c = column_at(s, i);
        const char *ddl = c->ddl ? c->ddl : "";
        h = pst_xxh64(c->name, strlen(c->name) + 1, h);
        h = pst_xxh64(ddl, strlen(ddl) + 1, h);
        h = pst_xxh64_long((int64_t)c->type << 16 | c->precision << 8 | c->scale, h);
        h = pst_xxh64_long((int64_t)c->kind << 48 | (int64_t)c->map_key << 40 |
                               (int64_t)c->map_precision << 32 | (int64_t)c->map_scale << 24 |
                               c->width,
                           h);
        h = pst_xxh64_long(c->has_default, h);
        h = pst_xxh64(c->default_word, sizeof c->default_word, h);
    }
    return h;
}

uint32_t pst_collection_id(const char *name) {
    return (uint32_t)pst_xxh64(name, strlen(name), 0);
}

int pst_schema_has_timer(const pst_schema *s) {
    int32_t i = s->n_states - 1;
    while (i >= 0 && s->states[i].kind != PST_TIMER)
        i--;
    return i >= 0;
}

int pst_schema_has_element(const pst_schema *s) {
    const pst_column *last = &s->keys[s->n_keys - 1];
    return pst_schema_hashed(s) < s->n_keys && last->type == PST_BINARY &&
           !strcmp(last->name, PST_ELEMENT_COLUMN);
}

static int needs_element(const pst_schema *s) {
    for (int32_t i = 0; i < s->n_states; i++) {
        uint8_t kind = s->states[i].kind;
        if (kind == PST_LIST || kind == PST_MAP || kind == PST_TIMERS)
            return 1;
    }
    return 0;
}

/* As a column of files: a list's runs of items are bytes, of timers there is only the fact. */
static pst_column in_files(const pst_column *c) {
    pst_column own = *c;
    own.has_default = 0;
    own.default_word[0] = own.default_word[1] = 0;
    if (c->kind == PST_LIST) {
        own.type = PST_BINARY;
        own.map_key = (uint8_t)c->type;
        own.map_precision = c->precision;
        own.map_scale = c->scale;
        own.precision = own.scale = 0;
    } else if (c->kind == PST_TIMERS) {
        own.type = PST_BOOL;
    }
    return own;
}

pst_status pst_schema_in_files(const pst_schema *schema, int element, pst_schema **file) {
    pst_column keys[PST_MAX_KEYS], states[PST_MAX_STATES];
    pst_schema view = *schema;
    element |= needs_element(schema);
    if (schema->n_keys >= PST_MAX_KEYS && element)
        return PST_TOO_LARGE;
    memcpy(keys, schema->keys, (size_t)schema->n_keys * sizeof *keys);
    for (int32_t i = 0; i < schema->n_states; i++)
        states[i] = in_files(&schema->states[i]);
    view.keys = keys;
    view.states = states;
    if (element) {
        view.n_hashed = pst_schema_hashed(schema);
        keys[view.n_keys++] = (pst_column){.name = PST_ELEMENT_COLUMN, .type = PST_BINARY};
    }
    pst_schema *own = pst_malloc(sizeof *own);
    pst_status s = own ? pst_schema_copy(&view, own) : PST_NO_MEMORY;
    if (s) {
        pst_free(own);
        return s;
    }
    *file = own;
    return PST_OK;
}

pst_status pst_file_schema_create(const pst_schema *schema, pst_schema **file) {
    return pst_schema_in_files(schema, 0, file);
}

void pst_file_schema_destroy(pst_schema *file) {
    if (file)
        pst_schema_clear(file);
    pst_free(file);
}
