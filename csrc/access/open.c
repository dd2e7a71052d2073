#include "memory/handle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "elements/collections.h"
#include "elements/timers.h"
#include "fetch/below.h"
#include "key/key.h"
#include "key/schema.h"
#include "key/xxh64.h"
#include "list/list.h"
#include "memory/size_class.h"
#include "memory/span.h"
#include "table/epoch.h"
#include "table/resident.h"

enum { LEAST_SHARDS = 16, PAGE = 4096 };

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

/* ---- geometry ------------------------------------------------------------------------------ */

static uint32_t field_width(const pst_column *c, const pst_column *before) {
    switch ((pst_kind)c->kind) {
    case PST_LIST:
        return sizeof(pst_list);
    case PST_MAP:
        return sizeof(pst_tree_root);
    case PST_TIME:
        return before->kind == PST_VALUE ? 8 : 0;
    case PST_TIMERS:
        return 4;
    case PST_TIMER:
        return 8;
    case PST_VALUE:
        break;
    }
    if (c->type == PST_FIXED)
        return c->width;
    uint32_t width = pst_type_width(c->type);
    return width ? width : 16;
}

static void lay_out(const pst_schema *schema, pst_row_layout *lay) {
    memset(lay, 0, sizeof *lay);
    lay->key_kind = pst_key_is_word(schema) ? PST_KEY_WORD : PST_KEY_BYTES;
    lay->key_offset = 8;
    lay->image_offset = lay->key_kind == PST_KEY_WORD ? 16 : 32;
    lay->n_states = schema->n_states;
    lay->wide = schema->n_states > PST_INLINE_STATES;
    lay->timers = lay->timer = -1;
    for (int32_t i = 0; i < schema->n_states; i++) {
        const pst_column *c = &schema->states[i];
        pst_field *f = &lay->fields[i];
        *f = (pst_field){.width = (uint16_t)field_width(c, c - 1),
                         .is_bytes = c->kind == PST_VALUE && c->type != PST_FIXED &&
                                     !pst_type_width(c->type),
                         .type = (uint8_t)c->type,
                         .kind = c->kind,
                         .has_default = c->has_default,
                         .time = -1,
                         .default_word = {c->default_word[0], c->default_word[1]}};
        if (c->kind == PST_VALUE || (c->kind == PST_TIME && f->width))
            lay->values |= UINT64_C(1) << i;
        if (c->kind == PST_TIME)
            f[-1].time = (int8_t)i;
        if (c->kind == PST_TIMERS)
            lay->timers = i;
        if (c->kind == PST_TIMER)
            lay->timer = i;
        if (c->kind == PST_TIMERS || c->kind == PST_TIMER)
            lay->timed |= UINT64_C(1) << i;
        lay->has_blocks |= f->is_bytes || c->kind == PST_LIST || c->kind == PST_MAP;
        lay->has_elements |= c->kind == PST_LIST || c->kind == PST_MAP || c->kind == PST_TIMERS;
    }
    uint32_t at = lay->image_offset + (lay->wide ? 8u : 0u);
    /* Widest first, so that every field is aligned and only the end is padded. */
    for (uint32_t align = 8; align; align /= 2)
        for (int32_t i = 0; i < schema->n_states; i++) {
            pst_field *f = &lay->fields[i];
            if (!f->width || (f->width < 8 ? f->width : 8u) != align)
                continue;
            f->offset = at;
            at += f->width;
        }
    lay->row_size = (uint32_t)round_up(at, 8);
    lay->image_words = (lay->row_size - lay->image_offset) / 8;
    lay->record_size = 16 + lay->image_words * 8;
}

static uint32_t first_directory_bits(uint32_t groups) {
    uint32_t bits = 0;
    while (groups << bits < LEAST_SHARDS)
        bits++;
    return bits;
}

/* Room in a directory so that no shard need be larger than PST_SHARD_MOST before the limit is
 * reached, or before the directory costs what matters to a small table. */
static uint32_t directory_room(const pst_table *t, uint64_t limit) {
    uint32_t groups = pst_group_count(t), bits = first_directory_bits(groups);
    uint64_t keys = limit / (t->lay.row_size + sizeof(uint64_t));
    while (groups << (bits + 1) <= PST_DIRECTORY_MOST &&
           ((uint64_t)groups << bits) * (PST_SHARD_MOST / 2) < keys)
        bits++;
    return groups << bits;
}

