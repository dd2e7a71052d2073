#include "sst/record.h"

#include <string.h>

#include "base/coding.h"
#include "key/hash.h"
#include "key/schema.h"

/* ---- schemas --------------------------------------------------------------------------------- */

/* A list's items in a file: their type stands where a map has that of its keys. */
static int has_items(const pst_column *c) {
    pst_column item = *c;
    item.kind = PST_VALUE;
    item.type = (pst_type)c->map_key;
    item.precision = c->map_precision;
    return c->type == PST_BINARY && !pst_column_check(&item);
}

static int is_file_column(const pst_column *c) {
    if (c->kind == PST_LIST)
        return has_items(c);
    return c->kind != PST_TIMERS || c->type == PST_BOOL;
}

/* Columns go by their names, elements by the ids made of them. */
static int is_distinct(const pst_record_rules *rules, int32_t i) {
    const pst_column *states = rules->schema->states;
    int element = (int)(rules->elements >> i & 1);
    for (int32_t k = 0; k < i; k++)
        if (!strcmp(states[k].name, states[i].name) ||
            (element && rules->elements >> k & 1 && rules->ids[k] == rules->ids[i]))
            return 0;
    return 1;
}

pst_status pst_record_rules_make(const pst_schema *schema, int null_entries,
                                 pst_record_rules *rules) {
    *rules = (pst_record_rules){.schema = schema, .has_element = pst_schema_has_element(schema)};
    for (int32_t i = 0; i < schema->n_states; i++) {
        const pst_column *c = &schema->states[i];
        uint64_t bit = UINT64_C(1) << i;
        if (!is_file_column(c))
            return PST_CORRUPT;
        if (c->kind == PST_VALUE || c->kind == PST_LIST || c->kind == PST_TIMER ||
            (c->kind == PST_TIME && c[-1].kind == PST_VALUE))
            rules->in_rows |= bit;
        if (c->kind == PST_LIST)
            rules->lists |= bit;
        if (c->kind == PST_LIST || c->kind == PST_MAP || c->kind == PST_TIMERS) {
            rules->ids[i] = c->kind == PST_TIMERS ? PST_TIMERS_ID : pst_collection_id(c->name);
            rules->elements |= bit;
        }
        if (c->kind == PST_MAP && null_entries)
            rules->nullable |= bit;
        if (!is_distinct(rules, i))
            return PST_CORRUPT;
    }
    return rules->elements && !rules->has_element ? PST_CORRUPT : PST_OK;
}

/* ---- records --------------------------------------------------------------------------------- */

/* As pst_cell has a value of that type. */
static int is_canonical(pst_type type, uint64_t word) {
    uint32_t width = pst_type_width(type);
    if (type == PST_BOOL)
        return word <= 1;
    if (type == PST_FLOAT32)
        return word <= UINT32_MAX && pst_canonical_word(type, word) == word;
    int64_t value = (int64_t)word;
    if (width == 1)
        return value == (int8_t)value;
    if (width == 2)
        return value == (int16_t)value;
    if (width == 4)
        return value == (int32_t)value;
    return pst_canonical_word(type, word) == word;
}

int pst_map_key_is_sound(pst_type type, pst_bytes element) {
    uint32_t size = element.size - PST_ELEMENT_ID;
    if (!pst_type_width(type))
        return 1;
    if (type == PST_DECIMAL)
        return size == 16;
    return size == 8 && is_canonical(type, pst_get_big64(element.data + PST_ELEMENT_ID));
}

static int is_element_of(const pst_column *c, pst_bytes element) {
    if (c->kind == PST_LIST)
        return element.size == PST_ELEMENT_RUN;
    if (c->kind == PST_TIMERS)
        return element.size == PST_ELEMENT_TIMER && element.data[PST_ELEMENT_ID] <= 1;
    return pst_map_key_is_sound((pst_type)c->map_key, element);
}

static int element_is_sound(const pst_record_rules *rules, const pst_record *r) {
    const pst_schema *s = rules->schema;
    pst_bytes element = r->key[s->n_keys - 1].bytes;
    if (element.size < PST_ELEMENT_ID)
        return 0;
    if (r->op == PST_DELETE)
        return 1;
    if (!r->changed)
        return s->n_states == 0; /* of states that a merge has dropped */
    int i = __builtin_ctzll(r->changed);
    uint64_t bit = UINT64_C(1) << i, beside = r->changed & ~bit;
    if (!(rules->elements & (r->present | rules->nullable) & bit) ||
        rules->ids[i] != (uint32_t)pst_get_big(element.data, PST_ELEMENT_ID))
        return 0;
    if (beside && (beside != bit << 1 || s->states[i + 1].kind != PST_TIME))
        return 0;
    return is_element_of(&s->states[i], element);
}

static int row_is_sound(const pst_record_rules *rules, const pst_record *r) {
    if (r->present & ~rules->in_rows)
        return 0;
    for (uint64_t left = r->present & rules->lists; left; left &= left - 1)
        if (r->cells[__builtin_ctzll(left)].bytes.size != sizeof(uint64_t))
            return 0;
    return 1;
}

int pst_record_is_sound(const pst_record_rules *rules, const pst_record *r) {
    if (rules->has_element && !(r->key_nulls >> (rules->schema->n_keys - 1) & 1))
        return element_is_sound(rules, r);
    return row_is_sound(rules, r);
}

/* ---- elements that are not taken ------------------------------------------------------------- */

void pst_dropped_note(pst_dropped *d, const pst_schema *from, const int32_t *columns, int32_t n) {
    d->n = 0;
    for (int32_t i = 0; columns && i < from->n_states; i++) {
        uint8_t kind = from->states[i].kind;
        if (i < n && columns[i] >= 0)
            continue;
        if (kind == PST_TIMERS)
            d->ids[d->n++] = PST_TIMERS_ID;
        else if (kind == PST_LIST || kind == PST_MAP)
            d->ids[d->n++] = pst_collection_id(from->states[i].name);
    }
}

int pst_dropped_has(const pst_dropped *d, pst_bytes element) {
    if (!d->n || element.size < PST_ELEMENT_ID)
        return 0;
    uint32_t id = (uint32_t)pst_get_big(element.data, PST_ELEMENT_ID);
    int32_t i = 0;
    while (i < d->n && d->ids[i] != id)
        i++;
    return i < d->n;
}
