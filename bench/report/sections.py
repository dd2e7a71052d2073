"""What the report shows, in its order: questions, plots, and why a goal was not reached."""

from __future__ import annotations

from dataclasses import dataclass

PEERS = "`make bench-peers`"


@dataclass(frozen=True)
class Plot:
    """A picture of some rows: curves where they have a series, else a bar for each.

    With `ratios` a bar is the row's ratio. `questions` are those of its rows if not the one of its
    name.
    """

    name: str
    title: str
    x: str
    y: str = ""
    only: str = "*"
    ratios: bool = False
    log_y: bool = True
    questions: tuple[str, ...] = ()

    @property
    def asked(self) -> tuple[str, ...]:
        """The questions whose rows are drawn."""
        return self.questions or (self.name,)


@dataclass(frozen=True)
class Section:
    """Questions that belong together."""

    title: str
    text: str
    questions: tuple[str, ...]
    plot: Plot | None = None


#: What a question compares with that may not be installed: how its series or row is named.
OPTIONAL = {"stores": ("LMDB", "RocksDB (rocksdict)"), "queries": ("RocksDB (rocksdict)",)}

SECTIONS = (
    Section(
        "A Python dict, numpy, LMDB and RocksDB, by the number of keys",
        "Each reads and updates a count per key, in one process and on one core; all keys are "
        "there. numpy's dense array has no keys and hashes nothing: it is the limit. LMDB commits "
        "a transaction for each round, RocksDB writes no log, neither waits for the disk; pystate "
        "seals an epoch for each round.",
        ("stores", "count", "one-key"),
        Plot("stores", "Reading and updating a count", "keys", "ns per row"),
    ),
    Section(
        "State larger than memory",
        "Two longs a key in a state of four and ten times the memory: a batch updates some keys, "
        "and reads the others, by turns in pystate's store on disk, which ends each batch with a "
        "durable checkpoint, and in RocksDB's C library, which looks up sorted batches in 32 "
        "threads, writes no log and waits for no write. Both have as much memory and read without "
        "the page cache; sums over all that was read are compared. On Spark a job counts with its "
        "tables on disk, and Spark's own aggregation in RocksDB with a log of changes; both have "
        "the same limit of memory, and the counts are compared.",
        ("disk", "spark-disk"),
    ),
    Section(
        "Queries beside a job",
        "An operator with a long key, three longs and eight ranges, each a base and some deltas, "
        "is read while a job publishes an epoch of 100 000 changed rows each second: by a reader "
        "in this process, and over HTTP from a server that has one core, asked by sixteen "
        "connections from another one. The same rows are read from RocksDB by rocksdict, and from "
        "Parquet by DuckDB. pystate and RocksDB keep 64 MB of blocks, and read what the page cache "
        "has; keys are uniform. pystate gives a table of Arrow's, RocksDB bytes that struct and "
        "numpy unpack.",
        ("queries",),
    ),
    Section(
        "Spark: a job while it is queried",
        "A count per key with a process beside it that asks fifty times a second: it moves its "
        "reader to the newest epoch and looks a key up. The same job without queries runs by "
        "turns, batch by batch, in the same session. Asked is only while a batch is under way.",
        ("spark-queries",),
    ),
    Section(
        "Spark: the same job without state, with pystate, and with Spark's own state",
        "All run in one session over the same stream, by turns, batch by batch, with the same "
        "shuffle and sink, and checkpoints that are synced. The job without state passes as many "
        "rows through a Python worker as the others write. Outputs are compared.",
        ("spark-count", "spark-skewed", "spark-windows"),
        Plot("spark-count", "A count per key on Spark, uniform keys", "M rows/s"),
    ),
    Section(
        "Spark: functions in Python",
        "A function of one row with a value, a map and timers against `transformWithState`, and a "
        "count in frames of pandas against `transformWithStateInPandas` and "
        "`applyInPandasWithState`; their processors also run unchanged in a job. Spark's state is "
        "in RocksDB. Outputs are compared row by row.",
        ("spark-function", "spark-pandas"),
        Plot("spark-function", "A value, a map and timers, row by row", "k rows/s", only="value*"),
    ),
    Section(
        "Other engines: Bytewax, Pathway and Flink",
        "Bytewax and Pathway count the rows of a file in one process each, as pystate does without "
        "Spark; all of them store their state on disk. Flink SQL runs in a local cluster with two "
        "slots and a checkpoint each second and throws its counts away; pystate runs on Spark with "
        "two cores, a checkpoint for each half of the rows, and writes its counts to Parquet. "
        "Both read the same CSV files, and both start cold: neither the session nor the cluster is "
        "in the time, but all that warms up afterwards is. Counts are compared with numpy's.",
        ("others", "flink"),
        Plot("others", "One process", "k rows/s"),
    ),
    Section(
        "Pause against the size of state",
        "How long `snapshot()` holds the caller up, by the number of keys and by the number of "
        "rows that changed since the last one. Writing the files follows in the background.",
        ("snapshot-pause",),
        Plot("snapshot-pause", "Pause of a snapshot", "keys, or rows changed", "µs"),
    ),
    Section(
        "Time of a batch against the size of state",
        "An epoch that changes as many rows while the state grows, by turns with one of a state "
        "that stays as it began: a store in one process, with its files written and published, and "
        "a job on Spark, with its output.",
        ("state-size", "spark-state-size"),
        Plot(
            "state-size",
            "An epoch while the state grows",
            "keys",
            "ms per epoch",
            questions=("state-size", "spark-state-size"),
        ),
    ),
    Section(
        "A change of parallelism",
        "The running job is rescaled from 4 ranges to 8, to 3 and back. The first epoch after each "
        "change moves all state between tables in memory, for which no file is read: how long the "
        "cores were busy with that is shown, and what the epoch takes beyond it, as a ratio of an "
        "ordinary epoch.",
        ("rescale",),
    ),
    Section(
        "Small batches",
        "What an epoch costs beyond the same job without state. Both run by turns in one session; "
        "the difference is that of the same batch.",
        ("small-batches",),
        Plot("small-batches", "A batch on Spark by its rows", "rows in a batch", "ms", log_y=False),
    ),
    Section(
        "More cores",
        "Threads with a table each in one process, and the count on Spark in processes that may "
        "use only so many cores, driver and JVM among them.",
        ("scaling", "spark-scaling"),
    ),
    Section(
        "Nexmark",
        "Queries over an auction house, with pystate and with Spark's own operators, by elapsed "
        "time; one run each. All results are compared with DuckDB's. Those with windows were also "
        "run with batches five times as large.",
        ("nexmark", "nexmark-windows"),
        Plot(
            "nexmark",
            "Nexmark: pystate / Spark with RocksDB",
            "times as fast",
            only="*Spark, RocksDB*",
            ratios=True,
        ),
    ),
    Section(
        "Inserts, strings, deletes, collections and timers",
        "In one process, on one core, against Python's own containers or the count of P1.",
        ("writes", "collections", "growth"),
    ),
    Section(
        "Windows, duplicates and rankings",
        "In one process, on one core, with each epoch sealed. DuckDB has all rows at once, and one "
        "thread.",
        ("windows", "rows"),
    ),
    Section(
        "Files, shared tables and memory",
        "Processor time of one core for files; raw bytes are those before compression.",
        ("files", "element-files", "delta-size", "attach", "memory"),
    ),
)

