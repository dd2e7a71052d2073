#include "stack/due.h"

#include <string.h>

#include "base/mem.h"

/* Of a file's blocks in memory. */
enum { BLOCK_BYTES = PST_TIMES_BLOCK * PST_TIMES_ENTRY_MOST + 64, TIMERS_PER_RUN = 1 << 18 };

typedef struct source {
    pst_stack *st;
    int32_t file;
    pst_times *times; /* NULL: the file has no timers */
    pst_timer_hint head;
    int loaded;
    int over;
    pst_status failed; /* of the last read */
} source;

struct pst_due {
    pst_stack *st;
    uint64_t bytes; /* taken of the stack's room */
    int32_t n;
    source sources[];
};

/* A read of the file, which may be open for aligned reads only. */
static int read_at(void *ctx, uint64_t offset, void *data, size_t size) {
    source *from = ctx;
    pst_stack *st = from->st;
    pst_detail detail = {(int64_t)offset, from->file, -1, -1, -1};
    pst_status s = from->failed = pst_reads_enter(st->reads);
    if (s)
        return 1;
    s = pst_reads_start(st->reads, &st->files[from->file]->file, offset, size, 0);
    if (!s) {
        pst_arrival a;
        pst_reads_next(st->reads, &a);
        if (a.sys_errno)
            s = PST_IO;
        else
            memcpy(data, a.data, size);
        detail.sys_errno = a.sys_errno;
        pst_reads_give(st->reads, &a);
    }
    pst_reads_leave(st->reads);
    if (s)
        st->detail = detail;
    from->failed = s;
    return s != PST_OK;
}

/* What a call of sst_times.h says, as one of the stack says it. */
static pst_status status_of(const source *from, pst_status s) {
    if (s == PST_CORRUPT)
        from->st->detail = (pst_detail){-1, from->file, -1, -1, -1};
    return s == PST_CALLBACK ? from->failed : s;
}

static pst_status open_source(pst_due *d, int32_t file) {
    source *from = &d->sources[file];
    const pst_guide *g = d->st->files[file]->guide;
    pst_io io = {.ctx = from, .read_at = read_at};
    *from = (source){.st = d->st, .file = file, .over = 1};
    if (!g->timers)
        return PST_OK;
    uint64_t bytes = (uint64_t)g->times_blocks * PST_GUIDE_TIMES_REF +
                     (g->timers / TIMERS_PER_RUN + 2) * BLOCK_BYTES;
    pst_status s = pst_allowance_take(&d->st->room, bytes);
    if (s)
        return s;
    d->bytes += bytes;
    s = pst_times_open(&io, g, &from->times);
    return s == PST_NOT_FOUND ? PST_OK : status_of(from, s);
}

pst_status pst_due_open(pst_stack *st, pst_due **due) {
    pst_due *d = pst_calloc(1, sizeof *d + (size_t)st->n * sizeof *d->sources);
    if (!d)
        return PST_NO_MEMORY;
    d->st = st;
    st->detail = (pst_detail){-1, -1, -1, -1, -1};
    pst_status s = PST_OK;
    for (; !s && d->n < st->n; d->n++)
        s = open_source(d, d->n);
    if (s)
        pst_due_close(d);
    else
        *due = d;
    return s;
}

void pst_due_close(pst_due *d) {
    if (!d)
        return;
    for (int32_t i = 0; i < d->n; i++)
        pst_times_close(d->sources[i].times);
    d->st->room.used -= d->bytes;
    pst_free(d);
}

void pst_due_seek(pst_due *d, int32_t domain, int64_t time) {
    for (int32_t i = 0; i < d->n; i++) {
        source *from = &d->sources[i];
        from->loaded = 0;
        from->over = from->times == NULL;
        if (from->times)
            pst_times_seek(from->times, domain, time);
    }
}

static int compare(const pst_timer_hint *a, const pst_timer_hint *b) {
    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    return pst_place_compare(a->key_group, a->hash, b->key_group, b->hash);
}

static pst_status load_head(source *from) {
    while (!from->loaded && !from->over) {
        pst_status s = pst_times_next(from->times, &from->head);
        if (s == PST_NOT_FOUND)
            from->over = 1;
        else if (s)
            return status_of(from, s);
        else
            from->loaded = pst_stack_counts(from->st, from->file, from->head.key_group);
    }
    return PST_OK;
}

pst_status pst_due_peek(pst_due *d, pst_timer_hint *hint) {
    const pst_timer_hint *least = NULL;
    d->st->detail = (pst_detail){-1, -1, -1, -1, -1};
    for (int32_t i = 0; i < d->n; i++) {
        source *from = &d->sources[i];
        pst_status s = load_head(from);
        if (s)
            return s;
        if (from->loaded && (!least || compare(&from->head, least) < 0))
            least = &from->head;
    }
    if (!least)
        return PST_NOT_FOUND;
    *hint = *least;
    return PST_OK;
}

pst_status pst_due_next(pst_due *d, pst_timer_hint *hint) {
    pst_timer_hint next;
    pst_status s = pst_due_peek(d, &next);
    if (s)
        return s;
    /* Keys of one hash and time are told apart by whoever looks for their rows. */
    for (int32_t i = 0; i < d->n; i++) {
        source *from = &d->sources[i];
        while (from->loaded && compare(&from->head, &next) == 0) {
            from->loaded = 0;
            if (load_head(from))
                break; /* the next call says so */
        }
    }
    *hint = next;
    return PST_OK;
}
