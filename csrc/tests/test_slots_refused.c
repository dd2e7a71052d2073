/* Rows that come and go beside a model, while memory is refused now and then: in every phase of a
 * cut, in the middle of operations, of seals, and of giving a cut up. After roll backs the index is
 * as it was. */
#include <string.h>

#include "check.h"
#include "memory/alloc.h"
#include "memory/handle.h"
#include "memory/ring.h"
#include "slots_check.h"
#include "table/index.h"

enum { KEYS = 2600, EPOCHS = 4, PHASES = PST_CUT_RELIST + 1 };

static const pst_column LONG_KEY[] = {{.name = "k", .type = PST_INT64}};
static const pst_column TEXT_KEY[] = {{.name = "k", .type = PST_STRING}};
static const pst_column STATES[] = {{.name = "n", .type = PST_INT64}};

static struct {
    pst_table *t;
    const pst_schema *schema;
    uint64_t random;
    uint64_t seals;
    uint64_t refusals;  /* operations for which memory is still refused */
    uint64_t now[KEYS]; /* 0: absent */
    uint64_t sealed[EPOCHS][KEYS];
    uint64_t refused[PHASES];  /* operations */
    uint64_t poisoned[PHASES]; /* and seals that had moved rows */
    uint64_t put_off[PHASES];  /* and seals that had not */
    uint64_t lowered;
} run;

static uint64_t any(uint64_t n) {
    return check_random(&run.random) % n;
}

static void key_of(uint64_t k, pst_cell *cell, char *room, size_t size) {
    *cell = (pst_cell){{k * 7919, 0}, {NULL, 0}};
    if (run.schema->keys[0].type == PST_INT64)
        return;
    int n =
        snprintf(room, size, "key-%d%s", (int)k, k % 3 ? "" : ", which does not fit into the row");
    cell->bytes = (pst_bytes){(const uint8_t *)room, (uint32_t)n};
}

/* ---- what must hold -------------------------------------------------------------------------- */

/* Lines are filled from their start, no slot is named twice, and none that there is not. */
static void check_index(void) {
    static uint8_t named[8192];
    const pst_table *t = run.t;
    const pst_meta *m = t->m;
    uint32_t n = pst_directory_size(t, m);
    memset(named, 0, sizeof named);
    REQUIRE(m->slots <= sizeof named);
    for (uint32_t i = 0; i < n;) {
        const pst_shard *s = &m->shards[i];
        const uint32_t *pages = (const uint32_t *)pst_block(t, s->table);
        uint32_t used = 0, capacity = pst_shard_capacity(s->shape);
        for (uint32_t at = 0; at < capacity; at++) {
            const uint64_t *page = (const uint64_t *)pst_block(t, pages[at / PST_PAGE_ENTRIES]);
            uint64_t e = page[at % PST_PAGE_ENTRIES];
            used += e != 0;
            CHECK(!e || at % PST_LINE == 0 || page[at % PST_PAGE_ENTRIES - 1]);
            if (!e || e == PST_TOMBSTONE)
                continue;
            if (CHECK(pst_entry_slot(e) < m->slots))
                CHECK_EQ(named[pst_entry_slot(e)]++, 0);
        }
        CHECK(s->used >= used);
        i += 1u << (m->directory_bits - pst_shard_depth(s->shape));
    }
    for (uint32_t i = 0; i < m->slots; i++)
        CHECK(named[i] || !pst_is_live(pst_row(t, i)[0]));
}

static void check_all(void) {
    uint64_t alive = 0, rows = 0, cursor = 0, changed = 0;
    static pst_record r;
    for (uint64_t k = 0; k < KEYS; k++) {
        pst_cell key, cell;
        char room[80];
        key_of(k, &key, room, sizeof room);
        CHECK_EQ(pst_key_set(run.t, &key, 0), PST_OK);
        pst_status s = pst_value_get(run.t, 0, &cell);
        CHECK_EQ(s, run.now[k] ? PST_OK : PST_NOT_FOUND);
        if (!s)
            CHECK_EQ(cell.word[0], run.now[k]);
        alive += run.now[k] != 0;
    }
    while (pst_table_next(run.t, &cursor, &r) == PST_OK)
        rows++;
    CHECK_EQ(rows, alive);
    CHECK_EQ(run.t->m->live, alive);
    for (uint32_t i = 0; i < run.t->m->slots; i++)
        changed += pst_header_stamp(pst_row(run.t, i)[0]) == run.t->stamp;
    pst_table_stats stats;
    pst_table_get_stats(run.t, &stats);
    CHECK_EQ(stats.changed_rows, changed);
}

