"""Queries over the events of an auction house: generated events, expected results, Spark's own SQL.

The model is that of NEXMark - A Benchmark for Queries over Data Streams (Tucker, Tufte, Papadimos
and Maier, 2002), with the larger set of queries that the communities of Apache Beam and Apache
Flink use. `generate` makes the events, `reference` says what each query means and recomputes its
result, and `spark_sql` has the same queries as streams of Spark, which `spark_run` times.
"""
