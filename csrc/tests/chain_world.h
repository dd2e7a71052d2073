/* chain_world.h: an operator of random keys and states, and random operations on a table of it.
 *
 * Its keys are few, so that they meet; some of them are null, some share what is hashed. A world is
 * declared anew now and then: states come and go and change places, their times to live too, and
 * what had values only gets lists, maps and timers.
 *
 * Thread safety: everything belongs to one thread.
 */
#ifndef PST_TEST_CHAIN_WORLD_H
#define PST_TEST_CHAIN_WORLD_H

#include "elements/collections.h"
#include "elements/timers.h"
#include "files.h"

enum {
    WORLD_KEYS = 14,
    WORLD_KEY_COLUMNS = 3,
    WORLD_STATES = 12,
    WORLD_COLUMNS = 2 * WORLD_STATES + 2, /* each with its time, and timers */
    WORLD_KEY_TEXT = 500,
    WORLD_TEXT = 70000,
    WORLD_LIMIT = 1 << 27 /* of memory: more than any world needs */
};

/* Lengths on both sides of what decides how bytes are kept: in place up to 12, in blocks of size
 * classes, in a chunk of their own above 1 KB, in a record of their own above 32 KB. */
static const uint32_t WORLD_SIZES[] = {0,    1,    3,    4,    5,    8,     11,        12,  13,
                                       14,   16,   20,   27,   28,   29,    100,       500, 1000,
                                       1020, 1021, 1030, 4000, 5000, 33000, WORLD_TEXT};
enum { WORLD_KEY_SIZES = 17, WORLD_ALL_SIZES = sizeof WORLD_SIZES / sizeof *WORLD_SIZES };

typedef struct world_state {
    pst_column column;
    pst_ttl ttl;
    int expires; /* whether it may have a time to live */
    int declared;
    int timed; /* whether it had one when it was last declared */
    char name[16];
    char time_name[24];
} world_state;

typedef struct world {
    uint64_t seed;
    uint64_t random;
    int32_t max_parallelism;
    int32_t first; /* key groups of the operator's range */
    int32_t last;
    uint64_t limit_bytes;
    pst_clock now;
    pst_status failed; /* how the open epoch's operations ended, if not well */

    pst_cell keys[WORLD_KEYS][WORLD_KEY_COLUMNS];
    uint32_t nulls[WORLD_KEYS];
    int32_t groups[WORLD_KEYS];
    uint8_t key_texts[WORLD_KEYS][WORLD_KEY_COLUMNS][WORLD_KEY_TEXT];

    world_state states[WORLD_STATES];
    int n_states;
    int may_have_timers;
    int values_only;
    uint64_t lives;  /* operations after which a key goes */
    uint64_t lasts;  /* epochs between declarations; twice as many until another table is live */
    uint64_t domain; /* of the keys of maps */
    uint32_t sizes;  /* how many of WORLD_SIZES items and values may have */

    /* As declared now. */
    pst_schema schema;
    pst_column key_columns[WORLD_KEY_COLUMNS];
    pst_column columns[WORLD_COLUMNS];
    const world_state *state_of[WORLD_COLUMNS]; /* NULL: a hidden column */
    int has_timers;
    int has_timer_column; /* for a key's only one, as all later files */

    uint8_t key_room[WORLD_TEXT];
    uint8_t value_room[WORLD_TEXT];
} world;

static inline uint64_t world_below(world *w, uint64_t n) {
    return check_random(&w->random) % n;
}

static inline int world_one_in(world *w, uint64_t n) {
    return world_below(w, n) == 0;
}

/* ---- keys and values ------------------------------------------------------------------------- */

static inline void world_key_columns(world *w) {
    static const struct {
        int32_t n, n_hashed;
        uint8_t types[WORLD_KEY_COLUMNS];
    } forms[] = {
        {1, 0, {PST_INT64}},
        {1, 0, {PST_DATE32}},
        {1, 0, {PST_FLOAT64}},
        {1, 0, {PST_STRING}},
        {1, 0, {PST_DECIMAL}},
        {2, 0, {PST_INT32, PST_STRING}},
        {2, 1, {PST_STRING, PST_INT64}},
        {2, 1, {PST_INT64, PST_STRING}},
        {3, 0, {PST_FLOAT64, PST_BINARY, PST_DATE32}},
        {3, 2, {PST_FLOAT64, PST_BINARY, PST_DATE32}},
    };
    static const char *const names[] = {"first", "second", "third"};
    uint64_t form = world_below(w, sizeof forms / sizeof *forms);
    w->schema.keys = w->key_columns;
    w->schema.n_keys = forms[form].n;
    w->schema.n_hashed = forms[form].n_hashed;
    for (int32_t i = 0; i < w->schema.n_keys; i++) {
        pst_column *c = &w->key_columns[i];
        *c = (pst_column){.name = names[i], .type = (pst_type)forms[form].types[i]};
        if (c->type == PST_DECIMAL)
            c->precision = world_one_in(w, 2) ? 38 : 18;
    }
}