static void check_state(void) {
    check_slots(run.t);
    check_index();
    check_all();
    /* In an index that is not sound a walk may have no end. */
    if (atomic_load(&check_failed))
        exit(check_report());
}

/* ---- what is done ---------------------------------------------------------------------------- */

/* Now and then nothing can grow for a while, or only by a page or two. */
static void refuse(uint64_t one_in) {
    if (run.refusals)
        run.refusals--;
    else if (any(one_in) == 0)
        run.refusals = any(150);
    run.t->arena.limit =
        run.refusals ? run.t->arena.committed_total + any(2) * 4096 : (uint64_t)1 << 26;
}

static void roll_back(int32_t back) {
    pst_lineage l;
    if (pst_table_lineage(run.t, back, &l))
        back = 0;
    REQUIRE(pst_table_rollback(run.t, back) == PST_OK);
    REQUIRE(pst_table_lineage(run.t, 0, &l) == PST_OK);
    run.seals = l.epoch;
    memcpy(run.now, run.sealed[run.seals % EPOCHS], sizeof run.now);
    check_state();
}

static void set(uint64_t k, uint64_t value, uint64_t refuse_one_in) {
    pst_cell key, cell = {{value, 0}, {NULL, 0}};
    char room[80];
    uint32_t phase = run.t->m->cut_phase;
    key_of(k, &key, room, sizeof room);
    refuse(refuse_one_in);
    REQUIRE(pst_key_set(run.t, &key, 0) == PST_OK);
    pst_status s = value ? pst_value_put(run.t, 0, &cell) : pst_value_clear(run.t, -1);
    run.t->arena.limit = (uint64_t)1 << 26;
    if (!s) {
        run.now[k] = value;
        return;
    }
    CHECK_EQ(s, PST_LIMIT);
    run.refused[phase]++;
    if (run.t->poisoned)
        roll_back((int32_t)any(3));
}

/* Slots that were made fewer are taken again, and given up again. */
static void take_lowered(void) {
    for (int i = 0; i < 300; i++)
        set(any(KEYS), 1 + any(1000), UINT64_MAX);
    roll_back(2);
    for (int i = 0; i < 300; i++)
        set(any(KEYS), 1 + any(1000), UINT64_MAX);
    check_index();
    check_all();
}

static void seal(uint64_t refuse_one_in) {
    uint32_t phase = run.t->m->cut_phase, slots = run.t->m->slots;
    pst_lineage l = {.epoch = run.seals + 1};
    pst_sealed *sealed = NULL;
    pst_status s;
    do {
        refuse(refuse_one_in);
        s = pst_table_seal(run.t, &l, any(2) ? &sealed : NULL);
        run.t->arena.limit = (uint64_t)1 << 26;
        pst_sealed_destroy(sealed);
        sealed = NULL;
        if (s && run.t->poisoned) {
            run.poisoned[phase]++;
            roll_back((int32_t)any(3));
            return;
        }
        if (s) {
            run.put_off[phase]++;
            check_index();
            check_all();
            set(any(KEYS), any(1000), 3);
            if (run.seals + 1 != l.epoch)
                return;
        }
    } while (s);
    memcpy(run.sealed[++run.seals % EPOCHS], run.now, sizeof run.now);
    run.lowered += run.t->m->slots < slots;
    if (run.t->m->slots < slots && any(2))
        take_lowered();
}

