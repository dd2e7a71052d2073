#include "stack/member.h"

#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "guide/sst_search.h"

enum {
    ROUND = 4096, /* to which memory is asked for */
    ALL_PARTS = 1 << PST_PART_ENTRIES | 1 << PST_PART_FILTER
};

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

static pst_status open_file(pst_member *m, const char *path, const pst_stack_options *o,
                            pst_detail *detail) {
    pst_status (*open_guide)(const pst_io *, uint64_t, pst_guide **, pst_detail *) =
        o->unguided ? pst_guide_open_any : pst_guide_open;
    const pst_extents *extents = o->extents;
    uint64_t size = 0;
    pst_status s = pst_read_file_open(&m->file, path, &size, &detail->sys_errno);
    if (!s)
        s = take_extents(m, extents, &size);
    if (s)
        return s;
    tail_source tail = {&m->file, 0};
    pst_io io = {.ctx = &tail, .read_at = read_tail_at};
    s = open_guide(&io, size, &m->guide, detail);
    if (s == PST_CORRUPT && extents) {
        /* Which part of the tail it is cannot be said before it was read. */
        uint64_t from = detail->offset < 0 ? 0 : (uint64_t)detail->offset;
        pst_extents_drop(extents, from, size - (from < size ? from : 0));
        s = open_guide(&io, size, &m->guide, detail);
    }
    if (s == PST_CALLBACK) {
        detail->sys_errno = tail.sys_errno;
        s = PST_IO;
    }
    return s;
}

/* ---- parts ------------------------------------------------------------------------------------- */

static uint64_t part_offset(const pst_guide_segment *s, int part) {
    return part == PST_PART_ENTRIES ? s->guide : s->filter;
}

static size_t part_size(const pst_guide_segment *s, int part) {
    return part == PST_PART_ENTRIES ? pst_guide_entries_size(s) : pst_guide_filter_size(s);
}

static uint32_t part_number(uint32_t segment, int part) {
    return PST_PARTS * segment + (uint32_t)part;
}

/* Where it lies in copy and image. */
static size_t place_of(const pst_member *m, uint32_t segment, int part) {
    const pst_guide_segment *s = &m->guide->segments[segment];
    return m->places[segment] + (part == PST_PART_ENTRIES ? 0 : pst_guide_entries_size(s));
}

/* Where the parts of each segment are to lie. */
static pst_status lay_out(pst_member *m) {
    uint32_t n = m->guide->n_segments, parts = PST_PARTS * n;
    uint64_t each =
        sizeof(pst_guide_segment) + PST_PARTS * sizeof *m->parts + sizeof *m->places + 1;
    pst_status s = pst_allowance_take(&m->room, n * each + m->guide->made_bytes);
    if (s)
        return s;
    m->filtered = m->guide->info.kind != PST_BASE;
    m->lacking = m->filtered ? parts : n;
    m->parts = pst_calloc(parts, sizeof *m->parts);
    m->places = pst_malloc(n * sizeof *m->places);
    m->asked = pst_calloc(n, 1);
    if (!m->parts || !m->places || !m->asked)
        return PST_NO_MEMORY;
    m->image_bytes = pst_guide_copy_head(parts);
    for (uint32_t i = 0; i < n; i++) {
        const pst_guide_segment *g = &m->guide->segments[i];
        m->places[i] = m->image_bytes;
        m->image_bytes += m->filtered ? g->end - g->guide : pst_guide_entries_size(g);
    }
    const uint8_t *entries = m->guide->made;
    for (uint32_t i = 0; entries && i < n; i++) {
        m->parts[part_number(i, PST_PART_ENTRIES)] = entries;
        entries += pst_guide_entries_size(&m->guide->segments[i]);
    }
    m->lacking = entries ? 0 : m->lacking; /* whose filters nobody can read */
    return PST_OK;
}

/* REQUIRES: the segment's entries are here, or it is these. */
static int is_sound(const pst_member *m, uint32_t segment, int part, const uint8_t *data) {
    pst_status s =
        part == PST_PART_ENTRIES
            ? pst_guide_check_entries(m->guide, segment, data)
            : pst_guide_check_filter(m->guide, segment, pst_member_entries(m, segment), data);
    return s == PST_OK;
}

