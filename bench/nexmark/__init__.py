"""Queries over the events of an auction house: generated events, expected results, Spark's own SQL.

The model is that of NEXMark - A Benchmark for Queries over Data Streams (Tucker, Tufte, Papadimos
and Maier, 2002), with the larger set of queries that the communities of Apache Beam and Apache
Flink use. `generate` makes the events, and `reference` says what each query means and recomputes
its result. `pystate_jobs` has the queries as pipelines of pystate, `spark_sql` as streams of Spark;
`pystate_run` and `spark_run` time them, and `compare` runs all in turn.
"""
