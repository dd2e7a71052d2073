/* sst_format.h: the parts of a delta or base file around its data blocks: header, schema section,
 * index, properties, footer. FORMAT.md describes every byte.
 *
 * Thread safety: pure functions over their arguments.
 *
 * Invariants
 *  1. Every byte of a file lies in exactly one of header, schema section, blocks (each with its
 *     padding), tail (index and properties) and footer, and each of these has a checksum.
 *  2. All checksums but the header's are seeded with the file's id and the section's offset, so
 *     that a section of another file, or at another place, does not pass.
 *  3. Magic, version, feature bits and checksum of the header keep their places in all versions:
 *     a file is called newer only where that checksum holds.
 *  4. No size read from a file is used for an allocation before it is bounded by the file's size.
 */
#ifndef PST_SST_FORMAT_H
#define PST_SST_FORMAT_H

#include "key/schema.h"
#include "pystate.h"

/* How a column's values lie. */
typedef enum pst_sst_shape {
    PST_SHAPE_BIT,
    PST_SHAPE_INT8,
    PST_SHAPE_INT16,
    PST_SHAPE_INT32,
    PST_SHAPE_WORD32, /* not sign-extended */
    PST_SHAPE_WORD64,
    PST_SHAPE_WORD128,
    PST_SHAPE_BYTES
} pst_sst_shape;

enum {
    PST_SST_VERSION = 1,
    PST_SST_HEADER_BYTES = 128,
    PST_SST_FOOTER_BYTES = 64,
    PST_SST_REF_BYTES = 64, /* one index entry */
    PST_SST_ALIGN = 64,     /* of sections, and of buffers within a raw block */
    PST_SST_BLOCK_TARGET = 16 * 1024,
    PST_SST_BLOCK_ROWS = 65536,
    PST_SST_BLOCK_KINDS = 256,
    PST_SST_MAX_NAME = 65535,
    PST_SST_MAX_SCHEMA = 16 * 1024 * 1024,
    PST_SST_LZ4_RATIO = 255, /* no LZ4 block expands further */
    /* Of guided files: the bounds of pst_file_info.block_bytes, and the most key groups. */
    PST_SST_LEAST_BLOCK = 4096,
    PST_SST_LARGEST_BLOCK = 65536,
    PST_SST_GUIDED_GROUPS = 65536
};

/* Incompatible features that this version reads. A file bears only those that it needs, so that one
 * without lists, maps, timers, namespaces and nested types is a file of the first release. */
#define PST_SST_FEATURE_KINDS UINT64_C(1)  /* the schema section says more of each column */
#define PST_SST_FEATURE_TIMER UINT64_C(2)  /* a row's record may bear the key's only timer */
#define PST_SST_FEATURE_NULLS UINT64_C(4)  /* a map's entry may have no value */
#define PST_SST_FEATURE_GUIDE UINT64_C(8)  /* small blocks, and guides that lead to them */
#define PST_SST_FEATURE_TIMES UINT64_C(16) /* of a guided file: an index of the timers */
#define PST_SST_KNOWN_FEATURES                                                                     \
    (PST_SST_FEATURE_KINDS | PST_SST_FEATURE_TIMER | PST_SST_FEATURE_NULLS |                       \
     PST_SST_FEATURE_GUIDE | PST_SST_FEATURE_TIMES)
#define PST_SST_LZ4_MAX_INPUT UINT64_C(0x7E000000)

typedef enum pst_sst_codec { PST_CODEC_RAW = 0, PST_CODEC_LZ4 = 1 } pst_sst_codec;

static inline uint64_t pst_sst_align(uint64_t n) {
    return (n + (PST_SST_ALIGN - 1)) & ~(uint64_t)(PST_SST_ALIGN - 1);
}

uint64_t pst_sst_seed(const uint8_t id[16], uint64_t offset);

typedef struct pst_sst_header {
    pst_file_kind kind;
    pst_lineage lineage;
    int32_t max_parallelism;
    int32_t first_key_group;
    int32_t last_key_group;
    uint32_t schema_bytes; /* size of the schema section */
    uint64_t features;     /* incompatible ones */
    uint32_t block_bytes;  /* of a guided file; 0 of others */
} pst_sst_header;

static inline uint64_t pst_sst_features(const pst_schema *schema, int null_entries) {
    if (pst_schema_is_plain(schema))
        return 0;
    return PST_SST_FEATURE_KINDS | (pst_schema_has_timer(schema) ? PST_SST_FEATURE_TIMER : 0) |
           (null_entries ? PST_SST_FEATURE_NULLS : 0);
}

