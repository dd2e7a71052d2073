#include "fetch/fetch.h"

#include "base/mem.h"
#include "elements/admit.h"
#include "fetch/below.h"
#include "fetch/long.h"
#include "fetch/parts.h"
#include "fetch/room.h"
#include "key/schema.h"
#include "sst/record.h"
#include "stack/search.h"

/* Bytes of what files said of keys of which others have not spoken yet: for more, fewer keys are
 * searched for at a time. */
#ifndef PST_FETCH_PARTS
#define PST_FETCH_PARTS ((size_t)8 << 20) /* tests have less */
#endif

enum { FEW_PARTS = 64 };

typedef struct fetch {
    pst_table *t;
    const pst_keys *keys;
    pst_want *wants; /* own: of those that are asked for, 1 + the part that was kept last */
    uint32_t n;
    pst_parts parts;
    uint32_t waiting; /* keys that have parts */
    pst_mapping mapping;
    uint32_t came;   /* rows */
    uint32_t done;   /* keys of which all is known */
    uint8_t alone;   /* one key is searched for */
    uint8_t crowded; /* the keys that are have too many parts */
    uint8_t refused; /* a row, by the table: it did not fit */
    int32_t damaged; /* file whose record no row can be made of, or -1 */
    pst_record record;
    uint32_t few[FEW_PARTS];
    uint32_t *order; /* parts of a key, oldest first */
    uint32_t room;
} fetch;

/* ---- one row --------------------------------------------------------------------------------- */

/* Puts the parts of a key in order: of files, which came newest first, and of each as they came. */
static pst_status order_parts(fetch *x, uint32_t last, uint32_t *n) {
    uint32_t count = 0;
    for (uint32_t p = last; p != PST_NO_PART; p = pst_parts_before(&x->parts, p))
        count++;
    if (count > x->room) {
        uint32_t *own = x->order == x->few ? NULL : x->order;
        uint32_t *grown = pst_realloc(own, 2 * (size_t)count * sizeof *grown);
        if (!grown)
            return PST_NO_MEMORY;
        x->order = grown;
        x->room = 2 * count;
    }
    /* From the last one on they are of the oldest file, backwards. */
    uint32_t from = 0, at = 0;
    for (uint32_t p = last; p != PST_NO_PART; p = pst_parts_before(&x->parts, p))
        x->order[at++] = p;
    while (from < count) {
        int32_t file = pst_parts_file(&x->parts, x->order[from]);
        uint32_t end = from + 1;
        while (end < count && pst_parts_file(&x->parts, x->order[end]) == file)
            end++;
        for (uint32_t a = from, b = end - 1; a < b; a++, b--) {
            uint32_t part = x->order[a];
            x->order[a] = x->order[b];
            x->order[b] = part;
        }
        from = end;
    }
    *n = count;
    return PST_OK;
}

static int is_element(const fetch *x, const pst_record *r) {
    return x->t->lay.has_elements && !(r->key_nulls >> x->t->schema.n_keys & 1);
}

/* A time of a value that the row does not have: a newer file has changed that and not the time, and
 * so the file with both was not asked. Such times wait for their values. */
typedef struct late_times {
    uint64_t columns;
    uint64_t words[PST_MAX_STATES];
} late_times;

static void note_times(const fetch *x, uint32_t slot, const pst_record *r, late_times *late) {
    const pst_table *t = x->t;
    if (r->op == PST_DELETE)
        late->columns = 0;
    for (uint64_t left = r->changed; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        uint64_t bit = UINT64_C(1) << i, present = r->present & bit;
        if (t->lay.fields[i].kind == PST_TIME) {
            late->columns &= ~bit;
            if (present && !pst_row_has(&t->lay, pst_row(t, slot), i - 1))
                late->columns |= bit;
            late->words[i] = r->cells[i].word[0];
        } else if (!present && t->lay.fields[i].time >= 0) {
            late->columns &= ~(bit << 1);
        }
    }
}

