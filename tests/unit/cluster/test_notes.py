"""Tests of how members recognize the etcd of their group, by what it holds."""

from __future__ import annotations

import pytest

from amqpstore_server.cluster.frames import START, ReplicaPosition
from amqpstore_server.cluster.keys import (
    FLOOR,
    FORCED,
    GROUP,
    STATE,
    EtcdRow,
    View,
    alive_key,
    member_key,
)
from amqpstore_server.cluster.notes import Notes, objection, objection_of_others

FLOOR_SEEN = ReplicaPosition(2, 50)
NOTES = Notes("g1", 20, 3, FLOOR_SEEN, 1, ReplicaPosition(3, 60))


def view(
    group: str = "g1",
    term: int = 3,
    floor: ReplicaPosition = FLOOR_SEEN,
    decided: int = 20,
    rows: dict[str, EtcdRow] | None = None,
) -> View:
    found = {
        GROUP: EtcdRow({"id": group, "min_in_sync": 1}, 2),
        STATE: EtcdRow({"term": term, "leader": "a"}, decided),
        FLOOR: EtcdRow({"term": floor.term, "number": floor.number}, 9),
        member_key("b"): EtcdRow({"sync": True}, 2),
        **(rows or {}),
    }
    return View(1, 100, found)


def test_the_etcd_that_was_seen_is_used() -> None:
    assert objection(NOTES, view()) == ""
    assert objection(NOTES, view(term=4, floor=ReplicaPosition(4, 60), decided=30)) == ""
    assert objection(Notes(), view("")) == objection(Notes(), view()) == ""


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (view(""), "it has no group with the id g1"),
        (view("g2"), "its group has the id g2"),
        (view(term=2), "it has term 2, and this member has seen term 3"),
        (view(floor=ReplicaPosition(2, 49)), "it has batch 49 of term 2 as confirmed"),
        (view(floor=START), "it has batch 0 of term 0 as confirmed"),
        (view(decided=19), "it has changes up to revision 19"),
    ],
    ids=["no id", "another id", "term", "floor", "no floor", "revision"],
)
def test_another_etcd_or_an_older_one_is_not(found: View, text: str) -> None:
    assert text in objection(NOTES, found)


def test_what_another_member_has_seen_counts() -> None:
    """A member that was away since before the backup cannot recognize it as a backup."""

    def shown(notes: Notes) -> View:
        return view(rows={alive_key("b"): EtcdRow({"seen": notes.shown()}, 90)})

    assert objection_of_others(shown(NOTES), "a") == ""
    assert "member b has seen term 4" in objection_of_others(shown(NOTES._replace(term=4)), "a")
    assert objection_of_others(shown(NOTES._replace(term=4)), "b") == ""
    assert objection_of_others(shown(NOTES._replace(term=4, group="g2")), "a") == ""
    wrong = view(rows={alive_key("b"): EtcdRow({"seen": {"term": "many"}}, 90)})
    assert objection_of_others(wrong, "a") == ""


def test_a_person_may_decide_for_an_older_one() -> None:
    forced = EtcdRow({"term": 4}, 19)
    found = view(term=4, floor=START, decided=10, rows={FORCED: forced})
    assert objection(NOTES, found) == ""
    assert NOTES.binding(found) == START
    assert NOTES.binding(view()) == NOTES.confirmed
