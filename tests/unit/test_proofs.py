"""The list of long proofs is complete, each share of it is short enough, and the seed of a run."""

import re
from pathlib import Path

import pytest
from hypothesis import settings

from tests.proofs import MAX_MINUTES, WORKERS, Proofs
from tests.sampling import LONG_TESTS

ROOT = Path(__file__).parents[2]
PROOFS = Proofs.read()
LISTED = [name for section in (PROOFS.always, *PROOFS.rotation) for name in section]


def test_each_long_test_is_in_the_list(request: pytest.FixtureRequest) -> None:
    """Only files of this run are looked at: in `make test` these are all of them."""
    missing = request.config.stash[LONG_TESTS] - {*LISTED}
    assert not missing, f"add to tests/proofs.toml, with their seconds: {sorted(missing)}"


def test_each_test_of_the_list_is_there_once(request: pytest.FixtureRequest) -> None:
    assert len({*LISTED}) == len(LISTED)
    for name in LISTED:
        path, _, function = name.partition("::")
        found = re.search(rf"^def {function}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE)
        assert found, f"tests/proofs.toml has {name}, which does not exist"
    collected = {item.nodeid.partition("::")[0] for item in request.session.items}
    long_tests = request.config.stash[LONG_TESTS]
    listed = {name for name in LISTED if name.partition("::")[0] in collected}
    assert not listed - long_tests, "tests/proofs.toml has tests that are not long"


@pytest.mark.parametrize("turn", range(1, len(PROOFS.rotation) + 1))
def test_each_share_is_short_enough(turn: int) -> None:
    proofs = PROOFS._replace(turn=turn)
    assert all(seconds > 0 for seconds in proofs.share.values())
    assert 3 < proofs.minutes <= MAX_MINUTES


def test_the_turn_is_one_of_the_rotation() -> None:
    assert 1 <= PROOFS.turn <= len(PROOFS.rotation)


def test_a_share_is_run_as_the_list_says() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.search(rf"^proofs:.*\n\t.* -n {WORKERS} --share$", makefile, re.MULTILINE)
    assert "make proofs" in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()


def test_nothing_but_the_seed_decides_about_examples(request: pytest.FixtureRequest) -> None:
    """Examples that failed on this machine before do not, nor does hypothesis' profile for CI."""
    assert settings.default is not None
    assert settings.default.database is None
    assert not settings.default.derandomize
    option = request.config.option
    assert option.hypothesis_seed == option.run_seed
    if "--seed" not in " ".join(map(str, request.config.invocation_params.args)):
        assert option.run_seed == PROOFS.seed