/* Gives the values that have come now the times that waited for them. */
static pst_status add_times(fetch *x, pst_admission *a, late_times *late) {
    pst_record *r = &x->record;
    uint64_t now = 0;
    for (uint64_t left = late->columns; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        if (!pst_row_has(&x->t->lay, pst_row(x->t, a->slot), i - 1))
            continue;
        now |= UINT64_C(1) << i;
        r->cells[i].word[0] = late->words[i];
    }
    if (!now)
        return PST_OK;
    late->columns &= ~now;
    r->op = PST_PUT;
    r->changed = r->present = now;
    return pst_admission_add(a, r, &x->mapping, 0, 0);
}

static pst_status apply_parts(fetch *x, pst_admission *a, uint32_t n) {
    late_times late;
    late.columns = 0;
    pst_status s = PST_OK;
    for (uint32_t i = 0; !s && i < n; i++) {
        pst_parts_get(&x->parts, x->order[i], &x->record);
        int element = is_element(x, &x->record);
        s = pst_admission_add(a, &x->record, &x->mapping, element, 0);
        if (!s && !element && n > 1) {
            note_times(x, a->slot, &x->record, &late);
            if (late.columns)
                s = add_times(x, a, &late);
        }
        if (s)
            x->damaged = pst_parts_file(&x->parts, x->order[i]);
    }
    return s;
}

/* What the table says to a row. */
static pst_status note_refusal(fetch *x, pst_status s) {
    x->refused = s == PST_LIMIT;
    return s;
}

static pst_status apply_only(fetch *x, pst_admission *a, const pst_found *only) {
    pst_status s = pst_admission_add(a, only->record, &x->mapping, 0, 0);
    if (s)
        x->damaged = only->file;
    return s;
}

/* Makes the row of a want: of its parts, or of the only record that there is of it. */
static pst_status make_row(fetch *x, const pst_want *w, uint32_t n, const pst_found *only) {
    pst_admission a;
    pst_key key;
    int here;
    pst_want_key(x->t, x->keys, w, &key);
    pst_status s = pst_admission_begin(&a, x->t, &key, &here);
    if (s || here) {
        if (!s)
            x->keys->slots[w->at] = a.slot;
        return note_refusal(x, s);
    }
    s = only ? apply_only(x, &a, only) : apply_parts(x, &a, n);
    if (s) {
        pst_admission_drop(&a);
        return note_refusal(x, s);
    }
    s = pst_admission_end(&a);
    x->came++;
    if (s && s != PST_NOT_FOUND)
        x->damaged = only ? only->file : pst_parts_file(&x->parts, x->order[n - 1]);
    /* A row of which nothing is left is there as one that died (M1): who makes the key makes no row. */
    if (!s || s == PST_NOT_FOUND)
        x->keys->slots[w->at] = a.slot;
    return s == PST_NOT_FOUND ? PST_OK : note_refusal(x, s);
}

static pst_status admit(fetch *x, const pst_want *w, uint32_t last) {
    uint32_t n;
    pst_status s = order_parts(x, last, &n);
    if (s || pst_parts_leave_nothing(&x->parts, x->order, n))
        return s;
    return make_row(x, w, n, NULL);
}

/* ---- what the stack says --------------------------------------------------------------------- */

static void on_key(void *ctx, uint32_t number, pst_cell *cells, uint32_t *nulls) {
    const fetch *x = ctx;
    const pst_want *w = &x->wants[number];
    pst_key key;
    if (x->t->lay.key_kind == PST_KEY_WORD) {
        *nulls = w->null;
        cells[0].word[0] = w->word;
        cells[0].word[1] = 0;
        return;
    }
    pst_want_key(x->t, x->keys, w, &key);
    (void)pst_key_decode(&x->t->schema, key.word, key.bytes, key.null, cells, nulls);
}

