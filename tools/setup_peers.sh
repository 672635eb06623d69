#!/bin/sh
# Brings the servers, connectors and suites that tests run beside kdist, into .cache, some at a time: they wait for a network, a
# compiler or Maven in turn. Fails if Apache Kafka cannot be had; what else is missing is said, and the tests that need it fail.
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python

PYTHONPATH=tests/integration "$python" -m peer.kfake_peer >/dev/null &
"$python" tests/conformance/run.py --small --prepare &
tools/setup_prometheus.sh &

# One after the other, as both use Maven's directory.
"$python" tests/integration/peer/kafka_peer.py >/dev/null
status=$?
"$python" tests/integration/peer/spark_connector.py >/dev/null
wait
exit $status
