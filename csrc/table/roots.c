#include "table/roots.h"

#include "base/mem.h"
#include "key/schema.h"

static uint8_t value_words(const pst_column *c) {
    if (c->type == PST_FIXED)
        return (uint8_t)(c->width / 8);
    uint32_t width = pst_type_width(c->type);
    return width && width <= 8 ? 1 : 2;
}

static int has_bytes(uint8_t type) {
    return type != PST_FIXED && !pst_type_width((pst_type)type);
}

pst_status pst_collections_create(const pst_schema *schema, pst_collection **collections) {
    pst_collection *own = pst_calloc((size_t)schema->n_states + 1, sizeof *own);
    if (!own)
        return PST_NO_MEMORY;
    for (int32_t i = 0; i < schema->n_states; i++) {
        const pst_column *c = &schema->states[i];
        uint8_t timed = i + 1 < schema->n_states && c[1].kind == PST_TIME;
        own[i].id = pst_collection_id(c->name);
        if (c->kind == PST_LIST) {
            uint32_t width = c->type == PST_FIXED ? c->width : pst_type_width(c->type);
            own[i].list = (pst_list_shape){(uint16_t)width, timed};
        } else if (c->kind == PST_MAP) {
            int words = !has_bytes(c->map_key) && c->map_key != PST_DECIMAL;
            own[i].map =
                (pst_tree_shape){words ? 1 : 2, (uint8_t)has_bytes(c->map_key), value_words(c),
                                 (uint8_t)has_bytes((uint8_t)c->type), timed};
        }
    }
    for (int32_t i = 0; i < schema->n_states; i++) {
        int32_t k = i;
        for (; k > 0 && own[own[k - 1].nth].id > own[i].id; k--)
            own[k].nth = own[k - 1].nth;
        own[k].nth = i;
    }
    *collections = own;
    return PST_OK;
}

int32_t pst_collections_clash(const pst_schema *schema) {
    uint32_t ids[PST_MAX_STATES];
    int n = 0;
    for (int32_t i = 0; i < schema->n_states; i++) {
        const pst_column *c = &schema->states[i];
        if (c->kind != PST_LIST && c->kind != PST_MAP)
            continue;
        ids[n] = pst_collection_id(c->name);
        for (int k = 0; k < n; k++)
            if (ids[k] == ids[n])
                return i;
        if (ids[n++] == PST_TIMERS_ID)
            return i;
    }
    return -1;
}

pst_status pst_row_drop_elements(pst_table *t, const uint64_t *row, int32_t i) {
    if (t->lay.fields[i].kind == PST_LIST) {
        pst_list l = pst_row_list(t, row, i);
        return pst_list_clear(t, &l);
    }
    pst_tree_root root = pst_row_map(t, row, i);
    return pst_tree_clear(t, &t->collections[i].map, &root);
}
