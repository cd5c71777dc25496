"""A batch of one message costs both sides of a pair few calls, which must not grow back.

The tags of both frames are four and eleven of the leader's calls.
"""

from pathlib import Path

from tests.call_baselines import Baselines, Calls
from tests.calls import Counts
from tests.pairs import pair_of

WARM_UP = 5
BATCHES = 20


def test_a_batch_of_one_message_costs_no_more_calls_than_it_did(
    tmp_path: Path, call_baselines: Baselines
) -> None:
    leader, follower = Counts(), Counts()
    with pair_of(tmp_path) as pair:
        for _ in range(WARM_UP):  # the first one starts a segment
            pair.publish()
        for _ in range(BATCHES):
            pair.publish(leader, follower)
    for side, counts in (("leader", leader), ("follower", follower)):
        name = f"a batch of one message, {side}"
        call_baselines.check(name, Calls.of(counts, BATCHES), counts)
