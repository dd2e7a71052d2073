/* access.h: what is read and written in the open epoch: of many keys at once, and of one.
 *
 * Thread safety: as the table, and its batches with it.
 * Statuses and ownership are as `pystate.h` says.
 */
#ifndef PST_INTERFACE_ACCESS_H
#define PST_INTERFACE_ACCESS_H

#include <stddef.h>
#include <stdint.h>

#include "interface/table.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- batches ------------------------------------------------------------------------------- */

/* Statuses of all functions of a batch: PST_STALE after a seal or a roll back; PST_POISONED;
 * PST_INVALID where there is no such column, it is of another kind, or lengths differ;
 * PST_WRONG_TYPE where it is of another type. Memory, where rows are written to, or reading them
 * counts as use (pst_ttl.on_read). A batch is destroyed before its table is closed.
 *
 * Where rows lie below the table (pst_table_set_stack), the first operation on a batch fetches those
 * of its keys that are not here. If that fails nothing has changed, and the epoch goes on unless the
 * table is poisoned: PST_NO_STACK; PST_IO and PST_CORRUPT, with the file's number in the stack as the
 * detail's row, and the offset; PST_NO_ROOM: the rows do not fit. The detail's row then is about how
 * many of the first keys would: the caller takes as many, or seals the epoch as a step, sets the
 * stack with its delta and lets rows leave (pst_table_room). 0: all of them.
 *
 * PST_NO_ROOM also comes of operations that put values, items, entries, accumulators or timers, where
 * the caller takes steps (pst_table_set_steps): then the detail's row says how many rows are done. Timers
 * may be registered once more. */

/* Hashes the keys and checks them against the table's range; rows are looked up on first use. The
 * key arrays must live, and stay as they are, as long as the batch, which is valid until the next
 * seal or roll back. PST_WRONG_KEY_GROUP names the row and its key group in the detail,
 * PST_WRONG_TYPE the key column. PST_INVALID: not attached, or columns of different lengths.
 * PST_TOO_LARGE: a key. PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_batch_create(pst_table *t, const pst_array *keys, pst_batch **batch);
void pst_batch_destroy(pst_batch *b);
int64_t pst_batch_length(const pst_batch *b);
/* Looks the keys up now, and fetches the rows of those that lie below the table, as the first
 * operation on the batch would. `reading`: keys that do not exist want no room, as their rows are not
 * made. `absent` counts the keys that have no row, repeated ones each time. PST_NO_STACK; PST_NO_ROOM,
 * whose detail's row is how many of the first keys fit; PST_IO and PST_CORRUPT, whose detail's row is
 * the number of the file in the stack. After any of these nothing has changed, and it may be called
 * again. */
pst_status pst_batch_fetch(pst_batch *b, int reading, uint64_t *absent);
/* The first row with the same key as row i, which is i itself if none comes before it, to first[i].
 * O(rows), without a look at the table. PST_TOO_LARGE above 2^31 - 1 rows. PST_NO_MEMORY,
 * PST_LIMIT. */
pst_status pst_batch_first(pst_batch *b, int32_t *first);

/* Copies a fixed-width column: values[i] in the type's own width (BOOL: one byte each); valid[i]
 * (a byte each) is 0 where the key or the state is absent, and values[i] is then zero. */
pst_status pst_batch_get(pst_batch *b, int32_t column, void *values, uint8_t *valid);
/* Several columns so, with one visit to each row. */
typedef struct pst_get {
    int32_t column;
    void *values;
    uint8_t *valid;
} pst_get;
pst_status pst_batch_get_all(pst_batch *b, int32_t n, const pst_get *gets);
/* Variable width. PST_TOO_LARGE above 2^31 - 1 bytes in all; PST_CHANGED as pst_bytes_out says. */
pst_status pst_batch_get_bytes(pst_batch *b, int32_t column, const pst_bytes_out *out);
/* Stores a value per key, the last of a repeated key wins; a null clears. `values->length` is the
 * batch's, or 1 for a scalar for every key. A key whose last state is cleared ceases to exist.
 * PST_TOO_LARGE: a value. */
