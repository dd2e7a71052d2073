// Two longs a key in RocksDB, for the benchmark of state larger than memory: looked up by batched
// MultiGets in some threads, written by WriteBatch without a log, all input and output direct.
#include <errno.h>
#include <pthread.h>
#include <rocksdb/c.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 128, WRITTEN_AT_ONCE = 20000, MOST_THREADS = 64 };

typedef struct {
    int64_t a, b;
} value;

typedef struct {
    rocksdb_t *db;
    rocksdb_column_family_handle_t *family;
    rocksdb_readoptions_t *reading;
    rocksdb_writeoptions_t *writing;
    char error[512];
    // A look-up under way: threads take chunks of the sorted keys.
    pthread_t thread[MOST_THREADS];
    int threads;
    pthread_mutex_t lock;
    pthread_cond_t asked, answered;
    uint64_t turn;
    int at_work, ends;
    const uint64_t *keys;
    value *found;
    size_t n;
    atomic_size_t next;
    atomic_int failed;
} peer;

static void big_endian(uint64_t key, char *out)
{
    key = __builtin_bswap64(key);
    memcpy(out, &key, 8);
}

static int kept(peer *p, char *error)
{
    if (!error)
        return 0;
    snprintf(p->error, sizeof p->error, "%s", error);
    free(error);
    return 1;
}

static void look_up(peer *p, size_t at, size_t n)
{
    char bytes[CHUNK][8], *errors[CHUNK];
    const char *keys[CHUNK];
    size_t sizes[CHUNK];
    rocksdb_pinnableslice_t *values[CHUNK];
    for (size_t i = 0; i < n; i++) {
        big_endian(p->keys[at + i], bytes[i]);
        keys[i] = bytes[i];
        sizes[i] = 8;
        errors[i] = NULL;
        values[i] = NULL;
    }
    rocksdb_batched_multi_get_cf(p->db, p->reading, p->family, n, keys, sizes, values, errors, 1);
    for (size_t i = 0; i < n; i++) {
        size_t size = 0;
        const char *bytes_of = values[i] ? rocksdb_pinnableslice_value(values[i], &size) : NULL;
        p->found[at + i] = (value){0, 0};
        if (bytes_of && size == sizeof(value))
            memcpy(&p->found[at + i], bytes_of, size);
        if (values[i])
            rocksdb_pinnableslice_destroy(values[i]);
        if (errors[i]) {
            free(errors[i]);
            atomic_store(&p->failed, 1);
        }
    }
}

static void work(peer *p)
{
    for (;;) {
        size_t at = atomic_fetch_add(&p->next, CHUNK);
        if (at >= p->n)
            return;
        look_up(p, at, p->n - at < CHUNK ? p->n - at : CHUNK);
    }
}

static void *worker(void *given)
{
    peer *p = given;
    uint64_t done = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->ends && p->turn == done)
            pthread_cond_wait(&p->asked, &p->lock);
        if (p->ends)
            break;
        done = p->turn;
        pthread_mutex_unlock(&p->lock);
        work(p);
        pthread_mutex_lock(&p->lock);
        if (--p->at_work == 0)
            pthread_cond_signal(&p->answered);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static rocksdb_options_t *options_of(size_t memory_bytes)
{
    size_t buffer = memory_bytes / 10;
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_cache(
        table, rocksdb_cache_create_lru(memory_bytes - 2 * buffer));
    rocksdb_block_based_options_set_block_size(table, 4096);
    rocksdb_block_based_options_set_filter_policy(
        table, rocksdb_filterpolicy_create_bloom_full(10));
    // Filters and indices within the memory that was asked for.
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 1);
    rocksdb_block_based_options_set_cache_index_and_filter_blocks_with_high_priority(table, 1);
    rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(table, 1);
    rocksdb_block_based_options_set_format_version(table, 5);
    rocksdb_block_based_options_set_data_block_index_type(table, 1);
    rocksdb_block_based_options_set_data_block_hash_ratio(table, 0.75);
    rocksdb_options_t *o = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(o, 1);
    rocksdb_options_set_block_based_table_factory(o, table);
    // All keys that are asked for are there, so the last level needs no filters.
    rocksdb_options_set_optimize_filters_for_hits(o, 1);
    rocksdb_options_set_write_buffer_size(o, buffer);
    rocksdb_options_set_max_write_buffer_number(o, 2);
    rocksdb_options_set_compression(o, rocksdb_lz4_compression);
    rocksdb_options_set_level_compaction_dynamic_level_bytes(o, 1);
    rocksdb_options_set_max_background_jobs(o, 2);
    rocksdb_options_set_use_direct_reads(o, 1);
    rocksdb_options_set_use_direct_io_for_flush_and_compaction(o, 1);
    rocksdb_options_set_target_file_size_base(o, 32 << 20);
    rocksdb_options_set_max_bytes_for_level_base(o, 128 << 20);
    rocksdb_options_set_max_open_files(o, -1);
    return o;
}

