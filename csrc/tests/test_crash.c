/* The process dies after every single store to table memory.
 *
 * A hook that runs after each store copies what is committed into a second range, as another
 * process would find it, recovers the copy, and compares it with the model of the epoch that the
 * copy says it stands at: by iteration, by look-up, after going back as far as it can, and after
 * writing on. The copy lies at another address, so nothing in it can be a pointer.
 *
 *   test_crash [steps] [seed] [every]     every: look at each n-th store only
 */
#include "crash.h"
#include "memory/alloc.h"
#include "memory/span.h"
#include "slots_check.h"
#include "table/index.h"
#include "table_model.h"

static struct {
    pst_table *t;
    model *m;
    pst_table *copy;
    model_state *scratch;
    uint64_t points;
    uint64_t looked;
    uint64_t every;
    uint64_t random;
    uint64_t at[4]; /* sealed, going back 1, going back 2, written on */
} sweep;

static pst_table *open_table(const pst_schema *s) {
    pst_table_options o = {
        .max_parallelism = 2, .last_key_group = 1, .limit_bytes = (uint64_t)1 << 26};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static void write_on(pst_table *t, model_state *state, int n) {
    const pst_schema *s = sweep.m->schema;
    for (int i = 0; i < n; i++) {
        int32_t k = (int32_t)(check_random(&sweep.random) % (uint64_t)sweep.m->keys);
        pst_cell key[2], cell = {{(uint64_t)i, 0}, {NULL, 0}};
        model_bytes room;
        model_key(s, k, key, &room);
        CHECK_EQ(pst_key_set(t, key, 0), PST_OK);
        if (check_random(&sweep.random) % 4 == 0) {
            CHECK_EQ(pst_value_clear(t, -1), PST_OK);
            memset(state->present[k], 0, sizeof state->present[k]);
            continue;
        }
        CHECK_EQ(pst_value_put(t, 0, &cell), PST_OK);
        state->present[k][0] = 1;
        state->value[k][0] = (uint64_t)i;
    }
}

/* What going back left of the spans: as many are free as the meta says, and blocks are counted. */
static int check_spans(pst_table *c) {
    uint32_t free = 0, listed = 0, named = 0;
    for (uint32_t i = 1; i < pst_span_count(c); i++) {
        const pst_span *s = pst_span_at(c, i);
        free += !(s->state & PST_SPAN_USED);
        listed += s->state & PST_SPAN_USED ? s->listed : 0u;
    }
    for (uint32_t k = 0; k < PST_CLASSES; k++)
        named += c->m->rings[k].tail - c->m->rings[k].head - c->m->stale[k];
    return CHECK_EQ(free, c->m->free_spans) && CHECK_EQ(listed, named);
}

static void check_copy(void) {
    pst_table *c = sweep.copy;
    const model *m = sweep.m;
    pst_lineage l;
    copy_image(sweep.t, c);
    pst_epoch_recover(c);
    REQUIRE(pst_table_lineage(c, 0, &l) == PST_OK);
    int ok = check_spans(c) && CHECK(l.epoch + 3 > m->seals && l.epoch <= m->seals + 1) &&
             model_compare(c, &m->sealed[l.epoch % MODEL_EPOCHS], m->schema, m->keys);
    check_slots(c);
    sweep.at[0]++;
    int32_t back = (int32_t)(check_random(&sweep.random) % 4);
    if (ok && back < 3 && pst_table_lineage(c, back, &l) == PST_OK) {
        ok = CHECK_EQ(pst_table_rollback(c, back), PST_OK) &&
             model_compare(c, &m->sealed[l.epoch % MODEL_EPOCHS], m->schema, m->keys);
        sweep.at[back]++;
    }
    if (ok && check_random(&sweep.random) % 4 == 0) {
        *sweep.scratch = m->sealed[l.epoch % MODEL_EPOCHS];
        /* Now and then for so many epochs that everything freed before is taken again. */
        int epochs = check_random(&sweep.random) % 8 ? 1 : 7;
        for (int e = 0; ok && e < epochs; e++) {
            write_on(c, sweep.scratch, epochs == 1 ? 12 : m->keys / 2);
            l = model_lineage(l.epoch + 1);
            ok = model_compare(c, sweep.scratch, m->schema, m->keys) &&
                 CHECK_EQ(pst_table_seal(c, &l, NULL), PST_OK) &&
                 model_compare(c, sweep.scratch, m->schema, m->keys);
        }
        sweep.at[3]++;
    }
    if (!ok) {
        fprintf(stderr, "    after store %llu, epoch %llu\n", (unsigned long long)sweep.points,
                (unsigned long long)l.epoch);
        exit(check_report());
    }
}

static void after_store(void) {
    sweep.points++;
    if (sweep.points % sweep.every)
        return;
    pst_crash_hook = NULL;
    check_copy();
    sweep.looked++;
    pst_crash_hook = after_store;
}

/* Catch-up: the records of a newer epoch, applied as an ordinary one. */
static void catch_up(pst_table *t, model *m, uint64_t *random) {
    static pst_record r;
    for (int i = 0; i < 10; i++) {
        int32_t k = (int32_t)(check_random(random) % (uint64_t)m->keys);
        model_bytes room;
        model_key(m->schema, k, r.key, &room);
        r.hash = pst_hash_key(m->schema->keys, m->schema->n_keys, r.key, 0);
        r.op = check_random(random) % 3 ? PST_PUT : PST_DELETE;
        r.key_nulls = 0;
        r.changed = r.present = 1;
        r.cells[0].word[0] = (uint64_t)i;
        REQUIRE(pst_table_apply(t, &r, NULL, m->schema->n_states) == PST_OK);
        if (r.op == PST_PUT) {
            m->now.present[k][0] = 1;
            m->now.value[k][0] = (uint64_t)i;
        } else {
            memset(m->now.present[k], 0, sizeof m->now.present[k]);
        }
    }
}

/* A model, a table and the table for copies, all new. */
static model *begin(const pst_schema *s, int32_t keys, uint64_t seed) {
    model *m = calloc(1, sizeof *m);
    sweep.scratch = malloc(sizeof *sweep.scratch);
    REQUIRE(m && sweep.scratch);
    m->schema = s;
    m->keys = keys;
    sweep.m = m;
    sweep.t = open_table(s);
    sweep.copy = open_table(s);
    sweep.random = seed;
    return m;
}

static void run(const pst_schema *s, int32_t keys, int steps, uint64_t seed) {
    model *m = begin(s, keys, seed);
    for (int i = 0; i < steps; i++) {
        pst_crash_hook = after_store;
        if (i % 10 == 9)
            catch_up(sweep.t, m, &seed);
        else if (i % 6 == 5)
            model_seal(sweep.t, m, NULL);
        else
            model_step(sweep.t, m, &seed);
        pst_crash_hook = NULL;
        if (!CHECK(model_compare(sweep.t, &m->now, s, keys)))
            break;
    }
    pst_table_close(sweep.t);
    pst_table_close(sweep.copy);
    free(sweep.scratch);
    free(m);
}

/* Slots of deleted keys reused in the very epoch that rebuilds their shard: one shard filled to its
 * limit, some keys deleted, the window passed, others inserted. Every store of those is looked
 * at. */
static void run_reuse(const pst_schema *s, int trials, uint64_t seed) {
    enum { FILL = 27 }; /* one more entry makes a shard of 32 grow */
    uint64_t every = sweep.every;
    sweep.every = 1;
    for (int trial = 0; trial < trials; trial++) {
        model *m = begin(s, MODEL_KEYS, seed);
        int32_t chosen[MODEL_KEYS], n = 0, shift = (int32_t)(check_random(&seed) % 100);
        for (int32_t k = 0; k < MODEL_KEYS; k++) {
            pst_cell key[2];
            model_bytes room;
            model_key(s, (k + shift) % MODEL_KEYS, key, &room);
            uint64_t hash = pst_hash_key(s->keys, s->n_keys, key, 0);
            uint32_t tag = pst_tag_of(sweep.t, hash);
            if (pst_directory_at(sweep.t, sweep.t->m->directory_bits, hash, tag) ==
                (uint32_t)trial % 16)
                chosen[n++] = (k + shift) % MODEL_KEYS;
        }
        for (int32_t i = 0; i < n && i < FILL + 6; i++) {
            pst_cell key[2], cell = {{7, 0}, {NULL, 0}};
            model_bytes room;
            if (i == FILL) {
                for (int d = 0; d < 5; d++) {
                    int32_t gone = chosen[check_random(&seed) % FILL];
                    model_key(s, gone, key, &room);
                    CHECK_EQ(pst_key_set(sweep.t, key, 0), PST_OK);
                    CHECK_EQ(pst_value_clear(sweep.t, -1), PST_OK);
                    m->now.present[gone][0] = 0;
                }
                for (int e = 0; e < 4; e++)
                    model_seal(sweep.t, m, NULL);
                pst_crash_hook = after_store;
            }
            model_key(s, chosen[i], key, &room);
            CHECK_EQ(pst_key_set(sweep.t, key, 0), PST_OK);
            CHECK_EQ(pst_value_put(sweep.t, 0, &cell), PST_OK);
            m->now.present[chosen[i]][0] = 1;
            m->now.value[chosen[i]][0] = 7;
        }
        pst_crash_hook = NULL;
        CHECK(model_compare(sweep.t, &m->now, s, m->keys));
        pst_table_close(sweep.t);
        pst_table_close(sweep.copy);
        free(sweep.scratch);
        free(m);
    }
    sweep.every = every;
}

/* The ring of reusable slots grows while it holds names: after every store of that seal, what a
 * process finds in the ring is what was in it when the epoch that it goes back to was sealed. */
static struct {
    uint64_t sealed;
    uint32_t from, to;
    uint32_t names[256];
} ring;

static void remember_ring(const pst_table *t) {
    const pst_ring *r = &t->m->rings[PST_RING_SLOTS];
    ring.sealed = t->h->sealed;
    ring.from = r->sealed_head[2];
    ring.to = r->tail;
    REQUIRE(ring.to - ring.from <= 256);
    for (uint32_t p = ring.from; p != ring.to; p++)
        ring.names[p - ring.from] = pst_ring_at(t, PST_RING_SLOTS, p);
}

static void check_ring(void) {
    pst_crash_hook = NULL;
    copy_image(sweep.t, sweep.copy);
    uint64_t sealed = sweep.copy->h->sealed;
    pst_epoch_recover(sweep.copy);
    if (sealed == ring.sealed) {
        const pst_ring *r = &sweep.copy->m->rings[PST_RING_SLOTS];
        CHECK_EQ(r->tail, ring.to);
        for (uint32_t p = ring.from; p != ring.to; p++)
            if (!CHECK_EQ(pst_ring_at(sweep.copy, PST_RING_SLOTS, p), ring.names[p - ring.from]))
                exit(check_report());
    }
    sweep.looked++;
    pst_crash_hook = check_ring;
}

static void run_ring_growth(const pst_schema *s) {
    pst_lineage l = model_lineage(0);
    sweep.t = open_table(s);
    sweep.copy = open_table(s);
    uint64_t widest = 0;
    for (uint64_t epoch = 1; epoch <= 16; epoch++) {
        /* Each epoch's keys die in the next; ever more of them, so that the ring's first cells are
         * consumed ones when it grows. */
        for (uint64_t back = 0; back < 2 && epoch > back; back++)
            for (uint64_t k = 0; k < 2 * (epoch - back); k++) {
                pst_cell key = {{(epoch - back) << 8 | k, 0}, {NULL, 0}};
                CHECK_EQ(pst_key_set(sweep.t, &key, 0), PST_OK);
                CHECK_EQ(back ? pst_value_clear(sweep.t, -1) : pst_value_put(sweep.t, 0, &key),
                         PST_OK);
            }
        l = model_lineage(l.epoch + 1);
        pst_crash_hook = check_ring;
        CHECK_EQ(pst_table_seal(sweep.t, &l, NULL), PST_OK);
        pst_crash_hook = NULL;
        remember_ring(sweep.t);
        widest = sweep.t->h->ring_capacity[PST_RING_SLOTS];
    }
    CHECK(widest >= 64 && ring.from > 0);
    pst_table_close(sweep.t);
    pst_table_close(sweep.copy);
}

/* Values whose sizes change together: spans are freed, given back, taken for other sizes, left by
 * what is still in them; rings shrink. Every so many stores are looked at, and all seals whole. */
static void run_spans(const pst_schema *s, uint64_t seed) {
    static const uint32_t bands[] = {330, 20, 180, 389, 60, 100};
    uint64_t every = sweep.every, absent = 0, reused = 0, left = 0;
    model *m = begin(s, MODEL_KEYS, seed);
    for (uint64_t epoch = 0; epoch < 120; epoch++) {
        uint32_t band = bands[epoch / 20 % 6], free_before = sweep.t->m->free_spans;
        sweep.every = every * 211;
        pst_crash_hook = after_store;
        for (int32_t i = 0; i < (epoch % 20 < 6 ? m->keys / 2 : 3); i++) {
            int32_t k = (int32_t)(check_random(&seed) % (uint64_t)m->keys);
            uint64_t value = (band - check_random(&seed) % 10) * 5 + 390 * 5 * (epoch + 1);
            pst_cell key[2], cell;
            model_bytes room, bytes;
            model_key(s, k, key, &room);
            model_cell(PST_STRING, value, &cell, &bytes);
            CHECK_EQ(pst_key_set(sweep.t, key, 0), PST_OK);
            CHECK_EQ(pst_value_put(sweep.t, 1, &cell), PST_OK);
            m->now.present[k][1] = 1;
            m->now.value[k][1] = value;
        }
        sweep.every = every * 29;
        reused += sweep.t->m->free_spans < free_before;
        model_seal(sweep.t, m, NULL);
        pst_crash_hook = NULL;
        absent += sweep.t->h->absent_bytes != 0;
        left += sweep.t->h->spans.phase == PST_SPANS_LEFT;
        if (epoch % 10 == 9 && !CHECK(model_compare(sweep.t, &m->now, s, m->keys)))
            break;
    }
    CHECK(absent > 0 && reused > 0 && left > 0);
    pst_table_close(sweep.t);
    pst_table_close(sweep.copy);
    free(sweep.scratch);
    free(m);
    sweep.every = every;
}

static void set_key(model *m, int32_t k, int present, uint64_t value) {
    pst_cell key[2], cell;
    model_bytes room, bytes;
    model_key(m->schema, k, key, &room);
    CHECK_EQ(pst_key_set(sweep.t, key, 0), PST_OK);
    CHECK_EQ(pst_value_clear(sweep.t, -1), PST_OK);
    memset(m->now.present[k], 0, sizeof m->now.present[k]);
    for (int32_t c = 0; present && c < 2; c++) {
        model_cell(MODEL_STATES[c].type, value, &cell, &bytes);
        CHECK_EQ(pst_value_put(sweep.t, c, &cell), PST_OK);
        m->now.present[k][c] = 1;
        m->now.value[k][c] = value;
    }
}

/* Most keys go: rows move into low slots, the index forgets the others, slots become fewer; now and
 * then so many keys come that they do not. Stores are looked at in every phase. */
static void run_cut(const pst_schema *s, uint64_t seed) {
    enum { KEPT = 40 };
    uint64_t every = sweep.every, seen = 0;
    model *m = begin(s, MODEL_KEYS, seed);
    for (uint64_t round = 0; round < 3; round++) {
        for (int32_t k = 0; k < MODEL_KEYS; k++)
            set_key(m, k, 1, check_random(&seed) % 100000);
        model_seal(sweep.t, m, NULL);
        for (int32_t k = KEPT; k < MODEL_KEYS; k++)
            set_key(m, k, 0, 0);
        for (int e = 0; e < 70; e++) {
            uint32_t phase = sweep.t->m->cut_phase;
            sweep.every = every * 83;
            pst_crash_hook = after_store;
            if (round == 1 && phase == PST_CUT_MOVE)
                for (int32_t k = KEPT; k < KEPT + 200; k++)
                    set_key(m, k, e % 2, 7);
            for (int i = 0; i < 3; i++)
                set_key(m, (int32_t)(check_random(&seed) % KEPT), 1, check_random(&seed) % 100000);
            sweep.every = every * 31;
            model_seal(sweep.t, m, NULL);
            pst_crash_hook = NULL;
            seen |= UINT64_C(1) << phase;
            check_slots(sweep.t);
        }
        if (!CHECK(model_compare(sweep.t, &m->now, s, m->keys)))
            break;
    }
    CHECK_EQ(seen, (UINT64_C(1) << (PST_CUT_RELIST + 1)) - 1);
    pst_table_close(sweep.t);
    pst_table_close(sweep.copy);
    free(sweep.scratch);
    free(m);
    sweep.every = every;
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 60;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    sweep.every = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    pst_schema schemas[] = {{1, 2, MODEL_LONG_KEY, MODEL_STATES},
                            {1, 3, MODEL_TEXT_KEY, MODEL_STATES},
                            {1, 9, MODEL_LONG_KEY, MODEL_STATES}};
    for (int i = 0; i < 3; i++) {
        run(&schemas[i], 24, steps, seed + (uint64_t)i);
        run(&schemas[i], MODEL_KEYS, steps / 3, seed + 10 + (uint64_t)i);
    }
    run_reuse(&schemas[0], steps / 4, seed);
    run_ring_growth(&schemas[0]);
    run_spans(&schemas[0], seed);
    run_spans(&schemas[1], seed);
    run_cut(&schemas[0], seed);
    run_cut(&schemas[1], seed);
    run_cut(&schemas[2], seed);
    fprintf(stderr, "%llu stores, %llu looked at; back 1: %llu, back 2: %llu, written on: %llu\n",
            (unsigned long long)sweep.points, (unsigned long long)sweep.looked,
            (unsigned long long)sweep.at[1], (unsigned long long)sweep.at[2],
            (unsigned long long)sweep.at[3]);
    CHECK(sweep.looked > 0);
    return check_report();
}