pst_status pst_batch_put(pst_batch *b, int32_t column, const pst_array *values);

typedef enum pst_op { PST_ADD = 1, PST_MIN = 2, PST_MAX = 3 } pst_op;
/* Reads, modifies and writes per row, in order; a repeated key sees its earlier rows. Nulls are
 * skipped; an absent state counts as its default (else zero) for ADD and as the identity for MIN
 * and MAX. Integers, dates and timestamps overflow with PST_OVERFLOW (the row in the detail; the
 * table is then poisoned); decimals too, by precision. NaN is larger than any float, as in Spark.
 * The array's type must be the column's; length as in put. PST_WRONG_TYPE for bool, string,
 * binary, object. */
pst_status pst_batch_apply(pst_batch *b, int32_t column, pst_op op, const pst_array *values);
/* Several such steps, of columns that differ, with one visit to each row instead of one per step.
 * `fresh`, a byte per key unless it is NULL: 1 where the first step gave the row its first value,
 * which of a repeated key is said once. `refused`, a byte per key that is 0 unless it is NULL: where
 * a sum would overflow, none of the row's steps is taken, and the byte becomes 1 + the sum's column.
 * PST_INVALID: no step or more than PST_MAX_STATES; with `fresh`, a first step whose values have a
 * validity or whose column has times to live. */
typedef struct pst_step {
    int32_t column;
    pst_op op;
    pst_array values;
} pst_step;
pst_status pst_batch_apply_all(pst_batch *b, int32_t n, const pst_step *steps, uint8_t *fresh,
                               uint8_t *refused);

/* Clears one column, or with column == -1 deletes the keys altogether. PST_CORRUPT in a list or
 * map. */
pst_status pst_batch_clear(pst_batch *b, int32_t column);

/* The rows touched in the open epoch and alive, as a batch whose keys need no look-up: from
 * *cursor (0 first) at most `most` of them. PST_NOT_FOUND at the end. Keys that are written while
 * iterating may or may not be seen. PST_INVALID: not attached, or `most` is no number of rows.
 * PST_POISONED, PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_batch_changed(pst_table *t, uint64_t *cursor, int64_t most, pst_batch **batch);
/* The same over all live rows, in slot order; over those that are here, where rows lie below the
 * table: files and pst_batch_changed together are all of them. Sealing may move rows into other slots, so a walk
 * over several epochs may meet a row twice or never, unless pst_table_keep_rows keeps them where
 * they are. */
pst_status pst_batch_all(pst_table *t, uint64_t *cursor, int64_t most, pst_batch **batch);
/* Up to `most` of the rows that are here which were used most, as far as heat tells, and then lately,
 * these first; of those that are equal every so many. PST_NOT_FOUND: there are none; else as above.
 * O(slots). */
pst_status pst_batch_hottest(pst_table *t, int64_t most, pst_batch **batch);
/* Says whether sealing leaves rows in their slots. As long as it does the table gets no fewer
 * slots. */
void pst_table_keep_rows(pst_table *t, int keep);
/* A key column of the batch's rows, in the forms of pst_batch_get and pst_batch_get_bytes. Only for
 * batches that were not made of keys (pst_batch_create: PST_INVALID). PST_CORRUPT: no key. */
pst_status pst_batch_get_key(pst_batch *b, int32_t key_column, void *values, uint8_t *valid);
pst_status pst_batch_get_key_bytes(pst_batch *b, int32_t key_column, const pst_bytes_out *out);

/* ---- one key ------------------------------------------------------------------------------- */

/* A key that is not here is fetched, where rows lie below the table: with the statuses that batches
 * have for that, and no current key after them. Makes the key of batch row i current, or the single key given as cells (nulls: a bit per key
 * column), whose bytes are copied. The current key survives until the next set, seal or roll back.
 * PST_INVALID: not attached, no such row, or the batch is another table's. PST_STALE and
 * PST_POISONED of the batch. PST_WRONG_KEY_GROUP, with the group in the detail; PST_TOO_LARGE: the
 * key; PST_NO_MEMORY. */