static void publish(pst_member *m, uint32_t segment, int part, const uint8_t *data) {
    m->lacking -= m->lacking != 0;
    __atomic_add_fetch(&m->part_bytes, part_size(&m->guide->segments[segment], part),
                       __ATOMIC_RELAXED);
    __atomic_store_n(&m->parts[part_number(segment, part)], data, __ATOMIC_RELEASE);
}

static int is_here(const pst_member *m, uint32_t segment, int part) {
    return m->parts[part_number(segment, part)] != NULL;
}

/* Takes what others have put into the copy, if it is right. */
static void take_copied(pst_member *m, uint32_t segment, int part) {
    const uint8_t *data =
        pst_guide_copy_part(&m->copy, part_number(segment, part), place_of(m, segment, part));
    if (data && is_sound(m, segment, part, data))
        publish(m, segment, part, data);
}

/* Charges whole pages, but no more than all parts have. */
static pst_status make_image_room(pst_member *m, size_t size) {
    uint64_t used = m->image_used + (size + ROUND - 1) / ROUND * ROUND;
    used = used < m->image_bytes ? used : m->image_bytes;
    pst_status s = pst_allowance_take(&m->room, used - m->image_used);
    if (s)
        return s;
    m->image_used = used;
    if (m->image)
        return PST_OK;
    void *image = PST_ALLOC_REFUSED() ? MAP_FAILED
                                      : mmap(NULL, m->image_bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (image == MAP_FAILED)
        return PST_NO_MEMORY;
    /* Huge pages would take memory for parts that nobody wants. */
    (void)madvise(image, m->image_bytes, MADV_NOHUGEPAGE);
    m->image = image;
    return PST_OK;
}

/* Keeps a part that was checked. */
static pst_status keep(pst_member *m, uint32_t segment, int part, const uint8_t *data) {
    size_t at = place_of(m, segment, part), size = part_size(&m->guide->segments[segment], part);
    const uint8_t *copied = pst_guide_copy_put(&m->copy, part_number(segment, part), at, data, size,
                                               m->room.charge.budget);
    if (copied && memcmp(copied, data, size) == 0) {
        publish(m, segment, part, copied);
        return PST_OK;
    }
    pst_status s = make_image_room(m, size);
    if (s)
        return s;
    memcpy(m->image + at, data, size);
    publish(m, segment, part, m->image + at);
    return PST_OK;
}

/* What is read of parts. */
static uint64_t range_of(const pst_guide_segment *s, int parts, size_t *size) {
    uint64_t from =
        part_offset(s, parts & 1 << PST_PART_ENTRIES ? PST_PART_ENTRIES : PST_PART_FILTER);
    *size = (size_t)((parts & 1 << PST_PART_FILTER ? s->end : s->filter) - from);
    return from;
}

/* Does a filter cost less than the blocks of so many keys? To check and to keep its pages costs as much
 * again as to read them. Counting ends long before that many. */
static int filter_pays(const pst_guide_segment *s, uint32_t keys, uint32_t gap_pages) {
    uint64_t pages = pst_guide_filter_size(s) / PST_READ_ALIGN + 2;
    return (uint64_t)keys * (gap_pages + 2) > gap_pages + 2 * pages || keys >= UINT8_MAX;
}

int pst_member_wants(pst_member *m, uint32_t segment, uint32_t keys, uint32_t gap_pages) {
    if (!is_here(m, segment, PST_PART_ENTRIES))
        take_copied(m, segment, PST_PART_ENTRIES);
    int parts = is_here(m, segment, PST_PART_ENTRIES) ? 0 : 1 << PST_PART_ENTRIES;
    if (!m->filtered || is_here(m, segment, PST_PART_FILTER))
        return parts;
    if (!parts)
        take_copied(m, segment, PST_PART_FILTER);
    if (is_here(m, segment, PST_PART_FILTER))
        return parts;
    uint32_t asked = m->asked[segment] + keys;
    m->asked[segment] = (uint8_t)(asked < UINT8_MAX ? asked : UINT8_MAX);
    return filter_pays(&m->guide->segments[segment], asked, gap_pages)
               ? parts | 1 << PST_PART_FILTER
               : parts;
}

pst_status pst_member_start(pst_member *m, uint32_t segment, int parts, uint64_t tag) {
    size_t size;
    uint64_t offset = range_of(&m->guide->segments[segment], parts, &size);
    return pst_reads_start(m->reads, &m->file, offset, size, tag);
}

/* Entries first, as a filter is checked with them. */
static pst_status keep_sound(pst_member *m, uint32_t segment, int parts, const uint8_t *data) {
    pst_status s = PST_OK;
    for (int part = PST_PART_ENTRIES; !s && part < PST_PARTS; part++) {
        if (!(parts & 1 << part))
            continue;
        if (!is_here(m, segment, part)) {
            if (!is_sound(m, segment, part, data))
                return PST_CORRUPT;
            s = keep(m, segment, part, data);
        }
        data += part_size(&m->guide->segments[segment], part);
        if (s == PST_LIMIT && part == PST_PART_FILTER) {
            m->asked[segment] = 0;
            s = PST_OK;
        }
    }
    return s;
}

/* The same once more, where that may help. */
static pst_status take_again(pst_member *m, uint32_t segment, int parts, uint32_t mark,
                             pst_detail *detail) {
    size_t size;
    uint64_t offset = range_of(&m->guide->segments[segment], parts, &size);
    if (!m->file.extents)
        return PST_CORRUPT;
    uint8_t *data = pst_malloc(size);
    if (!data)
        return PST_NO_MEMORY;
    pst_status s = PST_CORRUPT;
    for (int i = 0; s == PST_CORRUPT && i < PST_READ_TRIES; i++) {
        s = pst_read_again(&m->file, offset, size, &mark, data, &detail->sys_errno);
        if (!s)
            s = keep_sound(m, segment, parts, data);
    }
    pst_free(data);
    return s;
}

pst_status pst_member_take(pst_member *m, uint32_t segment, int parts, const pst_arrival *a,
                           pst_detail *detail) {
    size_t size;
    pst_detail own = {-1, -1, -1, -1, -1};
    own.offset = (int64_t)range_of(&m->guide->segments[segment], parts, &size);
    pst_status s = PST_IO;
    if (a->sys_errno)
        own.sys_errno = a->sys_errno;
    else
        s = keep_sound(m, segment, parts, a->data);
    if (s == PST_CORRUPT)
        s = take_again(m, segment, parts, a->mark, &own);
    if (s)
        *detail = own;
    return s;
}

void pst_member_settle(pst_member *m) {
    pst_charge_trim(&m->room.charge, m->room.used); /* there are many, most of them small */
}

/* Whether the entries of segments are in memory, and with `filters` those that a delta has. */
static int are_here(const pst_member *m, uint32_t segment, uint32_t n, int filters) {
    for (uint32_t i = segment; i < segment + n; i++)
        if (!pst_member_entries(m, i) || (filters && m->filtered && !pst_member_filter(m, i)))
            return 0;
    return 1;
}

static pst_status take_next(pst_member *m, pst_detail *detail) {
    pst_arrival a;
    pst_reads_next(m->reads, &a);
    pst_status s =
        pst_member_take(m, (uint32_t)(a.tag >> PST_PARTS), (int)(a.tag & ALL_PARTS), &a, detail);
    pst_reads_give(m->reads, &a);
    return s;
}

/* ---- filters that are made --------------------------------------------------------------------- */

typedef struct making {
    pst_sst_view view;
    pst_buffer stored;
    pst_buffer raw;
    pst_buffer hashes;
    pst_buffer lines;
} making;

/* Adds the hashes of a block's rows to the lines. */
static pst_status add_block(pst_member *m, uint32_t segment, const pst_guide_block *b,
                            const uint8_t *stored, making *k) {
    const pst_guide_segment *s = &m->guide->segments[segment];
    const uint8_t *entries = pst_member_entries(m, segment);
    pst_guide_scale scale = pst_guide_scale_of(s, entries);
    pst_status st = pst_allowance_room(&m->room, &k->raw, b->raw);
    if (!st)
        st = pst_search_unpack(m->guide, b, stored, k->raw.data);
    if (!st)
        st = pst_sst_view_open(&k->view, &m->guide->schema, k->raw.data, b->raw);
    if (!st && k->view.rows != b->rows)
        st = PST_CORRUPT;
    if (!st)
        st = pst_allowance_room(&m->room, &k->hashes, b->rows * sizeof(uint64_t));
    uint64_t *hashes = (uint64_t *)(void *)k->hashes.data;
    if (!st)
        st = pst_sst_view_hash(&k->view, hashes);
    for (uint32_t i = 0; !st && i < b->rows; i++)
        st = pst_guide_filter_add(&scale, s, entries, k->lines.data,
                                  pst_key_group(hashes[i], m->guide->info.max_parallelism),
                                  hashes[i]);
    return st;
}

static pst_status make_lines(pst_member *m, uint32_t segment, making *k, pst_detail *detail) {
    const pst_guide_segment *s = &m->guide->segments[segment];
    const uint8_t *entries = pst_member_entries(m, segment), *stored;
    size_t size = pst_guide_filter_size(s);
    pst_status st = pst_allowance_room(&m->room, &k->lines, size);
    if (!st) {
        memset(k->lines.data, 0, size);
        st = pst_member_read(m, s->offset, s->guide - s->offset, 0, &m->room, &k->stored, &stored,
                             &detail->sys_errno);
    }
    detail->offset = (int64_t)s->offset;
    for (uint32_t i = 0; !st && i < s->blocks; i++) {
        pst_guide_block b = pst_guide_block_at(s, entries, i);
        detail->offset = (int64_t)b.offset;
        st = add_block(m, segment, &b, stored + (b.offset - s->offset), k);
    }
    return st ? st : keep(m, segment, PST_PART_FILTER, k->lines.data);
}

static void end_making(pst_member *m, making *k) {
    pst_buffer *all[] = {&k->stored, &k->raw, &k->hashes, &k->lines};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        m->room.used -= all[i]->capacity;
        pst_buffer_free(all[i]);
    }
    pst_free(k);
}