/* Different for each number below 17. */
static inline pst_cell world_key_cell(pst_type type, uint64_t number, uint8_t *room) {
    uint64_t spread = number * UINT64_C(0x9E3779B97F4A7C15);
    double real = (double)number;
    pst_cell cell = {{spread, 0}, {NULL, 0}};
    if (type == PST_INT32 || type == PST_DATE32)
        cell.word[0] = (uint64_t)(int32_t)(number * 2654435761u);
    else if (type == PST_FLOAT64)
        memcpy(cell.word, &real, sizeof real);
    else if (type == PST_DECIMAL)
        cell.word[1] = number & 1 ? ~UINT64_C(0) : number >> 3;
    else if (type >= PST_STRING)
        cell.bytes = (pst_bytes){memset(room, 'k', WORLD_KEY_TEXT),
                                 WORLD_SIZES[number * 5 % WORLD_KEY_SIZES]};
    return cell;
}

static inline void world_make_keys(world *w) {
    static const uint32_t nulls[WORLD_KEY_COLUMNS][WORLD_KEY_COLUMNS + 1] = {
        {1}, {1, 2, 3}, {1, 2, 3, 7}};
    world_key_columns(w);
    int32_t n = w->schema.n_keys, hashed = pst_schema_hashed(&w->schema);
    for (int k = 0; k < WORLD_KEYS; k++) {
        for (int32_t i = 0; i < n; i++) {
            uint64_t number = (uint64_t)(hashed < n && i < hashed ? k % 3 : k);
            w->keys[k][i] = world_key_cell(w->key_columns[i].type, number, w->key_texts[k][i]);
        }
        int from_end = WORLD_KEYS - 1 - k;
        w->nulls[k] = from_end <= WORLD_KEY_COLUMNS ? nulls[n - 1][from_end] : 0;
        w->groups[k] = pst_key_group(pst_hash_key(w->key_columns, hashed, w->keys[k], w->nulls[k]),
                                     w->max_parallelism);
    }
}

/* Alike but for their ends, or from the first byte on. */
static inline pst_bytes world_bytes(uint64_t seed, uint32_t sizes, uint8_t *room) {
    uint32_t size = WORLD_SIZES[seed % sizes];
    uint64_t number = seed / sizes;
    memset(room, 'a', size);
    for (uint32_t i = 0; i < size && i < 4; i++)
        room[size - 1 - i] = (uint8_t)(number >> 8 * i);
    if (size > 6 && number & 1)
        room[0] = 'b';
    return (pst_bytes){room, size};
}

/* Equal seeds give equal cells, whose bytes lie in `room`. */
static inline pst_cell world_cell(const pst_column *c, uint64_t seed, uint32_t sizes,
                                  uint8_t *room) {
    pst_cell cell = {{0, 0}, {NULL, 0}};
    int is_float = c->type == PST_FLOAT32 || c->type == PST_FLOAT64;
    if (c->type == PST_FIXED)
        cell.bytes = (pst_bytes){memset(room, (int)(seed & 0xFF), c->width), c->width};
    else if (c->type >= PST_STRING)
        cell.bytes = world_bytes(seed, sizes, room);
    else if (is_float && seed % 8 >= 6) /* -0.0, and a NaN of many */
        cell.word[0] = (seed & 1 ? UINT64_C(0xFFF8000000000001) : UINT64_C(1) << 63) >>
                       (c->type == PST_FLOAT32 ? 32 : 0);
    else
        cell = random_cell(c, &seed, 0, NULL);
    return cell;
}

/* One of a few, so that it is often what was there before, or of all lengths, some of each. */
static inline uint64_t world_seed(world *w) {
    return world_below(w, world_one_in(w, 2) ? 4 : 3 * w->sizes);
}

