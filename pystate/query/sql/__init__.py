"""SQL over a checkpoint's state, by DuckDB; the extra `sql`.

`statement` takes a statement apart, `tables` and `filters` read what it names, `execution` runs it,
here or, by `process`, in a `child` process. `statement` alone is imported without being asked for.
"""