pst_status pst_key_set_row(pst_table *t, pst_batch *b, int64_t i);
pst_status pst_key_set(pst_table *t, const pst_cell *key, uint32_t nulls);
/* For a table with one non-decimal fixed-width key column, else PST_INVALID: the canonical word,
 * never null. PST_WRONG_KEY_GROUP. */
pst_status pst_key_set_word(pst_table *t, uint64_t word);

/* PST_INVALID without a current key, or for a column of another kind. PST_POISONED. PST_NOT_FOUND:
 * absent. PST_TOO_LARGE: the value; PST_WRONG_TYPE: a struct of another width. Memory, where one is
 * written, or reading counts as use. `cell->bytes` that was read is valid until the next write to
 * the table; what is put is copied. */
pst_status pst_value_get(pst_table *t, int32_t column, pst_cell *cell);
pst_status pst_value_put(pst_table *t, int32_t column, const pst_cell *cell);
/* -1: the whole key. PST_INVALID without a current key or column; PST_POISONED; PST_CORRUPT in a
 * list or map; memory. */
pst_status pst_value_clear(pst_table *t, int32_t column);

/* ---- lists and maps -------------------------------------------------------------------------- */

/* Statuses of all functions here: PST_INVALID without a current key, or for a column of another
 * kind; PST_POISONED; PST_CORRUPT where the chunks or nodes contradict themselves; memory, where
 * something is written, or reading counts as use (pst_ttl.on_read). Those of batches also say what
 * all of a batch say, a null with its row. Cells that come out are valid until the next write to
 * the table, and those of a walk until its next call; what goes in is copied.
 *
 * Of a list that is longer than memory the first items may lie in the files below the table alone,
 * which appending, clearing and counting do not read. Whoever reads such items also gets PST_NO_STACK,
 * PST_NO_MEMORY and PST_LIMIT, PST_IO, and PST_CORRUPT of files. */

/* Of the current key. What has expired is neither seen nor counted, and goes when its list or map
 * is written to. PST_TOO_LARGE: an item; PST_WRONG_TYPE: a struct of another width. */
pst_status pst_list_add(pst_table *t, int32_t column, const pst_cell *item);
/* Appends the items of key `from` (cells and nulls as for pst_key_set), each with its time; that
 * key has no list then. Nothing happens if it has none, or is the current key. PST_WRONG_KEY_GROUP:
 * that key; PST_NO_MEMORY. */
pst_status pst_list_take(pst_table *t, int32_t column, const pst_cell *from, uint32_t nulls);
/* PST_NOT_FOUND where there is no such entry. *is_null: it has no value, and the cell is not filled. */
pst_status pst_map_get(pst_table *t, int32_t column, const pst_cell *key, pst_cell *value,
                       int *is_null);
/* NULL: an entry without a value. PST_TOO_LARGE: key or value; PST_WRONG_TYPE: a struct of another
 * width. */
pst_status pst_map_put(pst_table *t, int32_t column, const pst_cell *key, const pst_cell *value);
/* PST_NOT_FOUND where there is no such entry. */
pst_status pst_map_remove(pst_table *t, int32_t column, const pst_cell *key);
/* Elements that a reader sees; with TTL O(elements). */
pst_status pst_elements_count(pst_table *t, int32_t column, uint64_t *count);

/* How many of the items of the current key's list lie in the files below the table alone, where walks
 * read them; they are counted as they were when the row came. Those are the first ones. */
pst_status pst_list_below(pst_table *t, int32_t column, uint64_t *items);
/* Whether entries of the current key's map may lie in the files below the table alone, where getting,
 * removing and walks read them. Counting then reads all; putting, and removing from many maps, reads none. */
pst_status pst_map_below(pst_table *t, int32_t column, int *below);

