"""Failed assertions of the modules that these tests share say what differs."""

import pytest

pytest.register_assert_rewrite("groups_transcript")