static pst_status draw_salt(uint64_t salt[PST_SALT_WORDS]) {
    size_t size = PST_SALT_WORDS * sizeof *salt;
    ssize_t got;
    do
        got = getrandom(salt, size, 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)size)
        return PST_IO;
    salt[1] |= 1;
    salt[2] |= 1;
    return PST_OK;
}

static uint64_t meta_size(const pst_table *t, uint32_t shards) {
    uint64_t timers = pst_timer_roots_bytes(&t->lay, pst_group_count(t));
    return round_up(sizeof(pst_meta) + (uint64_t)shards * sizeof(pst_shard) + timers, 64);
}

static uint64_t head_size(const pst_table *t, uint32_t shards) {
    return round_up(round_up(sizeof(pst_header), PAGE) + PST_METAS * meta_size(t, shards), PAGE);
}

static uint64_t fingerprint(const pst_table *t) {
    uint64_t h = pst_schema_fingerprint(&t->schema);
    h = pst_xxh64_long((int64_t)t->max_parallelism << 32 | t->first_key_group, h);
    h = pst_xxh64_long((int64_t)t->last_key_group << 32 | t->lay.row_size, h);
    return pst_xxh64_long(PST_TABLE_FORMAT, h);
}

/* ---- opening ------------------------------------------------------------------------------- */

static void bind(pst_table *t) {
    t->h = pst_arena_header(&t->arena);
    t->rows = pst_space(&t->arena, PST_SPACE_ROWS);
    t->heap = pst_space(&t->arena, PST_SPACE_HEAP);
}

/* The most bytes of a table. For one that is bound by its budget, as much as that may ever grant
 * it. */
static uint64_t limit_of(const pst_table_options *o) {
    if (o->limit_bytes)
        return o->limit_bytes;
    return o->budget ? pst_budget_limit(o->budget) : pst_default_limit();
}

static pst_status initialise(pst_table *t, const pst_table_options *o, int fd) {
    /* Any of the large spaces may come to hold all of the limit. */
    uint64_t limit = limit_of(o);
    uint64_t reserve = pst_arena_reserve(round_up(limit, (uint64_t)1 << 26));
    uint32_t shards = directory_room(t, limit);
    pst_status s = pst_arena_map(&t->arena, fd, head_size(t, shards), reserve, limit, 1);
    /* Processors differ in how many addresses there are. */
    while (s == PST_ADDRESS_SPACE && reserve / 2 >= PST_LEAST_RESERVE) {
        reserve = round_up(reserve / 2, PST_LEAST_RESERVE);
        s = pst_arena_map(&t->arena, fd, head_size(t, shards), reserve, limit, 1);
    }
    if (!s)
        s = pst_arena_join(&t->arena, t->budget, !o->limit_bytes, 1);
    if (s)
        return s;
    bind(t);
    pst_header *h = t->h;
    h->format = PST_TABLE_FORMAT;
    h->row_size = t->lay.row_size;
    h->fingerprint = fingerprint(t);
    if (o->identity)
        h->identity = *o->identity;
    h->max_parallelism = t->max_parallelism;
    h->first_key_group = t->first_key_group;
    h->last_key_group = t->last_key_group;
    h->shards = shards;
    s = draw_salt(h->salt);
    if (s) {
        t->arena.last_errno = errno;
        return s;
    }
    h->reserve = reserve;
    h->meta_size = meta_size(t, shards);
    h->sweep.slot = PST_NONE;
    pst_meta *m = pst_meta_of(t, 0);
    m->heap_top = PST_SPAN_GRANULES; /* granule 0 means none */
    m->directory_bits = first_directory_bits(pst_group_count(t));
    m->whole = 1;
    for (int d = 0; d < 2; d++)
        pst_horizon_store(&m->horizon[d], pst_horizon_at(INT64_MAX));
    for (uint32_t i = 0; i < pst_directory_size(t, m); i++)
        m->shards[i].shape = m->directory_bits << 24;
    pst_release64(&h->magic, PST_TABLE_MAGIC);
    return PST_OK;
}

static int same_identity(const pst_identity *a, const pst_identity *b) {
    return !memcmp(a->boot_id, b->boot_id, sizeof a->boot_id) &&
           a->pid_namespace == b->pid_namespace &&
           !memcmp(a->application, b->application, sizeof a->application);
}

