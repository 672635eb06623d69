"""Two seconds of the protocol's fuzz target; `fuzz_protocol.py --seconds 600` for more."""

import random

from fuzz_protocol import run


def test_fuzzed_bytes_give_protocol_errors_and_nothing_worse():
    report = run(seconds=2, seed=random.SystemRandom().randrange(2**32))
    assert 0 < report.accepted < report.inputs  # the wounds are neither all deadly nor all harmless