/* A filter that cannot be made, since a block cannot be read. Who wants a key of another block does
 * without it. */
enum { NEVER = UINT8_MAX };

/* Whether a segment's filter is to be made now that one key more is wanted of it. */
static int making_pays(pst_member *m, uint32_t segment) {
    const pst_guide_segment *s = &m->guide->segments[segment];
    if (!m->filtered || pst_member_filter(m, segment) ||
        (uint64_t)s->raw * PST_GUIDE_UNIT > PST_GUIDE_MADE)
        return 0;
    uint8_t asked = __atomic_load_n(&m->asked[segment], __ATOMIC_RELAXED);
    if (asked == NEVER)
        return 0;
    if (asked + 1 < NEVER)
        __atomic_store_n(&m->asked[segment], (uint8_t)(asked + 1), __ATOMIC_RELAXED);
    return asked >= s->blocks || asked + 1 == NEVER;
}

/* It saves time; where it cannot be made, nothing fails. */
static void make_filter(pst_member *m, uint32_t segment) {
    pst_detail detail = {-1, -1, -1, -1, -1};
    making *k = pst_calloc(1, sizeof *k);
    pst_status s = k ? pst_reads_enter(m->reads) : PST_NO_MEMORY;
    if (!s) {
        if (!is_here(m, segment, PST_PART_FILTER))
            s = make_lines(m, segment, k, &detail);
        end_making(m, k);
        pst_member_settle(m);
        pst_reads_leave(m->reads);
    } else {
        pst_free(k);
    }
    if (s) { /* later there may be room */
        uint8_t asked = s == PST_LIMIT || s == PST_NO_MEMORY ? 0 : NEVER;
        __atomic_store_n(&m->asked[segment], asked, __ATOMIC_RELAXED);
    }
}