static int header_fits(const pst_table *t, const pst_header *h, const pst_identity *identity) {
    return h->magic == PST_TABLE_MAGIC && h->format == PST_TABLE_FORMAT &&
           h->fingerprint == fingerprint(t) && same_identity(&h->identity, identity) &&
           h->active >= h->sealed && h->active - h->sealed <= PST_UNDO_LOGS &&
           h->floor <= h->sealed;
}

static pst_status map_existing(pst_table *t, const pst_table_options *o, int fd) {
    pst_header h;
    ssize_t got = pread(fd, &h, sizeof h, 0);
    if (got < 0)
        return PST_IO;
    if ((size_t)got < sizeof h || !header_fits(t, &h, o->identity))
        return PST_MISMATCH;
    pst_status s = pst_arena_map(&t->arena, fd, head_size(t, h.shards), h.reserve, limit_of(o), 0);
    if (s)
        return s;
    bind(t);
    (void)pst_arena_join(&t->arena, t->budget, !o->limit_bytes, 0);
    return pst_arena_refresh(&t->arena);
}

/* Does the path still lead to the file behind the descriptor? */
static int is_current(const char *path, int fd) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

static pst_status open_shared(pst_table *t, const pst_table_options *o, int *created) {
    size_t size = strlen(o->path) + 1;
    t->path = pst_malloc(size);
    if (!t->path)
        return PST_NO_MEMORY;
    memcpy(t->path, o->path, size);
    if (t->lock_slot >= 0) {
        int fd = pst_lock_descriptor(t->lock_slot);
        *created = 1;
        return fd < 0 ? PST_INVALID : initialise(t, o, fd);
    }
    for (;;) {
        int fd = open(o->path, O_RDWR | O_CLOEXEC | (o->create ? O_CREAT : 0), 0600);
        if (fd < 0) {
            t->arena.last_errno = errno;
            return errno == ENOENT ? PST_NOT_FOUND : pst_space_status(errno);
        }
        t->lock_slot = pst_lock_register(fd);
        if (t->lock_slot < 0) {
            close(fd);
            return PST_NO_MEMORY;
        }
        pst_status s = pst_lock_take(fd, o->lock_timeout_ms);
        if (s) {
            t->arena.last_errno = errno;
            return s;
        }
        if (is_current(o->path, fd)) {
            struct stat st;
            uint64_t magic = 0;
            if (fstat(fd, &st))
                return PST_IO;
            /* A file whose creation was cut short has no magic yet: nobody can have used it. */
            int fresh = pread(fd, &magic, 8, 0) < 8 || magic == 0;
            *created = fresh;
            if (!fresh)
                return map_existing(t, o, fd);
            if (st.st_size && ftruncate(fd, 0))
                return PST_IO;
            return initialise(t, o, fd);
        }
        pst_lock_close(t->lock_slot); /* somebody discarded and replaced the file */
        t->lock_slot = -1;
    }
}

static pst_status check_options(const pst_table_options *o) {
    if (o->max_parallelism < 1 || o->max_parallelism > 32768)
        return PST_INVALID;
    if (o->first_key_group < 0 || o->first_key_group > o->last_key_group)
        return PST_INVALID;
    if (o->last_key_group >= o->max_parallelism)
        return PST_INVALID;
    if (o->successor && !o->path)
        return PST_INVALID;
    return o->path && !o->identity ? PST_INVALID : PST_OK;
}

static void set_key_groups(pst_table *t, int32_t max_parallelism, int32_t first, int32_t last) {
    uint32_t m = (uint32_t)max_parallelism;
    t->max_parallelism = max_parallelism;
    t->first_key_group = first;
    t->last_key_group = last;
    t->group_mask = (m & (m - 1)) == 0 ? m - 1 : 0;
}

