"""What a batch of one message costs a pair, on both sides, which must not grow back.

Lower a ceiling when fewer calls are needed.
"""

from pathlib import Path

from tests.calls import Counts
from tests.pairs import pair_of

WARM_UP = 5
BATCHES = 20
LEADER_CEILING = (104.5, 111.5)
FOLLOWER_CEILING = (123.5, 141.5)
"""Calls a batch: of Python functions, and of built-in ones. The tags of both frames are four and
eleven of the leader's.
"""


def test_a_batch_of_one_message_costs_no_more_calls_than_it_did(tmp_path: Path) -> None:
    leader, follower = Counts(), Counts()
    with pair_of(tmp_path) as pair:
        for _ in range(WARM_UP):  # the first one starts a segment
            pair.publish()
        for _ in range(BATCHES):
            pair.publish(leader, follower)
    for counts, ceiling in ((leader, LEADER_CEILING), (follower, FOLLOWER_CEILING)):
        assert counts.python.total() / BATCHES <= ceiling[0], counts.python.most_common(200)
        assert counts.built_in.total() / BATCHES <= ceiling[1], counts.built_in.most_common(50)