static inline pst_cell world_value(world *w, int32_t column, uint64_t seed) {
    return world_cell(&w->columns[column], seed, w->sizes, w->value_room);
}

static inline pst_cell world_map_key(world *w, int32_t column, uint64_t seed) {
    const pst_column *c = &w->columns[column];
    pst_column key = {.type = (pst_type)c->map_key, .precision = c->map_precision};
    return world_cell(&key, seed, WORLD_ALL_SIZES - 2, w->key_room);
}

/* ---- states ---------------------------------------------------------------------------------- */

static inline void world_make_state(world *w, int i) {
    world_state *s = &w->states[i];
    pst_column *c = &s->column;
    memset(s, 0, sizeof *s);
    uint32_t at = (uint32_t)i % WORLD_STATES, number = (uint32_t)world_below(w, 1000) % 1000;
    snprintf(s->name, sizeof s->name, "s%u_%u", at, number);
    snprintf(s->time_name, sizeof s->time_name, "s%u_%u#time", at, number);
    c->name = s->name;
    c->type = (pst_type)(1 + world_below(w, PST_NESTED));
    c->kind = (uint8_t)(i == 0   ? PST_LIST + world_below(w, 2)
                        : i == 1 ? PST_VALUE
                                 : world_below(w, PST_MAP + 1));
    if (c->type == PST_FIXED)
        c->width = (uint16_t)(8 * (1 + world_below(w, world_one_in(w, 2) ? 32 : 3)));
    if (c->type == PST_DECIMAL)
        c->precision = 38;
    if (c->kind == PST_MAP) {
        c->map_key = (uint8_t)(1 + world_below(w, PST_BINARY));
        c->map_precision = c->map_key == PST_DECIMAL ? 38 : 0;
    }
    s->expires = world_one_in(w, 2);
    s->ttl.duration_ms = world_one_in(w, 5) ? 0 : 20 + (int64_t)world_below(w, 200);
    s->ttl.granularity_ms = world_one_in(w, 2) ? (int64_t)world_below(w, 30) : 0;
    s->ttl.event_time = (uint8_t)world_one_in(w, 3);
    s->ttl.on_read = (uint8_t)world_one_in(w, 2);
    s->ttl.lenient = (uint8_t)world_one_in(w, 4);
}

static inline void world_add_column(world *w, pst_column column, const world_state *s) {
    int32_t i = w->schema.n_states++;
    w->columns[i] = column;
    w->state_of[i] = s;
}

/* Some of the states, in an order of their own; whether one that was there goes. One is always
 * there, and a list or map once there has been one: files keep the element column. A list's time to
 * live is there to stay: how many of its items that have expired are gone is a matter of its
 * chunks. */
static inline int world_declare(world *w) {
    int from = (int)world_below(w, (uint64_t)w->n_states), dropped = 0;
    int may_drop = world_one_in(w, 2), had_timers = w->has_timers;
    w->schema.states = w->columns;
    w->schema.n_states = 0;
    for (int i = 0; i < w->n_states; i++) {
        int at = (from + i) % w->n_states, was_there = w->states[at].declared;
        world_state *s = &w->states[at];
        int leaves = at > 1 && world_one_in(w, 5) && (may_drop || !was_there);
        s->declared = !leaves && !(w->values_only && s->column.kind != PST_VALUE);
        dropped |= was_there && !s->declared;
        if (!s->declared)
            continue;
        world_add_column(w, s->column, s);
        s->timed = s->expires && ((s->timed && s->column.kind == PST_LIST) || !world_one_in(w, 4));
        if (s->timed)
            world_add_column(
                w, (pst_column){.name = s->time_name, .type = PST_INT64, .kind = PST_TIME}, NULL);
    }
    w->has_timers =
        w->may_have_timers && !w->values_only && ((had_timers && !may_drop) || !world_one_in(w, 6));
    w->has_timer_column |= !world_one_in(w, 4);
    if (w->has_timers)
        world_add_column(w, (pst_column){.name = "#timers", .type = PST_INT32, .kind = PST_TIMERS},
                         NULL);
    if (w->has_timers && w->has_timer_column)
        world_add_column(w, (pst_column){.name = "#timer", .type = PST_INT64, .kind = PST_TIMER},
                         NULL);
    return dropped || (had_timers && !w->has_timers);
}

