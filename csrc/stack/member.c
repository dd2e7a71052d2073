#include "stack/member.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum {
    COPY_HEADER = 64,
    COPY_VERSION = 1,
    MOST_NAME = 4096,
    ROUND = 4096 /* to which memory is asked for */
};

static const uint8_t COPY_MAGIC[8] = {'p', 's', 't', 'g', 'u', 'i', 'd', 'e'};

/* ---- the file -------------------------------------------------------------------------------- */

typedef struct tail_source {
    pst_read_file *file;
    int sys_errno;
} tail_source;

static int read_tail_at(void *ctx, uint64_t offset, void *data, size_t size) {
    tail_source *t = ctx;
    pst_read r = {.file = t->file, .offset = offset, .data = data, .size = size, .need = size};
    if (size)
        pst_read_run(&r);
    t->sys_errno = r.error;
    return r.error != 0;
}

static int same_columns(const pst_column *a, const pst_column *b, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (!pst_column_same_type(&a[i], &b[i]) || strcmp(a[i].name, b[i].name) != 0)
            return 0;
    return 1;
}

int pst_member_fits(const pst_member *m, const pst_schema *wanted, int32_t max_parallelism) {
    const pst_schema *own = &m->guide->schema;
    return m->guide->info.max_parallelism == max_parallelism && own->n_keys == wanted->n_keys &&
           own->n_states == wanted->n_states &&
           pst_schema_hashed(own) == pst_schema_hashed(wanted) &&
           same_columns(own->keys, wanted->keys, own->n_keys) &&
           same_columns(own->states, wanted->states, own->n_states);
}

/* Takes the extents, whose file is as large as they say. */
static pst_status take_extents(pst_member *m, const pst_extents *extents, uint64_t *size) {
    if (!extents)
        return PST_OK;
    if (*size < extents->file_bytes || !extents->extent_bytes || !pst_reads_by_threads(m->reads))
        return PST_INVALID;
    m->extents = *extents;
    m->extents.close = NULL; /* before it has succeeded */
    m->file.extents = &m->extents;
    *size = extents->file_bytes;
    return PST_OK;
}

static pst_status open_file(pst_member *m, const char *path, const pst_extents *extents,
                            pst_detail *detail) {
    uint64_t size = 0;
    pst_status s = pst_read_file_open(&m->file, path, &size, &detail->sys_errno);
    if (!s)
        s = take_extents(m, extents, &size);
    if (s)
        return s;
    tail_source tail = {&m->file, 0};
    pst_io io = {.ctx = &tail, .read_at = read_tail_at};
    s = pst_guide_open(&io, size, &m->guide, detail);
    if (s == PST_CORRUPT && extents) {
        /* Which part of the tail it is cannot be said before it was read. */
        uint64_t from = detail->offset < 0 ? 0 : (uint64_t)detail->offset;
        pst_extents_drop(extents, from, size - (from < size ? from : 0));
        s = pst_guide_open(&io, size, &m->guide, detail);
    }
    if (s == PST_CALLBACK) {
        detail->sys_errno = tail.sys_errno;
        s = PST_IO;
    }
    return s;
}

/* ---- the image --------------------------------------------------------------------------------- */

static size_t piece_bytes(const pst_member *m, uint32_t segment) {
    const pst_guide_segment *s = &m->guide->segments[segment];
    return m->filtered ? s->end - s->guide : pst_guide_entries_size(s);
}

static uint8_t *piece_at(const pst_member *m, uint32_t segment) {
    return m->image + (m->entries[segment] - m->image);
}

static int is_sound(const pst_member *m, uint32_t segment) {
    const uint8_t *entries = m->entries[segment];
    return !pst_guide_check_entries(m->guide, segment, entries) &&
           (!m->filtered ||
            !pst_guide_check_filter(m->guide, segment, entries, pst_member_filter(m, segment)));
}

/* Where each segment's entries are to lie. */
static pst_status lay_out(pst_member *m) {
    size_t bytes = COPY_HEADER;
    uint64_t tail = m->guide->n_segments * (sizeof(pst_guide_segment) + sizeof *m->entries);
    pst_status s = pst_allowance_take(&m->room, tail);
    if (s)
        return s;
    m->filtered = m->guide->info.kind != PST_BASE;
    m->entries = pst_malloc(m->guide->n_segments * sizeof *m->entries);
    if (!m->entries)
        return PST_NO_MEMORY;
    for (uint32_t i = 0; i < m->guide->n_segments; i++)
        bytes += piece_bytes(m, i);
    m->image_bytes = bytes;
    return PST_OK;
}

static void set_image(pst_member *m, uint8_t *image, int mapped) {
    m->image = image;
    m->mapped = mapped;
    image += COPY_HEADER;
    for (uint32_t i = 0; i < m->guide->n_segments; image += piece_bytes(m, i++))
        m->entries[i] = image;
}

