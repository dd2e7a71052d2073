#include "fetch/below.h"

#include <string.h>

#include "fetch/entries.h"
#include "key/schema.h"
#include "stack/due.h"

void pst_below_drop(pst_table *t) {
    for (int d = 0; d < 2; d++) {
        pst_due_close(t->due[d]);
        t->due[d] = NULL;
    }
    pst_entries_forget(t);
    pst_stack_close(t->stack);
    t->stack = NULL;
}

static int same_columns(const pst_column *a, const pst_column *b, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (!pst_column_same_type(&a[i], &b[i]) || strcmp(a[i].name, b[i].name) != 0)
            return 0;
    return 1;
}

/* PST_INVALID where files of the table would be others. */
static pst_status check(const pst_table *t, const pst_stack *stack) {
    pst_schema *own = NULL;
    pst_status s = pst_file_schema_create(&t->schema, &own);
    if (s)
        return s;
    const pst_schema *have = &stack->schema;
    int fits = stack->max_parallelism == t->max_parallelism && have->n_keys == own->n_keys &&
               have->n_states == own->n_states &&
               pst_schema_hashed(have) == pst_schema_hashed(own) &&
               same_columns(have->keys, own->keys, own->n_keys) &&
               same_columns(have->states, own->states, own->n_states);
    pst_file_schema_destroy(own);
    return fits ? PST_OK : PST_INVALID;
}

pst_status pst_table_set_stack(pst_table *t, pst_stack *stack, const pst_lineage *lineage) {
    if (!t->attached || (stack && !lineage))
        return PST_INVALID;
    if (stack && memcmp(lineage, &pst_meta_of(t, t->h->sealed)->lineage, sizeof *lineage))
        return PST_STALE;
    pst_status s = stack ? check(t, stack) : PST_OK;
    if (s)
        return s;
    pst_stack_retain(stack); /* it may be the one that is set */
    pst_below_drop(t);
    t->stack = stack;
    if (stack)
        t->stack_lineage = *lineage;
    return PST_OK;
}
