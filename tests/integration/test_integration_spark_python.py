"""Spark in a program that nothing tells which Python its workers shall run: no PYSPARK_PYTHON."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spark_work import ROOT, produce
from standalone_process import standalone

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import kdist.spark
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
kdist.spark.register(spark)
reader = spark.read.format("kdist").option("kafka.bootstrap.servers", sys.argv[1])
print("records:", reader.option("subscribe", "plain").load().count())
spark.stop()
"""


@pytest.mark.timeout(600)  # a Spark of its own
def test_workers_run_the_python_that_has_kdist_though_another_is_on_the_path(
    tmp_path: Path,
) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    python = bare / "python3"
    python.write_text('#!/bin/sh\nexec /usr/bin/python3 -I "$@"\n')  # without kdist
    python.chmod(0o755)
    environment = {name: text for name, text in os.environ.items() if "PYTHON" not in name}
    environment |= {"PATH": f"{bare}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    with standalone(tmp_path / "data") as cluster:
        address = f"127.0.0.1:{cluster.port}"
        produce(address, "plain", [b"1", b"2", b"3"])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, address],
            capture_output=True,
            check=False,
            cwd=ROOT,
            env=environment,
            text=True,
        )
    assert "records: 3" in done.stdout, done.stderr[-2_000:]
