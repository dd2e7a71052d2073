#include "fetch/entries.h"

#include <string.h>

#include "base/coding.h"
#include "base/mem.h"
#include "elements/collections.h"
#include "key/key.h"
#include "key/schema.h"
#include "stack/walk.h"
#include "table/ttl.h"

/* A file of the map, and where a pass stands in it. */
typedef struct source {
    pst_walk walk;
    pst_record record;
    uint64_t room[PST_TREE_MAX_VALUE_WORDS];
    pst_tree_entry entry; /* at which it stands; where the record deletes, one that is gone */
    int has;              /* it stands at one */
} source;

struct pst_entries {
    pst_table *t;
    int32_t column;
    uint32_t slot;
    pst_stack *stack;
    int32_t key_group;
    uint32_t nulls;
    uint64_t hash;
    uint64_t word; /* the key, as the row has it */
    uint8_t null;
    pst_buffer bytes;
    pst_cell key[PST_MAX_KEYS];
    int32_t n;        /* files, newest first, that may have something */
    source **sources; /* of these */
    pst_buffer element;
    pst_tree_cursor here;
    pst_tree_entry top; /* of the row's tree, if a pass stands at one */
    int has_top;
    int begun;
    pst_status failed; /* for good */
    int given;         /* the least key at which anything stands */
};

/* Has the table say where in which file something failed. */
static pst_status note(pst_entries *x, pst_status s) {
    if ((s == PST_IO || s == PST_CORRUPT) && x->stack && x->stack->detail.offset >= 0)
        x->t->detail = x->stack->detail;
    return s;
}

void pst_entries_close(pst_entries *x) {
    if (!x)
        return;
    for (int32_t i = 0; i < x->n; i++) {
        pst_walk_close(&x->sources[i]->walk);
        pst_free(x->sources[i]);
    }
    pst_free(x->sources);
    pst_buffer_free(&x->bytes);
    pst_buffer_free(&x->element);
    pst_stack_close(x->stack);
    pst_free(x);
}

/* ---- opening ----------------------------------------------------------------------------------- */

static pst_bytes key_bytes(const pst_table *t, const uint64_t *k) {
    if (t->lay.key_kind != PST_KEY_BYTES)
        return (pst_bytes){NULL, 0};
    return (pst_bytes){pst_ref_data(t->heap, k + 1), pst_ref_size(k + 1)};
}

/* Copies the row's key, and decodes it as files have it. */
static pst_status take_key(pst_entries *x, const uint64_t *row) {
    const pst_table *t = x->t;
    const uint64_t *k = row + t->lay.key_offset / 8;
    pst_bytes bytes = key_bytes(t, k);
    x->word = k[0];
    x->null = (row[0] & PST_FLAG_NULL_KEY) != 0;
    pst_status s = pst_buffer_reserve(&x->bytes, bytes.size);
    if (s)
        return s;
    if (bytes.size)
        bytes.data = memcpy(x->bytes.data, bytes.data, bytes.size);
    x->bytes.size = bytes.size;
    x->hash = pst_key_row_hash(&t->schema, x->word, bytes, x->null, t->m->ties != 0);
    x->key_group = pst_group_of(t, x->hash);
    return pst_key_decode(&t->schema, x->word, bytes, x->null, x->key, &x->nulls);
}

/* Does the file say that the map has nothing that is older? *s: what reading says. */
static int begins_map(const pst_entries *x, source *f, pst_status *s) {
    uint64_t bit = UINT64_C(1) << x->column;
    const pst_record *r = &f->record;
    *s = pst_walk_seek(&f->walk, NULL);
    if (!*s)
        *s = pst_walk_next(&f->walk, &f->record);
    if (*s) {
        *s = *s == PST_NOT_FOUND ? PST_OK : *s;
        return 0;
    }
    return r->key_nulls >> x->t->schema.n_keys & 1 &&
           (r->op == PST_DELETE || (r->changed & ~r->present & bit));
}

