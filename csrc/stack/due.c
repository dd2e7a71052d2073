#include "stack/due.h"

#include <string.h>

#include "base/mem.h"

/* Of a file's blocks in memory. */
enum {
    BLOCK_BYTES = PST_TIMES_BLOCK * PST_TIMES_ENTRY_MOST + 64,
    RUN_BYTES = 128,
    TIMERS_PER_RUN = 1 << 18
};

typedef struct source {
    pst_stack *st;
    int32_t file;
    pst_times *times; /* NULL: the file has no timers */
    uint8_t *index;   /* of its blocks, while it is being opened */
    size_t index_bytes;
    pst_timer_hint head;
    int loaded;
    int over;
    pst_status failed; /* of the last read */
} source;

/* Where the cursor stands: before all timers from `low` on. */
typedef struct standing {
    pst_timer_hint low;
    int behind; /* it has passed that one itself */
    int known;
} standing;

struct pst_due {
    pst_stack *st;
    uint64_t bytes; /* taken of the stack's room */
    standing at;
    standing asked; /* where it was at the last seek */
    int fresh;      /* nothing was read since it was put there */
    pst_status failed;
    uint32_t taken;       /* since the last seek */
    pst_timer_hint *back; /* that come once more: n_back of them, from `next_back` on */
    uint32_t n_back;
    uint32_t next_back;
    uint32_t room_back;
    int32_t n;
    source sources[];
};

/* A read of the file, which may be open for aligned reads only. */
static int read_at(void *ctx, uint64_t offset, void *data, size_t size) {
    source *from = ctx;
    pst_stack *st = from->st;
    pst_detail detail = {(int64_t)offset, from->file, -1, -1, -1};
    if (from->index) {
        memcpy(data, from->index, size);
        return 0;
    }
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
    if (s == PST_CORRUPT) {
        const pst_member *m = from->st->files[from->file];
        from->st->detail = (pst_detail){-1, from->file, -1, -1, -1};
        /* Runs lie all over the file, and damage is rare: the next look brings it anew. */
        if (m->file.extents)
            pst_extents_drop(m->file.extents, 0, m->guide->info.file_bytes);
    }
    return s == PST_CALLBACK ? from->failed : s;
}

void pst_due_close(pst_due *d) {
    if (!d)
        return;
    for (int32_t i = 0; i < d->n; i++) {
        pst_times_close(d->sources[i].times);
        pst_free(d->sources[i].index);
    }
    d->st->room.used -= d->bytes;
    pst_free(d->back);
    pst_free(d);
}

static int compare(const pst_timer_hint *a, const pst_timer_hint *b) {
    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    return pst_place_compare(a->key_group, a->hash, b->key_group, b->hash);
}

/* ---- where it stands ------------------------------------------------------------------------- */

/* The next one as far as that is known without a read: 1, or 0 at the end; -1: it is not. */
static int known_head(const pst_due *d, const pst_timer_hint **least) {
    *least = d->next_back < d->n_back ? &d->back[d->next_back] : NULL;
    if (*least)
        return 1;
    for (int32_t i = 0; i < d->n; i++) {
        const source *from = &d->sources[i];
        if (!from->loaded && !from->over)
            return -1;
        if (from->loaded && (!*least || compare(&from->head, *least) < 0))
            *least = &from->head;
    }
    return *least != NULL;
}

/* Does no timer lie between the cursor and that place? */
static int stands_at(const pst_due *d, const pst_timer_hint *place) {
    const pst_timer_hint *head;
    if (!d->at.known || d->at.low.domain != place->domain)
        return 0;
    int order = compare(&d->at.low, place);
    if (order > 0 || (order == 0 && d->at.behind))
        return 0;
    int known = known_head(d, &head);
    return known < 0 ? order == 0 : !known || compare(place, head) <= 0;
}

void pst_due_seek(pst_due *d, const pst_timer_hint *from) {
    d->taken = 0;
    if (stands_at(d, from)) {
        d->asked = d->at;
        return;
    }
    d->at = d->asked = (standing){*from, 0, 1};
    d->fresh = 1;
    d->failed = PST_OK;
    d->n_back = d->next_back = 0;
    for (int32_t i = 0; i < d->n; i++) {
        source *to = &d->sources[i];
        to->loaded = 0;
        to->over = to->times == NULL;
        if (to->times)
            pst_times_seek(to->times, from);
    }
}

/* ---- many reads at a time -------------------------------------------------------------------- */

static pst_status take_arrival(pst_due *d) {
    pst_arrival a;
    pst_reads_next(d->st->reads, &a);
    source *from = &d->sources[a.tag >> 32];
    pst_status s = PST_OK;
    if (a.sys_errno) {
        d->st->detail = (pst_detail){-1, from->file, -1, -1, a.sys_errno};
        s = PST_IO;
    } else if (from->index) {
        memcpy(from->index, a.data, from->index_bytes);
    } else {
        s = status_of(from, pst_times_give(from->times, (uint32_t)a.tag, a.data));
    }
    pst_reads_give(d->st->reads, &a);
    return s;
}

static pst_status start_read(pst_due *d, int32_t file, uint32_t run, uint64_t offset, size_t size) {
    pst_read_file *f = &d->st->files[file]->file;
    uint64_t tag = (uint64_t)file << 32 | run;
    pst_status s;
    while ((s = pst_reads_start(d->st->reads, f, offset, size, tag)) == PST_BUSY) {
        s = take_arrival(d);
        if (s)
            break;
    }
    return s;
}

