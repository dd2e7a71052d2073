#include "snapshot/load_entries.h"

#include "elements/collections.h"
#include "sst/record.h"
#include "sst/sst_reader.h"

enum { RUN = 64 };

typedef struct run {
    const pst_sst_view *v;
    const pst_sst_values *elements;
    const pst_sst_values *values;
    const pst_tree_shape *shape;
    pst_type key_type; /* as the file has it */
    pst_cell cells[RUN];
    pst_tree_entry entries[RUN];
} run;

/* The k-th entry, from row `row` of the view and value `at`; 0 where a record of its own is needed
 * to say what it is. */
static int take_entry(run *x, uint32_t k, uint32_t row, uint32_t at) {
    const int32_t *offsets = &x->elements->offsets[row];
    pst_bytes element = {x->elements->values + offsets[0], (uint32_t)(offsets[1] - offsets[0])};
    const uint8_t *key = element.data + PST_ELEMENT_ID;
    pst_tree_entry *e = &x->entries[k];
    pst_cell *cell = &x->cells[k];
    if (!pst_sst_has_value(x->values, at) || !pst_map_key_is_sound(x->key_type, element))
        return 0;
    e->time = 0;
    e->is_null = 0;
    e->key_bytes = (pst_bytes){key, element.size - PST_ELEMENT_ID};
    if (!x->shape->key_is_ref) {
        e->key[0] = pst_get_big64(key);
        e->key[1] = x->shape->key_words == 2 ? pst_get_big64(key + 8) : 0;
    }
    if (x->values->shape == PST_SHAPE_WORD64) {
        e->value = pst_sst_words(x->values) + at;
        return 1;
    }
    pst_sst_value(x->values, at, cell);
    e->value = cell->word;
    e->value_bytes = cell->bytes;
    return !x->shape->value_is_ref || cell->bytes.size <= PST_MAX_BYTES;
}

/* Whether entries of the map are a key and a value that need no room of their own, and the record
 * is one of them. */
static int is_plain(const pst_table *t, const pst_record *record, int32_t column) {
    return record->op == PST_PUT && t->lay.fields[column].kind == PST_MAP &&
           t->lay.fields[column].type != PST_FIXED && !t->collections[column].map.timed &&
           !(record->changed & (record->changed - 1));
}

pst_status pst_load_entries(pst_table *t, pst_sst_reader *r, const pst_record *record,
                            int32_t column, uint32_t slot, uint32_t more, uint32_t *taken) {
    run x;
    *taken = 0;
    if (!is_plain(t, record, column))
        return PST_OK;
    x.v = pst_sst_reader_ahead(r).view;
    int32_t n_keys = x.v->schema->n_keys, state = __builtin_ctzll(record->changed);
    uint32_t row = x.v->row, n = 0;
    const uint8_t *kinds = x.v->row_kinds;
    x.elements = &x.v->columns[n_keys - 1];
    x.values = &x.v->columns[n_keys + state];
    x.shape = &t->collections[column].map;
    x.key_type = (pst_type)x.v->schema->states[state].map_key;
    for (; n < more && n < RUN && (!kinds || kinds[row + n] == kinds[row - 1]); n++)
        if (!take_entry(&x, n, row + n, x.values->next + n))
            break;
    if (!n)
        return PST_OK;
    pst_status s = pst_row_map_append_run(t, slot, column, x.entries, n, more - n, taken);
    pst_sst_reader_pass(r, *taken);
    return s;
}