/* Opens the files that may have something of the map, up to the one that has all there is. */
static pst_status open_files(pst_entries *x) {
    pst_stack *st = x->stack;
    x->sources = pst_calloc((size_t)st->n + 1, sizeof *x->sources);
    if (!x->sources)
        return PST_NO_MEMORY;
    for (int32_t file = st->n - 1; file >= 0; file--) {
        source *f = pst_calloc(1, sizeof *f);
        if (!f)
            return PST_NO_MEMORY;
        pst_status s = pst_walk_open(&f->walk, st, file, x->key_group, x->hash, x->key, x->nulls);
        if (s) {
            pst_free(f);
            if (s != PST_NOT_FOUND)
                return s;
            continue;
        }
        x->sources[x->n++] = f;
        if (!st->files[file]->filtered || begins_map(x, f, &s) || s)
            return s;
    }
    return PST_OK;
}

static pst_status open_map(pst_entries *x) {
    const pst_table *t = x->t;
    if (!pst_has_current_stack(t))
        return PST_NO_STACK;
    x->stack = pst_stack_retain(t->stack);
    x->stack->detail = (pst_detail){-1, -1, -1, -1, -1};
    pst_status s = take_key(x, pst_row(t, x->slot));
    return s ? s : open_files(x);
}

pst_status pst_entries_open(pst_table *t, uint32_t slot, int32_t column, pst_entries **entries) {
    pst_entries *x = pst_calloc(1, sizeof *x);
    if (!x)
        return PST_NO_MEMORY;
    x->t = t;
    x->slot = slot;
    x->column = column;
    pst_status s = PST_OK;
    if (pst_entries_are_below(t, slot, column))
        s = note(x, open_map(x));
    if (s) {
        pst_entries_close(x);
        return s;
    }
    *entries = x;
    return PST_OK;
}

/* ---- records ----------------------------------------------------------------------------------- */

/* The entry of the record at which a walk stands. PST_NOT_FOUND: it is none of the map. */
static pst_status read_entry(const pst_entries *x, source *f) {
    const pst_table *t = x->t;
    const pst_record *r = &f->record;
    const pst_tree_shape *shape = &t->collections[x->column].map;
    uint64_t bit = UINT64_C(1) << x->column;
    pst_bytes element = r->key[t->schema.n_keys].bytes;
    if (r->key_nulls >> t->schema.n_keys & 1 || element.size < PST_ELEMENT_ID ||
        pst_get_big(element.data, PST_ELEMENT_ID) != t->collections[x->column].id)
        return PST_NOT_FOUND;
    pst_bytes key = {element.data + PST_ELEMENT_ID, element.size - PST_ELEMENT_ID};
    pst_tree_entry *e = &f->entry;
    memset(e, 0, sizeof *e);
    if (shape->key_is_ref)
        e->key_bytes = key;
    else if (key.size != shape->key_words * 8u)
        return PST_CORRUPT;
    for (int k = 0; !shape->key_is_ref && k < shape->key_words; k++)
        e->key[k] = pst_get_big(key.data + 8 * k, 8);
    if (r->op == PST_DELETE) {
        e->is_null = e->is_gone = 1;
        return PST_OK;
    }
    if (!(r->changed & bit))
        return PST_CORRUPT;
    pst_status s =
        pst_entry_value(t, x->column, r->present & bit ? &r->cells[x->column] : NULL, f->room, e);
    e->time = shape->timed ? PST_NO_TIME : 0;
    if (shape->timed && r->changed & r->present & bit << 1)
        e->time = (int64_t)r->cells[x->column + 1].word[0];
    return s ? PST_CORRUPT : PST_OK;
}

/* The element that files have for an entry's key; without a key that of the map's beginning. */
static pst_status make_element(pst_entries *x, const pst_tree_entry *e, pst_bytes *element) {
    const pst_collection *c = &x->t->collections[x->column];
    size_t size = PST_ELEMENT_ID;
    if (e)
        size += c->map.key_is_ref ? e->key_bytes.size : c->map.key_words * 8u;
    pst_status s = pst_buffer_reserve(&x->element, size);
    if (s)
        return s;
    uint8_t *to = x->element.data;
    pst_put_big(to, c->id, PST_ELEMENT_ID);
    for (int k = 0; e && !c->map.key_is_ref && k < c->map.key_words; k++)
        pst_put_big(to + PST_ELEMENT_ID + 8 * k, e->key[k], 8);
    if (e && c->map.key_is_ref && e->key_bytes.size)
        memcpy(to + PST_ELEMENT_ID, e->key_bytes.data, e->key_bytes.size);
    *element = (pst_bytes){to, (uint32_t)size};
    return PST_OK;
}

