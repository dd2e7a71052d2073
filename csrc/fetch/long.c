#include "fetch/long.h"

#include <string.h>

#include "base/coding.h"
#include "base/mem.h"
#include "elements/admit.h"
#include "key/schema.h"
#include "sst/record.h"
#include "stack/walk.h"
#include "table/ttl.h"

/* A list is long that goes on in blocks of files of more bytes than that. */
#ifndef PST_LONG_RUNS
#define PST_LONG_RUNS (64 << 10) /* tests have less */
#endif

/* So is a map. What an entry of it is asked for costs reads then, so that one stays whole which takes
 * little of the table's memory. */
#ifndef PST_LONG_ENTRIES
#define PST_LONG_ENTRIES most_entries(t) /* tests have less */
#endif

/* What is stored takes up to three times the bytes of its records, and trees have nodes that are partly
 * empty. */
enum { ROOM_PER_BYTE = 3, ROOM = 1 << 16 };

/* What files say of a list or map so far. */
typedef struct seen {
    uint64_t start; /* of a list */
    uint64_t end;   /* of a list; 0: nothing */
    int64_t bytes;  /* of blocks in which it goes on */
    int below;      /* its elements are not in the row */
} seen;

typedef struct admitter {
    pst_table *t;
    pst_admission a;
    pst_walk w;
    pst_record record;
    pst_mapping mapping;
    uint64_t block; /* for whose records there is room */
    seen lists[PST_MAX_STATES];
} admitter;

/* ---- lists ------------------------------------------------------------------------------------- */

/* What a row's record says of lists and maps. */
static void note_row(admitter *x) {
    const pst_table *t = x->t;
    const pst_record *r = &x->record;
    for (int32_t i = 0; i < t->lay.n_states; i++) {
        seen *l = &x->lists[i];
        uint64_t bit = UINT64_C(1) << i, start;
        uint8_t kind = t->lay.fields[i].kind;
        if ((kind != PST_LIST && kind != PST_MAP) || !(r->op == PST_DELETE || r->changed & bit))
            continue;
        if (r->op == PST_DELETE || !(r->present & bit)) {
            *l = (seen){0};
            continue;
        }
        if (kind == PST_MAP)
            continue;
        memcpy(&start, r->cells[i].bytes.data, sizeof start);
        if (start >= l->end)
            *l = (seen){0};
        else if (start > l->start)
            l->start = start;
    }
}

/* The list whose run the record is; -1: it is another element. */
static int32_t list_of(const pst_table *t, const pst_record *r) {
    pst_bytes e = r->key[t->schema.n_keys].bytes;
    if (r->op != PST_PUT || e.size != PST_ELEMENT_ID + 8)
        return -1;
    uint64_t id = pst_get_big(e.data, PST_ELEMENT_ID);
    for (int32_t i = 0; i < t->lay.n_states; i++)
        if (t->lay.fields[i].kind == PST_LIST && t->collections[i].id == id)
            return i;
    return -1;
}

/* Numbers of a run's items: from *seq to before *end. */
static pst_status numbers_of(const admitter *x, int32_t i, uint64_t *seq, uint64_t *end) {
    const pst_record *r = &x->record;
    pst_packed p;
    pst_item item;
    if (!(r->present >> i & 1))
        return PST_CORRUPT;
    pst_status s = pst_packed_open(&p, &x->t->collections[i].list, r->cells[i].bytes);
    *seq = *end = pst_get_big(r->key[x->t->schema.n_keys].bytes.data + PST_ELEMENT_ID, 8);
    while (!s && (s = pst_packed_next(&p, &item)) == PST_OK)
        ++*end;
    return s == PST_NOT_FOUND ? PST_OK : s;
}

static pst_status add(admitter *x, int element) {
    uint64_t bytes, block = pst_walk_block(&x->w, &bytes);
    if (element && block != x->block) {
        if (!pst_arena_has_room(&x->t->arena, bytes * ROOM_PER_BYTE + ROOM))
            return PST_LIMIT;
        x->block = block;
    }
    return pst_admission_add(&x->a, &x->record, &x->mapping, element, 0);
}

/* The runs of a list that is short in this file, from the walk's place on; the next record is that of
 * something else, or *s says that there is none. */
static pst_status add_runs(admitter *x, int32_t i) {
    pst_status s;
    while ((s = pst_walk_next(&x->w, &x->record)) == PST_OK && list_of(x->t, &x->record) == i)
        if ((s = add(x, 1)) != PST_OK)
            return s;
    return s;
}

static int may_be_long(const pst_table *t, int32_t i) {
    uint8_t kind = t->lay.fields[i].kind;
    return kind == PST_LIST || (kind == PST_MAP && !pst_ttl_looks_back(t, i));
}