static void make_header(const pst_member *m, uint8_t header[COPY_HEADER]) {
    memset(header, 0, COPY_HEADER);
    memcpy(header, COPY_MAGIC, sizeof COPY_MAGIC);
    pst_put_u32(header + 8, COPY_VERSION);
    pst_put_u32(header + 12, m->guide->n_segments);
    memcpy(header + 16, m->guide->info.lineage.id, 16);
    pst_put_u64(header + 32, m->guide->info.file_bytes);
    pst_put_u64(header + 40, m->image_bytes);
}

static pst_status take_piece(pst_member *m, pst_reads *reads, pst_detail *detail) {
    pst_arrival a;
    pst_reads_next(reads, &a);
    uint32_t segment = (uint32_t)a.tag;
    detail->offset = (int64_t)m->guide->segments[segment].guide;
    if (a.sys_errno) {
        detail->sys_errno = a.sys_errno;
        return PST_IO;
    }
    uint8_t *piece = piece_at(m, segment);
    size_t size = piece_bytes(m, segment);
    memcpy(piece, a.data, size);
    pst_reads_give(reads, &a);
    uint64_t offset = m->guide->segments[segment].guide;
    pst_status s = PST_OK;
    for (int i = 0; !s && !is_sound(m, segment); i++)
        s = i < PST_READ_TRIES
                ? pst_read_again(&m->file, offset, size, &a.mark, piece, &detail->sys_errno)
                : PST_CORRUPT;
    return s;
}

static pst_status read_pieces(pst_member *m, pst_detail *detail) {
    pst_reads *reads = m->reads;
    pst_status s = pst_reads_enter(reads);
    if (s)
        return s;
    for (uint32_t i = 0; !s && i < m->guide->n_segments; i++) {
        uint64_t offset = m->guide->segments[i].guide;
        while ((s = pst_reads_start(reads, &m->file, offset, piece_bytes(m, i), i)) == PST_BUSY)
            if ((s = take_piece(m, reads, detail)) != PST_OK)
                break;
    }
    while (!s && pst_reads_pending(reads))
        s = take_piece(m, reads, detail);
    pst_reads_leave(reads);
    if (!s)
        detail->offset = -1;
    return s;
}