static int compare_keys(const pst_tree_shape *s, const pst_tree_entry *a, const pst_tree_entry *b) {
    if (!s->key_is_ref) {
        if (a->key[0] != b->key[0])
            return a->key[0] < b->key[0] ? -1 : 1;
        return (a->key[1] > b->key[1]) - (a->key[1] < b->key[1]);
    }
    uint32_t n = a->key_bytes.size, m = b->key_bytes.size, shared = n < m ? n : m;
    int d = shared ? memcmp(a->key_bytes.data, b->key_bytes.data, shared) : 0;
    return d ? d : (n > m) - (n < m);
}

/* ---- one entry --------------------------------------------------------------------------------- */

/* What a file says of a key. PST_NOT_FOUND: nothing. */
static pst_status look(pst_entries *x, source *f, const pst_bytes *element,
                       const pst_tree_entry *e) {
    pst_status s = pst_walk_seek(&f->walk, element);
    if (!s)
        s = pst_walk_next(&f->walk, &f->record);
    if (!s)
        s = read_entry(x, f);
    if (!s && compare_keys(&x->t->collections[x->column].map, &f->entry, e))
        s = PST_NOT_FOUND;
    return s;
}

static pst_status find_below(pst_entries *x, pst_tree_entry *e) {
    pst_bytes element;
    pst_status s = make_element(x, e, &element);
    for (int32_t i = 0; !s && i < x->n; i++) {
        source *f = x->sources[i];
        s = look(x, f, &element, e);
        if (s == PST_NOT_FOUND) {
            s = PST_OK;
            continue;
        }
        if (s || f->entry.is_gone)
            return s ? s : PST_NOT_FOUND;
        pst_bytes key = e->key_bytes;
        *e = f->entry;
        e->key_bytes = key;
        return PST_OK;
    }
    return s ? s : PST_NOT_FOUND;
}

/* Whether this is of the map in that row. */
static int is_of(const pst_entries *x, const pst_table *t, uint32_t slot, int32_t column) {
    const uint64_t *row = pst_row(t, slot), *k = row + t->lay.key_offset / 8;
    pst_bytes bytes = key_bytes(t, k);
    return x->stack == t->stack && x->column == column && x->word == k[0] &&
           x->null == ((row[0] & PST_FLAG_NULL_KEY) != 0) && x->bytes.size == bytes.size &&
           (!bytes.size || !memcmp(x->bytes.data, bytes.data, bytes.size));
}

void pst_entries_forget(pst_table *t) {
    pst_entries_close(t->entries);
    t->entries = NULL;
}

/* The map's files, as the look-up before left them if it was of the same map. */
static pst_status open_again(pst_table *t, uint32_t slot, int32_t column) {
    if (!pst_has_current_stack(t))
        return PST_NO_STACK;
    if (t->entries && is_of(t->entries, t, slot, column))
        return PST_OK;
    pst_entries_forget(t);
    return pst_entries_open(t, slot, column, &t->entries);
}

pst_status pst_entries_find(pst_table *t, uint32_t slot, int32_t column, pst_tree_entry *e) {
    pst_status s = open_again(t, slot, column);
    if (s)
        return s;
    t->entries->stack->detail = (pst_detail){-1, -1, -1, -1, -1};
    s = note(t->entries, find_below(t->entries, e));
    if (s && s != PST_NOT_FOUND)
        pst_entries_forget(t);
    return s;
}

pst_status pst_entries_get(pst_table *t, uint32_t slot, int32_t column, pst_tree_entry *e) {
    pst_status s = pst_row_map_get(t, slot, column, e);
    if (s != PST_NOT_HERE)
        return s;
    s = pst_entries_find(t, slot, column, e);
    if (s)
        return s;
    return t->collections[column].map.timed && pst_ttl_hides(t, column, e->time) ? PST_NOT_FOUND
                                                                                 : PST_OK;
}

