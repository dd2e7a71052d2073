/* checksum.c: the XXH64 of a whole file, as a manifest records it. */
#include "base/mem.h"
#include "base/xxh64.h"
#include "pystate.h"

pst_status pst_file_checksum(const pst_io *io, uint64_t file_bytes, uint64_t *checksum) {
    enum { PIECE = 1 << 18 };
    uint8_t *buffer = pst_malloc(PIECE);
    if (!buffer)
        return PST_NO_MEMORY;
    pst_xxh64_state state;
    pst_xxh64_init(&state, 0);
    pst_status s = PST_OK;
    for (uint64_t at = 0; !s && at < file_bytes; at += PIECE) {
        size_t size = file_bytes - at < PIECE ? (size_t)(file_bytes - at) : PIECE;
        if (io->read_at(io->ctx, at, buffer, size))
            s = PST_CALLBACK;
        if (!s)
            pst_xxh64_update(&state, buffer, size);
    }
    pst_free(buffer);
    if (!s)
        *checksum = pst_xxh64_digest(&state);
    return s;
}
