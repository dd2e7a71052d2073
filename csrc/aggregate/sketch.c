/* sketch.c: HyperLogLog (Flajolet, Fusy, Gandouet, Meunier 2007) with the sparse form of Heule,
 * Nunkesser and Hall (2013).
 *
 *     u8 1 (format), u8 precision p, u8 0 sparse or 1 dense, u8 0
 *     sparse: entries of 24 bits, little-endian, ascending: index << 6 | rank, the index 18 bits
 *     dense:  2^p registers of 6 bits, little-endian, four to three bytes
 *
 * The index is the top bits of the hash, 18 of them or p; the rank the number of zeros before the
 * next one, plus one. An entry says enough to make the register of any p from it, so going dense
 * loses nothing that a dense sketch would have had. It happens when the entries would take more
 * bytes than the registers. */
#include "aggregate/sketch.h"

#include <string.h>

enum { HEADER = 4, FORMAT = 1, SPARSE = 0, DENSE = 1, ENTRY = 3, SPARSE_BITS = 18 };

static size_t register_bytes(uint32_t precision) {
    return (size_t)3 << (precision - 2);
}

size_t pst_sketch_most(uint32_t precision) {
    return HEADER + register_bytes(precision);
}

pst_status pst_sketch_check(uint32_t precision, const uint8_t *data, size_t size) {
    if (!size)
        return PST_OK;
    if (size < HEADER || data[0] != FORMAT || data[1] != precision || data[3])
        return PST_CORRUPT;
    size_t bytes = size - HEADER, most = register_bytes(precision);
    if (data[2] == DENSE)
        return bytes == most ? PST_OK : PST_CORRUPT;
    return data[2] == SPARSE && bytes % ENTRY == 0 && bytes <= most ? PST_OK : PST_CORRUPT;
}

/* Index and rank of a hash for a number of index bits. */
static uint32_t index_of(uint64_t hash, uint32_t bits) {
    return (uint32_t)(hash >> (64 - bits));
}

static uint32_t rank_of(uint64_t hash, uint32_t bits) {
    uint64_t rest = hash << bits;
    return rest ? (uint32_t)__builtin_clzll(rest) + 1 : 65 - bits;
}

static uint32_t entry_of(uint64_t hash) {
    return index_of(hash, SPARSE_BITS) << 6 | rank_of(hash, SPARSE_BITS);
}

static uint32_t get_entry(const uint8_t *entries, size_t i) {
    const uint8_t *at = entries + i * ENTRY;
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16;
}

static void put_entry(uint8_t *entries, size_t i, uint32_t entry) {
    uint8_t *at = entries + i * ENTRY;
    at[0] = (uint8_t)entry;
    at[1] = (uint8_t)(entry >> 8);
    at[2] = (uint8_t)(entry >> 16);
}

static uint32_t get_register(const uint8_t *registers, uint32_t i) {
    const uint8_t *at = registers + (size_t)(i / 4) * 3;
    uint32_t four = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16;
    return four >> i % 4 * 6 & 63;
}

static void raise_register(uint8_t *registers, uint32_t i, uint32_t rank) {
    uint32_t have = get_register(registers, i);
    if (have >= rank)
        return;
    uint8_t *at = registers + (size_t)(i / 4) * 3;
    uint32_t four = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16;
    four += (rank - have) << i % 4 * 6;
    at[0] = (uint8_t)four;
    at[1] = (uint8_t)(four >> 8);
    at[2] = (uint8_t)(four >> 16);
}

/* The register that an entry stands for at a lower precision. */
static void raise_by_entry(uint8_t *registers, uint32_t precision, uint32_t entry) {
    uint32_t index = entry >> 6, rank = entry & 63, rest = SPARSE_BITS - precision;
    uint32_t low = index & ((1u << rest) - 1);
    rank = low ? rest - (31u - (uint32_t)__builtin_clz(low)) : rank + rest;
    /* An entry that no hash makes must not spill into the next register. */
    raise_register(registers, index >> rest, rank > 63 ? 63 : rank);
}

/* Where the entry of that index is or belongs. */
static size_t find_entry(const uint8_t *entries, size_t n, uint32_t index) {
    size_t low = 0;
    while (n > low) {
        size_t middle = low + (n - low) / 2;
        if (get_entry(entries, middle) >> 6 < index)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

int pst_sketch_has(const uint8_t *data, size_t size, uint64_t hash) {
    if (!size)
        return 0;
    if (data[2] == DENSE) {
        uint32_t bits = data[1];
        return get_register(data + HEADER, index_of(hash, bits)) >= rank_of(hash, bits);
    }
    uint32_t entry = entry_of(hash);
    size_t n = (size - HEADER) / ENTRY, i = find_entry(data + HEADER, n, entry >> 6);
    return i < n && get_entry(data + HEADER, i) >> 6 == entry >> 6 &&
           get_entry(data + HEADER, i) >= entry;
}

static void make_dense(uint32_t precision, uint8_t *data, size_t *size) {
    uint8_t registers[(size_t)3 << (PST_AGG_MOST_PRECISION - 2)] = {0};
    size_t n = (*size - HEADER) / ENTRY, bytes = register_bytes(precision);
    for (size_t i = 0; i < n; i++)
        raise_by_entry(registers, precision, get_entry(data + HEADER, i));
    memcpy(data + HEADER, registers, bytes);
    data[2] = DENSE;
    *size = HEADER + bytes;
}

static void add_entry(uint32_t precision, uint8_t *data, size_t *size, uint32_t entry) {
    if (!*size) {
        memcpy(data, (uint8_t[HEADER]){FORMAT, (uint8_t)precision, SPARSE, 0}, HEADER);
        *size = HEADER;
    }
    uint8_t *entries = data + HEADER;
    if (data[2] == DENSE) {
        raise_by_entry(entries, precision, entry);
        return;
    }
    size_t n = (*size - HEADER) / ENTRY, i = find_entry(entries, n, entry >> 6);
    if (i < n && get_entry(entries, i) >> 6 == entry >> 6) {
        if (get_entry(entries, i) < entry)
            put_entry(entries, i, entry);
        return;
    }
    if ((n + 1) * ENTRY > register_bytes(precision)) {
        make_dense(precision, data, size);
        raise_by_entry(entries, precision, entry);
        return;
    }
    memmove(entries + (i + 1) * ENTRY, entries + i * ENTRY, (n - i) * ENTRY);
    put_entry(entries, i, entry);
    *size += ENTRY;
}

void pst_sketch_add(uint32_t precision, uint8_t *data, size_t *size, uint64_t hash) {
    if (*size && data[2] == DENSE)
        raise_register(data + HEADER, index_of(hash, precision), rank_of(hash, precision));
    else
        add_entry(precision, data, size, entry_of(hash));
}

void pst_sketch_merge(uint32_t precision, uint8_t *data, size_t *size, const uint8_t *from,
                      size_t from_size) {
    if (!from_size)
        return;
    if (!*size) {
        memcpy(data, from, from_size);
        *size = from_size;
        return;
    }
    if (from[2] == SPARSE) {
        for (size_t i = 0; i < (from_size - HEADER) / ENTRY; i++)
            add_entry(precision, data, size, get_entry(from + HEADER, i));
        return;
    }
    if (data[2] == SPARSE)
        make_dense(precision, data, size);
    for (uint32_t i = 0; i < 1u << precision; i++)
        raise_register(data + HEADER, i, get_register(from + HEADER, i));
}