int pst_member_at_hand(pst_member *m, uint32_t segment, uint32_t n) {
    if (!m->guide->made)
        return are_here(m, segment, n, 1);
    for (uint32_t i = segment; i < segment + n; i++)
        if (making_pays(m, i))
            return 0;
    return 1;
}

pst_status pst_member_bring(pst_member *m, uint32_t segment, uint32_t n, int filters,
                            pst_detail *detail) {
    if (m->guide->made) {
        for (uint32_t i = segment; filters && i < segment + n; i++)
            if (making_pays(m, i))
                make_filter(m, i);
        return PST_OK;
    }
    int wanted = filters ? ALL_PARTS : 1 << PST_PART_ENTRIES;
    if (are_here(m, segment, n, filters))
        return PST_OK;
    pst_status s = pst_reads_enter(m->reads);
    if (s)
        return s;
    for (uint32_t i = segment; !s && i < segment + n; i++) {
        int parts = pst_member_wants(m, i, filters ? UINT8_MAX : 0, 0) & wanted;
        uint64_t tag = (uint64_t)i << PST_PARTS | (uint64_t)parts;
        if (!parts)
            continue;
        while ((s = pst_member_start(m, i, parts, tag)) == PST_BUSY)
            if ((s = take_next(m, detail)) != PST_OK)
                break;
    }
    while (!s && pst_reads_pending(m->reads))
        s = take_next(m, detail);
    pst_member_settle(m);
    pst_reads_leave(m->reads);
    return s;
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
    pst_status s = open_file(m, path, o, &own);
    if (!s && !pst_member_fits(m, schema, max_parallelism))
        s = PST_SCHEMA;
    if (!s)
        s = lay_out(m);
    if (s) {
        pst_member_release(m);
    } else {
        pst_reads_make_direct(m->reads, &m->file);
        if (!m->guide->made)
            pst_guide_copy_open(&m->copy, o->guides, m->guide, m->image_bytes,
                                PST_PARTS * m->guide->n_segments, m->room.charge.budget);
        pst_member_settle(m);
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
    pst_guide_copy_close(&m->copy);
    pst_free((void *)m->parts);
    pst_free(m->places);
    pst_free(m->asked);
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
        const uint8_t *entries = pst_member_entries(m, i);
        uint32_t blocks, block = pst_guide_blocks(s, entries, key_group, hash, &blocks);
        all += blocks;
        if (blocks == s->blocks) {
            *bytes += (uint64_t)s->raw * PST_GUIDE_UNIT;
            continue;
        }
        for (uint32_t end = block + blocks; block < end; block++)
            *bytes += pst_guide_block_at(s, entries, block).raw;
    }
    return all;
}

