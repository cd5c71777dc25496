"""Random histories of a group in virtual time, with faults of machines, disks, network and etcd."""

from __future__ import annotations

import pytest

from tests.simulated_group.drills import disk_hangs, drill, sees_etcd_only
from tests.simulated_group.history import GroupOutcome, run
from tests.simulated_group.nemesis import Story


def history(seed: int) -> GroupOutcome:
    """Run a history of three machines or five, with a minimum of two replicas or one."""
    return run(seed, size=3 if seed % 3 else 5, min_in_sync=2 if seed % 4 else 1)


@pytest.mark.rounds(40)
def test_nothing_confirmed_is_lost(seed: int) -> None:
    assert history(seed).violations == ()


def test_a_leader_that_lost_what_it_had_not_synced_leads_again() -> None:
    """A leader shows only what is durable: otherwise it is taken for one that has lost data, and if
    it was alone in the list, no other member may lead.
    """
    assert history(885202828).violations == ()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.rounds(8)
def test_nothing_confirmed_is_lost_in_many_histories(seed: int) -> None:
    for number in range(500):
        outcome = history(seed + number)
        assert outcome.violations == (), outcome.seed


def test_a_leader_that_is_granted_no_lease_asks_again() -> None:
    """Without its key, members that are not in the list cannot find the leader."""
    assert history(1441932277).violations == ()


def test_an_older_answer_does_not_end_a_won_election() -> None:
    """The read was under way before the election, and its answer came after the election's: the
    member took its leadership for lost, and the group had no leader until its lease was over.
    """
    longest_s, _ = drill(6, disk_hangs)
    assert longest_s < 4.0


def test_a_member_that_hears_too_late_that_it_has_won_does_not_open_its_store() -> None:
    """The member was paused while its election was answered, and others had led since."""
    assert history(2000048).violations == ()
    assert history(10890).violations == ()


def test_a_follower_that_takes_long_to_stop_is_back_once_it_was_started_again() -> None:
    """The follower is in reach until then and acks everything, but is not let in: it has said
    that it goes.
    """
    assert history(673317402).violations == ()


def test_what_a_follower_acked_on_another_connection_commits_nothing() -> None:
    """The follower had discarded it: the leader's own disk did not have it when it reconnected."""
    assert history(500001757).violations == ()


def test_a_follower_may_discard_what_its_leader_commits_without_it() -> None:
    """The follower was told to before the leader had synced it, and is no longer in the list."""
    assert run(1610000884, size=3, min_in_sync=1, story=Story.LOST_LINKS).violations == ()


def test_a_leader_that_has_resigned_lets_others_stand_first() -> None:
    """A leader that resigned knew first and was the oldest in the list, so it was elected again."""
    _, group = drill(3, sees_etcd_only)
    assert [one.name for one in group.leaders] == ["A"]


def test_a_late_resignation_does_not_take_the_key_of_the_next_process() -> None:
    """A leader had resigned, was started again and took its key back, and only then was its
    resignation carried out: another member was elected while it served clients.
    """
    assert history(2053645251).violations == ()


def test_links_are_well_once_all_is_mended() -> None:
    """A follower left the list a minute later, as its frames went on being late, and had to wait
    because it had been dropped before.
    """
    assert run(323049885, size=5, story=Story.LATE_CHANGES).violations == ()


def test_a_history_is_its_seed() -> None:
    assert history(7) == history(7)