static inline world *world_create(uint64_t seed) {
    world *w = calloc(1, sizeof *w);
    REQUIRE(w);
    w->seed = seed;
    w->random = seed * 1000003;
    w->max_parallelism = world_one_in(w, 3) ? 6 : 4;
    world_make_keys(w);
    /* All key groups, or some with that of the null key. */
    w->last = w->max_parallelism - 1;
    if (world_one_in(w, 2)) {
        int32_t group = w->groups[WORLD_KEYS - 1];
        w->first = (int32_t)world_below(w, (uint64_t)group + 1);
        w->last -= (int32_t)world_below(w, (uint64_t)(w->last - group) + 1);
    }
    w->n_states = 2 + (int)world_below(w, world_one_in(w, 3) ? WORLD_STATES - 1 : 3);
    for (int i = 0; i < w->n_states; i++)
        world_make_state(w, i);
    w->may_have_timers = world_one_in(w, 2);
    w->values_only = world_one_in(w, 3);
    w->lives = world_one_in(w, 3) ? 2 : 14;
    w->lasts = world_one_in(w, 2) ? 8 : 50;
    w->domain = world_one_in(w, 3) ? 300 : world_one_in(w, 2) ? 5 : 40;
    w->sizes = world_one_in(w, 5) ? WORLD_ALL_SIZES : world_one_in(w, 2) ? 12 : 20;
    w->now = world_one_in(w, 3) ? (pst_clock){PST_NO_TIME, PST_NO_TIME, PST_NO_TIME}
                                : (pst_clock){1000, 1000, 1000};
    w->limit_bytes = (uint64_t)1 << (world_one_in(w, 3) ? 14 + world_below(w, 6) : 26);
    w->limit_bytes += world_below(w, w->limit_bytes);
    (void)world_declare(w);
    return w;
}

/* Where the columns of a file's schema are now, as pst_merge and pst_table_load take them. */
static inline const int32_t *world_mapping(world *w, const pst_schema *from, int32_t *columns) {
    int same = from->n_states == w->schema.n_states;
    for (int32_t i = 0; i < from->n_states; i++) {
        columns[i] = w->schema.n_states - 1;
        while (columns[i] >= 0 && strcmp(from->states[i].name, w->columns[columns[i]].name) != 0)
            columns[i]--;
        same = same && columns[i] == i;
    }
    return same && world_one_in(w, 2) ? NULL : columns;
}

static inline pst_table *world_open(const world *w, int32_t first, int32_t last, uint64_t limit) {
    pst_table_options o = {.max_parallelism = w->max_parallelism,
                           .first_key_group = first,
                           .last_key_group = last,
                           .limit_bytes = limit};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&w->schema, &o, &t, NULL, NULL) == PST_OK);
    for (int32_t c = 1; c < w->schema.n_states; c++)
        if (w->columns[c].kind == PST_TIME)
            REQUIRE(pst_table_set_ttl(t, c - 1, &w->state_of[c - 1]->ttl) == PST_OK);
    return t;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Operations end with the first that fails; those of the epoch that are left do nothing. */
static inline int world_did(world *w, pst_status s) {
    if (s != PST_OK && s != PST_NOT_FOUND && !w->failed)
        w->failed = s;
    return !w->failed;
}

static inline void world_put_entry(world *w, pst_table *t, int32_t column, uint64_t key) {
    pst_cell k = world_map_key(w, column, key);
    pst_cell v = world_value(w, column, world_seed(w));
    world_did(w, pst_map_put(t, column, &k, world_one_in(w, 6) ? NULL : &v));
}

static inline void world_put_entries(world *w, pst_table *t, int32_t column, uint64_t n) {
    for (; n > 0 && !w->failed; n--)
        world_put_entry(w, t, column, world_below(w, w->domain));
}

static inline void world_remove_entries(world *w, pst_table *t, int32_t column, uint64_t n) {
    for (; n > 0 && !w->failed; n--) {
        pst_cell key = world_map_key(w, column, world_below(w, w->domain));
        world_did(w, pst_map_remove(t, column, &key));
    }
}

/* Items of consecutive seeds from `seed` on, or of any. */
static inline void world_add_items(world *w, pst_table *t, int32_t column, uint64_t n,
                                   uint64_t seed) {
    for (uint64_t i = 0; i < n && !w->failed; i++) {
        pst_cell item = world_value(w, column, seed ? seed + i : world_below(w, 500));
        world_did(w, pst_list_add(t, column, &item));
    }
}

