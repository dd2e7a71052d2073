/* Buffers of an epoch come back with the next one: small ones whatever was used of them, larger ones
 * if it was much, and the largest uncharged. */
#include "check.h"

#include <string.h>

#include "base/mem.h"
#include "base/pool.h"

typedef struct buffers {
    pst_words entries;
    pst_buffer bytes;
    pst_charge charge;
} buffers;

static pst_budget *budget;

static uint64_t charged(void) {
    pst_budget_stats stats;
    pst_budget_get_stats(budget, &stats);
    return stats.private_bytes;
}

/* Takes buffers and writes to them: so many words, and as many bytes. */
static buffers take(pst_pool *p, size_t words) {
    buffers b = {0};
    REQUIRE(pst_pool_take(p, words, &b.entries, &b.bytes, &b.charge) == PST_OK);
    CHECK(b.entries.capacity >= words);
    if (b.bytes.capacity < words) {
        pst_free(b.bytes.data);
        b.bytes.data = pst_malloc(words);
        REQUIRE(b.bytes.data);
        b.bytes.capacity = words;
    }
    REQUIRE(pst_charge_raise(&b.charge, words * 9) == PST_OK);
    memset(b.entries.words, 1, words * sizeof *b.entries.words);
    memset(b.bytes.data, 2, words);
    b.bytes.size = words;
    return b;
}

/* Gives them back, of which a share was used; returns the charge that stays. */
static uint64_t give(pst_pool *p, buffers *b, size_t used) {
    b->bytes.size = used;
    pst_pool_give(p, used, &b->entries, &b->bytes, &b->charge);
    return charged();
}

/* Whether buffers of so many words, of which `used` were used, come back, and with what charge. */
static void check_fate(size_t words, size_t used, int kept, int stays_charged) {
    pst_pool *p = pst_pool_create(budget);
    REQUIRE(p);
    buffers one = take(p, words);
    size_t capacity = one.entries.capacity;
    CHECK(charged() >= words * 9);
    CHECK_EQ(give(p, &one, used) > 0, stays_charged);
    buffers other = {0};
    CHECK_EQ(pst_pool_take(p, 1, &other.entries, &other.bytes, &other.charge), PST_OK);
    CHECK_EQ(other.entries.capacity == capacity, kept);
    CHECK_EQ(other.charge.bytes > 0, stays_charged);
    give(p, &other, 0);
    /* A later epoch with as much gets what it asks for, whatever is left of the first one's. */
    other = take(p, words);
    CHECK_EQ(other.entries.words[words - 1], UINT64_C(0x0101010101010101));
    give(p, &other, used);
    pst_pool_release(p);
    CHECK_EQ(charged(), 0);
}

int main(void) {
    REQUIRE(pst_budget_create((uint64_t)1 << 30, &budget) == PST_OK);
    check_fate(100, 0, 1, 1);
    check_fate(1000, 1000, 1, 1);
    check_fate(1000, 100, 0, 0);
    check_fate(100000, 100000, 1, 0);
    check_fate(100000, 10000, 0, 0);
    /* Who once had a little more than the last time has room to do so again. */
    pst_pool *p = pst_pool_create(budget);
    REQUIRE(p);
    buffers b = take(p, 100000);
    give(p, &b, 100000);
    b = take(p, 101000);
    uint64_t *words = b.entries.words;
    give(p, &b, 101000);
    b = take(p, 102000);
    CHECK(b.entries.words == words);
    give(p, &b, 101000);
    pst_pool_release(p);
    pst_budget_release(budget);
    return check_report();
}