/* A walk over a list's items in order, or a map's entries in the order of their keys' bits. Valid
 * until the next write to the table. */
typedef struct pst_elements pst_elements;
/* For walks of that table, before which it is destroyed. PST_NO_MEMORY. */
pst_status pst_elements_create(pst_table *t, pst_elements **elements);
void pst_elements_destroy(pst_elements *e);
/* Of the current key, as a reader; or of the key of batch row i: PST_STALE. */
pst_status pst_elements_start(pst_elements *e, int32_t column);
pst_status pst_elements_start_row(pst_elements *e, pst_batch *b, int64_t i, int32_t column);
/* `key` is filled for maps. PST_NOT_FOUND at the end, where what had expired and was visible
 * (pst_ttl.lenient) is removed, but not of a batch's row; PST_CORRUPT. */
pst_status pst_elements_next(pst_elements *e, pst_cell *key, pst_cell *value);
/* Ends a walk that wants no more elements, as if they had been passed: that is a write, and cells
 * that came out are no longer valid. */
pst_status pst_elements_leave(pst_elements *e);
/* Whether the entry that `next` gave last has no value, so that the cell was not filled. */
int pst_elements_is_null(const pst_elements *e);
/* Passes so many items of a list, as `next` would: those without a time at once, from the nearer end
 * of the list, others one by one. PST_INVALID: a map; PST_CORRUPT. */
pst_status pst_elements_skip(pst_elements *e, uint64_t items);
/* Goes on in a walk through a map behind that key, in the order in which entries come, whether it has
 * such an entry or not. PST_INVALID: a list; and what a walk says. */
pst_status pst_elements_seek(pst_elements *e, const pst_cell *key);
/* Items of a list that lie side by side in the table: `count` of the `left` that the walk has not
 * passed yet, of the column's width and at its alignment. */
typedef struct pst_run {
    const void *items;
    uint64_t count;
    uint64_t left;
} pst_run;
/* Valid until the next call. PST_NOT_FOUND at the end, with `left` 0. PST_INVALID where each has to be looked at: entries of
 * maps, items of variable width, and those that may be hidden by their age. PST_CORRUPT. */
pst_status pst_elements_next_run(pst_elements *e, pst_run *run);

/* Items to the lists of the batch's keys, in row order; one per row. PST_INVALID: a null, with its
 * row, before anything is written. PST_STALE, PST_WRONG_TYPE; PST_TOO_LARGE: an item. */
pst_status pst_batch_list_append(pst_batch *b, int32_t column, const pst_array *items);
/* items[offsets[i] .. offsets[i + 1]) to the list of key i. Statuses as pst_batch_list_append;
 * PST_INVALID also where offsets fall or pass the items. */
pst_status pst_batch_list_append_many(pst_batch *b, int32_t column, const int32_t *offsets,
                                      const pst_array *items);
/* offsets[length + 1]: where each list or map begins in one run of all that a reader sees, with
 * which reading them begins (pst_ttl.on_read). PST_STALE. */
pst_status pst_batch_element_offsets(pst_batch *b, int32_t column, int64_t *offsets);
/* Notes that all of them were read, after the last of the calls that read them: elements that have
 * expired and were visible (pst_ttl.lenient) are removed. PST_STALE, PST_INVALID. */
pst_status pst_batch_elements_read(pst_batch *b, int32_t column);
/* Items of fixed width as that run, offsets as just counted, to `capacity` bytes at `values`.
 * PST_INVALID for variable width; PST_CHANGED where a list has not as many items as were counted,
 * or they would not fit. PST_STALE. */
pst_status pst_batch_list_copy(pst_batch *b, int32_t column, const int64_t *offsets, void *values,
                               uint64_t capacity);

/* Entry (keys[i]) of the map of key i; in row order. Null keys are PST_INVALID with their row,
 * before anything is written; a null value makes an entry without one. get as pst_batch_get,
 * get_bytes as pst_batch_get_bytes, which both give a null for such an entry and for none, with
 * PST_TOO_LARGE and PST_CHANGED as there. PST_STALE, PST_WRONG_TYPE; PST_TOO_LARGE: a key or value. */