/// Opens a folder; `peer_error` says why it failed. NULL: no memory.
peer *peer_open(const char *folder, size_t memory_bytes, int threads)
{
    peer *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    const char *names[1] = {"default"};
    const rocksdb_options_t *options[1] = {options_of(memory_bytes)};
    char *error = NULL;
    p->db = rocksdb_open_column_families(
        options[0], folder, 1, names, options, &p->family, &error);
    if (kept(p, error))
        return p;
    p->reading = rocksdb_readoptions_create();
    p->writing = rocksdb_writeoptions_create();
    rocksdb_writeoptions_disable_WAL(p->writing, 1);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->asked, NULL);
    pthread_cond_init(&p->answered, NULL);
    for (; p->threads < threads && p->threads < MOST_THREADS; p->threads++)
        if (pthread_create(&p->thread[p->threads], NULL, worker, p))
            break;
    return p;
}

/// What went wrong, or an empty string.
const char *peer_error(const peer *p)
{
    return p->error;
}

/// Looks up ascending, different keys; `found` has zeros for those that are absent. 0: it worked.
/// With `alone` on the caller's thread, one chunk after the other.
int peer_get(peer *p, const uint64_t *keys, size_t n, value *found, int alone)
{
    p->keys = keys;
    p->found = found;
    p->n = n;
    atomic_store(&p->next, 0);
    if (alone || p->threads == 0) {
        work(p);
    } else {
        pthread_mutex_lock(&p->lock);
        p->at_work = p->threads;
        p->turn++;
        pthread_cond_broadcast(&p->asked);
        while (p->at_work)
            pthread_cond_wait(&p->answered, &p->lock);
        pthread_mutex_unlock(&p->lock);
    }
    if (atomic_load(&p->failed))
        snprintf(p->error, sizeof p->error, "a look-up failed");
    return p->error[0] != 0;
}

/// Writes the values of keys. 0: it worked.
int peer_put(peer *p, const uint64_t *keys, size_t n, const value *values)
{
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    int failed = 0;
    for (size_t i = 0; i < n && !failed; i++) {
        char key[8];
        big_endian(keys[i], key);
        rocksdb_writebatch_put(batch, key, 8, (const char *)&values[i], sizeof(value));
        if (i + 1 == n || (i + 1) % WRITTEN_AT_ONCE == 0) {
            char *error = NULL;
            rocksdb_write(p->db, p->writing, batch, &error);
            failed = kept(p, error);
            rocksdb_writebatch_clear(batch);
        }
    }
    rocksdb_writebatch_destroy(batch);
    return failed;
}

/// Makes durable what was written. 0: it worked.
int peer_flush(peer *p)
{
    rocksdb_flushoptions_t *options = rocksdb_flushoptions_create();
    char *error = NULL;
    rocksdb_flush(p->db, options, &error);
    rocksdb_flushoptions_destroy(options);
    return kept(p, error);
}

/// Puts all in its place, so that reads begin with a tree that is not behind.
void peer_compact(peer *p)
{
    rocksdb_compact_range(p->db, NULL, 0, NULL, 0);
}

/// Ends it; what is in memory only is written.
void peer_close(peer *p)
{
    pthread_mutex_lock(&p->lock);
    p->ends = 1;
    pthread_cond_broadcast(&p->asked);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->threads; i++)
        pthread_join(p->thread[i], NULL);
    rocksdb_column_family_handle_destroy(p->family);
    rocksdb_close(p->db);
    free(p);
}
