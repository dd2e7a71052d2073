/* Texts that are UTF-8 and those that are not, and short copies. */
#include <stdlib.h>

#include "base/coding.h"
#include "check.h"

/* The table of well-formed sequences of the Unicode standard (3-7), read as code points. */
static int is_character(const uint8_t *s, size_t n) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t code = n == 1 ? s[0] : s[0] & (0x7Fu >> n);
    if (n == 1)
        return s[0] < 0x80;
    if ((uint8_t)(0xFF << (8 - n)) != (s[0] & (uint8_t)(0xFF << (7 - n))))
        return 0;
    for (size_t i = 1; i < n; i++) {
        if (s[i] >> 6 != 2)
            return 0;
        code = code << 6 | (s[i] & 0x3F);
    }
    return code >= least[n] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

static int is_text(const uint8_t *s, size_t n) {
    for (size_t at = 0; at < n;) {
        size_t k = 1;
        while (k <= 4 && (k > n - at || !is_character(s + at, k)))
            k++;
        if (k > 4)
            return 0;
        at += k;
    }
    return 1;
}

static void test_utf8(void) {
    static const uint8_t bytes[] = {0,    'a',  0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0,
                                    0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED,
                                    0xEE, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
    enum { N = sizeof bytes };
    uint64_t sound = 0;
    for (uint32_t i = 0; i < (uint32_t)N * N * N * N; i++) {
        const uint8_t s[] = {bytes[i % N], bytes[i / N % N], bytes[i / N / N % N],
                             bytes[i / N / N / N]};
        for (size_t n = i % 97 == 0 ? 0 : 4; n <= 4; n++) {
            int is = is_text(s, n);
            sound += (uint64_t)is;
            if (pst_is_utf8(s, n) != is)
                CHECK_EQ(pst_get_u32(s), n);
        }
    }
    CHECK(sound > 1000);
    /* Wherever it stands in a longer text: words are looked at as wholes. */
    for (size_t n = 0; n < 40; n++)
        for (size_t at = 0; at <= n; at++) {
            uint8_t s[44];
            memset(s, 'x', sizeof s);
            memcpy(s + at, "\xe2\x82\xac", 3);
            CHECK(pst_is_utf8(s, n + 3));
            s[at + 1] = 'x';
            CHECK(!pst_is_utf8(s, n + 3));
        }
}

static void test_short_copies(void) {
    uint8_t from[40], to[42];
    for (uint8_t i = 0; i < sizeof from; i++)
        from[i] = i;
    for (size_t n = 0; n < sizeof from; n++) {
        memset(to, 0xEE, sizeof to);
        pst_copy_short(to + 1, from, n);
        CHECK(to[0] == 0xEE && to[n + 1] == 0xEE && memcmp(to + 1, from, n) == 0);
    }
}

static void test_short_words(void) {
    for (size_t n = 0; n <= 16; n++) {
        /* Of that size exactly, so that an instrumented build sees a byte too many. */
        uint8_t *from = malloc(n ? n : 1), want[16] = {0};
        uint64_t words[2];
        REQUIRE(from != NULL);
        for (uint8_t i = 0; i < n; i++)
            from[i] = (uint8_t)(0xF1 + i * 7);
        memcpy(want, from, n);
        pst_short_words(from, n, words);
        CHECK(memcmp(words, want, sizeof want) == 0);
        free(from);
    }
}

int main(void) {
    test_utf8();
    test_short_copies();
    test_short_words();
    return check_report();
}