pst_status pst_batch_map_put(pst_batch *b, int32_t column, const pst_array *keys,
                             const pst_array *values);
pst_status pst_batch_map_remove(pst_batch *b, int32_t column, const pst_array *keys);
pst_status pst_batch_map_get(pst_batch *b, int32_t column, const pst_array *keys, void *values,
                             uint8_t *valid);
pst_status pst_batch_map_get_bytes(pst_batch *b, int32_t column, const pst_array *keys,
                                   const pst_bytes_out *out);

/* ---- aggregates ------------------------------------------------------------------------------ */

/* Statuses of all that add or merge: PST_INVALID without a current key, for another kind of column,
 * or for a shape that there is not; PST_WRONG_TYPE where shape, column and values do not fit each
 * other; PST_OVERFLOW: a sum above 128 bits; PST_CORRUPT: bytes that are no accumulator of the
 * shape; PST_POISONED; memory. Of batches PST_STALE, and the row in the detail. */

/* Part of the file format: never renumbered. */
typedef enum pst_agg_kind {
    PST_AGG_MEAN = 1,
    PST_AGG_VARIANCE = 2,
    PST_AGG_FIRST = 3,
    PST_AGG_LAST = 4,
    PST_AGG_TOP_K = 5,
    PST_AGG_DISTINCT = 6,
} pst_agg_kind;

typedef struct pst_agg_shape {
    uint8_t kind;       /* pst_agg_kind */
    uint8_t type;       /* pst_type of the values; those after DECIMAL are bytes */
    uint16_t parameter; /* TOP_K: k; DISTINCT: precision; else 0 */
} pst_agg_shape;

/* Bytes of a fixed accumulator, the width of its column of type PST_FIXED; 0: its column is
 * PST_BINARY. PST_WRONG_TYPE: the kind does not take the type; PST_INVALID: kind or parameter. */
pst_status pst_aggregate_width(const pst_agg_shape *shape, uint32_t *width);
/* Adds a value per key to the accumulators of a column; in row order, nulls are skipped. */
pst_status pst_batch_aggregate(pst_batch *b, int32_t column, const pst_agg_shape *shape,
                               const pst_array *values);
/* Merges an accumulator of the same shape into each key's: an array of PST_FIXED of that width, or
 * of PST_BINARY; in row order, nulls and empty ones are skipped. */
pst_status pst_batch_merge(pst_batch *b, int32_t column, const pst_agg_shape *shape,
                           const pst_array *accumulators);
/* To the current key's: a value, or another accumulator of the same shape. */
pst_status pst_aggregate_add(pst_table *t, int32_t column, const pst_agg_shape *shape,
                             const pst_cell *value);
pst_status pst_aggregate_merge(pst_table *t, int32_t column, const pst_agg_shape *shape,
                               pst_bytes from);

/* ---- timers ---------------------------------------------------------------------------------- */

/* Statuses of all functions here: PST_INVALID for a table without a column of kind PST_TIMERS, one
 * that is not attached, another domain, without a current key, or where a batch and its times do
 * not fit; PST_POISONED; PST_CORRUPT where the trees of timers contradict themselves; PST_STALE of
 * batches; memory, where something is written. */

typedef enum pst_domain { PST_EVENT = 0, PST_PROCESSING = 1 } pst_domain;

/* Rows with a timer before the horizon of its domain do not leave the table (pst_table_leave). It is
 * INT64_MAX at first, and then none with timers of that domain does; INT64_MIN once files were set
 * below a table that had all rows (pst_table_set_whole), as these may have timers. pst_timers_due
 * raises it. Part of the open epoch, and undone with it. Who raises it here sees to it that the rows
 * of timers up to there are in the table. The horizon may stand within its time, where some of the
 * timers of that time are of rows that are here: none of these rows leaves either. PST_INVALID: not
 * attached, or no domain. */