void pst_sst_put_header(const pst_sst_header *h, uint8_t out[PST_SST_HEADER_BYTES]);
/* PST_CORRUPT, PST_NEWER_FORMAT. */
pst_status pst_sst_get_header(const uint8_t in[PST_SST_HEADER_BYTES], pst_sst_header *h);

/* The size of the schema section; 0 where a name is too long for one. */
uint32_t pst_sst_schema_bytes(const pst_schema *schema);
void pst_sst_put_schema(const pst_schema *schema, const uint8_t id[16], uint8_t *out, size_t size);
/* The copy is the caller's (pst_schema_clear). PST_CORRUPT, PST_NO_MEMORY. */
pst_status pst_sst_get_schema(const uint8_t *in, size_t size, const uint8_t id[16],
                              uint64_t features, pst_schema *schema);

/* An index entry. */
typedef struct pst_sst_ref {
    uint64_t offset;
    uint64_t stored;   /* bytes of the block as stored, without padding */
    uint64_t raw;      /* bytes once decompressed */
    uint64_t checksum; /* of stored bytes and padding */
    uint64_t first_hash;
    int32_t first_key_group;
    int32_t last_key_group;
    uint32_t puts;
    uint32_t deletes;
    pst_sst_codec codec;
} pst_sst_ref;

void pst_sst_put_ref(const pst_sst_ref *r, uint8_t out[PST_SST_REF_BYTES]);
/* Checks everything that one entry alone can show. */
pst_status pst_sst_get_ref(const uint8_t in[PST_SST_REF_BYTES], pst_sst_ref *r);

typedef struct pst_sst_totals {
    uint64_t puts;
    uint64_t deletes;
    uint64_t raw;
    uint64_t stored; /* with padding */
} pst_sst_totals;

/* Tags of properties that every file has, and of one that a guided file has besides; 0 ends them. */
typedef enum pst_sst_property {
    PST_PROPERTY_PUTS = 1,
    PST_PROPERTY_DELETES = 2,
    PST_PROPERTY_RAW = 3,
    PST_PROPERTY_STORED = 4,
    PST_PROPERTY_PARENT = 5,
    PST_PROPERTY_BOUNDS = 6,
    PST_PROPERTY_TIMES = 7 /* where there is a time index */
} pst_sst_property;

enum {
    PST_SST_BOUNDS_BYTES = 16, /* for each key column */
    PST_SST_TIMES_BYTES = 32,
    PST_SST_MAX_PROPERTIES = 192 + PST_MAX_KEYS * PST_SST_BOUNDS_BYTES
};

/* What a guided file has besides: bounds, and of its time index PST_SST_TIMES_BYTES, or NULL. */
typedef struct pst_sst_guided_properties {
    const uint8_t *bounds;
    size_t bounds_size;
    const uint8_t *times;
} pst_sst_guided_properties;

/* Returns the size, a multiple of PST_SST_ALIGN. `guided` is NULL of other files. */
size_t pst_sst_put_properties(const pst_sst_totals *t, const pst_lineage *lineage,
                              const pst_sst_guided_properties *guided,
                              uint8_t out[PST_SST_MAX_PROPERTIES]);
/* PST_CORRUPT also where they contradict `t` or `lineage`; unknown properties are skipped. */
pst_status pst_sst_check_properties(const uint8_t *in, size_t size, const pst_sst_totals *t,
                                    const pst_lineage *lineage);
/* The value of a property, or NULL. REQUIRES: properties that were checked. */
const uint8_t *pst_sst_property_value(const uint8_t *in, size_t size, pst_sst_property tag,
                                      size_t *length);

typedef struct pst_sst_footer {
    uint64_t index_offset;
    uint64_t blocks; /* index entries; of a guided file one per segment */
    uint64_t properties_bytes;
    uint64_t tail_checksum; /* of index and properties */
    uint64_t file_bytes;
} pst_sst_footer;

void pst_sst_put_footer(const pst_sst_footer *f, const uint8_t id[16],
                        uint8_t out[PST_SST_FOOTER_BYTES]);
/* Checks that index, properties and footer fill the end of the file exactly, the blocks starting
 * at `data_offset`. */
pst_status pst_sst_get_footer(const uint8_t in[PST_SST_FOOTER_BYTES], const uint8_t id[16],
                              uint64_t data_offset, uint64_t file_bytes, pst_sst_footer *f);

#endif
