#include "sst/sst_open.h"

#include "key/xxh64.h"

pst_detail pst_sst_nowhere(void) {
    return (pst_detail){-1, -1, -1, -1, -1};
}

pst_status pst_sst_fail_at(pst_sst_head *head, pst_status s, uint64_t offset) {
    head->detail = pst_sst_nowhere();
    head->detail.offset = (int64_t)offset;
    return s;
}

pst_status pst_sst_read_at(const pst_io *io, pst_sst_head *head, uint64_t offset, void *data,
                           size_t size) {
    if (io->read_at(io->ctx, offset, data, size) != 0)
        return pst_sst_fail_at(head, PST_CALLBACK, offset);
    return PST_OK;
}

static pst_status read_schema(const pst_io *io, pst_buffer *scratch, uint32_t size,
                              pst_sst_head *head) {
    pst_status s = pst_buffer_reserve(scratch, size);
    if (!s)
        s = pst_sst_read_at(io, head, PST_SST_HEADER_BYTES, scratch->data, size);
    if (s)
        return s;
    s = pst_sst_get_schema(scratch->data, size, head->info.lineage.id, head->features,
                           &head->schema);
    if (!s)
        s = pst_record_rules_make(&head->schema, head->info.null_entries, &head->rules);
    return s == PST_CORRUPT ? pst_sst_fail_at(head, s, PST_SST_HEADER_BYTES) : s;
}

static pst_status read_footer(const pst_io *io, pst_sst_head *head, pst_sst_footer *footer) {
    uint8_t bytes[PST_SST_FOOTER_BYTES];
    uint64_t file_bytes = head->info.file_bytes, end = file_bytes - PST_SST_FOOTER_BYTES;
    pst_status s = pst_sst_read_at(io, head, end, bytes, sizeof bytes);
    if (!s &&
        pst_sst_get_footer(bytes, head->info.lineage.id, head->data_offset, file_bytes, footer))
        s = pst_sst_fail_at(head, PST_CORRUPT, end);
    return s;
}

pst_status pst_sst_read_head(const pst_io *io, uint64_t file_bytes, pst_buffer *scratch,
                             pst_sst_head *head, pst_sst_footer *footer) {
    uint8_t bytes[PST_SST_HEADER_BYTES];
    pst_sst_header h;
    head->detail = pst_sst_nowhere();
    if (file_bytes < PST_SST_HEADER_BYTES)
        return pst_sst_fail_at(head, PST_CORRUPT, file_bytes);
    pst_status s = pst_sst_read_at(io, head, 0, bytes, sizeof bytes);
    if (s)
        return s;
    s = pst_sst_get_header(bytes, &h);
    if (s)
        return pst_sst_fail_at(head, s, 0);
    head->features = h.features;
    head->data_offset = PST_SST_HEADER_BYTES + (uint64_t)h.schema_bytes;
    if (file_bytes < head->data_offset + PST_SST_FOOTER_BYTES)
        return pst_sst_fail_at(head, PST_CORRUPT, file_bytes);
    head->info = (pst_file_info){.kind = h.kind,
                                 .lineage = h.lineage,
                                 .max_parallelism = h.max_parallelism,
                                 .first_key_group = h.first_key_group,
                                 .last_key_group = h.last_key_group,
                                 .file_bytes = file_bytes,
                                 .null_entries = (h.features & PST_SST_FEATURE_NULLS) != 0,
                                 .block_bytes = h.block_bytes};
    s = read_schema(io, scratch, h.schema_bytes, head);
    return s ? s : read_footer(io, head, footer);
}

pst_status pst_sst_read_tail(const pst_io *io, pst_sst_head *head, const pst_sst_footer *footer,
                             pst_buffer *tail) {
    uint64_t at = footer->index_offset;
    size_t size = head->info.file_bytes - PST_SST_FOOTER_BYTES - at;
    pst_status s = pst_buffer_reserve(tail, size);
    if (!s)
        s = pst_sst_read_at(io, head, at, tail->data, size);
    if (s)
        return s;
    if (pst_xxh64(tail->data, size, pst_sst_seed(head->info.lineage.id, at)) !=
        footer->tail_checksum)
        return pst_sst_fail_at(head, PST_CORRUPT, at);
    return PST_OK;
}

static int refs_follow(const pst_file_info *info, uint64_t data_offset, const pst_sst_footer *f,
                       const uint8_t *index, pst_sst_ref *refs, pst_sst_totals *totals) {
    uint64_t offset = data_offset;
    int32_t key_group = info->first_key_group;
    uint64_t hash = 0; /* of the first row of the block before, if that is of this key group */
    for (size_t i = 0; i < f->blocks; i++) {
        pst_sst_ref *ref = &refs[i];
        if (pst_sst_get_ref(index + i * PST_SST_REF_BYTES, ref) || ref->offset != offset ||
            ref->stored > f->index_offset - offset || ref->first_key_group < key_group ||
            ref->last_key_group > info->last_key_group ||
            (ref->first_key_group == key_group && ref->first_hash < hash))
            return 0;
        uint64_t padded = pst_sst_align(ref->stored);
        if (padded > f->index_offset - offset)
            return 0;
        offset += padded;
        key_group = ref->last_key_group;
        hash = ref->first_key_group == key_group ? ref->first_hash : 0;
        totals->puts += ref->puts;
        totals->deletes += ref->deletes;
        totals->raw += ref->raw;
        totals->stored += padded;
    }
    return offset == f->index_offset && (info->kind != PST_BASE || totals->deletes == 0);
}

pst_status pst_sst_read_refs(pst_file_info *info, uint64_t data_offset,
                             const pst_sst_footer *footer, const uint8_t *tail, pst_sst_ref *refs) {
    pst_sst_totals totals = {0, 0, 0, 0};
    if (!refs_follow(info, data_offset, footer, tail, refs, &totals) ||
        pst_sst_check_properties(tail + footer->blocks * PST_SST_REF_BYTES,
                                 footer->properties_bytes, &totals, &info->lineage))
        return PST_CORRUPT;
    info->rows = totals.puts;
    info->tombstones = totals.deletes;
    info->raw_bytes = totals.raw;
    return PST_OK;
}