int pst_long_may_be(const pst_table *t) {
    int32_t i = t->lay.n_states - 1;
    while (i >= 0 && !may_be_long(t, i))
        i--;
    return i >= 0;
}

/* Takes a list, of which the record is the first run that the file has. Reads the record behind its
 * last one. */
static pst_status take_list(admitter *x, int32_t i) {
    seen *l = &x->lists[i];
    uint8_t bytes[PST_ELEMENT_ID + 9];
    uint64_t first, last, end, raw, from_raw, from = pst_walk_block(&x->w, &from_raw);
    pst_bytes element = {bytes, sizeof bytes};
    pst_status s = numbers_of(x, i, &first, &end);
    if (s)
        return s;
    if (l->end && first > l->end)
        return PST_CORRUPT; /* some runs are missing */
    /* The last run is before all elements of that state with longer keys. */
    memcpy(bytes, x->record.key[x->t->schema.n_keys].bytes.data, PST_ELEMENT_ID);
    memset(bytes + PST_ELEMENT_ID, 0xFF, sizeof bytes - PST_ELEMENT_ID);
    s = pst_walk_seek_last(&x->w, &element);
    uint64_t to = pst_walk_block(&x->w, &raw);
    if (!s)
        s = pst_walk_next(&x->w, &x->record);
    if (!s && list_of(x->t, &x->record) != i)
        s = PST_CORRUPT;
    if (!s)
        s = numbers_of(x, i, &last, &end);
    if (s)
        return s == PST_NOT_FOUND ? PST_CORRUPT : s;
    if (!l->end)
        l->start = first;
    if (end > l->end)
        l->end = end;
    /* The last block may have few items. */
    l->bytes += (int64_t)((to - from) * (raw > from_raw ? raw : from_raw));
    if (l->below || l->bytes > PST_LONG_RUNS) {
        if (!l->below && pst_row_has(&x->t->lay, pst_row(x->t, x->a.slot), i))
            s = pst_row_clear(x->t, pst_row(x->t, x->a.slot), i);
        l->below = 1;
        return s ? pst_poison(x->t, s) : pst_walk_next(&x->w, &x->record);
    }
    pst_put_big(bytes + PST_ELEMENT_ID, first, 8);
    element.size = PST_ELEMENT_ID + 8;
    s = pst_walk_seek(&x->w, &element);
    return s ? s : add_runs(x, i);
}

/* ---- maps -------------------------------------------------------------------------------------- */

#define NO_ID UINT32_MAX /* behind which no other can be sought */

static inline int64_t most_entries(const pst_table *t) {
    enum { LEAST = 64 << 10, MOST = 16 << 20, SHARE = 64 };
    uint64_t share = t->arena.limit / SHARE;
    return share < LEAST ? LEAST : share > MOST ? MOST : (int64_t)share;
}

/* The map whose entry the record is; -1: it is another element, or comes by itself. */
static int32_t map_of(const pst_table *t, const pst_record *r) {
    pst_bytes e = r->key[t->schema.n_keys].bytes;
    if (e.size < PST_ELEMENT_ID)
        return -1;
    uint64_t id = pst_get_big(e.data, PST_ELEMENT_ID);
    for (int32_t i = 0; id != NO_ID && i < t->lay.n_states; i++)
        if (t->lay.fields[i].kind == PST_MAP && t->collections[i].id == id)
            return may_be_long(t, i) ? i : -1;
    return -1;
}

static int is_of_map(const admitter *x, int32_t i) {
    return !(x->record.key_nulls >> x->t->schema.n_keys & 1) && map_of(x->t, &x->record) == i;
}

/* Takes a map, of which the record is the first entry that the file has. Reads the record behind its
 * last one. */
static pst_status take_map(admitter *x, int32_t i) {
    const pst_table *t = x->t;
    seen *l = &x->lists[i];
    uint8_t bytes[PST_ELEMENT_ID];
    uint64_t raw, from_raw, from = pst_walk_block(&x->w, &from_raw);
    pst_bytes element = {bytes, sizeof bytes};
    pst_put_big(bytes, t->collections[i].id + 1, PST_ELEMENT_ID);
    pst_status s = pst_walk_seek(&x->w, &element);
    if (s)
        return s;
    uint64_t to = pst_walk_block(&x->w, &raw);
    l->bytes += (int64_t)((to - from) * (raw > from_raw ? raw : from_raw));
    if (l->below || l->bytes > PST_LONG_ENTRIES) {
        if (!l->below && pst_row_has(&t->lay, pst_row(t, x->a.slot), i))
            s = pst_row_clear(x->t, pst_row(t, x->a.slot), i);
        l->below = 1;
        return s ? pst_poison(x->t, s) : pst_walk_next(&x->w, &x->record);
    }
    pst_put_big(bytes, t->collections[i].id, PST_ELEMENT_ID);
    s = pst_walk_seek(&x->w, &element);
    while (!s && (s = pst_walk_next(&x->w, &x->record)) == PST_OK && is_of_map(x, i))
        s = add(x, 1);
    return s;
}