static pst_status open_table(pst_table *t, const pst_schema *schema, const pst_table_options *o,
                             int *created) {
    pst_status s = pst_schema_check(schema);
    if (!s)
        s = check_options(o);
    if (!s)
        s = pst_schema_copy(schema, &t->schema);
    if (s)
        return s;
    lay_out(schema, &t->lay);
    set_key_groups(t, o->max_parallelism, o->first_key_group, o->last_key_group);
    t->detail.column = pst_collections_clash(&t->schema);
    s = t->detail.column >= 0 ? PST_INVALID : pst_collections_create(&t->schema, &t->collections);
    if (s)
        return s;
    t->ttl = pst_calloc((size_t)schema->n_states + 1, sizeof *t->ttl);
    t->budget = pst_budget_retain(o->budget);
    if (t->budget && o->path && o->home)
        s = pst_budget_add_home(t->budget, o->home, o->home_depth);
    if (s)
        return s;
    t->pool = pst_pool_create(t->budget);
    t->admitted_charge = (pst_charge){t->budget, 0, PST_SMALL_BUFFER};
    if (!t->ttl || !t->pool)
        return PST_NO_MEMORY;
    t->clock = (pst_clock){PST_NO_TIME, PST_NO_TIME, PST_NO_TIME};
    *created = 1;
    s = o->path ? open_shared(t, o, created) : initialise(t, o, -1);
    if (s)
        return s;
    t->attached = 1;
    pst_epoch_recover(t);
    return PST_OK;
}

pst_status pst_table_open(const pst_schema *schema, const pst_table_options *options,
                          pst_table **table, int *created, pst_detail *detail) {
    pst_table *t = pst_calloc(1, sizeof *t);
    if (!t) {
        pst_successor_close(options->successor);
        return PST_NO_MEMORY;
    }
    t->lock_slot = options->successor - 1;
    t->arena.fd = -1;
    pst_no_detail(&t->detail);
    int fresh;
    pst_status s = open_table(t, schema, options, &fresh);
    if (s) {
        if (detail) {
            *detail = t->detail;
            detail->sys_errno = t->arena.last_errno;
        }
        pst_table_close(t);
        return s;
    }
    if (created)
        *created = fresh;
    *table = t;
    return PST_OK;
}

static pst_status map_view(pst_table *t, const pst_schema *schema, int fd) {
    pst_header h;
    pst_status s = pst_schema_check(schema);
    if (!s)
        s = pst_schema_copy(schema, &t->schema);
    if (s)
        return s;
    ssize_t got = pread(fd, &h, sizeof h, 0);
    if (got < 0)
        return PST_IO;
    if ((size_t)got < sizeof h)
        return PST_MISMATCH;
    lay_out(schema, &t->lay);
    set_key_groups(t, h.max_parallelism, h.first_key_group, h.last_key_group);
    /* The state words move while they are copied; the rest says whether the file is ours. */
    if (h.magic != PST_TABLE_MAGIC || h.format != PST_TABLE_FORMAT ||
        h.fingerprint != fingerprint(t))
        return PST_MISMATCH;
    s = pst_arena_map(&t->arena, fd, head_size(t, h.shards), h.reserve, UINT64_MAX, 0);
    if (s)
        return s;
    bind(t);
    return pst_arena_refresh(&t->arena);
}

pst_status pst_table_map_view(const pst_schema *schema, const char *path, pst_table **view,
                              pst_detail *detail) {
    pst_table *t = pst_calloc(1, sizeof *t);
    if (!t)
        return PST_NO_MEMORY;
    t->lock_slot = -1;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    int err = errno;
    pst_status s = fd < 0 ? err == ENOENT ? PST_NOT_FOUND : PST_IO : map_view(t, schema, fd);
    if (!s) {
        t->lock_slot = pst_lock_register(fd);
        if (t->lock_slot < 0)
            s = PST_NO_MEMORY;
    }
    if (!s) {
        *view = t;
        return PST_OK;
    }
    if (detail) {
        pst_no_detail(detail);
        detail->sys_errno = fd < 0 ? err : t->arena.last_errno;
    }
    if (t->lock_slot < 0 && fd >= 0)
        close(fd);
    pst_table_abandon(t);
    return s;
}

pst_status pst_table_detach(pst_table *t) {
    if (t->arena.fd < 0 || !t->attached)
        return PST_INVALID;
    if (pst_table_dirty(t) || t->admitted || t->poisoned)
        (void)pst_table_rollback(t, 0);
    pst_span_leave(t);
    t->attached = 0;
    t->generation++;
    t->current.generation = 0;
    pst_lock_release(t->arena.fd);
    return PST_OK;
}

pst_status pst_table_attach(pst_table *t, int32_t lock_timeout_ms) {
    if (t->arena.fd < 0 || t->attached)
        return PST_INVALID;
    pst_status s = pst_lock_take(t->arena.fd, lock_timeout_ms);
    if (s) {
        t->detail.sys_errno = errno;
        return s;
    }
    if (!is_current(t->path, t->arena.fd) || !header_fits(t, t->h, &t->h->identity))
        s = PST_MISMATCH;
    if (!s)
        s = pst_arena_refresh(&t->arena);
    if (s) {
        t->detail.sys_errno = t->arena.last_errno;
        pst_lock_release(t->arena.fd);
        return s;
    }
    t->attached = 1;
    pst_epoch_recover(t);
    return PST_OK;
}

