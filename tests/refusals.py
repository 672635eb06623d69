"""What is refused is asserted by its row of the error table: a sentence may be written anew."""

from __future__ import annotations

import pytest

from kdist.errors import ApiError, Error


def refused(error: Error, about: str = "") -> pytest.RaisesExc[ApiError]:
    """An ApiError of this row is raised, which names `about`: a partition, a topic, a limit."""
    return pytest.RaisesExc(
        ApiError, check=lambda raised: raised.error is error and about in str(raised)
    )
