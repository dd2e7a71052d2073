/* Cursors and look-ups on sealed trees beside a writer that changes, clears, seals and rolls back:
 * while the epoch can be read they say exactly what it held; once it has gone they end. Built with
 * -fsanitize=thread it also shows that no access races.
 *
 *   test_tree_reader [steps] [seed]
 */
#include <pthread.h>
#include <sched.h>

#include "tree_model.h"

enum { KEYS = 400 };

static struct {
    pthread_mutex_t lock;
    tree_model *m;
    tree_version sealed;
    uint64_t epoch;
    uint64_t undone; /* roll backs of sealed epochs when it was sealed */
    _Atomic int done;
    _Atomic uint64_t complete, too_old;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Private copies of what an entry points to; 0 where a size cannot be right. */
static int copy_out(const pst_tree_shape *s, pst_tree_entry *e, tree_room *room) {
    pst_get_words(room->value, e->value, s->value_words);
    e->value = room->value;
    pst_bytes *bytes[] = {s->key_is_ref ? &e->key_bytes : NULL,
                          s->value_is_ref ? &e->value_bytes : NULL};
    uint8_t *to[] = {room->key, room->value_bytes};
    for (int i = 0; i < 2; i++) {
        if (!bytes[i])
            continue;
        if (bytes[i]->size > TREE_TEXT)
            return 0;
        for (uint32_t k = 0; k < bytes[i]->size; k++)
            to[i][k] = pst_get8(bytes[i]->data + k);
        bytes[i]->data = to[i];
    }
    return 1;
}

static int read_all(const tree_model *m, const tree_version *v, uint64_t heap_bytes) {
    pst_tree_cursor c;
    pst_tree_entry e;
    tree_room room;
    uint32_t at = 0;
    pst_tree_seek(&c, m->t->heap, heap_bytes, &m->shape, v->root, NULL);
    for (;; at++) {
        while (at < m->keys && !v->present[m->order[at]])
            at++;
        pst_status s = pst_tree_next(&c, &e);
        if (s)
            return s == PST_NOT_FOUND && at == m->keys;
        if (at == m->keys || !copy_out(&m->shape, &e, &room) ||
            !tree_same_key(&m->shape, m->order[at], &e) ||
            !tree_same_value(&m->shape, v, m->order[at], &e))
            return 0;
    }
}

static int read_one(const tree_model *m, const tree_version *v, uint64_t heap_bytes, uint32_t k) {
    pst_tree_entry e;
    tree_room key, room;
    tree_key(&m->shape, k, &e, &key);
    pst_status s = pst_tree_find(m->t->heap, heap_bytes, &m->shape, v->root, &e);
    if (s)
        return s == PST_NOT_FOUND && !v->present[k];
    e.key_bytes.size = 0;
    return v->present[k] && copy_out(&m->shape, &e, &room) && tree_same_value(&m->shape, v, k, &e);
}

/* Whether what was read until now was the version's. */
static int still_there(const pst_header *h, uint64_t epoch, uint64_t undone) {
    PST_FENCE(__ATOMIC_ACQUIRE);
    return pst_get64(&h->floor) <= epoch && pst_get64(&h->undone) == undone;
}

static void *read_on(void *argument) {
    const tree_model *m = shared.m;
    const pst_header *h = m->t->h;
    uint64_t random = (uint64_t)(uintptr_t)argument;
    tree_version v;
    tree_version_open(&v, KEYS);
    while (!atomic_load(&shared.done)) {
        pthread_mutex_lock(&shared.lock);
        tree_version_copy(&v, &shared.sealed, KEYS);
        uint64_t epoch = shared.epoch, undone = shared.undone;
        pthread_mutex_unlock(&shared.lock);
        for (int i = 0; i < 8; i++) {
            uint64_t bytes = pst_acquire64(&h->committed[PST_SPACE_HEAP]);
            int ok = read_all(m, &v, bytes);
            for (int k = 0; k < 20; k++)
                ok &= read_one(m, &v, bytes, (uint32_t)(check_random(&random) % KEYS));
            if (!still_there(h, epoch, undone)) {
                atomic_fetch_add(&shared.too_old, 1);
                break;
            }
            CHECK(ok);
            atomic_fetch_add(&shared.complete, 1);
        }
        sched_yield();
    }
    tree_version_close(&v);
    return NULL;
}

static void write_on(tree_model *m, uint64_t *random) {
    uint64_t what = check_random(random) % 20, n = check_random(random) % 200;
    if (what == 0)
        REQUIRE(tree_clear(m) == PST_OK);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t k = (uint32_t)(check_random(random) % KEYS);
        pst_status s =
            what < 12 ? tree_put(m, k, check_random(random) % 500, 1) : tree_remove(m, k);
        REQUIRE(s == PST_OK);
    }
    if (check_random(random) % 8 == 0)
        tree_rollback(m, check_random(random) % (tree_window(m) + 1));
    else
        tree_seal(m);
    pthread_mutex_lock(&shared.lock);
    tree_version_copy(&shared.sealed, &m->sealed[m->seals % TREE_VERSIONS], KEYS);
    shared.epoch = m->seals;
    shared.undone = m->t->h->undone;
    pthread_mutex_unlock(&shared.lock);
}

static void test_beside(pst_tree_shape shape, int steps, uint64_t random) {
    pthread_t readers[2];
    tree_model *m = tree_model_open(shape, KEYS, (uint64_t)1 << 28);
    shared.m = m;
    tree_version_open(&shared.sealed, KEYS);
    shared.epoch = shared.undone = 0;
    shared.done = 0;
    for (uintptr_t i = 0; i < 2; i++)
        REQUIRE(!pthread_create(&readers[i], NULL, read_on, (void *)(i + 1)));
    for (int i = 0; i < steps; i++) {
        write_on(m, &random);
        if (i % 4 == 0)
            sched_yield();
    }
    /* However the threads were scheduled, each reader reads at least one version to its end. */
    for (uint64_t seen = shared.complete; shared.complete < seen + 2;)
        sched_yield();
    atomic_store(&shared.done, 1);
    for (int i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);
    tree_version_close(&shared.sealed);
    tree_model_close(m);
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 500;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    test_beside((pst_tree_shape){.key_words = 1, .value_words = 3, .timed = 1}, steps, seed);
    test_beside(
        (pst_tree_shape){
            .key_words = 2, .key_is_ref = 1, .value_words = 2, .value_is_ref = 1, .timed = 1},
        steps, seed);
    return check_report();
}
