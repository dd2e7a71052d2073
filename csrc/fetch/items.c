#include "fetch/items.h"

#include "base/coding.h"
#include "base/mem.h"
#include "key/key.h"
#include "key/schema.h"
#include "stack/walk.h"
#include "table/ttl.h"

struct pst_items {
    pst_table *t;
    int32_t column;
    pst_list_shape shape;
    pst_list_cursor here;
    uint64_t end;
    uint64_t next;  /* number of the next item */
    uint64_t below; /* those before it lie in files */
    pst_stack *stack;
    int32_t first; /* file from which on they do */
    int32_t file;
    int32_t key_group;
    uint32_t nulls;
    uint64_t hash;
    int walks; /* through `file` */
    int runs;  /* through a run of it */
    pst_cell key[PST_MAX_KEYS];
    pst_walk walk;
    pst_packed packed;
    uint64_t number; /* of its next item */
    pst_buffer aligned;
    pst_record record;
};

/* Has the table say where in which file something failed. */
static pst_status note(pst_items *x, pst_status s) {
    if ((s == PST_IO || s == PST_CORRUPT) && x->stack && x->stack->detail.offset >= 0)
        x->t->detail = x->stack->detail;
    return s;
}

static void end_walk(pst_items *x) {
    if (x->walks)
        pst_walk_close(&x->walk);
    x->walks = x->runs = 0;
}

void pst_items_close(pst_items *x) {
    if (!x)
        return;
    end_walk(x);
    pst_buffer_free(&x->aligned);
    pst_stack_close(x->stack);
    pst_free(x);
}

uint64_t pst_items_left(const pst_items *x) {
    return x->end - x->next;
}

/* ---- opening ----------------------------------------------------------------------------------- */

/* The row's key, as files have it. */
static pst_status key_of(pst_items *x, const uint64_t *row) {
    const pst_table *t = x->t;
    const uint64_t *k = row + t->lay.key_offset / 8;
    pst_bytes bytes = {NULL, 0};
    int null = (row[0] & PST_FLAG_NULL_KEY) != 0;
    if (t->lay.key_kind == PST_KEY_BYTES)
        bytes = (pst_bytes){pst_ref_data(t->heap, k + 1), pst_ref_size(k + 1)};
    x->hash = pst_key_row_hash(&t->schema, k[0], bytes, null, t->m->ties != 0);
    x->key_group = pst_group_of(t, x->hash);
    return pst_key_decode(&t->schema, k[0], bytes, null, x->key, &x->nulls);
}

static pst_status open_walk(pst_items *x, int32_t file) {
    pst_status s = pst_walk_open(&x->walk, x->stack, file, x->key_group, x->hash, x->key, x->nulls);
    x->walks = s == PST_OK;
    return s;
}

/* Does the file say that the list has nothing that is older? *s: what reading says. */
static int begins_list(pst_items *x, pst_status *s) {
    int32_t element = x->t->schema.n_keys;
    *s = pst_walk_seek(&x->walk, NULL);
    if (!*s)
        *s = pst_walk_next(&x->walk, &x->record);
    if (*s) {
        *s = *s == PST_NOT_FOUND ? PST_OK : *s;
        return 0;
    }
    const pst_record *r = &x->record;
    uint64_t bit = UINT64_C(1) << x->column;
    return r->key_nulls >> element & 1 && (r->op == PST_DELETE || (r->changed & ~r->present & bit));
}

/* The newest file that has all there is of the list in older ones, or 0. */
static pst_status find_first(pst_items *x) {
    pst_status s = PST_OK;
    for (x->first = x->stack->n - 1; x->first > 0; x->first--) {
        s = open_walk(x, x->first);
        if (s == PST_NOT_FOUND) {
            s = PST_OK;
            continue;
        }
        if (s)
            break;
        int found = !x->stack->files[x->first]->filtered || begins_list(x, &s);
        end_walk(x);
        if (s || found)
            break;
    }
    return s;
}