/* The line of the index where the key's row will be named. */
static void on_ahead(void *ctx, uint32_t number) {
    enum { AHEAD = 8 };
    const fetch *x = ctx;
    const pst_table *t = x->t;
    if (x->n - number > AHEAD)
        __builtin_prefetch(&x->wants[number + AHEAD]);
    pst_key key;
    pst_probe at;
    pst_want_key(x->t, x->keys, &x->wants[number], &key);
    uint32_t tag = pst_tag_of(t, key.hash);
    if (pst_probe_home(&at, &t->m->shards[pst_directory_at(t, t->m->directory_bits, key.hash, tag)],
                       t->heap, tag))
        __builtin_prefetch(at.line, 1);
}

static pst_status on_found(void *ctx, const pst_found *f) {
    fetch *x = ctx;
    pst_want *w = &x->wants[f->key];
    /* Most keys are said all of by one record, which need not be kept. */
    if (f->only && !w->own)
        return f->record->op == PST_DELETE ? PST_OK : make_row(x, w, 0, f);
    for (uint32_t i = 0; i < f->rows; i++) {
        const pst_record *r = f->record;
        uint32_t part;
        if (i) {
            pst_status s = pst_found_record(f, i, &x->record);
            if (s)
                return s;
            r = &x->record;
        }
        pst_status s = pst_parts_add(&x->parts, (uint32_t)w->own - 1, f->file, r, &part);
        if (!x->alone && (s == PST_LIMIT || x->parts.bytes.size > PST_FETCH_PARTS)) {
            x->crowded = 1;
            return PST_BUSY;
        }
        if (s)
            return s;
        x->waiting += !w->own;
        w->own = part + UINT64_C(1);
    }
    return PST_OK;
}

static pst_status on_done(void *ctx, uint32_t number, int any) {
    fetch *x = ctx;
    pst_want *w = &x->wants[number];
    pst_status s = any && w->own ? admit(x, w, (uint32_t)w->own - 1) : PST_OK;
    x->done += !s;
    if (!any || !w->own)
        return s;
    w->own = 0;
    if (--x->waiting == 0)
        pst_parts_clear(&x->parts);
    return s;
}

/* Of a long key what was found is dropped: it comes again, without what is not needed. */
static int on_long(void *ctx, uint32_t number) {
    fetch *x = ctx;
    pst_want *w = &x->wants[number];
    x->waiting -= w->own != 0;
    w->own = 0;
    w->is_long = 1;
    return 1;
}

/* Fetches those of the keys that are long, one by one. */
static pst_status fetch_long(fetch *x, const pst_place *places, uint32_t n) {
    pst_status s = PST_OK;
    for (uint32_t i = 0; !s && i < n; i++) {
        pst_want *w = &x->wants[places[i].key];
        pst_key key;
        if (!w->is_long)
            continue;
        pst_want_key(x->t, x->keys, w, &key);
        w->is_long = 0;
        s = note_refusal(x,
                         pst_long_admit(x->t, &key, w->hash, &x->keys->slots[w->at], &x->damaged));
        x->came += s == PST_OK;
        x->done += s == PST_OK;
    }
    return s;
}

/* ---- many keys ------------------------------------------------------------------------------- */

static pst_status note_failure(const fetch *x, pst_status s) {
    pst_table *t = x->t;
    if (s == PST_CORRUPT && x->damaged >= 0) {
        pst_no_detail(&t->detail);
        t->detail.row = x->damaged;
    } else if (s == PST_IO || s == PST_CORRUPT) {
        t->detail = *pst_stack_detail(t->stack);
    }
    if (s == PST_LIMIT && !x->refused)
        t->arena.refused = 0; /* it was the budget */
    return s;
}

/* How many keys to search for at a time, where their rows are as those of the files are. */
static uint32_t slice_of(const pst_stack *st) {
    uint64_t rows = 1, bytes = 0;
    for (int32_t i = 0; i < st->n; i++) {
        rows += st->files[i]->guide->info.rows;
        bytes += st->files[i]->guide->info.raw_bytes;
    }
    uint64_t fit = PST_FETCH_PARTS / 2 / (bytes / rows + 1);
    return fit < PST_FETCH_SLICE && st->n > 1 ? (uint32_t)fit + 1 : PST_FETCH_SLICE;
}