pst_guide_block pst_member_block(const pst_member *m, uint32_t segment, uint32_t block,
                                 int32_t *last_key_group, uint64_t *last_hash) {
    const pst_guide_segment *s = &m->guide->segments[segment];
    const uint8_t *entries = pst_member_entries(m, segment);
    *last_key_group = s->last_key_group;
    *last_hash = pst_guide_last_hash(entries);
    if (block + 1 < s->blocks) {
        pst_guide_block next = pst_guide_block_at(s, entries, block + 1);
        *last_key_group = next.key_group;
        *last_hash = next.first_hash;
    }
    return pst_guide_block_at(s, entries, block);
}

pst_status pst_member_read(pst_member *m, uint64_t offset, uint64_t size, int cached,
                           pst_allowance *room, pst_buffer *buffer, const uint8_t **data,
                           int *sys_errno) {
    uint64_t mask = m->file.direct ? PST_READ_ALIGN - 1 : 0, from = offset & ~mask;
    size_t skip = (size_t)(offset - from), whole = (size_t)((skip + size + mask) & ~mask);
    pst_status s = pst_allowance_room(room, buffer, whole + PST_READ_ALIGN);
    if (s)
        return s;
    uint8_t *aligned = buffer->data + (PST_READ_ALIGN - (uintptr_t)buffer->data % PST_READ_ALIGN);
    pst_read r = {
        .file = &m->file, .offset = from, .data = aligned, .size = whole, .need = skip + size};
    *data = aligned + skip;
    if (cached)
        return pst_read_cached(&r) ? PST_OK : PST_NOT_HERE;
    pst_read_run(&r);
    *sys_errno = r.error;
    return r.error ? PST_IO : PST_OK;
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