/* A list's or map's elements, in memory of their own. */
typedef struct world_copy {
    pst_cell keys[4000];
    pst_cell values[4000];
    int is_null[4000];
    int n;
    byte_heap heap;
} world_copy;

static inline void world_own_bytes(world_copy *copy, pst_type type, pst_cell *cell) {
    if (type < PST_STRING)
        return;
    uint8_t *own = heap_take(&copy->heap, cell->bytes.size);
    if (cell->bytes.size)
        memcpy(own, cell->bytes.data, cell->bytes.size);
    cell->bytes.data = own;
}

static inline void world_copy_elements(world *w, pst_table *t, int32_t column, world_copy *copy) {
    const pst_column *c = &w->columns[column];
    pst_elements *walk = NULL;
    copy->n = 0;
    if (!world_did(w, pst_elements_create(t, &walk)))
        return;
    world_did(w, pst_elements_start(walk, column));
    while (!w->failed && copy->n < 4000) {
        pst_cell *key = &copy->keys[copy->n], *value = &copy->values[copy->n];
        pst_status s = pst_elements_next(walk, key, value);
        if (!world_did(w, s) || s)
            break;
        if (c->kind == PST_MAP)
            world_own_bytes(copy, (pst_type)c->map_key, key);
        copy->is_null[copy->n] = pst_elements_is_null(walk);
        if (!copy->is_null[copy->n])
            world_own_bytes(copy, c->type, value);
        copy->n++;
    }
    pst_elements_destroy(walk);
}

/* Takes all elements away and puts them back, at times all but one: of that an epoch says nothing,
 * or only that. */
static inline void world_refill(world *w, pst_table *t, int32_t column) {
    static world_copy copy;
    int is_map = w->columns[column].kind == PST_MAP;
    world_copy_elements(w, t, column, &copy);
    int but = world_one_in(w, 2) ? copy.n / 2 : -1;
    if (is_map && world_one_in(w, 2)) {
        for (int i = 0; i < copy.n && !w->failed; i++)
            world_did(w, pst_map_remove(t, column, &copy.keys[i]));
    } else if (!w->failed) {
        world_did(w, pst_value_clear(t, world_one_in(w, 6) ? -1 : column));
    }
    for (int i = 0; i < copy.n && !w->failed; i++)
        if (i != but)
            world_did(w, is_map ? pst_map_put(t, column, &copy.keys[i],
                                              copy.is_null[i] ? NULL : &copy.values[i])
                                : pst_list_add(t, column, &copy.values[i]));
    heap_free(&copy.heap);
}

static inline void world_step_value(world *w, pst_table *t, int32_t column) {
    pst_cell value = world_value(w, column, world_seed(w));
    world_did(w, world_below(w, 5) < 3 ? pst_value_put(t, column, &value)
                                       : pst_value_clear(t, column));
}

static inline void world_step_list(world *w, pst_table *t, int32_t column) {
    uint64_t many = w->columns[column].type >= PST_STRING ? 60 : 1000;
    uint64_t what = world_below(w, 20);
    if (what < 12) {
        world_add_items(w, t, column, 1 + world_below(w, 4), 0);
    } else if (what < 13) {
        world_add_items(w, t, column, world_below(w, many), 0);
    } else if (what < 15) {
        world_refill(w, t, column);
    } else if (world_did(w, pst_value_clear(t, column)) && what < 17) {
        world_add_items(w, t, column, 1 + world_below(w, 3), 7);
    } else if (what < 18) {
        world_add_items(w, t, column, 3, 0);
        if (!w->failed)
            world_did(w, pst_value_clear(t, column));
        world_add_items(w, t, column, world_below(w, 3), 0);
    }
}

static inline void world_step_map(world *w, pst_table *t, int32_t column) {
    uint64_t what = world_below(w, 20);
    if (what < 10) {
        world_put_entries(w, t, column, 1 + world_below(w, 8));
    } else if (what < 14) {
        world_remove_entries(w, t, column, 1 + world_below(w, 8));
    } else if (what < 16) {
        world_refill(w, t, column);
    } else if (what < 17) {
        for (uint64_t i = 0; i < w->domain && !w->failed; i++)
            world_put_entry(w, t, column, i);
    } else if (world_did(w, pst_value_clear(t, column)) && what < 18) {
        world_put_entries(w, t, column, 1);
    }
}