/* A seal that cannot free what died in its epoch, after it has moved rows. */
static void seal_in_vain(void) {
    pst_lineage l = {.epoch = run.seals + 1};
    uint32_t phase = run.t->m->cut_phase;
    uint64_t k = any(KEYS);
    for (int i = 0; i < KEYS && !run.now[k]; i++)
        k = (k + 1) % KEYS;
    set(k, 0, UINT64_MAX);
    run.t->arena.limit = run.t->arena.committed_total / 9 * 8; /* what makes room may pass it */
    while (pst_ring_push(run.t, PST_RING_SLOTS, 0) == PST_OK)
        ;
    pst_meta before = *run.t->m;
    pst_status s = pst_table_seal(run.t, &l, NULL);
    run.t->arena.limit = (uint64_t)1 << 26;
    /* Of a slot that the cut has dropped no name was wanted, or nobody was there any more. */
    if (s) {
        int moved = run.t->m->rings[PST_RING_SLOTS].head != before.rings[PST_RING_SLOTS].head;
        CHECK_EQ(s, PST_LIMIT);
        CHECK_EQ(run.t->poisoned != 0, moved);
        CHECK(moved || (run.t->m->cut_phase == phase && run.t->m->cut_at == before.cut_at));
        run.poisoned[phase] += run.t->poisoned != 0;
        run.put_off[phase] += !run.t->poisoned;
    }
    roll_back(s ? (int32_t)any(3) : 1);
}

static void test_refusals(const pst_schema *schema, uint64_t seed, int rounds) {
    pst_table_options o = {.max_parallelism = 2, .last_key_group = 1, .limit_bytes = 1 << 26};
    memset(&run.now, 0, sizeof run.now);
    memset(&run.sealed, 0, sizeof run.sealed);
    run.seals = 0;
    run.schema = schema;
    run.random = seed;
    REQUIRE(pst_table_open(schema, &o, &run.t, NULL, NULL) == PST_OK);
    for (int round = 0; round < rounds; round++) {
        uint64_t kept = 20 + any(300), from = any(KEYS), one_in = 2 + any(400);
        for (uint64_t k = 0; k < KEYS; k++)
            set(k, 1 + any(1000), 1000);
        seal(1000);
        for (uint64_t k = 0; k < KEYS; k++)
            if ((k + from) % KEYS >= kept)
                set(k, 0, 1000);
        seal(1000);
        uint64_t epochs = any(60);
        for (uint64_t e = 0; e < epochs; e++) {
            for (int i = 0; i < 4; i++)
                set((KEYS - from + any(kept)) % KEYS, any(8), one_in);
            if (any(12) == 0)
                seal_in_vain();
            else if (any(12) == 0)
                roll_back((int32_t)any(3));
            else
                seal(4);
        }
        /* In whatever phase: some go, many come, and all of that is undone. */
        for (int e = 0; e < 6; e++) {
            for (uint64_t i = any(kept); i > 0; i--)
                set((KEYS - from + any(kept)) % KEYS, 0, one_in);
            for (uint64_t i = any(3) ? any(KEYS / 2) : 0; i > 0; i--)
                set(any(KEYS), 1 + any(1000), one_in);
            check_all();
            if (any(3))
                seal(one_in);
            else
                roll_back((int32_t)any(3));
        }
        check_state();
    }
    pst_table_close(run.t);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 60;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    pst_schema schemas[] = {{1, 1, LONG_KEY, STATES}, {1, 1, TEXT_KEY, STATES}};
    /* Some of it happens rarely, and by where the system has put the memory: until it has. */
    int all = 0;
    for (int i = 0; i < 2 || (!all && i < 20); i++) {
        test_refusals(&schemas[i % 2], seed + (uint64_t)i, rounds);
        all = run.lowered > 0 && run.poisoned[PST_CUT_MOVE] > 0 && run.refused[PST_CUT_RELIST] > 0;
    }
    CHECK(all);
    for (int p = 0; p < PHASES; p++)
        fprintf(stderr, "phase %d: refused %llu, seals poisoned %llu, put off %llu\n", p,
                (unsigned long long)run.refused[p], (unsigned long long)run.poisoned[p],
                (unsigned long long)run.put_off[p]);
    return check_report();
}
