/* Lists of a sealed epoch read beside a writer that appends, trims, clears, seals and rolls back:
 * what is read belongs to that epoch as long as nobody says that it is gone, and ends in order
 * whatever was read. Built with -fsanitize=thread it also shows that no access races.
 *
 *   test_list_reader [steps] [seed]
 */
#include <pthread.h>
#include <sched.h>

#include "check.h"
#include "list/list.h"
#include "memory/handle.h"

enum { LISTS = 6, EPOCHS = 4, READERS = 2, LONGEST = 2000 };

/* Items of a list are made from its number, how often it was cleared, and their own number. */
typedef struct named_list {
    pst_list list;
    uint64_t start;
    uint64_t name;
} named_list;

static struct {
    pst_table *t;
    pst_list_shape shape;
    pthread_mutex_t lock;
    uint64_t epoch;
    uint64_t undone;
    named_list lists[LISTS];
    _Atomic int done;
    _Atomic uint64_t whole, gone;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t item_word(uint64_t name, uint64_t seq) {
    uint64_t x = name << 40 ^ seq;
    return check_random(&x);
}

static uint32_t item_size(uint64_t word) {
    return shared.shape.width ? shared.shape.width : (uint32_t)(word % 60);
}

static int same_item(const named_list *l, const pst_item *item, uint64_t seq) {
    uint8_t have[64];
    uint64_t word = item_word(l->name, seq), size = item_size(word);
    if (item->size != size || (shared.shape.timed && item->time != (int64_t)seq))
        return 0;
    pst_get_bytes(have, item->data, size);
    for (uint64_t i = 0; i < size; i++)
        if (have[i] != (uint8_t)(word >> i % 8 * 8))
            return 0;
    return 1;
}

static int same_list(const named_list *l, uint64_t heap_bytes) {
    pst_list_cursor c;
    pst_item item;
    uint64_t seq, at = l->start;
    pst_status st;
    int same = pst_list_start(shared.t->heap, heap_bytes, &l->list) == l->start;
    pst_list_seek(&c, shared.t->heap, heap_bytes, &shared.shape, &l->list, 0);
    for (; !(st = pst_list_next(&c, &item, &seq)); at++)
        if (!(same &= seq == at && same_item(l, &item, at)))
            break;
    return same && st == PST_NOT_FOUND && at == l->list.end;
}

static void *read_on(void *unused) {
    const pst_header *h = shared.t->h;
    while (!atomic_load(&shared.done)) {
        named_list lists[LISTS];
        pthread_mutex_lock(&shared.lock);
        uint64_t epoch = shared.epoch, undone = shared.undone;
        memcpy(lists, shared.lists, sizeof lists);
        pthread_mutex_unlock(&shared.lock);
        for (int i = 0; i < LISTS; i++) {
            uint64_t before = pst_acquire64(&h->rollbacks);
            int same = same_list(&lists[i], pst_acquire64(&h->committed[PST_SPACE_HEAP]));
            PST_FENCE(__ATOMIC_ACQUIRE);
            int there = pst_acquire64(&h->floor) <= epoch && pst_acquire64(&h->undone) == undone &&
                        !(before & 1) && pst_acquire64(&h->rollbacks) == before;
            if (there)
                CHECK(same);
            atomic_fetch_add(there ? &shared.whole : &shared.gone, 1);
        }
    }
    return unused;
}

static void publish(const named_list *now) {
    pthread_mutex_lock(&shared.lock);
    shared.epoch = shared.t->h->sealed;
    shared.undone = shared.t->h->undone;
    memcpy(shared.lists, now, sizeof shared.lists);
    pthread_mutex_unlock(&shared.lock);
}

static void append(named_list *l) {
    uint8_t bytes[64];
    uint64_t word = item_word(l->name, l->list.end);
    pst_item item = {bytes, item_size(word), (int64_t)l->list.end};
    for (uint64_t i = 0; i < item.size; i++)
        bytes[i] = (uint8_t)(word >> i % 8 * 8);
    CHECK_EQ(pst_list_append(shared.t, &shared.shape, &l->list, &item), PST_OK);
}

static void change(named_list *l, uint64_t what, uint64_t *names) {
    pst_table *t = shared.t;
    if (what % 100 < 80 && l->list.end - l->start < LONGEST) {
        for (uint64_t n = what / 100 % 30; n; n--)
            append(l);
    } else if (what % 100 < 95) {
        uint64_t seq = l->start + what / 100 % (l->list.end - l->start + 1);
        CHECK_EQ(pst_list_trim_to(t, &l->list, seq), PST_OK);
        l->start = pst_list_start(t->heap, t->h->committed[PST_SPACE_HEAP], &l->list);
    } else {
        CHECK_EQ(pst_list_clear(t, &l->list), PST_OK);
        l->start = 0;
        l->name = ++*names;
    }
}

static void write_on(int steps, uint64_t seed) {
    static named_list sealed[EPOCHS][LISTS];
    named_list now[LISTS];
    uint64_t names = LISTS;
    memcpy(now, shared.lists, sizeof now);
    memcpy(sealed[shared.t->h->sealed % EPOCHS], now, sizeof now);
    for (int i = 0; i < steps; i++) {
        for (int n = 0; n < 40; n++) {
            uint64_t x = check_random(&seed);
            change(&now[x % LISTS], x / LISTS, &names);
        }
        PST_FENCE(__ATOMIC_RELEASE);
        uint64_t what = check_random(&seed) % 8;
        if (what < 7) {
            pst_lineage l = {.epoch = shared.t->h->active};
            memcpy(sealed[shared.t->h->active % EPOCHS], now, sizeof now);
            REQUIRE(pst_table_seal(shared.t, &l, NULL) == PST_OK);
        } else {
            if (pst_table_rollback(shared.t, (int32_t)(check_random(&seed) % 2)))
                CHECK_EQ(pst_table_rollback(shared.t, 0), PST_OK);
            memcpy(now, sealed[shared.t->h->sealed % EPOCHS], sizeof now);
        }
        publish(now);
        /* Now and then a reader has to finish, so that the window does not always outrun them. */
        uint64_t before = atomic_load(&shared.whole);
        while (i % 8 == 0 && atomic_load(&shared.whole) < before + LISTS)
            sched_yield();
    }
}

static void run(pst_list_shape shape, int steps, uint64_t seed) {
    static const pst_column column[] = {{.name = "k", .type = PST_INT64}};
    pst_schema s = {1, 1, column, column};
    pst_table_options o = {.max_parallelism = 1, .limit_bytes = (uint64_t)1 << 28};
    pthread_t readers[READERS];
    REQUIRE(pst_table_open(&s, &o, &shared.t, NULL, NULL) == PST_OK);
    shared.shape = shape;
    memset(shared.lists, 0, sizeof shared.lists);
    for (uint64_t i = 0; i < LISTS; i++)
        shared.lists[i].name = i;
    named_list now[LISTS];
    memcpy(now, shared.lists, sizeof now);
    publish(now);
    atomic_store(&shared.done, 0);
    for (int i = 0; i < READERS; i++)
        REQUIRE(pthread_create(&readers[i], NULL, read_on, NULL) == 0);
    write_on(steps, seed);
    atomic_store(&shared.done, 1);
    for (int i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    pst_table_close(shared.t);
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 400;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    pst_list_shape shapes[] = {{.width = 8}, {.width = 8, .timed = 1}, {.width = 0, .timed = 1}};
    for (uint64_t i = 0; i < 3; i++)
        run(shapes[i], steps, seed + i);
    fprintf(stderr, "%llu lists read whole, %llu went away meanwhile\n",
            (unsigned long long)atomic_load(&shared.whole),
            (unsigned long long)atomic_load(&shared.gone));
    CHECK(atomic_load(&shared.whole) > 0);
    return check_report();
}