/* Starts the reads that the runs of a file want; *n counts them. */
static pst_status start_reads(pst_due *d, int32_t file, uint64_t *n) {
    pst_times *times = d->sources[file].times;
    uint32_t runs = times ? pst_times_runs(times) : 0;
    pst_status s = PST_OK;
    for (uint32_t i = 0; !s && i < runs; i++) {
        pst_times_read read;
        if (!pst_times_wants(times, i, &read))
            continue;
        s = start_read(d, file, i, read.offset, read.size);
        ++*n;
    }
    return s;
}

/* Reads what all runs of all files want before it is known which timer comes first. */
static pst_status read_first(pst_due *d) {
    pst_status s = pst_reads_enter(d->st->reads);
    if (s)
        return s;
    for (uint64_t n = 1; !s && n;) {
        n = 0;
        for (int32_t i = 0; !s && i < d->n; i++)
            s = start_reads(d, i, &n);
        while (!s && pst_reads_pending(d->st->reads))
            s = take_arrival(d);
    }
    pst_reads_leave(d->st->reads);
    return s;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Makes the room for a file's index and for the blocks of its runs. */
static pst_status begin_source(pst_due *d, int32_t file) {
    source *from = &d->sources[file];
    const pst_guide *g = d->st->files[file]->guide;
    *from = (source){.st = d->st, .file = file, .over = 1};
    if (!g->timers)
        return PST_OK;
    from->index_bytes = (size_t)pst_sst_align((uint64_t)g->times_blocks * PST_GUIDE_TIMES_REF);
    uint64_t bytes = 2 * (uint64_t)from->index_bytes +
                     (g->timers / TIMERS_PER_RUN + 2) * (BLOCK_BYTES + RUN_BYTES);
    pst_status s = pst_allowance_take(&d->st->room, bytes);
    if (s)
        return s;
    d->bytes += bytes;
    from->index = pst_malloc(from->index_bytes);
    return from->index ? PST_OK : PST_NO_MEMORY;
}

static pst_status read_indexes(pst_due *d) {
    pst_status s = pst_reads_enter(d->st->reads);
    if (s)
        return s;
    for (int32_t i = 0; !s && i < d->n; i++)
        if (d->sources[i].index)
            s = start_read(d, i, 0, d->st->files[i]->guide->data_end, d->sources[i].index_bytes);
    while (!s && pst_reads_pending(d->st->reads))
        s = take_arrival(d);
    pst_reads_leave(d->st->reads);
    return s;
}

static pst_status open_source(pst_due *d, int32_t file) {
    source *from = &d->sources[file];
    pst_io io = {.ctx = from, .read_at = read_at};
    if (!from->index)
        return PST_OK;
    pst_status s = pst_times_open(&io, d->st->files[file]->guide, &from->times);
    pst_free(from->index);
    from->index = NULL;
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
        s = begin_source(d, d->n);
    if (!s)
        s = read_indexes(d);
    for (int32_t i = 0; !s && i < d->n; i++)
        s = open_source(d, i);
    if (s)
        pst_due_close(d);
    else
        *due = d;
    return s;
}

/* ---- what comes ------------------------------------------------------------------------------ */

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
    const pst_timer_hint *least;
    if (d->failed)
        return d->failed;
    pst_status s = PST_OK;
    d->st->detail = (pst_detail){-1, -1, -1, -1, -1};
    if (d->fresh)
        s = read_first(d);
    d->fresh = 0;
    for (int32_t i = 0; !s && i < d->n && d->next_back == d->n_back; i++)
        s = load_head(&d->sources[i]);
    if (s) {
        d->at.known = 0;
        return d->failed = s;
    }
    if (!known_head(d, &least))
        return PST_NOT_FOUND;
    *hint = *least;
    return PST_OK;
}

/* Keys of one hash and time are told apart by whoever looks for their rows. */
static void pass(pst_due *d, const pst_timer_hint *hint) {
    if (d->next_back < d->n_back) {
        d->next_back++;
        return;
    }
    for (int32_t i = 0; i < d->n; i++) {
        source *from = &d->sources[i];
        while (from->loaded && compare(&from->head, hint) == 0) {
            from->loaded = 0;
            if (load_head(from))
                break; /* the next call says so */
        }
    }
}

pst_status pst_due_next(pst_due *d, pst_timer_hint *hint) {
    pst_timer_hint next;
    pst_status s = pst_due_peek(d, &next);
    if (s)
        return s;
    pass(d, &next);
    d->at.low = next;
    d->at.behind = 1;
    d->taken++;
    *hint = next;
    return PST_OK;
}

void pst_due_return(pst_due *d, const pst_timer_hint *hints, uint32_t n) {
    if (!n || !d->at.known)
        return;
    uint32_t rest = d->n_back - d->next_back, all = rest + n;
    if (all > d->room_back) {
        pst_timer_hint *grown = NULL;
        uint64_t bytes = (all - d->room_back) * sizeof *grown;
        if (!pst_allowance_take(&d->st->room, bytes))
            grown = pst_realloc(d->back, all * sizeof *grown);
        if (!grown) {
            d->at.known = 0;
            return;
        }
        d->bytes += bytes;
        d->back = grown;
        d->room_back = all;
    }
    memmove(d->back + n, d->back + d->next_back, rest * sizeof *d->back);
    memcpy(d->back, hints, n * sizeof *d->back);
    d->next_back = 0;
    d->n_back = all;
    d->at = n == d->taken ? d->asked : (standing){hints[0], 0, 1};
    d->taken -= n;
}