/* ---- a pass ------------------------------------------------------------------------------------ */

/* Moves to the file's next entry of the map. */
static pst_status step(const pst_entries *x, source *f) {
    pst_status s = pst_walk_next(&f->walk, &f->record);
    if (!s)
        s = read_entry(x, f);
    f->has = s == PST_OK;
    return s == PST_NOT_FOUND ? PST_OK : s;
}

static pst_status step_top(pst_entries *x) {
    pst_status s = pst_tree_next(&x->here, &x->top);
    x->has_top = s == PST_OK;
    return s == PST_NOT_FOUND ? PST_OK : s;
}

static pst_status begin(pst_entries *x, const pst_tree_entry *from) {
    const pst_table *t = x->t;
    pst_bytes element;
    pst_status s = make_element(x, from, &element);
    for (int32_t i = 0; !s && i < x->n; i++) {
        s = pst_walk_seek(&x->sources[i]->walk, &element);
        if (!s)
            s = step(x, x->sources[i]);
    }
    pst_tree_seek(&x->here, t->heap, pst_heap_bytes(t), &t->collections[x->column].map,
                  pst_row_map(t, pst_row(t, x->slot), x->column), from);
    return s ? s : step_top(x);
}

/* The least key at which anything stands: what is newest says what its entry is. */
static const pst_tree_entry *least(const pst_entries *x) {
    const pst_tree_shape *shape = &x->t->collections[x->column].map;
    const pst_tree_entry *e = x->has_top ? &x->top : NULL;
    for (int32_t i = 0; i < x->n; i++) {
        const source *f = x->sources[i];
        if (f->has && (!e || compare_keys(shape, &f->entry, e) < 0))
            e = &f->entry;
    }
    return e;
}

pst_status pst_entries_seek(pst_entries *x, const pst_tree_entry *from) {
    pst_status s = x->failed ? x->failed : note(x, begin(x, from));
    x->failed = s;
    x->begun = 1;
    const pst_tree_entry *e = s ? NULL : least(x);
    x->given = e && !compare_keys(&x->t->collections[x->column].map, e, from);
    return s;
}

/* Passes that key in all that stand at it; the one whose bytes it has comes last. */
static pst_status pass(pst_entries *x, const pst_tree_entry *e) {
    const pst_tree_shape *shape = &x->t->collections[x->column].map;
    source *own = NULL;
    pst_status s = PST_OK;
    for (int32_t i = 0; !s && i < x->n; i++) {
        source *f = x->sources[i];
        if (&f->entry == e)
            own = f;
        else if (f->has && !compare_keys(shape, &f->entry, e))
            s = step(x, f);
    }
    if (s)
        return s;
    return own ? step(x, own) : step_top(x);
}

static pst_status next(pst_entries *x, pst_tree_entry *to) {
    pst_status s = x->begun ? PST_OK : begin(x, NULL);
    x->begun = 1;
    while (!s) {
        const pst_tree_entry *e = least(x);
        if (!e)
            return PST_NOT_FOUND;
        /* What was given last has been read by now. */
        if (!x->given && !e->is_gone) {
            *to = *e;
            x->given = 1;
            return PST_OK;
        }
        x->given = 0;
        s = pass(x, e);
    }
    return s;
}

pst_status pst_entries_next(pst_entries *x, pst_tree_entry *e) {
    pst_status s = x->failed ? x->failed : next(x, e);
    if (s && s != PST_NOT_FOUND)
        x->failed = s;
    return note(x, s);
}

pst_status pst_entries_count(pst_table *t, uint32_t slot, int32_t column, uint64_t *count) {
    pst_entries *x;
    pst_tree_entry e;
    int timed = t->collections[column].map.timed;
    *count = 0;
    if (!pst_entries_are_below(t, slot, column))
        return pst_row_count(t, slot, column, count);
    pst_status s = pst_entries_open(t, slot, column, &x);
    if (s)
        return s;
    while ((s = pst_entries_next(x, &e)) == PST_OK)
        *count += !timed || !pst_ttl_hides(t, column, e.time);
    pst_entries_close(x);
    return s == PST_NOT_FOUND ? PST_OK : s;
}
