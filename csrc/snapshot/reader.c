/* reader.c: the last sealed epoch, read beside the writer.
 *
 * A reader copies the shard table of the pinned epoch once and then follows row headers: a stamp
 * of one of the three epochs after the pinned one leads to the record with the older header and
 * image, until the header is old enough. Everything is copied first and believed only after the
 * header, the roll back counter and the floor were found unchanged.
 *
 * What was not believed is read again, but only for as long as a reader has patience: rows may move
 * for ever where somebody rolls back again and again, or was killed in a roll back.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "access/open.h"
#include "base/lock.h"
#include "base/mem.h"
#include "key/hash.h"
#include "key/schema.h"
#include "memory/pins.h"
#include "table/index.h"
#include "table/undo.h"
#include "table/value.h"

struct pst_reader {
    pst_table *view; /* geometry and mapping: the table's own, or one that only maps the file */
    int owns_view;
    uint64_t epoch;
    uint64_t undone;
    uint32_t newer[3]; /* the stamps of the three epochs after the pinned one, shifted */
    int pin;           /* -1: none was free; the reader works, it is just not listed */
    pst_meta *m;       /* copy of the pinned epoch's, as far as its directory */
    uint64_t *row;     /* copy of a row as of the pinned epoch */
    pst_buffer key;
    pst_buffer bytes;
};

/* ---- pins ------------------------------------------------------------------------------------ */

static void let_go(pst_reader *r) {
    if (r->pin >= 0)
        pst_release64(&r->view->h->pins[r->pin].owner, 0);
    r->pin = -1;
}

/* ---- what a reader may believe ------------------------------------------------------------- */

static uint64_t enter(const pst_reader *r) {
    return pst_acquire64(&r->view->h->rollbacks);
}

/* Whether the epoch is gone, once and for all: what it held may have been given back. */
static int is_gone(pst_reader *r) {
    if (pst_acquire64(&r->view->h->floor) <= r->epoch)
        return 0;
    let_go(r);
    return 1;
}

/* PST_OK: what was read since enter() returned `before` holds. PST_STALE: read again. */
static pst_status leave(const pst_reader *r, uint64_t before) {
    const pst_header *h = r->view->h;
    PST_FENCE(__ATOMIC_ACQUIRE);
    if (pst_acquire64(&h->floor) > r->epoch || pst_acquire64(&h->undone) != r->undone)
        return PST_SNAPSHOT_TOO_OLD;
    return !(before & 1) && pst_acquire64(&h->rollbacks) == before ? PST_OK : PST_STALE;
}

#ifndef PST_READER_PATIENCE_MS
#define PST_READER_PATIENCE_MS 6000 /* tests make it short */
#endif

/* What one reading has tried so far. All zero: nothing. */
typedef struct attempts {
    uint32_t n;
    int64_t until_ns;
} attempts;

/* Was a roll back begun that nobody goes on with? If nobody holds the lock its writer is gone. */
static int is_abandoned(const pst_reader *r) {
    if (!r->owns_view || !(enter(r) & 1))
        return 0;
    return pst_lock_is_free(r->view->arena.fd) && (enter(r) & 1);
}

/* Waits for the writer before the next attempt. PST_STALE: read again. PST_BUSY: it is no use. */
static pst_status wait_for_writer(const pst_reader *r, attempts *a) {
    enum { AT_ONCE = 64, FIRST_NS = 50000, LONGEST_NS = 5000000 };
    struct timespec now, pause = {0, FIRST_NS};
    if (a->n++ < AT_ONCE)
        return PST_STALE;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (!a->until_ns)
        a->until_ns = now_ns + (int64_t)PST_READER_PATIENCE_MS * 1000000;
    if (now_ns >= a->until_ns || is_abandoned(r))
        return PST_BUSY;
    for (uint32_t i = AT_ONCE; i < a->n && pause.tv_nsec < LONGEST_NS; i++)
        pause.tv_nsec *= 2;
    nanosleep(&pause, NULL);
    return PST_STALE;
}

/* The end of an attempt that came to `s`. PST_STALE: read again. */
static pst_status conclude(const pst_reader *r, uint64_t before, pst_status s, attempts *a) {
    if (s == PST_NO_MEMORY)
        return s;
    pst_status valid = leave(r, before);
    if (valid == PST_SNAPSHOT_TOO_OLD)
        return valid;
    return valid || s == PST_STALE ? wait_for_writer(r, a) : s;
}