/* ---- rows -------------------------------------------------------------------------------------- */

/* Gives the row the lists and maps whose elements stay where they are. */
static pst_status put_below(admitter *x) {
    pst_table *t = x->t;
    pst_status s = PST_OK;
    for (int32_t i = 0; !s && i < t->lay.n_states; i++) {
        const seen *l = &x->lists[i];
        pst_list list = {0};
        if (l->below && t->lay.fields[i].kind == PST_MAP)
            pst_row_map_begin_below(t, x->a.slot, i);
        if (!l->below || l->start >= l->end)
            continue;
        s = pst_list_begin_below(t, &list, l->start, l->end);
        if (!s)
            pst_row_list_store(t, x->a.slot, i, &list);
    }
    return s == PST_TOO_LARGE ? PST_CORRUPT : s;
}

/* ---- files ------------------------------------------------------------------------------------- */

static pst_status take_file(admitter *x) {
    const pst_table *t = x->t;
    pst_status s = pst_walk_seek(&x->w, NULL);
    x->block = UINT64_MAX;
    if (!s)
        s = pst_walk_next(&x->w, &x->record);
    while (!s) {
        int element = t->lay.has_elements && !(x->record.key_nulls >> t->schema.n_keys & 1);
        int32_t list = element ? list_of(t, &x->record) : -1;
        int32_t map = element ? map_of(t, &x->record) : -1;
        if (list >= 0 || map >= 0) {
            s = list >= 0 ? take_list(x, list) : take_map(x, map);
            continue;
        }
        if (!element)
            note_row(x);
        s = add(x, element);
        if (!s)
            s = pst_walk_next(&x->w, &x->record);
    }
    return s == PST_NOT_FOUND ? PST_OK : s;
}

/* All files, oldest first. A base is whole: what is older says nothing that counts. */
static pst_status take_files(admitter *x, const pst_cell *key, uint32_t nulls, int32_t key_group,
                             uint64_t hash, int32_t *damaged) {
    pst_stack *st = x->t->stack;
    int32_t first = st->n - 1;
    pst_status s = PST_OK;
    for (; first > 0; first--) {
        if (st->files[first]->filtered)
            continue;
        s = pst_walk_open(&x->w, st, first, key_group, hash, key, nulls);
        if (s == PST_NOT_FOUND)
            continue;
        if (s)
            return s;
        pst_walk_close(&x->w);
        break;
    }
    s = PST_OK;
    for (int32_t f = first; !s && f < st->n; f++) {
        s = pst_walk_open(&x->w, st, f, key_group, hash, key, nulls);
        if (s == PST_NOT_FOUND) {
            s = PST_OK;
            continue;
        }
        if (s)
            break;
        s = take_file(x);
        pst_walk_close(&x->w);
        if (s == PST_CORRUPT && st->detail.offset < 0)
            *damaged = f;
    }
    return s;
}

static pst_status admit(admitter *x, const pst_key *key, uint64_t hash, uint32_t *slot,
                        int32_t *damaged) {
    pst_table *t = x->t;
    pst_cell cells[PST_MAX_KEYS];
    uint32_t nulls;
    int here;
    pst_status s = pst_key_decode(&t->schema, key->word, key->bytes, key->null, cells, &nulls);
    if (!s)
        s = pst_admission_begin(&x->a, t, key, &here);
    if (s)
        return s;
    *slot = x->a.slot;
    if (here)
        return PST_OK;
    t->stack->detail = (pst_detail){-1, -1, -1, -1, -1};
    s = take_files(x, cells, nulls, pst_group_of(t, hash), hash, damaged);
    if (!s)
        s = put_below(x);
    if (s) {
        pst_admission_drop(&x->a);
        *slot = PST_NONE;
        return s;
    }
    s = pst_admission_end(&x->a);
    if (s && s != PST_NOT_FOUND)
        *slot = PST_NONE;
    return s == PST_NOT_FOUND ? PST_OK : s;
}

pst_status pst_long_admit(pst_table *t, const pst_key *key, uint64_t hash, uint32_t *slot,
                          int32_t *damaged) {
    admitter *x = pst_calloc(1, sizeof *x);
    if (!x)
        return PST_NO_MEMORY;
    x->t = t;
    (void)pst_mapping_make(t, NULL, t->lay.n_states, &x->mapping);
    pst_status s = admit(x, key, hash, slot, damaged);
    pst_free(x);
    return s;
}