static pst_status open_list(pst_items *x, pst_table *t, const uint64_t *row) {
    pst_list l = pst_row_list(t, row, x->column);
    x->end = l.end;
    x->next = pst_list_start(t->heap, pst_heap_bytes(t), &l);
    if (!pst_list_is_below(t, &l, &x->below))
        x->below = x->next;
    pst_list_seek(&x->here, t->heap, pst_heap_bytes(t), &x->shape, &l, x->below);
    if (x->next == x->below)
        return PST_OK;
    if (!pst_has_current_stack(t))
        return PST_NO_STACK;
    x->stack = pst_stack_retain(t->stack);
    x->stack->detail = (pst_detail){-1, -1, -1, -1, -1};
    pst_status s = key_of(x, row);
    if (!s)
        s = find_first(x);
    x->file = x->first;
    return s;
}

pst_status pst_items_open(pst_table *t, uint32_t slot, int32_t column, pst_items **items) {
    pst_items *x = pst_calloc(1, sizeof *x);
    if (!x)
        return PST_NO_MEMORY;
    x->t = t;
    x->column = column;
    x->shape = t->collections[column].list;
    pst_status s = note(x, open_list(x, t, pst_row(t, slot)));
    if (s) {
        pst_items_close(x);
        return s;
    }
    *items = x;
    return PST_OK;
}

/* ---- files ------------------------------------------------------------------------------------- */

static int is_run(const pst_items *x) {
    const pst_record *r = &x->record;
    if (r->key_nulls >> x->t->schema.n_keys & 1)
        return 0;
    pst_bytes e = r->key[x->t->schema.n_keys].bytes;
    return r->op == PST_PUT && e.size == PST_ELEMENT_ID + 8 &&
           pst_get_big(e.data, PST_ELEMENT_ID) == x->t->collections[x->column].id &&
           r->present >> x->column & 1;
}

/* The run of the open file that may have the next item, or the first one behind it. PST_NOT_FOUND:
 * there is none. */
static pst_status first_run(pst_items *x) {
    uint8_t bytes[PST_ELEMENT_ID + 8];
    pst_bytes element = {bytes, sizeof bytes};
    pst_put_big(bytes, x->t->collections[x->column].id, PST_ELEMENT_ID);
    pst_put_big(bytes + PST_ELEMENT_ID, x->next + 1, 8);
    pst_status s = pst_walk_seek_last(&x->walk, &element);
    if (!s)
        s = pst_walk_next(&x->walk, &x->record);
    if (s && s != PST_NOT_FOUND)
        return s;
    if (!s && is_run(x))
        return PST_OK;
    element.size = PST_ELEMENT_ID; /* before all runs */
    s = pst_walk_seek(&x->walk, &element);
    if (!s)
        s = pst_walk_next(&x->walk, &x->record);
    return s || is_run(x) ? s : PST_NOT_FOUND;
}

/* Passes the items of a run that were there already. */
static pst_status open_run(pst_items *x) {
    pst_item item;
    pst_status s = pst_packed_open(&x->packed, &x->shape, x->record.cells[x->column].bytes);
    x->number = pst_get_big(x->record.key[x->t->schema.n_keys].bytes.data + PST_ELEMENT_ID, 8);
    if (!s && x->number > x->next) {
        if (!x->shape.timed)
            return PST_CORRUPT;
        x->next = x->number < x->below ? x->number : x->below;
    }
    for (; !s && x->number < x->next; x->number++)
        s = pst_packed_next(&x->packed, &item);
    x->runs = s == PST_OK && x->packed.p < x->packed.end;
    return s == PST_NOT_FOUND ? PST_OK : s;
}

