"""Exchange types of other packages: found by their entry points, or logged and left out."""

import logging
import sys
import textwrap
from pathlib import Path

import pytest

from amqpstore_server.broker.exchanges import EXCHANGE_TYPES, plugged_in
from tests.unit.broker.exchanges.made import bind, destination, made, routed

GOOD = """
    from amqpstore_server.plugins import Exchange

    class Everything(Exchange):
        type = "x-everything"

        def route(self, routing_key, properties):
            return [binding.destination for binding in self.bindings]

        def _add(self, binding):
            pass

        def _remove(self, binding):
            pass
    """


def install(
    monkeypatch: pytest.MonkeyPatch, directory: Path, package: str, code: str, entry: str
) -> None:
    """Put a distribution on the path: a module of its name and, in metadata, one entry point."""
    root = directory / package
    metadata = root / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (root / f"{package}.py").write_text(textwrap.dedent(code))
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[amqpstore.exchange_types]\n{entry}\n")
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.delitem(sys.modules, package, raising=False)


def test_the_built_in_types_are_found_by_their_names() -> None:
    """C028, C029, C19."""
    assert {
        "direct",
        "fanout",
        "topic",
        "headers",
        "x-consistent-hash",
        "x-random",
    } <= EXCHANGE_TYPES.keys()
    assert all(kind.type == name for name, kind in EXCHANGE_TYPES.items())


def test_nothing_installed_is_no_type() -> None:
    assert plugged_in() == {}


def test_a_packages_type_is_found_and_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C20."""
    install(monkeypatch, tmp_path, "good", GOOD, "x-everything = good:Everything")
    found = plugged_in()
    assert found.keys() == {"x-everything"}
    exchange = made(found["x-everything"])
    bind(exchange, destination("there"))
    assert routed(exchange) == ["there"]
    assert caplog.records == []


@pytest.mark.parametrize(
    ("code", "entry", "reason"),
    [
        (GOOD, "everything = broken:Everything", "does not start with 'x-'"),
        (GOOD, "x-random = broken:Everything", "a built-in type"),
        (GOOD, "x-other = broken:Everything", "is not 'x-other'"),
        (GOOD, "x-everything = broken:Missing", "Missing"),
        (GOOD, "x-everything = nowhere:Everything", "nowhere"),
        (GOOD, "x-everything = broken", "not a subclass of Exchange"),
        (
            "class Everything: pass",
            "x-everything = broken:Everything",
            "not a subclass of Exchange",
        ),
        ("1 / 0", "x-everything = broken:Everything", "ZeroDivisionError"),
        ("this is no Python", "x-everything = broken:Everything", "SyntaxError"),
        (GOOD.replace("_remove", "_forget"), "x-everything = broken:Everything", "_remove"),
        (
            GOOD.replace("type =", "queue_kind = 'reply'\n        type ="),
            "x-everything = broken:Everything",
            "not one of delayed, history",
        ),
        (GOOD.replace("type =", "kind ="), "x-everything = broken:Everything", "is not 'x-every"),
    ],
)
def test_a_type_that_cannot_be_used_is_logged_with_its_package_and_left_out(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    code: str,
    entry: str,
    reason: str,
) -> None:
    install(monkeypatch, tmp_path, "broken", code, entry)
    install(
        monkeypatch,
        tmp_path,
        "good",
        GOOD.replace("x-everything", "x-good"),
        "x-good = good:Everything",
    )
    assert plugged_in().keys() == {"x-good"}
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert (record.__dict__["package"], record.__dict__["type"]) == (
        "broken",
        entry.partition(" ")[0],
    )
    assert reason in record.__dict__["reason"]


def test_of_two_types_of_one_name_one_is_used_and_the_other_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for package in ("one", "two"):
        install(monkeypatch, tmp_path, package, GOOD, f"x-everything = {package}:Everything")
    assert plugged_in().keys() == {"x-everything"}
    (record,) = caplog.records
    assert "another package" in record.__dict__["reason"]
