/* copy.c: the rows of some key groups put from one table into another.
 *
 * They go through files in memory, a part at a time: what a file carries is what a table may hold,
 * so that lists, maps and timers need no second way. */
#include <string.h>

#include "base/mem.h"
#include "snapshot/sealed.h"
#include "table/index.h"

/* A file in memory. */
typedef struct memory_file {
    pst_buffer buffer;
    pst_charge charge;
} memory_file;

static int append(void *ctx, const void *data, size_t size) {
    memory_file *f = ctx;
    pst_buffer *b = &f->buffer;
    if (b->size + size > b->capacity) {
        size_t capacity = 2 * b->capacity + size;
        if (pst_charge_raise(&f->charge, capacity))
            return 1;
        uint8_t *grown = pst_realloc(b->data, capacity);
        if (!grown)
            return 1;
        b->data = grown;
        b->capacity = capacity;
    }
    memcpy(b->data + b->size, data, size);
    b->size += size;
    return 0;
}

static int read_at(void *ctx, uint64_t offset, void *data, size_t size) {
    const pst_buffer *b = &((memory_file *)ctx)->buffer;
    if (offset > b->size || size > b->size - offset)
        return 1;
    memcpy(data, b->data + offset, size);
    return 0;
}

static pst_status load_part(pst_table *to, const pst_io *io, uint64_t file_bytes, uint64_t *rows) {
    pst_sst_reader *reader = NULL;
    pst_detail detail;
    pst_status s = pst_sst_reader_open(io, file_bytes, &reader, &detail);
    if (!s)
        s = pst_table_load(to, reader, NULL, pst_sst_reader_schema(reader)->n_states, rows);
    pst_sst_reader_close(reader);
    return s;
}

static pst_status copy_part(pst_table *to, memory_file *f, pst_sealed *part, uint64_t *rows) {
    pst_io io = {.ctx = f, .write = append, .read_at = read_at, .budget = f->charge.budget};
    pst_file_info info;
    f->buffer.size = 0;
    pst_status s = pst_sealed_write(part, &io, &info);
    if (s == PST_CALLBACK)
        return PST_NO_MEMORY;
    return s ? s : load_part(to, &io, info.file_bytes, rows);
}

/* Room in the index for that share of the rows that keys which are spread evenly have there. */
static pst_status expect(pst_table *to, const pst_table *from, int32_t first, int32_t last) {
    uint64_t rows = from->m->live / pst_group_count(from);
    pst_status s = PST_OK;
    for (int32_t g = first; !s && rows && g <= last; g++)
        s = pst_index_expect(to, g, rows);
    return s;
}

static int has_groups(const pst_table *t, int32_t first, int32_t last) {
    return t->attached && first >= t->first_key_group && first <= last && last <= t->last_key_group;
}

pst_status pst_table_copy(pst_table *to, pst_table *from, int32_t first_key_group,
                          int32_t last_key_group, uint64_t *rows) {
    if (to == from || to->max_parallelism != from->max_parallelism ||
        !has_groups(to, first_key_group, last_key_group) ||
        !has_groups(from, first_key_group, last_key_group) || pst_table_dirty(from) ||
        from->admitted)
        return PST_INVALID;
    if (to->poisoned || from->poisoned)
        return PST_POISONED;
    if (!pst_table_is_whole(from))
        return PST_NOT_HERE;
    if (pst_schema_fingerprint(&to->schema) != pst_schema_fingerprint(&from->schema))
        return PST_SCHEMA;
    memory_file file = {.charge = {.budget = to->budget, .small = PST_SMALL_BUFFER}};
    uint64_t cursor = 0, copied = 0;
    pst_status s = expect(to, from, first_key_group, last_key_group);
    while (!s) {
        pst_sealed *part = NULL;
        uint64_t n = 0;
        s = pst_sealed_part(from, first_key_group, last_key_group, &cursor, &part);
        if (!s)
            s = copy_part(to, &file, part, &n);
        copied += n;
        pst_sealed_destroy(part);
    }
    pst_charge_drop(&file.charge);
    pst_free(file.buffer.data);
    if (s != PST_NOT_FOUND)
        return copied ? pst_poison(to, s) : s;
    if (rows)
        *rows = copied;
    return PST_OK;
}