/* Goes on to a run with the next item, or to x->below. */
static pst_status next_run(pst_items *x) {
    x->runs = 0;
    while (!x->runs && x->next < x->below) {
        pst_status s;
        if (x->file == x->stack->n) {
            if (!x->shape.timed)
                return PST_CORRUPT;
            x->next = x->below;
            break;
        }
        if (x->walks) {
            s = pst_walk_next(&x->walk, &x->record);
            if (!s && !is_run(x))
                s = PST_NOT_FOUND;
        } else {
            s = open_walk(x, x->file);
            if (!s)
                s = first_run(x);
        }
        if (s == PST_NOT_FOUND) {
            end_walk(x);
            x->file++;
            continue;
        }
        if (!s)
            s = open_run(x);
        if (s)
            return s;
    }
    return PST_OK;
}

/* The next item that lies in files. PST_NOT_FOUND: there are no more. */
static pst_status next_below(pst_items *x, pst_item *item) {
    while (x->next < x->below) {
        pst_status s = x->runs ? pst_packed_next(&x->packed, item) : PST_NOT_FOUND;
        if (!s) {
            x->next++;
            if (!x->packed.timed)
                item->time = x->shape.timed ? PST_NO_TIME : 0;
            return PST_OK;
        }
        if (s == PST_NOT_FOUND)
            s = next_run(x);
        if (s)
            return s;
    }
    end_walk(x);
    return PST_NOT_FOUND;
}

/* ---- reading ----------------------------------------------------------------------------------- */

pst_status pst_items_next(pst_items *x, pst_item *item) {
    pst_status s = next_below(x, item);
    if (s != PST_NOT_FOUND)
        return note(x, s);
    s = pst_list_next(&x->here, item, NULL);
    x->next += s == PST_OK;
    return s;
}

pst_status pst_items_next_run(pst_items *x, pst_list_run *run) {
    pst_item item;
    pst_status s = note(x, next_below(x, &item));
    if (s == PST_NOT_FOUND) {
        s = pst_list_next_run(&x->here, run);
        x->next += s ? 0 : run->count;
        return s;
    }
    run->seq = x->next - 1;
    run->times = NULL;
    run->count = 0;
    for (x->aligned.size = 0; !s; s = pst_packed_next(&x->packed, &item)) {
        s = pst_buffer_reserve(&x->aligned, x->aligned.size + x->shape.width);
        if (s)
            return s;
        memcpy(x->aligned.data + x->aligned.size, item.data, x->shape.width);
        x->aligned.size += x->shape.width;
        x->next = run->seq + ++run->count;
        if (x->next == x->below)
            break;
    }
    run->data = x->aligned.data;
    x->runs = s == PST_OK;
    return s == PST_NOT_FOUND ? PST_OK : note(x, s);
}

pst_status pst_items_skip(pst_items *x, uint64_t items) {
    uint64_t left = x->end - x->next, to = x->next + (items < left ? items : left);
    if (x->next < x->below) {
        end_walk(x);
        x->file = x->first;
        x->next = to < x->below ? to : x->below;
    }
    if (to <= x->next)
        return PST_OK;
    pst_list list = x->here.list;
    x->next = to;
    pst_list_seek(&x->here, x->t->heap, pst_heap_bytes(x->t), &x->shape, &list, to);
    return x->here.status == PST_NOT_FOUND ? PST_OK : x->here.status;
}

static pst_status count_visible(pst_items *x, uint64_t *count) {
    pst_item item;
    pst_status s;
    while ((s = pst_items_next(x, &item)) == PST_OK)
        *count += !pst_ttl_hides(x->t, x->column, item.time);
    return s == PST_NOT_FOUND ? PST_OK : s;
}

pst_status pst_items_count(pst_table *t, uint32_t slot, int32_t column, uint64_t *count) {
    pst_list l = pst_row_list(t, pst_row(t, slot), column);
    *count = pst_list_count(t->heap, pst_heap_bytes(t), &l);
    if (!pst_ttl_is_set(t, column))
        return PST_OK;
    pst_items *x;
    *count = 0;
    pst_status s = pst_items_open(t, slot, column, &x);
    if (s)
        return s;
    s = count_visible(x, count);
    pst_items_close(x);
    return s;
}