/* Is [at, at + size) of a space mapped here? A torn name may point anywhere. */
static int reachable(pst_reader *r, int space, uint64_t at, uint64_t size) {
    pst_arena *a = &r->view->arena;
    if (r->owns_view && at + size > a->mapped[space])
        (void)pst_arena_refresh(a);
    uint64_t have = pst_acquire64(&r->view->h->committed[space]);
    if (r->owns_view && have > a->mapped[space])
        have = a->mapped[space];
    return at + size <= have;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static int which_newer(const pst_reader *r, uint64_t header) {
    uint32_t stamp = pst_header_stamp(header);
    for (int k = 0; k < 3; k++)
        if (stamp == r->newer[k])
            return k + 1;
    return 0;
}

/* Copies the row as of the pinned epoch into r->row. PST_NOT_FOUND: it did not exist then;
 * PST_STALE: it moved under us. */
static pst_status copy_row(pst_reader *r, uint32_t slot) {
    const pst_table *t = r->view;
    const pst_row_layout *lay = &t->lay;
    if (!reachable(r, PST_SPACE_ROWS, (uint64_t)slot * lay->row_size, lay->row_size))
        return PST_STALE;
    const uint64_t *row = pst_row(t, slot);
    uint64_t now = pst_acquire64(row), header = now;
    pst_get_words(r->row, row, lay->row_size / 8);
    int steps = 0;
    for (int k; (k = which_newer(r, header)) != 0; steps++) {
        uint64_t index = header >> 32;
        if (index == PST_NONE)
            return PST_NOT_FOUND;
        uint64_t epoch = r->epoch + (uint64_t)k;
        int space = PST_SPACE_UNDO + (int)(epoch % PST_UNDO_LOGS);
        if (steps == 3 || !reachable(r, space, index * lay->record_size, lay->record_size))
            return PST_STALE;
        const uint64_t *record = pst_undo_record(t, pst_undo_log(t, epoch), index);
        if (pst_get64(record) != slot)
            return PST_STALE;
        header = pst_get64(record + 1);
        pst_get_words(r->row + lay->image_offset / 8, record + 2, lay->image_words);
    }
    PST_FENCE(__ATOMIC_ACQUIRE);
    if (pst_acquire64(row) != now)
        return PST_STALE;
    for (uint64_t k = 1; k <= 3; k++)
        if (pst_is_of_admission(header, r->epoch + k))
            return PST_NOT_FOUND; /* R5 */
    r->row[0] = header;
    return pst_is_live(header) ? PST_OK : PST_NOT_FOUND;
}

/* Copies what a reference names to the end of `to`. Blocks are read word by word: the writer may
 * be filling one that is no longer ours, which leave() finds out. */
static pst_status copy_bytes(pst_reader *r, const uint64_t ref[2], pst_buffer *to, size_t *start) {
    uint32_t size = pst_ref_size(ref);
    size_t room = ((size_t)size + 7) / 8 * 8;
    if (size > PST_MAX_BYTES)
        return PST_STALE;
    /* Bytes have an address even if there are none. */
    pst_status s = pst_buffer_reserve(to, to->size + room + 1);
    if (s)
        return s;
    *start = to->size;
    if (!pst_ref_is_block(ref)) {
        memcpy(to->data + to->size, (const uint8_t *)ref + 4, size);
    } else {
        uint64_t at = (uint64_t)pst_ref_granule(ref) * PST_GRANULE;
        if (!reachable(r, PST_SPACE_HEAP, at, room))
            return PST_STALE;
        const uint64_t *from = (const uint64_t *)(const void *)(r->view->heap + at);
        for (size_t i = 0; i < room / 8; i++) {
            uint64_t word = pst_get64(from + i);
            memcpy(to->data + to->size + i * 8, &word, 8);
        }
    }
    to->size += room;
    return PST_OK;
}

/* r->row as a record whose bytes lie in r->bytes. */
static pst_status fill_record(pst_reader *r, pst_record *record) {
    const pst_table *t = r->view;
    const uint64_t *k = r->row + t->lay.key_offset / 8;
    size_t starts[PST_MAX_STATES + 1];
    uint64_t refs[PST_MAX_STATES];
    int null = (r->row[0] & PST_FLAG_NULL_KEY) != 0;
    pst_status s;
    r->bytes.size = 0;
    if (t->lay.key_kind == PST_KEY_BYTES) {
        s = copy_bytes(r, k + 1, &r->bytes, &starts[PST_MAX_STATES]);
        if (s)
            return s;
    }
    record->op = PST_PUT;
    record->changed = record->present = pst_presence(&t->lay, r->row) & t->lay.values;
    for (uint64_t left = record->present; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        const pst_field *f = &t->lay.fields[i];
        if (i >= t->lay.n_states)
            return PST_STALE;
        if (!f->is_bytes) {
            pst_field_cell(f, r->row, NULL, &record->cells[i]);
            continue;
        }
        const uint64_t *ref = r->row + f->offset / 8;
        s = copy_bytes(r, ref, &r->bytes, &starts[i]);
        if (s)
            return s;
        refs[i] = ref[0];
    }
    for (uint64_t left = record->present; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        if (!t->lay.fields[i].is_bytes)
            continue;
        record->cells[i].bytes = (pst_bytes){r->bytes.data + starts[i], (uint32_t)refs[i]};
    }
    pst_bytes key = {NULL, 0};
    if (t->lay.key_kind == PST_KEY_BYTES)
        key = (pst_bytes){r->bytes.data + starts[PST_MAX_STATES], pst_ref_size(k + 1)};
    record->hash = pst_key_row_hash(&t->schema, k[0], key, null, r->m->ties != 0);
    record->key_group = pst_group_of(t, record->hash);
    s = pst_key_decode(&t->schema, k[0], key, null, record->key, &record->key_nulls);
    return s ? PST_STALE : PST_OK;
}

/* ---- look-up --------------------------------------------------------------------------------- */

/* PST_NOT_FOUND: the copied row is another key's. */
static pst_status match_key(pst_reader *r, const pst_key *key) {
    const uint64_t *k = r->row + r->view->lay.key_offset / 8;
    if (((uint32_t)r->row[0] & PST_FLAG_NULL_KEY) != key->null)
        return PST_NOT_FOUND;
    if (r->view->lay.key_kind == PST_KEY_WORD)
        return k[0] == key->word ? PST_OK : PST_NOT_FOUND;
    if (k[0] != key->hash || pst_ref_size(k + 1) != key->bytes.size)
        return PST_NOT_FOUND;
    size_t start;
    r->bytes.size = 0;
    pst_status s = copy_bytes(r, k + 1, &r->bytes, &start);
    if (s || !key->bytes.size)
        return s;
    return memcmp(r->bytes.data + start, key->bytes.data, key->bytes.size) ? PST_NOT_FOUND : PST_OK;
}

/* Walks the pinned epoch's region. PST_NOT_FOUND, PST_OK with r->row filled, PST_STALE or
 * PST_NO_MEMORY. */
static pst_status find_row(pst_reader *r, const pst_key *key) {
    const pst_table *t = r->view;
    uint32_t tag = pst_tag_of(t, key->hash);
    const pst_shard *shard =
        &r->m->shards[pst_directory_at(t, r->m->directory_bits, key->hash, tag)];
    uint32_t capacity = pst_shard_capacity(shard->shape), at = pst_home(shard->shape, tag);
    for (uint32_t n = 0; n < capacity; n++, at = at + 1 == capacity ? 0 : at + 1) {
        uint64_t names = (uint64_t)shard->table * PST_GRANULE + at / PST_PAGE_ENTRIES * 4;
        if (!reachable(r, PST_SPACE_HEAP, names, 4))
            return PST_STALE;
        uint64_t page = (uint64_t)pst_get32(t->heap + names) * PST_GRANULE;
        uint64_t cell = page + (uint64_t)(at % PST_PAGE_ENTRIES) * 8;
        if (!reachable(r, PST_SPACE_HEAP, cell, 8))
            return PST_STALE;
        uint64_t e = pst_acquire64(t->heap + cell);
        if (!e)
            return PST_NOT_FOUND;
        if (e >> 32 != tag || e == PST_TOMBSTONE)
            continue;
        pst_status s = copy_row(r, pst_entry_slot(e));
        if (!s)
            s = match_key(r, key);
        if (s != PST_NOT_FOUND)
            return s;
    }
    return PST_NOT_FOUND;
}

/* What it means that a row is not in the pinned epoch of the table (R4). */
static pst_status absence(const pst_reader *r) {
    return r->m->whole ? PST_NOT_FOUND : PST_NOT_HERE;
}

static pst_status get_once(pst_reader *r, const pst_key *key, pst_record *record) {
    pst_status s = find_row(r, key);
    if (s == PST_NOT_FOUND && r->m->ties && r->view->lay.key_kind == PST_KEY_BYTES) {
        pst_key own = pst_untied(r->view, key);
        s = find_row(r, &own);
    }
    return s ? s : fill_record(r, record);
}

pst_status pst_reader_get(pst_reader *r, const pst_cell *cells, uint32_t nulls,
                          pst_record *record) {
    pst_key key;
    const pst_table *t = r->view;
    pst_status s = pst_key_encode(&t->schema, cells, nulls, &r->key, &key);
    if (s)
        return s;
    int32_t group = pst_group_of(t, key.hash);
    if (group < t->first_key_group || group > t->last_key_group)
        return PST_WRONG_KEY_GROUP;
    if (pst_key_has_namespace(&t->schema))
        key.hash = pst_key_spread(key.hash, key.bytes, t->max_parallelism);
    attempts a = {0, 0};
    do {
        if (is_gone(r))
            return PST_SNAPSHOT_TOO_OLD;
        uint64_t before = enter(r);
        s = conclude(r, before, get_once(r, &key, record), &a);
    } while (s == PST_STALE);
    return s == PST_NOT_FOUND ? absence(r) : s;
}

static pst_status read_slot(pst_reader *r, uint32_t slot, pst_record *record) {
    attempts a = {0, 0};
    pst_status s;
    do {
        if (is_gone(r))
            return PST_SNAPSHOT_TOO_OLD;
        uint64_t before = enter(r);
        s = copy_row(r, slot);
        if (!s)
            s = fill_record(r, record);
        s = conclude(r, before, s, &a);
    } while (s == PST_STALE);
    return s;
}

pst_status pst_reader_next(pst_reader *r, uint64_t *cursor, pst_record *record) {
    while (*cursor < r->m->slots) {
        pst_status s = read_slot(r, (uint32_t)*cursor, record);
        if (s && s != PST_NOT_FOUND)
            return s;
        ++*cursor;
        if (!s)
            return s;
    }
    /* Also of a table without rows: a reader whose epoch is gone says so. */
    return leave(r, enter(r)) == PST_SNAPSHOT_TOO_OLD ? PST_SNAPSHOT_TOO_OLD : absence(r);
}

/* ---- opening --------------------------------------------------------------------------------- */

static pst_status pin_epoch(pst_reader *r) {
    pst_header *h = r->view->h;
    size_t words = offsetof(pst_meta, shards) / 8 + h->shards * (sizeof(pst_shard) / 8);
    r->m = pst_malloc(words * 8);
    r->row = pst_malloc(r->view->lay.row_size);
    if (!r->m || !r->row)
        return PST_NO_MEMORY;
    attempts a = {0, 0};
    pst_status s;
    do {
        r->undone = pst_acquire64(&h->undone);
        uint64_t before = enter(r);
        r->epoch = pst_acquire64(&h->sealed);
        for (uint64_t k = 0; k < 3; k++)
            r->newer[k] = pst_stamp(r->epoch + 1 + k) << 8;
        pst_get_words((uint64_t *)r->m, (const uint64_t *)pst_meta_of(r->view, r->epoch), words);
        /* Where the epoch left the window or was undone meanwhile, the present one is taken. */
        s = leave(r, before) ? wait_for_writer(r, &a) : PST_OK;
    } while (s == PST_STALE);
    if (!s)
        r->pin = pst_pin_take(h, r->epoch);
    return s;
}

pst_status pst_reader_open(pst_table *table, const pst_schema *schema, const char *path,
                           pst_reader **reader, pst_detail *detail) {
    pst_reader *r = pst_calloc(1, sizeof *r);
    pst_status s = PST_OK;
    if (!r)
        return PST_NO_MEMORY;
    r->pin = -1;
    r->view = table;
    if (!table) {
        s = pst_table_map_view(schema, path, &r->view, detail);
        r->owns_view = s == PST_OK;
    }
    if (!s)
        s = pin_epoch(r);
    if (s) {
        pst_reader_close(r);
        return s;
    }
    *reader = r;
    return PST_OK;
}

void pst_reader_close(pst_reader *r) {
    if (!r)
        return;
    let_go(r);
    if (r->owns_view)
        pst_table_abandon(r->view);
    pst_free(r->m);
    pst_free(r->row);
    pst_free(r->key.data);
    pst_free(r->bytes.data);
    pst_free(r);
}

const pst_lineage *pst_reader_lineage(const pst_reader *r) {
    return &r->m->lineage;
}