/* Reads it from the file, into memory of this process. */
static pst_status read_image(pst_member *m, pst_detail *detail) {
    pst_status s = pst_allowance_take(&m->room, m->image_bytes);
    if (s)
        return s;
    uint8_t *image = PST_ALLOC_REFUSED() ? MAP_FAILED
                                         : mmap(NULL, m->image_bytes, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (image == MAP_FAILED)
        return PST_NO_MEMORY;
    set_image(m, image, 0);
    make_header(m, image);
    return read_pieces(m, detail);
}

/* ---- copies ------------------------------------------------------------------------------------ */

static int copy_name(const pst_member *m, const char *guides, char *name) {
    char hex[33];
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", m->guide->info.lineage.id[i]);
    return snprintf(name, MOST_NAME, "%s%s.guide", guides, hex) < MOST_NAME - 16;
}

/* Can nobody but us, or root, write to it? What was checked once is looked into without checks. */
static int is_ours(const struct stat *st) {
    return S_ISREG(st->st_mode) && (st->st_uid == geteuid() || !st->st_uid) &&
           !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/* Maps the copy, if it is there and right. */
static int map_copy(pst_member *m, const char *name) {
    uint8_t header[COPY_HEADER];
    struct stat st;
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return 0;
    uint8_t *image = MAP_FAILED;
    if (fstat(fd, &st) == 0 && is_ours(&st) && (uint64_t)st.st_size == m->image_bytes)
        image = mmap(NULL, m->image_bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (image == MAP_FAILED)
        return 0;
    set_image(m, image, 1);
    make_header(m, header);
    int right = memcmp(image, header, COPY_HEADER) == 0;
    for (uint32_t i = 0; right && i < m->guide->n_segments; i++)
        right = is_sound(m, i);
    if (!right) {
        munmap(image, m->image_bytes);
        m->image = NULL;
    }
    return right;
}

static int write_all(int fd, const uint8_t *data, size_t size) {
    while (size) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        data += n;
        size -= (size_t)n;
    }
    return 1;
}

/* Is it one of a copy that was not yet whole, ID.guide.XXXXXX behind what all names begin with? */
static int is_temporary(const char *name, const char *begin) {
    enum { ID = 32, SUFFIX = 6, RANDOM = 7 };
    size_t n = strlen(begin);
    return !strncmp(name, begin, n) && strlen(name + n) == ID + SUFFIX + RANDOM &&
           !strncmp(name + n + ID, ".guide.", SUFFIX + 1);
}

/* Removes what processes that were killed have left of copies. Whoever writes one holds its lock.
 * REQUIRES: the names of copies fit into MOST_NAME. */
static void remove_left(const char *guides) {
    char folder[MOST_NAME];
    const char *slash = strrchr(guides, '/'), *begin = slash ? slash + 1 : guides;
    snprintf(folder, sizeof folder, "%.*s", (int)(begin - guides), guides);
    DIR *d = opendir(slash ? folder : ".");
    for (const struct dirent *e; d && (e = readdir(d));) {
        int fd = is_temporary(e->d_name, begin)
                     ? openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)
                     : -1;
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            (void)unlinkat(dirfd(d), e->d_name, 0);
        close(fd);
    }
    if (d)
        closedir(d);
}

/* If somebody takes the file for one that was left, before it is locked, it loses its name, and there
 * is no copy. */
static int write_copy(const pst_member *m, const char *name, pst_budget *budget) {
    char temporary[MOST_NAME + 8];
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", name);
    if (pst_budget_take(budget, PST_SHARED, m->image_bytes, PST_GROWTH))
        return 0;
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return 0;
    int whole = flock(fd, LOCK_EX | LOCK_NB) == 0 && write_all(fd, m->image, m->image_bytes) &&
                rename(temporary, name) == 0;
    if (!whole)
        (void)unlink(temporary);
    return close(fd) == 0 && whole;
}

static pst_status get_image(pst_member *m, const char *guides, pst_detail *detail) {
    char name[MOST_NAME];
    int copies = guides && copy_name(m, guides, name);
    if (copies && map_copy(m, name))
        return PST_OK;
    pst_status s = read_image(m, detail);
    if (!s && copies)
        remove_left(guides);
    if (s || !copies || !write_copy(m, name, m->room.charge.budget))
        return s;
    m->made = 1;
    uint8_t *own = m->image;
    if (map_copy(m, name)) {
        munmap(own, m->image_bytes);
        m->room.used -= m->image_bytes;
    } else {
        set_image(m, own, 0);
    }
    return PST_OK;
}

/* ---- members ----------------------------------------------------------------------------------- */

static const pst_detail NOWHERE = {-1, -1, -1, -1, -1};

pst_status pst_member_open(const pst_schema *schema, int32_t max_parallelism, const char *path,
                           const pst_stack_options *o, pst_member **member, pst_detail *detail) {
    pst_detail own = NOWHERE;
    if (detail)
        *detail = NOWHERE;
    if (!o || !o->reads)
        return PST_INVALID;
    pst_member *m = pst_calloc(1, sizeof *m);
    if (!m)
        return PST_NO_MEMORY;
    m->references = 1;
    m->file.fd = -1;
    m->reads = pst_reads_retain(o->reads);
    m->room.charge.budget = pst_budget_retain(o->budget);
    pst_status s = open_file(m, path, o->extents, &own);
    if (!s && !pst_member_fits(m, schema, max_parallelism))
        s = PST_SCHEMA;
    if (!s)
        s = lay_out(m);
    if (!s) {
        pst_reads_make_direct(m->reads, &m->file);
        s = get_image(m, o->guides, &own);
    }
    if (!s)
        pst_charge_trim(&m->room.charge, m->room.used); /* there are many, most of them small */
    if (s) {
        pst_member_release(m);
    } else {
        m->extents.close = o->extents ? o->extents->close : NULL;
        *member = m;
    }
    if (s && detail)
        *detail = own;
    return s;
}

void pst_member_release(pst_member *m) {
    if (!m || __atomic_sub_fetch(&m->references, 1, __ATOMIC_ACQ_REL))
        return;
    if (m->image)
        munmap(m->image, m->image_bytes);
    pst_free(m->entries);
    pst_guide_close(m->guide);
    pst_read_file_close(&m->file);
    if (m->extents.close)
        m->extents.close(m->extents.ctx);
    pst_reads_release(m->reads);
    pst_charge_drop(&m->room.charge);
    pst_budget_release(m->room.charge.budget);
    pst_free(m);
}

const pst_file_info *pst_member_info(const pst_member *m) {
    return &m->guide->info;
}

int pst_member_descriptor(const pst_member *m) {
    return m->file.fd;
}

/* ---- looking into it ------------------------------------------------------------------------- */

uint64_t pst_member_blocks(const pst_member *m, int32_t key_group, uint64_t hash, uint64_t *bytes) {
    uint32_t n, first = pst_guide_segments(m->guide, key_group, hash, &n);
    uint64_t all = 0;
    *bytes = 0;
    for (uint32_t i = first; i < first + n; i++) {
        const pst_guide_segment *s = &m->guide->segments[i];
        uint32_t blocks, block = pst_guide_blocks(s, m->entries[i], key_group, hash, &blocks);
        all += blocks;
        if (blocks == s->blocks) {
            *bytes += (uint64_t)s->raw * PST_GUIDE_UNIT;
            continue;
        }
        for (uint32_t end = block + blocks; block < end; block++)
            *bytes += pst_guide_block_at(s, m->entries[i], block).raw;
    }
    return all;
}

pst_status pst_allowance_room(pst_allowance *r, pst_buffer *b, uint64_t bytes) {
    if (bytes <= b->capacity)
        return PST_OK;
    bytes = (bytes + ROUND - 1) / ROUND * ROUND;
    r->used -= b->capacity;
    pst_buffer_free(b);
    pst_status s = pst_allowance_take(r, bytes);
    if (s)
        return s;
    s = pst_buffer_reserve(b, bytes);
    if (s)
        r->used -= bytes;
    return s;
}