/* What reading moves of the times. */
static inline void world_read(world *w, pst_table *t, int32_t column) {
    pst_elements *walk = NULL;
    pst_cell key, value;
    int is_null;
    if (w->columns[column].kind == PST_VALUE) {
        world_did(w, pst_value_get(t, column, &value));
    } else if (w->columns[column].kind == PST_MAP && world_one_in(w, 2)) {
        key = world_map_key(w, column, world_below(w, w->domain));
        world_did(w, pst_map_get(t, column, &key, &value, &is_null));
    } else if (world_did(w, pst_elements_create(t, &walk))) {
        world_did(w, pst_elements_start(walk, column));
        pst_elements_destroy(walk);
    }
}

static inline void world_step_timer(world *w, pst_table *t) {
    pst_domain domain = (pst_domain)world_below(w, 2);
    int64_t at = (int64_t)world_below(w, 12) * 1000 - 3000;
    if (at == -3000)
        at = INT64_MIN;
    else if (at == 8000)
        at = INT64_MAX;
    world_did(w, world_one_in(w, 3) ? pst_timer_delete(t, domain, at)
                                    : pst_timer_register(t, domain, at));
}

static inline void world_step(world *w, pst_table *t) {
    uint64_t k = world_below(w, WORLD_KEYS), column;
    while (w->groups[k] < w->first || w->groups[k] > w->last)
        k = (k + 1) % WORLD_KEYS;
    if (w->failed || !world_did(w, pst_key_set(t, w->keys[k], w->nulls[k])))
        return;
    if (w->has_timers && world_one_in(w, 4)) {
        world_step_timer(w, t);
        return;
    }
    /* The key goes, and may come again. */
    if (world_one_in(w, w->lives) && (!world_did(w, pst_value_clear(t, -1)) || world_one_in(w, 2)))
        return;
    do
        column = world_below(w, (uint64_t)w->schema.n_states);
    while (!w->state_of[column]);
    if (world_one_in(w, 8))
        world_read(w, t, (int32_t)column);
    else if (w->columns[column].kind == PST_VALUE)
        world_step_value(w, t, (int32_t)column);
    else if (w->columns[column].kind == PST_LIST)
        world_step_list(w, t, (int32_t)column);
    else
        world_step_map(w, t, (int32_t)column);
}

/* Some timers that are due go, all at once or one by one, where keys go with them and new ones
 * come. */
static inline void world_fire(world *w, pst_table *t) {
    int64_t times[50], until = (int64_t)world_below(w, 9000) - 2000;
    pst_domain domain = (pst_domain)world_below(w, 2);
    pst_batch *b = NULL;
    int64_t most = 1 + (int64_t)world_below(w, 49);
    if (!w->has_timers || w->failed)
        return;
    pst_status s = pst_timers_due(t, domain, until, most, times, &b);
    if (!world_did(w, s) || s)
        return;
    if (world_one_in(w, 2)) {
        world_did(w, pst_timers_fire_all(b, domain, times));
    } else {
        for (int64_t i = 0; i < pst_batch_length(b) && !w->failed; i++) {
            if (!world_did(w, pst_timer_fire(b, i, domain, times[i])))
                break;
            if (world_one_in(w, 4))
                world_did(w, pst_value_clear(t, -1));
            if (world_one_in(w, 6) && !w->failed)
                world_did(w, pst_timer_register(t, domain, times[i] + 1000));
        }
    }
    pst_batch_destroy(b);
}

/* Time passes, from when there is a clock, and some of what has expired may go. */
static inline void world_pass_time(world *w, pst_table *t) {
    pst_clock *now = &w->now;
    if (now->processing_ms != PST_NO_TIME) {
        now->processing_ms += (int64_t)world_below(w, world_one_in(w, 3) ? 300 : 40);
        now->watermark_ms += (int64_t)world_below(w, 60);
        now->event_ms = now->watermark_ms + (int64_t)world_below(w, 100) - 50;
    } else if (world_one_in(w, 8)) {
        *now = (pst_clock){1000, 900, 1000};
    }
    pst_table_set_clock(t, now);
    if (world_one_in(w, 2))
        world_did(w, pst_table_expire(t, world_one_in(w, 2) ? world_below(w, 50) : 100000, NULL));
}

#endif