/* The places of the next keys that are asked for and have not come yet, `most` of them at most, of
 * n; *at is then behind the last one. */
static uint32_t take_places(const fetch *x, pst_place *places, uint32_t *at, uint32_t n,
                            uint32_t most) {
    uint32_t count = 0;
    for (; *at < n && count < most; ++*at) {
        const pst_want *w = &x->wants[*at];
        if (!w->own && x->keys->slots[w->at] == PST_NONE)
            places[count++] = (pst_place){w->hash, (int32_t)w->key_group, *at};
    }
    return count;
}

/* Of keys that are only read nobody knows before how many have rows. Of the rest it is taken that as
 * many do as so far. */
static pst_status check_rest(const fetch *x, uint32_t n) {
    if (!x->keys->reading || x->done >= n || !x->came)
        return PST_OK;
    uint64_t rows = (uint64_t)x->came * (n - x->done) / x->done;
    if (pst_room_share(x->t, rows, 0) == PST_ROOM_ALL)
        return PST_OK;
    pst_no_detail(&x->t->detail);
    x->t->detail.row = (int64_t)((double)x->keys->n * x->done / n);
    return PST_NO_ROOM;
}

/* A search may end early because the keys have too many parts: then those that have not come are
 * searched for again, fewer at a time. */
static pst_status search(fetch *x, uint32_t n) {
    pst_seeker seeker = {x,        on_key,  on_ahead,
                         on_found, on_done, pst_long_may_be(x->t) ? on_long : NULL};
    uint32_t most = slice_of(x->t->stack), slice = most;
    pst_place *places = pst_malloc((n < most ? n : most) * sizeof *places);
    pst_status s = places ? PST_OK : PST_NO_MEMORY;
    for (uint32_t from = 0, end = 0; !s && from < n; end = from) {
        uint32_t count = take_places(x, places, &end, n, slice);
        x->alone = count == 1;
        s = pst_stack_search(x->t->stack, places, count, &seeker);
        x->waiting = 0;
        pst_parts_clear(&x->parts);
        if (s == PST_BUSY && x->crowded) {
            for (uint32_t i = 0; i < count; i++)
                x->wants[places[i].key].own = x->wants[places[i].key].is_long = 0;
            x->crowded = 0;
            slice = count / 4 + 1;
            s = PST_OK;
        } else {
            s = s ? s : fetch_long(x, places, count);
            from = end;
            slice = slice < most / 2 ? 2 * slice : most;
            if (!s)
                s = check_rest(x, n);
        }
    }
    pst_free(places);
    return note_failure(x, s);
}

/* Of repeated keys the first was asked for. */
static void share(const pst_wants *w, uint32_t *slots) {
    for (uint32_t i = 1; i < w->n; i++)
        if (w->wants[i].own)
            slots[w->wants[i].at] = slots[w->wants[i - 1].at];
}

/* How many of the first keys have no more than `rows` that are not here. */
static int64_t fitting(const pst_keys *keys, int64_t n, uint64_t rows) {
    int64_t i = 0;
    for (; i < n; i++)
        if (keys->slots[i] == PST_NONE && !rows--)
            break;
    return i;
}

/* Whether there is room for rows that are not here, and for touches of those that are. */
static pst_status check_room(pst_table *t, const pst_keys *keys, uint64_t rows, uint64_t touches) {
    uint32_t share = keys->reading ? PST_ROOM_ALL : pst_room_share(t, rows, touches);
    if (share == PST_ROOM_ALL)
        return PST_OK;
    pst_no_detail(&t->detail);
    t->detail.row = fitting(keys, (int64_t)((double)keys->n * share / PST_ROOM_ALL),
                            rows * share / PST_ROOM_ALL);
    return PST_NO_ROOM;
}

