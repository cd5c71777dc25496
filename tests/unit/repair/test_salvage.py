"""A bad page of the catalog costs what was on it, and not the catalog."""

import os
import shutil
from pathlib import Path

import pytest

from amqpstore.catalog.lmdb_pages import check_pages, readable_states, rows_on_pages
from amqpstore.system.filenames import CATALOG, CATALOG_FILE
from amqpstore_tools.offline.locks import shared_lock
from amqpstore_tools.repair import facts
from amqpstore_tools.repair.plan import make_plan
from tests.unit.repair.chronicles import Chronicle

PAGE_BYTES = 4096


@pytest.fixture(scope="module")
def chronicle(tmp_path_factory: pytest.TempPathFactory) -> Chronicle:
    return Chronicle(tmp_path_factory.mktemp("chronicle"), seed=1)


def catalog_of(directory: str) -> Path:
    return Path(directory, CATALOG, CATALOG_FILE)


def test_whichever_page_is_lost_no_message_is_lost_and_none_comes_back(
    chronicle: Chronicle, tmp_path: Path
) -> None:
    wanted = {
        f"/{chronicle.names[queue_id]}": len(live) for queue_id, live in chronicle.live.items()
    }
    directory = str(shutil.copytree(chronicle.moments[-1], tmp_path / "store"))
    path = catalog_of(directory)
    content = path.read_bytes()
    damaged = 0
    for start in range(0, len(content), PAGE_BYTES):
        path.write_bytes(content[:start] + bytes(PAGE_BYTES) + content[start + PAGE_BYTES :])
        with shared_lock(directory):
            plan = make_plan(directory, lambda *_: None).plan
        if not plan.is_rebuild:
            continue  # It was a free one.
        damaged += 1
        kept = {one["name"]: one["kept"] for one in plan.queues}
        # A queue that was deleted may be back, empty.
        assert {name: count for name, count in kept.items() if count or name in wanted} == wanted
        assert sum(one["again"] for one in plan.queues) == 0
        assert not any("the catalog is lost" in note for note in plan.notes)
    assert damaged > 10


def test_a_repair_without_the_pages_of_the_commit_before_is_noticed(
    chronicle: Chronicle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "salvage", lambda *_, **_options: None)
    with pytest.raises(AssertionError):
        test_whichever_page_is_lost_no_message_is_lost_and_none_comes_back(chronicle, tmp_path)


def test_what_is_left_of_a_file_of_pages(chronicle: Chronicle, tmp_path: Path) -> None:
    path = str(tmp_path / CATALOG_FILE)
    shutil.copyfile(catalog_of(chronicle.moments[-1]), path)
    check_pages(path)
    newest, older = readable_states(path)
    assert newest.whole == newest.tables.keys() >= older.tables.keys()
    assert b"queues" in newest.tables
    os.truncate(path, PAGE_BYTES)
    assert readable_states(path)[0].whole == set()
    assert list(rows_on_pages(path)) == []


def test_rows_of_pages_to_which_nothing_leads_are_found(
    chronicle: Chronicle, tmp_path: Path
) -> None:
    """Both meta pages are lost: the names of queues are still known by their rows."""
    directory = str(shutil.copytree(chronicle.moments[-1], tmp_path / "store"))
    path = catalog_of(directory)
    content = path.read_bytes()
    path.write_bytes(bytes(2 * PAGE_BYTES) + content[2 * PAGE_BYTES :])
    (path.parent / "definitions").unlink()
    with shared_lock(directory):
        plan = make_plan(directory, lambda *_: None).plan
    kept = {one["name"]: one["kept"] for one in plan.queues}
    for queue_id, live in chronicle.live.items():
        assert kept[f"/{chronicle.names[queue_id]}"] >= len(live)
