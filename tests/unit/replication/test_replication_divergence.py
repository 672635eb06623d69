"""Where a follower cuts its log off, for each kind of answer that its leader may give."""

from __future__ import annotations

import pytest

from kdist.replication.fetching.divergence import truncation_offset
from kdist.storage.epochs import EpochEnd, EpochStart, LeaderEpochs

END = 100


@pytest.mark.parametrize(
    ("own", "leader", "offset"),
    [
        ([(1, 0), (3, 60)], (3, 80), 80),  # the leader's part of that epoch is shorter
        ([(1, 0), (3, 60)], (3, 100), 100),
        ([(1, 0), (3, 60)], (3, 140), 100),  # longer: nothing is to be cut off
        ([(1, 0)], (1, 0), 0),  # the leader has none of it
        ([(1, 0), (3, 60)], (1, 40), 40),  # the leader never had epoch 3
        ([(1, 0), (3, 60)], (1, 90), 60),
        ([(1, 0), (3, 60)], (2, 70), 60),  # KIP-279: it has an epoch that this log never had
        ([(5, 20)], (2, 70), 20),  # all that is left here is of later epochs
        ([], (2, 70), 70),
        ([(1, 0)], (-1, 70), 70),  # an old leader, which does not tell the epoch
        ([(1, 0)], (-1, -1), 42),  # one that has no epoch so old
    ],
)
def test_a_log_is_cut_off_where_its_epochs_leave_the_leaders(
    own: list[tuple[int, int]], leader: tuple[int, int], offset: int
) -> None:
    epochs = LeaderEpochs(EpochStart(*each) for each in own)
    assert truncation_offset(epochs, END, 42, EpochEnd(*leader)) == offset