#: The limit that a question meets where it falls short of a goal, and what was tried.
SHORT = {
    "count": "What is left of a row's time is memory: two random lines and a quarter, and the undo "
    "record. All of them are prefetched; a row without a branch on its first touch was rejected. "
    "`csrc/NOTES.md`, Batches.",
    "writes": "A new key costs an entry and a row that are not in any cache, and rebuilds of the "
    "index as it grows; new strings their bytes as well. `csrc/NOTES.md`, The index.",
    "snapshot-pause": "Gathering reads a cache line or two of each changed row; sorting them by "
    "key group and hash is what makes files mergeable. `csrc/NOTES.md`, Sealing.",
    "files": "LZ4 takes two fifths of writing; restoring waits for memory that is touched for "
    "the first time. `csrc/NOTES.md`, Sealing and Loading.",
    "element-files": "Restoring builds each key's map or list anew. `csrc/NOTES.md`, Loading.",
    "memory": "An index that is at most four fifths full and rows of two versions. Arrays of "
    "powers of two would take 8 to 17 bytes more at worst. `csrc/NOTES.md`, The index.",
    "collections": "What is read or fired one at a time becomes a Python object through a call "
    "each; a Python container hands out an object that it has.",
    "growth": "A random element of a million is not in the cache, in any container: Python's own "
    "is shown beside it.",
    "spark-count": "The job without state is the limit: reading, shuffling and writing take the "
    "same in both, and it is itself only so much faster than Spark's own count.",
    "spark-skewed": "Combined rows save the shuffle, but the scan and the partial counts stay: "
    "rows that Spark only combines, shuffles and writes, without any state, are 1.5 times as fast "
    "as the job without state.",
    "spark-windows": "Reading and shuffling take half of a batch, and are the same for both; the "
    "rest is the delta and the output, which two cores compress and write side by side.",
    "spark-function": "A third of a batch of this size is the job's fixed cost; larger batches "
    "have larger ratios. Spark's kind of processor makes rows and tuples of Spark for each call.",
    "spark-pandas": "A good part of a batch of 300,000 rows is the epoch's fixed cost, so that "
    "larger batches have larger ratios. What runs unchanged gets and makes a frame for each key, "
    "as in Spark: that is most of its time. `docs/performance.md`, A key of a function of frames.",
    "small-batches": "What is left is py4j, building plans, and syncing files; "
    "`docs/performance.md`, Where the time goes.",
    "state-size": "More state has more cache and TLB misses per changed row.",
    "spark-state-size": "More state has more cache and TLB misses per changed row.",
    "rescale": "Deltas are written beside tasks that copy tables, and wait for cores: that takes "
    "several times as long as in an ordinary epoch. A core has nothing to do while the last table "
    "is copied.",
    "stores": "",
    "windows": "A row of a sliding window is added to one slice; what is emitted grows with the "
    "number of windows. `csrc/NOTES.md`, Batches.",
    "nexmark": "A batch without any state, which reads, combines, shuffles and writes, is the "
    "limit: `docs/performance.md`, Nexmark.",
    "nexmark-windows": "Query 12 has few keys for its rows: a batch that reads, combines, shuffles "
    "and writes, without any state, takes nine tenths of its time. `docs/performance.md`, Nexmark.",
}
