"""The load: what came to topics since the last time becomes Parquet files, every record once.

    job (one run) -> plan (which offsets) -> table (Spark: rows and files) -> commit (one rename)

`layout` is how the output is laid out, `manifest` what is kept of each load, `ledger` reads those
of a topic. `columns_named` names columns, `spark_session` starts Spark and tells its troubles in a
sentence, `footers` looks into Parquet files, `verify` checks an output, `report` is for Prometheus.
docs/formats/load-output.md has the format, the steps of a commit, and the argument for them.
"""