/* Before any has come. A single key's row is tried: no smaller batch would do. */
static pst_status check_before(pst_table *t, const pst_keys *keys, uint64_t rows,
                               uint64_t touches) {
    return keys->n == 1 ? PST_OK : check_room(t, keys, rows, touches);
}

/* The same when all have come that there are: now it is known how large they are. */
static pst_status check_again(pst_table *t, const pst_keys *keys, const pst_wants *w) {
    uint64_t absent = 0;
    for (uint32_t i = 0; i < w->n; i++)
        absent += !w->wants[i].own && keys->slots[w->wants[i].at] == PST_NONE;
    return check_room(t, keys, absent, (uint64_t)keys->n - absent);
}

/* Rows are larger than was reckoned: about half of those that are known now are said to fit, which
 * they surely do; a single one alone may. */
static pst_status say_less(const fetch *x, const pst_wants *w) {
    int64_t most = x->keys->n - 1, fits = (int64_t)((double)x->keys->n * x->done / w->unique / 2);
    pst_no_detail(&x->t->detail);
    x->t->detail.row = fits || !x->done ? fits : 1;
    if (x->t->detail.row > most)
        x->t->detail.row = most;
    return PST_NO_ROOM;
}

static pst_status fetch_wants(fetch *x, const pst_wants *w) {
    pst_table *t = x->t;
    pst_schema *schema = NULL;
    pst_status s = check_before(t, x->keys, w->unique, (uint64_t)x->keys->n - w->n);
    if (!s)
        s = pst_file_schema_create(&t->schema, &schema);
    x->parts.schema = schema;
    if (!s)
        s = search(x, w->n);
    if (!s) {
        share(w, x->keys->slots);
        s = check_again(t, x->keys, w);
    } else if (s == PST_LIMIT && x->refused && !t->poisoned) {
        s = say_less(x, w);
    }
    if (x->order != x->few)
        pst_free(x->order);
    pst_parts_free(&x->parts);
    pst_file_schema_destroy(schema);
    return s;
}

pst_status pst_fetch(pst_table *t, const pst_keys *keys) {
    pst_wants w;
    if (t->poisoned)
        return PST_POISONED;
    if (!pst_has_current_stack(t))
        return PST_NO_STACK;
    /* Of batches that are far too large only a little is done, as they come again, cut. */
    uint64_t missing, different;
    pst_status s = pst_wants_estimate(keys, &missing, &different);
    if (!s && missing)
        s = check_before(t, keys, different, (uint64_t)keys->n - missing);
    if (s)
        return s;
    s = pst_wants_make(t, keys, &w);
    if (s || !w.n) {
        if (!s)
            pst_wants_free(&w);
        return s;
    }
    fetch x = {.t = t, .keys = keys, .wants = w.wants, .n = w.n, .damaged = -1};
    x.parts.charge = (pst_charge){t->budget, 0, PST_SMALL_BUFFER};
    x.order = x.few;
    x.room = FEW_PARTS;
    (void)pst_mapping_make(t, NULL, t->lay.n_states, &x.mapping);
    s = fetch_wants(&x, &w);
    if (!s) {
        t->fetched.missed += w.unique;
        t->fetched.came += x.came;
    }
    pst_wants_free(&w);
    return s;
}

static void get_single(void *ctx, int64_t i, pst_key *key) {
    (void)i;
    *key = *(const pst_key *)ctx;
}

pst_status pst_fetch_key(pst_table *t, const pst_key *key, uint32_t *slot) {
    pst_key own = *key;
    /* What is written to it is refused by itself, where the caller takes steps. */
    pst_keys keys = {&own, get_single, slot, 1, t->steps};
    return pst_fetch(t, &keys);
}

void pst_table_get_fetch_stats(const pst_table *t, pst_fetch_stats *stats) {
    *stats = t->fetched;
}
