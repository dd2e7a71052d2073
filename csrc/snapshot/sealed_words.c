/* sealed_words.c: gathering of rows that are words alone: the key, and up to seven values of eight
 * bytes. Most tables are such, and most of what the general way costs is telling what a row has. */
#include "snapshot/sealed.h"
#include "table/undo.h"

enum {
    AHEAD = 32,   /* rows that are prefetched */
    CHARGED = 128 /* rows between two charges */
};

int pst_sealed_is_words(const pst_table *t) {
    const pst_row_layout *lay = &t->lay;
    if (lay->key_kind != PST_KEY_WORD || lay->wide || lay->has_elements)
        return 0;
    for (int32_t i = 0; i < lay->n_states; i++)
        if (lay->fields[i].width != 8 || lay->fields[i].type >= PST_STRING ||
            lay->fields[i].offset != lay->image_offset + 8 * (uint32_t)i)
            return 0;
    return 1;
}

/* Writes the entry of a row at `w`, without a branch on what it holds, and returns where the next
 * one comes: at `w` again where nothing changed. Inlined once per number of states. */
static inline __attribute__((always_inline)) uint64_t *
put_entry(uint64_t *w, const uint64_t *row, uint64_t before, const uint64_t *then, int n) {
    const uint64_t *now = row + 2;
    uint64_t header = row[0], after = header >> 1 & 0x7F, both = before & after;
    uint64_t changed = before ^ after;
    for (int c = 0; c < n; c++)
        changed |= (both >> c & (now[c] != then[c])) << c;
    uint64_t present = changed & after;
    uint64_t what = after ? changed << 8 | present << 16 : (uint64_t)PST_INFO_DELETE;
    w[0] = row[1];
    w[1] = what | (header & PST_FLAG_NULL_KEY ? PST_INFO_NULL : 0u);
    uint64_t *to = w + 2;
    for (int c = 0; c < n; c++) {
        *to = now[c];
        to += present >> c & 1;
    }
    return changed ? to : w;
}

static inline __attribute__((always_inline)) pst_status gather_touched(pst_sealed *s,
                                                                       const pst_table *t, int n) {
    const uint8_t *rows = t->rows;
    const uint64_t *record = (const uint64_t *)(const void *)t->undo;
    uint64_t row_size = t->lay.row_size, words = t->lay.record_size / 8, count = t->undo_count;
    uint64_t *w = s->entries.words + s->n_words, emitted = 0;
    for (uint64_t i = 0; i < count;) {
        uint64_t end = i + CHARGED < count ? i + CHARGED : count;
        for (; i < end; i++, record += words) {
            /* Records by their place, rows by their records: the processor alone does not run far
             * enough ahead of either. */
            __builtin_prefetch(record + 3 * AHEAD * words);
            if (i + AHEAD < count)
                pst_prefetch_row(t, (uint32_t)record[AHEAD * words]);
            const uint64_t *row = (const uint64_t *)(rows + (uint32_t)record[0] * row_size);
            uint64_t *to = put_entry(w, row, record[1] >> 1 & 0x7F, record + 2, n);
            emitted += to != w;
            w = to;
        }
        s->n_words = (size_t)(w - s->entries.words);
        pst_status st = pst_sealed_charge(s);
        if (st)
            return st;
    }
    s->rows += emitted;
    return PST_OK;
}

pst_status pst_sealed_touched_words(pst_sealed *s, const pst_table *t) {
    size_t from = s->n_words;
    uint64_t rows = s->rows;
    pst_status st;
    switch (t->lay.n_states) {
    case 1:
        st = gather_touched(s, t, 1);
        break;
    case 2:
        st = gather_touched(s, t, 2);
        break;
    case 3:
        st = gather_touched(s, t, 3);
        break;
    default:
        st = gather_touched(s, t, t->lay.n_states);
    }
    /* An entry's words are the key, the info and the values. */
    s->logical_bytes += 8 * (s->n_words - from - (s->rows - rows));
    return st;
}