pst_status pst_table_set_horizon(pst_table *t, pst_domain domain, int64_t time_ms);
int64_t pst_table_horizon(const pst_table *t, pst_domain domain);

/* A time before which no key has a timer of that domain, neither here nor below; at most INT64_MAX - 1.
 * It reads nothing. Kept with the files of the epoch, it may be the horizon of a table that begins
 * empty above these: which then passes over what files say of timers that were fired long ago. */
int64_t pst_timers_from(const pst_table *t, pst_domain domain);

/* A place among the timers of a domain, in the order in which they come out of files: by time, key
 * group and hash. */
typedef struct pst_timers_place {
    int64_t time_ms;
    uint64_t key_group;
    uint64_t hash;
} pst_timers_place;

/* As pst_timers_from, but also among the timers of its time: so a table that begins anew passes over those
 * of that very time that were fired. PST_INVALID as below. */
pst_status pst_timers_passed(const pst_table *t, pst_domain domain, pst_timers_place *place);
/* As pst_table_set_horizon, of a place that pst_timers_passed gave for the last sealed epoch, of a
 * table that has begun empty above its files. PST_INVALID: also a key group that the table's files
 * do not have. */
pst_status pst_table_set_passed(pst_table *t, pst_domain domain, const pst_timers_place *place);

/* Of the current key. Registering one that is there, and deleting one that is not, does nothing. */
pst_status pst_timer_register(pst_table *t, pst_domain domain, int64_t time_ms);
pst_status pst_timer_delete(pst_table *t, pst_domain domain, int64_t time_ms);
/* One per key of the batch; times are PST_INT64, else PST_WRONG_TYPE; nulls are skipped. */
pst_status pst_batch_timer_register(pst_batch *b, pst_domain domain, const pst_array *times);
pst_status pst_batch_timer_delete(pst_batch *b, pst_domain domain, const pst_array *times);

/* The earliest one. PST_NOT_FOUND where there is none. Where rows lie below the table it may be
 * earlier than any there is: files also name timers that newer ones have taken away. */
pst_status pst_timer_next(pst_table *t, pst_domain domain, int64_t *time_ms);
/* Up to `most` timers that are due at `until_ms`, as a batch of their keys and their times; those
 * of a key come in order, and all of a key group before the next. Where rows lie below the table
 * these are the ones up to its horizon's time; when none is left there it moves on, by as many
 * timers as fit, and their rows are fetched, with the statuses that batches have for that:
 * PST_NO_ROOM, with 0 as the detail's row, where not a single one fits beside what is here. After a
 * step, and when rows have left, it goes on where it was. So PST_NOT_FOUND says that none is due, and
 * what comes later is never earlier. They stay registered. `times_ms` has room for `most`, and is
 * written to also where this fails. PST_NOT_FOUND where none is due; PST_NO_MEMORY, PST_LIMIT. */
pst_status pst_timers_due(pst_table *t, pst_domain domain, int64_t until_ms, int64_t most,
                          int64_t *times_ms, pst_batch **batch);
/* Takes timer i of that batch away and makes its key current. The batch may also be one of these keys
 * that was made in a later epoch, where rows had to leave before all were fired: with the statuses of
 * batches for fetching then. PST_NOT_FOUND: the timer was deleted. PST_INVALID: no such row. */
pst_status pst_timer_fire(pst_batch *b, int64_t i, pst_domain domain, int64_t time_ms);
/* Takes all of them away. PST_NO_ROOM as pst_table_set_steps says, after some. */
pst_status pst_timers_fire_all(pst_batch *b, pst_domain domain, const int64_t *times_ms);
/* Counts timers registered since pst_timers_due, in the same epoch, that were due then. If it has
 * grown, what was handed out may no longer be in order. Timers of rows that come from files were
 * registered before. */
uint64_t pst_timers_missed(const pst_table *t);

#ifdef __cplusplus
}
#endif

#endif
