"""The load: writes the records of topics since the last load to Parquet files, each exactly once.

    job (one run) -> plan (which offsets) -> table (Spark: rows and files) -> commit (one rename)

`layout` has the names in the output, `manifest` the description of a load, `ledger` the loads of a
topic. `columns_named` names columns, `spark_session` starts Spark and turns its errors into
sentences, `counts` tells which records were read and written, `verify` checks an output, `report`
writes metrics, `progress` tells how far a load is, `check` whether one could begin.
docs/formats/load-output.md has the format, the steps of a commit, and the argument for them.
"""
