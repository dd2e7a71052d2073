#include "snapshot/words.h"

#include "table/row.h"
#include "table/undo.h"

enum {
    WORDS_AHEAD = 80, /* rows that are prefetched */
    CHARGED = 128     /* rows between two charges */
};

/* Where a value lies: in a word of the image, from which it is shifted up and down again. */
typedef struct place {
    uint8_t word;
    uint8_t up;
    uint8_t down;
    uint8_t sign; /* as an integer's */
    uint8_t width;
} place;

int pst_is_of_words(const pst_sealed *s, const pst_table *t) {
    const pst_row_layout *lay = &t->lay;
    uint64_t bytes = 0;
    if (lay->key_kind != PST_KEY_WORD || lay->wide || lay->has_elements)
        return 0;
    for (int32_t i = 0; i < lay->n_states; i++) {
        if (lay->fields[i].width > 8 || lay->fields[i].type >= PST_DECIMAL)
            return 0;
        bytes += lay->fields[i].width;
    }
    /* Rows of which some are whole and some are not are the general way's. */
    return !s->whole_bytes || bytes <= s->whole_bytes;
}

/* Finds the places of the values; whether they are the image's words. */
static int find_places(const pst_row_layout *lay, place *places) {
    int in_order = 1;
    for (int32_t i = 0; i < lay->n_states; i++) {
        const pst_field *f = &lay->fields[i];
        uint32_t at = f->offset - lay->image_offset, bits = 8u * f->width;
        places[i] = (place){(uint8_t)(at / 8), (uint8_t)(64 - 8 * (at % 8) - bits),
                            (uint8_t)(64 - bits), f->type != PST_FLOAT32, (uint8_t)f->width};
        in_order &= f->width == 8 && at == 8 * (uint32_t)i;
    }
    return in_order;
}

static inline uint64_t value_at(const uint64_t *image, const place *p) {
    uint64_t top = image[p->word] << p->up;
    return p->sign ? (uint64_t)((int64_t)top >> p->down) : top >> p->down;
}

/* Writes the entry of a row at `w`, without a branch on what it holds, and returns where the next
 * one comes: at `w` again where nothing changed. Inlined once per number of states that are the
 * words of the image (`places` is NULL), and once for all others. `whole`: what is carried though it
 * did not change. */
static inline __attribute__((always_inline)) uint64_t *
put_entry(uint64_t *w, const uint64_t *row, uint64_t before, const uint64_t *then, int n,
          const place *places, uint64_t whole, uint64_t *bytes) {
    const uint64_t *now = row + 2;
    uint64_t header = row[0], after = header >> 1 & 0x7F, both = before & after;
    uint64_t changed = before ^ after, size = 8;
    for (int c = 0; c < n; c++) {
        uint64_t differs =
            places ? value_at(now, &places[c]) ^ value_at(then, &places[c]) : now[c] ^ then[c];
        changed |= (both >> c & (differs != 0)) << c;
    }
    uint64_t carried = changed | whole, present = carried & after;
    uint64_t what = after ? carried << 8 | present << 16 : (uint64_t)PST_INFO_DELETE;
    w[0] = row[1];
    w[1] = what | (header & PST_FLAG_NULL_KEY ? PST_INFO_NULL : 0u);
    uint64_t *to = w + 2;
    for (int c = 0; c < n; c++) {
        uint64_t there = present >> c & 1;
        *to = places ? value_at(now, &places[c]) : now[c];
        to += there;
        size += places ? there * places[c].width : there * 8;
    }
    *bytes += changed ? size : 0;
    return changed ? to : w;
}

static inline __attribute__((always_inline)) pst_status gather_words(pst_sealed *s,
                                                                     const pst_table *t, int n,
                                                                     const place *places) {
    const uint8_t *rows = t->rows;
    const uint64_t *record = (const uint64_t *)(const void *)t->undo;
    uint64_t row_size = t->lay.row_size, words = t->lay.record_size / 8, count = t->undo_count;
    uint64_t *w = s->entries.words + s->n_words, emitted = 0, bytes = 0;
    uint64_t whole = s->whole_bytes ? s->columns : 0;
    for (uint64_t i = 0; i < count;) {
        uint64_t end = i + CHARGED < count ? i + CHARGED : count;
        for (; i < end; i++, record += words) {
            /* Records by their place, rows by their records: the processor alone does not run far
             * enough ahead of either. */
            __builtin_prefetch(record + 3 * WORDS_AHEAD * words);
            if (i + WORDS_AHEAD < count)
                pst_prefetch_row(t, (uint32_t)record[WORDS_AHEAD * words]);
            const uint64_t *row = (const uint64_t *)(rows + (uint32_t)record[0] * row_size);
            uint64_t *to =
                put_entry(w, row, record[1] >> 1 & 0x7F, record + 2, n, places, whole, &bytes);
            emitted += to != w;
            w = to;
        }
        s->n_words = (size_t)(w - s->entries.words);
        pst_status st = pst_sealed_charge(s);
        if (st)
            return st;
    }
    s->rows += emitted;
    s->logical_bytes += bytes;
    return PST_OK;
}

pst_status pst_gather_words(pst_sealed *s, const pst_table *t) {
    place places[PST_INLINE_STATES];
    if (!find_places(&t->lay, places))
        return gather_words(s, t, t->lay.n_states, places);
    switch (t->lay.n_states) {
    case 1:
        return gather_words(s, t, 1, NULL);
    case 2:
        return gather_words(s, t, 2, NULL);
    case 3:
        return gather_words(s, t, 3, NULL);
    default:
        return gather_words(s, t, t->lay.n_states, NULL);
    }
}
