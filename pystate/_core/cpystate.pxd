# Declarations of csrc/pystate.h, and nothing else.

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "pystate.h" nogil:
    ctypedef enum pst_status:
        PST_OK
        PST_NOT_FOUND
        PST_NO_MEMORY
        PST_NO_SPACE
        PST_LIMIT
        PST_ADDRESS_SPACE
        PST_INVALID
        PST_WRONG_TYPE
        PST_OVERFLOW
        PST_WRONG_KEY_GROUP
        PST_STALE
        PST_BUSY
        PST_MISMATCH
        PST_SNAPSHOT_TOO_OLD
        PST_NO_UNDO
        PST_CORRUPT
        PST_NEWER_FORMAT
        PST_IO
        PST_POISONED
        PST_TOO_LARGE
        PST_CALLBACK
        PST_SCHEMA
        PST_CHANGED
        PST_NO_STACK
        PST_NO_ROOM
        PST_NOT_HERE

    ctypedef struct pst_detail:
        int64_t offset
        int64_t row
        int32_t column
        int32_t key_group
        int32_t sys_errno

    const char *pst_status_name(pst_status s)

    ctypedef enum pst_type:
        PST_BOOL
        PST_INT8
        PST_INT16
        PST_INT32
        PST_INT64
        PST_FLOAT32
        PST_FLOAT64
        PST_DATE32
        PST_TIMESTAMP
        PST_DECIMAL
        PST_STRING
        PST_BINARY
        PST_OBJECT
        PST_FIXED
        PST_NESTED

    enum:
        PST_MAX_KEYS
        PST_MAX_STATES
        PST_MAX_BYTES
        PST_MAX_FIXED

    ctypedef struct pst_column:
        const char *name
        pst_type type
        uint8_t precision
        uint8_t scale
        uint8_t has_default
        uint64_t default_word[2]
        uint8_t kind
        uint8_t map_key
        uint8_t map_precision
        uint8_t map_scale
        uint16_t width
        const char *ddl

    ctypedef struct pst_schema:
        int32_t n_keys
        int32_t n_states
        const pst_column *keys
        const pst_column *states
        int32_t n_hashed

    ctypedef struct pst_bytes:
        const uint8_t *data
        uint32_t size

    ctypedef struct pst_cell:
        uint64_t word[2]
        pst_bytes bytes

    ctypedef struct pst_array:
        pst_type type
        int64_t length
        int64_t offset
        const uint8_t *validity
        const void *values
        const int32_t *offsets
        uint32_t width
        int64_t values_bytes

    ctypedef struct pst_bytes_out:
        int32_t *offsets
        uint8_t *valid
        uint8_t *data
        uint64_t capacity

    pst_status pst_hash(const pst_array *columns, const uint8_t *precision, int32_t n_columns,
                        uint64_t *hash)
    int32_t pst_key_group(uint64_t hash, int32_t max_parallelism)
    int32_t pst_range_of(int32_t key_group, int32_t max_parallelism, int32_t parallelism)
    void pst_range_bounds(int32_t i, int32_t max_parallelism, int32_t parallelism, int32_t *first,
                          int32_t *last)

    ctypedef struct pst_table:
        pass
    ctypedef struct pst_batch:
        pass
    ctypedef struct pst_sealed:
        pass
    ctypedef struct pst_reader:
        pass

    ctypedef struct pst_lineage:
        uint8_t id[16]
        uint8_t parent[16]
        uint64_t epoch
        uint64_t query

    ctypedef struct pst_identity:
        uint8_t boot_id[16]
        uint64_t pid_namespace
        uint32_t owner_pid
        uint64_t owner_start
        uint8_t application[32]

    ctypedef struct pst_budget:
        pass

    ctypedef struct pst_budget_stats:
        uint64_t limit_bytes
        uint64_t private_bytes
        uint64_t shared_bytes

    ctypedef struct pst_refusal:
        uint64_t asked_bytes
        uint64_t private_bytes
        uint64_t shared_bytes
        uint64_t limit_bytes
        int own

    uint64_t pst_memory_bytes(const char *proc, const char *cgroups)
    void pst_memory_give_back()
    pst_status pst_budget_create(uint64_t limit_bytes, pst_budget **budget)
    void pst_budget_release(pst_budget *b)
    void pst_budget_get_stats(pst_budget *b, pst_budget_stats *stats)
    void pst_budget_refusal(const pst_budget *b, pst_refusal *refusal)

    ctypedef struct pst_table_options:
        int32_t max_parallelism
        int32_t first_key_group
        int32_t last_key_group
        uint64_t limit_bytes
        const char *path
        const pst_identity *identity
        int32_t lock_timeout_ms
        int32_t create
        int32_t successor
        pst_budget *budget
        const char *home
        int32_t home_depth

    pst_status pst_table_open(const pst_schema *schema, const pst_table_options *options,
                              pst_table **table, int *created, pst_detail *detail)
    pst_status pst_table_detach(pst_table *t)
    pst_status pst_table_attach(pst_table *t, int32_t lock_timeout_ms)
    pst_status pst_table_succeed(pst_table *t, int32_t *successor)
    void pst_successor_close(int32_t successor)
    void pst_table_close(pst_table *t)
    void pst_table_abandon(pst_table *t)
    pst_status pst_table_set_target(pst_table *t, uint64_t bytes)
    const pst_detail *pst_table_detail(const pst_table *t)

    ctypedef struct pst_table_stats:
        uint64_t keys
        uint64_t slots
        uint64_t row_bytes
        uint64_t index_bytes
        uint64_t block_bytes
        uint64_t undo_bytes
        uint64_t ring_bytes
        uint64_t meta_bytes
        uint64_t committed_bytes
        uint64_t changed_rows
        uint64_t recovered_records
        uint64_t recovery_ns
        uint32_t row_size

    void pst_table_get_stats(const pst_table *t, pst_table_stats *stats)
    void pst_table_refusal(const pst_table *t, pst_refusal *refusal)

    pst_status pst_table_seal(pst_table *t, const pst_lineage *lineage, pst_sealed **sealed)
    void pst_table_set_whole_rows(pst_table *t, uint64_t bytes)
    void pst_table_set_steps(pst_table *t, int steps)
    void pst_table_spoil(pst_table *t)
    int pst_table_passed(const pst_table *t)
    pst_status pst_table_changes(pst_table *t, pst_sealed **sealed)
    pst_status pst_table_lineage(const pst_table *t, int32_t back, pst_lineage *lineage)
    pst_status pst_table_rollback(pst_table *t, int32_t back)
    int pst_table_dirty(const pst_table *t)

    void pst_table_set_whole(pst_table *t, int whole)
    int pst_table_is_whole(const pst_table *t)

    ctypedef struct pst_room:
        uint64_t rows
        uint64_t bytes

    pst_status pst_table_settle(pst_table *t)
    pst_status pst_table_leave(pst_table *t, const pst_room *wanted, pst_room *left)
    ctypedef struct pst_fetch_stats:
        uint64_t asked
        uint64_t missed
        uint64_t came

    void pst_table_get_fetch_stats(const pst_table *t, pst_fetch_stats *stats)
    pst_status pst_table_room(pst_table *t, uint64_t keys, uint64_t *fits, pst_room *leave)

    pst_status pst_batch_create(pst_table *t, const pst_array *keys, pst_batch **batch)
    void pst_batch_destroy(pst_batch *b)
    int64_t pst_batch_length(const pst_batch *b)
    pst_status pst_batch_fetch(pst_batch *b, int reading, uint64_t *absent)
    pst_status pst_batch_first(pst_batch *b, int32_t *first)
    pst_status pst_batch_get(pst_batch *b, int32_t column, void *values, uint8_t *valid)
    ctypedef struct pst_get:
        int32_t column
        void *values
        uint8_t *valid
    pst_status pst_batch_get_all(pst_batch *b, int32_t n, const pst_get *gets)
    pst_status pst_batch_get_bytes(pst_batch *b, int32_t column, const pst_bytes_out *out)
    pst_status pst_batch_put(pst_batch *b, int32_t column, const pst_array *values)

    ctypedef enum pst_op:
        PST_ADD
        PST_MIN
        PST_MAX

    pst_status pst_batch_apply(pst_batch *b, int32_t column, pst_op op, const pst_array *values)

    ctypedef struct pst_step:
        int32_t column
        pst_op op
        pst_array values

    pst_status pst_batch_apply_all(pst_batch *b, int32_t n, const pst_step *steps, uint8_t *fresh,
                                   uint8_t *refused)
    pst_status pst_batch_clear(pst_batch *b, int32_t column)
    pst_status pst_batch_changed(pst_table *t, uint64_t *cursor, int64_t most, pst_batch **batch)
    pst_status pst_batch_all(pst_table *t, uint64_t *cursor, int64_t most, pst_batch **batch)
    pst_status pst_batch_hottest(pst_table *t, int64_t most, pst_batch **batch)
    void pst_table_keep_rows(pst_table *t, int keep)
    pst_status pst_batch_get_key(pst_batch *b, int32_t key_column, void *values, uint8_t *valid)
    pst_status pst_batch_get_key_bytes(pst_batch *b, int32_t key_column, const pst_bytes_out *out)

    pst_status pst_key_set_row(pst_table *t, pst_batch *b, int64_t i)
    pst_status pst_key_set(pst_table *t, const pst_cell *key, uint32_t nulls)
    pst_status pst_key_set_word(pst_table *t, uint64_t word)
    pst_status pst_value_get(pst_table *t, int32_t column, pst_cell *cell)
    pst_status pst_value_put(pst_table *t, int32_t column, const pst_cell *cell)
    pst_status pst_value_clear(pst_table *t, int32_t column)

    int64_t PST_NO_TIME

    ctypedef struct pst_clock:
        int64_t processing_ms
        int64_t watermark_ms
        int64_t event_ms

    ctypedef struct pst_ttl:
        int64_t duration_ms
        int64_t granularity_ms
        int64_t ahead_ms
        uint8_t event_time
        uint8_t on_read
        uint8_t lenient
        uint8_t goes_back

    pst_status pst_table_set_ttl(pst_table *t, int32_t column, const pst_ttl *ttl)
    void pst_table_set_clock(pst_table *t, const pst_clock *clock)
    pst_status pst_table_expire(pst_table *t, uint64_t budget, uint64_t *removed)

    ctypedef struct pst_elements:
        pass

    pst_status pst_list_add(pst_table *t, int32_t column, const pst_cell *item)
    pst_status pst_list_take(pst_table *t, int32_t column, const pst_cell *from_, uint32_t nulls)
    pst_status pst_map_get(pst_table *t, int32_t column, const pst_cell *key, pst_cell *value,
                           int *is_null)
    pst_status pst_map_put(pst_table *t, int32_t column, const pst_cell *key,
                           const pst_cell *value)
    pst_status pst_map_remove(pst_table *t, int32_t column, const pst_cell *key)
    pst_status pst_elements_count(pst_table *t, int32_t column, uint64_t *count)
    pst_status pst_list_below(pst_table *t, int32_t column, uint64_t *items)
    pst_status pst_map_below(pst_table *t, int32_t column, int *below)
    pst_status pst_elements_create(pst_table *t, pst_elements **elements)
    void pst_elements_destroy(pst_elements *e)
    pst_status pst_elements_start(pst_elements *e, int32_t column)
    pst_status pst_elements_start_row(pst_elements *e, pst_batch *b, int64_t i, int32_t column)
    pst_status pst_elements_next(pst_elements *e, pst_cell *key, pst_cell *value)
    pst_status pst_elements_leave(pst_elements *e)
    bint pst_elements_is_null(const pst_elements *e)

    ctypedef struct pst_run:
        const void *items
        uint64_t count
        uint64_t left

    pst_status pst_elements_next_run(pst_elements *e, pst_run *run)
    pst_status pst_elements_skip(pst_elements *e, uint64_t items)
    pst_status pst_elements_seek(pst_elements *e, const pst_cell *key)
    pst_status pst_batch_list_append(pst_batch *b, int32_t column, const pst_array *items)
    pst_status pst_batch_list_append_many(pst_batch *b, int32_t column, const int32_t *offsets,
                                          const pst_array *items)
    pst_status pst_batch_element_offsets(pst_batch *b, int32_t column, int64_t *offsets)
    pst_status pst_batch_elements_read(pst_batch *b, int32_t column)
    pst_status pst_batch_list_copy(pst_batch *b, int32_t column, const int64_t *offsets,
                                   void *values, uint64_t capacity)
    pst_status pst_batch_map_put(pst_batch *b, int32_t column, const pst_array *keys,
                                 const pst_array *values)
    pst_status pst_batch_map_remove(pst_batch *b, int32_t column, const pst_array *keys)
    pst_status pst_batch_map_get(pst_batch *b, int32_t column, const pst_array *keys,
                                 void *values, uint8_t *valid)
    pst_status pst_batch_map_get_bytes(pst_batch *b, int32_t column, const pst_array *keys,
                                       const pst_bytes_out *out)

    ctypedef struct pst_agg_shape:
        uint8_t kind
        uint8_t type
        uint16_t parameter

    pst_status pst_aggregate_width(const pst_agg_shape *shape, uint32_t *width)
    pst_status pst_batch_aggregate(pst_batch *b, int32_t column, const pst_agg_shape *shape,
                                   const pst_array *values)
    pst_status pst_batch_merge(pst_batch *b, int32_t column, const pst_agg_shape *shape,
                                   const pst_array *accumulators)
    pst_status pst_aggregate_add(pst_table *t, int32_t column, const pst_agg_shape *shape,
                                 const pst_cell *value)
    pst_status pst_aggregate_merge(pst_table *t, int32_t column, const pst_agg_shape *shape,
                                   pst_bytes from_)

    ctypedef enum pst_domain:
        PST_EVENT
        PST_PROCESSING


    int64_t pst_table_horizon(const pst_table *t, pst_domain domain)

    ctypedef struct pst_timers_place:
        int64_t time_ms
        uint64_t key_group
        uint64_t hash

    pst_status pst_timers_passed(const pst_table *t, pst_domain domain, pst_timers_place *place)
    pst_status pst_table_set_passed(pst_table *t, pst_domain domain,
                                    const pst_timers_place *place)
    pst_status pst_timer_register(pst_table *t, pst_domain domain, int64_t time_ms)
    pst_status pst_timer_delete(pst_table *t, pst_domain domain, int64_t time_ms)
    pst_status pst_batch_timer_register(pst_batch *b, pst_domain domain, const pst_array *times)
    pst_status pst_batch_timer_delete(pst_batch *b, pst_domain domain, const pst_array *times)
    pst_status pst_timer_next(pst_table *t, pst_domain domain, int64_t *time_ms)
    pst_status pst_timers_due(pst_table *t, pst_domain domain, int64_t until_ms, int64_t most,
                              int64_t *times_ms, pst_batch **batch)
    pst_status pst_timer_fire(pst_batch *b, int64_t i, pst_domain domain, int64_t time_ms)
    pst_status pst_timers_fire_all(pst_batch *b, pst_domain domain, const int64_t *times_ms)
    uint64_t pst_timers_missed(const pst_table *t)

    ctypedef enum pst_record_op:
        PST_PUT
        PST_DELETE

    ctypedef struct pst_record:
        uint64_t hash
        int32_t key_group
        pst_record_op op
        uint32_t key_nulls
        uint64_t changed
        uint64_t present
        pst_cell key[16]
        pst_cell cells[64]

    pst_status pst_table_next(pst_table *t, uint64_t *cursor, pst_record *record)
    pst_status pst_table_apply(pst_table *t, const pst_record *record, const int32_t *columns,
                               int32_t n_columns)

    void pst_sealed_destroy(pst_sealed *s)
    uint64_t pst_sealed_rows(const pst_sealed *s)
    uint64_t pst_sealed_bytes(const pst_sealed *s)
    const pst_lineage *pst_sealed_lineage(const pst_sealed *s)

    # Callbacks never leave a Python exception behind: they keep it in ctx.
    ctypedef struct pst_block_column:
        uint32_t count
        uint32_t nulls
        const uint8_t *validity
        const int32_t *offsets
        const uint8_t *values
        uint64_t values_bytes

    ctypedef struct pst_io:
        void *ctx
        int (*write)(void *ctx, const void *data, size_t size) noexcept nogil
        int (*read_at)(void *ctx, uint64_t offset, void *data, size_t size) noexcept nogil
        int (*compress)(void *ctx, const void *src, size_t size, void *dst,
                        size_t *dst_size) noexcept nogil
        int (*decompress)(void *ctx, const void *src, size_t size, void *dst,
                          size_t dst_size) noexcept nogil
        int (*block)(void *ctx, uint32_t rows, const pst_block_column *columns,
                     int32_t n) noexcept nogil
        pst_budget *budget

    ctypedef enum pst_file_kind:
        PST_DELTA
        PST_BASE

    ctypedef struct pst_file_info:
        pst_file_kind kind
        pst_lineage lineage
        int32_t max_parallelism
        int32_t first_key_group
        int32_t last_key_group
        uint64_t rows
        uint64_t tombstones
        uint64_t raw_bytes
        uint64_t file_bytes
        uint64_t checksum
        int null_entries
        uint32_t block_bytes

    void pst_sealed_guide(pst_sealed *s, uint32_t block_bytes)
    pst_status pst_sealed_write(pst_sealed *s, const pst_io *io, pst_file_info *info)

    ctypedef struct pst_sst_writer:
        pass
    ctypedef struct pst_sst_reader:
        pass

    pst_status pst_sst_writer_create(const pst_schema *schema, const pst_file_info *info,
                                     const pst_io *io, pst_sst_writer **writer)
    pst_status pst_sst_writer_add(pst_sst_writer *w, const pst_record *record)
    pst_status pst_sst_writer_finish(pst_sst_writer *w, pst_file_info *info)
    void pst_sst_writer_destroy(pst_sst_writer *w)

    pst_status pst_file_checksum(const pst_io *io, uint64_t file_bytes, uint64_t *checksum)
    pst_status pst_sst_reader_open(const pst_io *io, uint64_t file_bytes, pst_sst_reader **reader,
                                   pst_detail *detail)
    void pst_sst_reader_close(pst_sst_reader *r)
    const pst_file_info *pst_sst_reader_info(const pst_sst_reader *r)
    const pst_schema *pst_sst_reader_schema(const pst_sst_reader *r)
    const pst_detail *pst_sst_reader_detail(const pst_sst_reader *r)
    void pst_sst_reader_spread(const pst_sst_reader *r, int32_t first, int32_t n, double *puts,
                               double *deletes, double *bytes)
    pst_status pst_sst_reader_seek(pst_sst_reader *r, int32_t first_key_group,
                                   int32_t last_key_group)
    pst_status pst_sst_reader_next(pst_sst_reader *r, pst_record *record)
    pst_status pst_table_refresh(pst_table *t, pst_sst_reader *r, uint64_t *rows)
    pst_status pst_table_load(pst_table *t, pst_sst_reader *r, const int32_t *columns,
                              int32_t n_columns, uint64_t *rows)
    pst_status pst_table_copy(pst_table *to, pst_table *source, int32_t first_key_group,
                              int32_t last_key_group, uint64_t *rows)
    pst_status pst_merge(pst_sst_reader *const *readers, const int32_t *const *columns,
                         int32_t n, pst_sst_writer *writer)
    ctypedef struct pst_expiry:
        const pst_ttl *ttl
        pst_clock clock

    pst_status pst_merge_expiring(pst_sst_reader *const *readers, const int32_t *const *columns,
                                  int32_t n, const pst_expiry *expiry, pst_sst_writer *writer)
    ctypedef struct pst_hashes:
        uint64_t first
        uint64_t last

    pst_status pst_gather(pst_sst_reader *const *readers, const int32_t *const *columns,
                          int32_t n, const pst_schema *schema, const pst_expiry *expiry,
                          int32_t max_parallelism, int32_t first_key_group,
                          int32_t last_key_group, const pst_hashes *hashes, const pst_io *io)

    pst_status pst_reader_open(pst_table *table, const pst_schema *schema, const char *path,
                               pst_reader **reader, pst_detail *detail)
    void pst_reader_close(pst_reader *r)
    const pst_lineage *pst_reader_lineage(const pst_reader *r)
    pst_status pst_reader_get(pst_reader *r, const pst_cell *key, uint32_t nulls,
                              pst_record *record)
    pst_status pst_reader_next(pst_reader *r, uint64_t *cursor, pst_record *record)

    ctypedef enum pst_nested_kind:
        PST_NESTED_SCALAR
        PST_NESTED_STRUCT
        PST_NESTED_ARRAY
        PST_NESTED_MAP

    enum:
        PST_NESTED_LEVELS

    ctypedef struct pst_nested_type:
        uint8_t kind
        uint8_t type
        uint8_t precision
        uint32_t n_children
        uint8_t scale

    ctypedef struct pst_evolution:
        int32_t column
        const pst_column *to
        const pst_nested_type *from_types
        int32_t n_from
        const pst_nested_type *to_types
        int32_t n_to
        const int32_t *from_ "from"
        const uint8_t *fill
        uint32_t fill_bytes

    bint pst_widens(const pst_nested_type *from_, const pst_nested_type *to)
    pst_status pst_sst_reader_evolve(pst_sst_reader *r, const pst_evolution *evolutions,
                                     int32_t n)

    ctypedef struct pst_nested:
        pass

    pst_status pst_nested_create(const pst_nested_type *types, int32_t n_types,
                                 pst_nested **nested)
    void pst_nested_destroy(pst_nested *nested)
    uint32_t pst_nested_width(const pst_nested *nested)
    pst_status pst_nested_place(const pst_nested *nested, int32_t i, int32_t *bit, int32_t *at)

    ctypedef struct pst_nested_fault:
        const char *what
        int64_t row
        uint64_t at
        uint64_t size

    ctypedef struct pst_growing:
        uint8_t *data
        size_t size

    ctypedef struct pst_nested_writer:
        pst_growing out

    ctypedef struct pst_nested_open:
        pass

    void pst_nested_writer_open(pst_nested_writer *w, const pst_nested *nested, void *room,
                                size_t capacity)
    void pst_nested_writer_close(pst_nested_writer *w)
    pst_status pst_nested_put_scalar(pst_nested_writer *w, int32_t i, const pst_nested_open *in_,
                                     uint64_t at, const pst_cell *cell)
    pst_status pst_nested_put_scalars(pst_nested_writer *w, int32_t i, const pst_nested_open *in_,
                                      uint64_t at, uint64_t n, const pst_cell *cells)
    pst_status pst_nested_put_struct(pst_nested_writer *w, int32_t i, const pst_nested_open *in_,
                                     uint64_t at, pst_nested_open *open)
    pst_status pst_nested_put_array(pst_nested_writer *w, int32_t i, const pst_nested_open *in_,
                                    uint64_t at, uint64_t n, int nulls, pst_nested_open *open)
    pst_status pst_nested_put_map(pst_nested_writer *w, int32_t i, const pst_nested_open *in_,
                                  uint64_t at, uint64_t n, int nulls, pst_nested_open *open)
    pst_status pst_nested_put_keys(pst_nested_writer *w, int32_t i, const pst_nested_open *open,
                                   uint64_t *same)
    uint64_t pst_nested_entry_at(const pst_nested_writer *w, const pst_nested_open *open,
                                 uint64_t at)
    void pst_nested_end_map(pst_nested_writer *w, const pst_nested_open *open)

    ctypedef struct pst_nested_parser:
        pass

    pst_status pst_nested_parser_open(pst_nested_parser *p, const pst_nested *nested,
                                      const void *data, size_t size)
    pst_status pst_nested_parser_finish(pst_nested_parser *p)
    void pst_nested_parser_fault(const pst_nested_parser *p, pst_nested_fault *fault)
    pst_status pst_nested_take_scalar(pst_nested_parser *p, int32_t i, pst_cell *cell)
    pst_status pst_nested_take_scalars(pst_nested_parser *p, int32_t i, uint64_t n,
                                       pst_cell *cells)
    pst_status pst_nested_take_struct(pst_nested_parser *p, int32_t i, const uint8_t **bits)
    pst_status pst_nested_take_array(pst_nested_parser *p, int32_t i, uint64_t *n,
                                     const uint8_t **bits)
    int pst_nested_is_valid(const pst_nested_parser *p, int32_t i, const uint8_t *bits,
                            uint64_t at)

    ctypedef struct pst_nested_array:
        int64_t length
        int64_t offset
        const uint8_t *validity
        const void *values
        int64_t values_bytes
        const int32_t *offsets
        int64_t first

    ctypedef struct pst_nested_rows:
        int32_t *offsets
        uint8_t *data
        uint64_t data_bytes

    pst_status pst_nested_encode(const pst_nested *nested, const pst_nested_array *arrays,
                                 int64_t rows, pst_nested_rows *out, pst_nested_fault *fault)

    ctypedef struct pst_nested_column:
        int64_t length
        int64_t nulls
        uint8_t *validity
        uint8_t *values
        int32_t *offsets
        uint64_t values_bytes

    pst_status pst_nested_decode(const pst_nested *nested, const pst_array *stored,
                                 pst_nested_column *columns, pst_nested_fault *fault)

    void *pst_scratch_take(size_t size)
    void pst_scratch_drop(void *block)

    pst_status pst_file_schema_create(const pst_schema *schema, pst_schema **file)
    void pst_file_schema_destroy(pst_schema *file)

    ctypedef struct pst_reads:
        pass

    ctypedef struct pst_reads_options:
        uint64_t pool_bytes
        int32_t depth
        int32_t threads
        int no_uring
        int no_direct
        pst_budget *budget
        void *(*pause)() noexcept nogil
        void (*resume)(void *paused) noexcept nogil

    pst_status pst_reads_create(const pst_reads_options *options, pst_reads **reads)
    void pst_reads_release(pst_reads *r)

    ctypedef struct pst_stack:
        pass

    ctypedef struct pst_member:
        pass

    ctypedef struct pst_stack_file:
        const char *path
        const int32_t *ranges
        int32_t n_ranges
        pst_member *member

    ctypedef struct pst_extents:
        uint64_t file_bytes
        uint64_t extent_bytes
        uint8_t *states
        int (*bring)(void *ctx, uint64_t first, uint64_t last) noexcept nogil
        void (*drop)(void *ctx, uint64_t first, uint64_t last) noexcept nogil
        void (*close)(void *ctx) noexcept nogil
        void *ctx

    enum:
        PST_EXTENT_HERE
        PST_EXTENT_USED

    ctypedef struct pst_stack_options:
        pst_reads *reads
        pst_budget *budget
        const char *guides
        uint32_t slice_keys
        const pst_extents *extents
        int unguided

    pst_status pst_member_open(const pst_schema *schema, int32_t max_parallelism, const char *path,
                               const pst_stack_options *options, pst_member **member,
                               pst_detail *detail)
    void pst_member_release(pst_member *m)
    int pst_member_descriptor(const pst_member *m)
    const pst_file_info *pst_member_info(const pst_member *m)
    pst_status pst_stack_open(const pst_schema *schema, int32_t max_parallelism,
                              const pst_stack_file *files, int32_t n_files,
                              const pst_stack_options *options, pst_stack **stack,
                              pst_detail *detail)
    void pst_stack_close(pst_stack *st)
    const pst_detail *pst_stack_detail(const pst_stack *st)

    ctypedef struct pst_stack_stats:
        uint64_t keys
        uint64_t asked
        uint64_t lies
        uint64_t absent
        uint64_t reads
        uint64_t bytes
        uint64_t blocks
        uint64_t filters
        uint64_t guide_bytes
        uint64_t private_bytes
        uint32_t guides_made
        uint32_t direct

    void pst_stack_get_stats(const pst_stack *st, pst_stack_stats *stats)
    pst_status pst_stack_get(pst_stack *st, const pst_cell *key, uint32_t nulls,
                             pst_record *record)
    ctypedef struct pst_wanted_keys:
        const pst_array *columns
        int32_t n_columns
        uint64_t most_bytes
        uint64_t states
        int at_hand

    pst_status pst_wanted_order(const pst_schema *schema, int32_t max_parallelism,
                                const pst_wanted_keys *wanted, uint32_t *order, uint32_t *n)
    pst_status pst_stack_lookup(pst_stack *st, const pst_wanted_keys *wanted, const pst_io *io,
                                pst_file_info *info, pst_detail *detail)
    pst_status pst_sst_reader_lookup(pst_sst_reader *r, const pst_wanted_keys *wanted,
                                     const pst_io *io, pst_file_info *info)
    ctypedef struct pst_blocks:
        pass

    ctypedef struct pst_blocks_stats:
        uint64_t asked
        uint64_t found
        uint64_t blocks
        uint64_t bytes
        uint64_t left

    pst_status pst_blocks_create(uint64_t most_bytes, pst_budget *budget, pst_blocks **blocks)
    void pst_blocks_release(pst_blocks *b)
    void pst_blocks_get_stats(pst_blocks *b, pst_blocks_stats *stats)
    ctypedef struct pst_finder:
        pass

    pst_status pst_finder_create(pst_stack *const *stacks, const int32_t *bounds, int32_t n,
                                 pst_blocks *blocks, pst_budget *budget, pst_finder **finder)
    void pst_finder_destroy(pst_finder *f)
    pst_status pst_finder_find(const pst_finder *f, const pst_wanted_keys *wanted,
                               const pst_expiry *expiry, const pst_io *io, int64_t *rows,
                               pst_detail *detail)
    pst_status pst_gather_keys(pst_sst_reader *const *readers, int32_t n, int32_t first_key_group,
                               int32_t last_key_group, const pst_hashes *hashes, const pst_io *io)
    ctypedef struct pst_plan_sink:
        pst_status (*part)(void *ctx, int32_t file, uint64_t offset, uint64_t size) noexcept nogil
        void *ctx
        uint64_t gap
        uint64_t most

    pst_status pst_stack_plan(pst_stack *st, const pst_wanted_keys *wanted,
                              const pst_plan_sink *sink, pst_detail *detail)
    pst_status pst_sst_reader_plan(pst_sst_reader *r, const pst_wanted_keys *wanted, int entries,
                                   const pst_plan_sink *sink)
    pst_status pst_table_set_stack(pst_table *t, pst_stack *stack, const pst_lineage *lineage)