/* An empty file, its lock, and its place in the registry; in the place of the table's file. */
static pst_status put_in_place(const pst_table *t, char *temporary, int32_t *successor) {
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return pst_space_status(errno);
    int place = pst_lock_register(fd);
    if (place < 0) {
        (void)unlink(temporary);
        close(fd);
        return PST_NO_MEMORY;
    }
    pst_status s = pst_lock_take(fd, 0);
    if (!s && rename(temporary, t->path))
        s = pst_space_status(errno);
    if (s) {
        int err = errno;
        (void)unlink(temporary);
        pst_lock_close(place);
        errno = err;
        return s;
    }
    *successor = place + 1;
    return PST_OK;
}

pst_status pst_table_succeed(pst_table *t, int32_t *successor) {
    static const char SUFFIX[] = ".XXXXXX";
    *successor = 0;
    if (!t->attached)
        return PST_INVALID;
    if (t->arena.fd < 0)
        return PST_OK;
    size_t size = strlen(t->path);
    char *temporary = pst_malloc(size + sizeof SUFFIX);
    if (!temporary)
        return PST_NO_MEMORY;
    memcpy(temporary, t->path, size);
    memcpy(temporary + size, SUFFIX, sizeof SUFFIX);
    pst_status s = put_in_place(t, temporary, successor);
    t->detail.sys_errno = s ? errno : 0;
    pst_free(temporary);
    return s;
}

void pst_successor_close(int32_t successor) {
    if (successor)
        pst_lock_close(successor - 1);
}

static void free_table(pst_table *t) {
    pst_below_drop(t);
    pst_arena_unmap(&t->arena);
    if (t->lock_slot >= 0)
        pst_lock_close(t->lock_slot);
    pst_pool_release(t->pool);
    pst_schema_clear(&t->schema);
    pst_free(t->collections);
    pst_free(t->ttl);
    pst_free(t->current_bytes.data);
    pst_charge_drop(&t->admitted_charge);
    pst_free(t->admitted_timers.data);
    pst_free(t->path);
    pst_budget_release(t->budget);
    pst_free(t);
}

void pst_table_close(pst_table *t) {
    if (!t)
        return;
    if (t->attached && t->arena.fd >= 0)
        (void)pst_table_detach(t);
    free_table(t);
}

void pst_table_abandon(pst_table *t) {
    if (t)
        free_table(t);
}

const pst_detail *pst_table_detail(const pst_table *t) {
    return &t->detail;
}

pst_status pst_table_set_target(pst_table *t, uint64_t bytes) {
    if (!t->attached || !t->arena.bound)
        return PST_INVALID;
    t->arena.limit = bytes ? bytes : UINT64_MAX;
    return PST_OK;
}

void pst_table_refusal(const pst_table *t, pst_refusal *refusal) {
    const pst_arena *a = &t->arena;
    if (!a->refused && t->budget)
        pst_budget_refusal(t->budget, refusal);
    else
        *refusal = (pst_refusal){a->refused, a->committed_total, 0, a->limit, a->bound ? 2 : 1};
}

void pst_table_get_stats(const pst_table *t, pst_table_stats *stats) {
    const pst_header *h = t->h;
    *stats = (pst_table_stats){
        .keys = t->m->live,
        .slots = t->m->slots,
        .row_bytes = h->committed[PST_SPACE_ROWS],
        .index_bytes = t->m->index_granules * PST_GRANULE,
        .block_bytes = pst_span_taken_bytes(t),
        .meta_bytes = h->committed[PST_SPACE_HEAD],
        .changed_rows = pst_changed_rows(t),
        .recovered_records = t->recovered_records,
        .recovery_ns = t->recovery_ns,
        .row_size = t->lay.row_size,
    };
    stats->committed_bytes = UINT64_C(0) - h->absent_bytes;
    for (int s = 0; s < PST_SPACES; s++) {
        stats->committed_bytes += h->committed[s];
        if (s >= PST_SPACE_RING)
            stats->ring_bytes += h->committed[s];
        else if (s >= PST_SPACE_UNDO)
            stats->undo_bytes += h->committed[s];
    }
}
