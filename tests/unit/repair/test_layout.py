"""The numbers of the segments that a repair writes: none that the store may have used before."""

import os
import shutil
from pathlib import Path

import pytest

from amqpstore.catalog.catalog import LmdbCatalog
from amqpstore.catalog.tables import SEGMENT_ENDS, SegmentEndRow, StoreRows
from amqpstore.system.filenames import CATALOG, FIRST_COMPACTED
from amqpstore_tools.offline.locks import shared_lock
from amqpstore_tools.repair.layout import Layout
from amqpstore_tools.repair.plan import make_plan
from fixtures import make_damage
from fixtures.damaging import damage

GOLDEN = Path(make_damage.__file__).parent / "v2/golden/store"


def layout_of(tmp_path: Path, next_compacted: int, end_of: int) -> Layout:
    """The layout of a damaged store whose catalog has these numbers of segments that are gone."""
    directory = str(shutil.copytree(GOLDEN, tmp_path / "store"))
    damage(directory, [{"do": "flip", "file": make_damage.LOG, "offset": 300, "bit": 1}])
    catalog = LmdbCatalog(os.path.join(directory, CATALOG), False)
    catalog.commit(
        [
            *StoreRows(next_compacted=next_compacted).changes(),
            SEGMENT_ENDS.put(end_of, SegmentEndRow(100)),
        ]
    )
    catalog.close()
    with shared_lock(directory):
        layout = make_plan(directory, lambda *_: None).layout
    assert layout is not None
    return layout


def test_numbers_of_the_catalog_are_not_used_again(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, FIRST_COMPACTED + 500, 600)
    assert layout.log_segment == 601
    assert [one.number for one in layout.rewrites] == [FIRST_COMPACTED + 500]


@pytest.mark.parametrize("ahead", [2_000, 1 << 29])
def test_a_number_that_is_far_ahead_is_damage(tmp_path: Path, ahead: int) -> None:
    """Otherwise one flipped bit would use up all numbers."""
    layout = layout_of(tmp_path, FIRST_COMPACTED + ahead, ahead)
    assert layout.log_segment < 100
    assert [one.number < FIRST_COMPACTED + 100 for one in layout.rewrites] == [True]
