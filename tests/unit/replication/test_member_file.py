"""The file MEMBER as a member notes in it what it has seen."""

from __future__ import annotations

import os
from pathlib import Path

from amqpstore.replica import Membership, read_membership, write_membership
from amqpstore.system.files import OsFiles
from amqpstore_server.cluster.frames import ReplicaPosition
from amqpstore_server.cluster.notes import Notes
from amqpstore_server.replication.member_file import MemberFile

NOTES = Notes("ab" * 16, 77, 3, ReplicaPosition(2, 10), 5, ReplicaPosition(3, 12))


def test_what_is_noted_is_there_after_a_start(tmp_path: Path) -> None:
    directory = str(tmp_path)
    MemberFile(OsFiles(), directory, Membership("0" * 16, 9)).write(NOTES)
    found = read_membership(OsFiles(), directory)
    assert found is not None
    assert found[:2] == ("0" * 16, 9)
    assert MemberFile(OsFiles(), directory, found).notes == NOTES


def test_nothing_new_is_not_written(tmp_path: Path) -> None:
    directory = str(tmp_path)
    file = MemberFile(OsFiles(), directory, Membership("0" * 16, 9))
    file.write(NOTES)
    os.remove(tmp_path / "MEMBER")
    file.write(NOTES)
    assert os.listdir(directory) == []


def test_a_file_of_an_older_version_or_a_later_one_is_read(tmp_path: Path) -> None:
    write_membership(OsFiles(), str(tmp_path), Membership("0" * 16, 9))
    path = tmp_path / "MEMBER"
    assert path.read_text() == "amqpstore member\nmember: 0000000000000000\netcd-cluster: 9\n"
    found = read_membership(OsFiles(), str(tmp_path))
    assert found is not None
    assert MemberFile(OsFiles(), str(tmp_path), found).notes == Notes()
    path.write_text(path.read_text() + "generation: 4\nmoon-phase: waxing (0.3)\n")
    later = read_membership(OsFiles(), str(tmp_path))
    assert later == found._replace(generation=4)
