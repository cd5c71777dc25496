"""Each key of the configuration, each parameter of a connection and of the API, and each limit of
the code acts: `acts.toml` says what is seen of it, and which test sees it.
"""

import dataclasses
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

import amqpstore_server
from amqpstore_server.administration.definitions import OPERATOR_POLICY, VHOST_LIMITS
from amqpstore_server.amqp.product import Product, start
from amqpstore_server.broker.definitions.accepted import GLOBAL_PARAMETERS
from amqpstore_server.config.config import KEYS
from amqpstore_server.protocol import methods
from tests.conformance.test_limits_table import TABLES, limits, reaches
from tests.conformance.test_rules_table import functions_in

ACTS = tomllib.loads(Path(__file__).with_name("acts.toml").read_text("utf-8"))
BOUNDS, PACING = ACTS.pop("bounds"), ACTS.pop("pacing")
ROOMS = (
    *("amqp", "clients", "protocol", "listening", "loop"),
    *("logins", "management", "replication", "administration"),
    *("etcd", "process", "app"),
)
"""The rooms that face clients, other members, etcd and operators."""
SERVER = Path(amqpstore_server.__file__).parent
DECLARATIONS = {f"config/{name}.py" for name in ("config", "cluster", "checks", "effects")}
HANDSHAKE = (methods.ConnectionStartOk, methods.ConnectionTuneOk, methods.ConnectionOpen)


def source(*, but: Iterable[str] = ()) -> str:
    paths = (path for path in SERVER.rglob("*.py") if str(path.relative_to(SERVER)) not in but)
    return "\n".join(path.read_text("utf-8") for path in paths)


def names() -> dict[str, set[str]]:
    """Return the names that the code has, by the table that has to list them."""
    method = methods.decode_method(start(Product("a", "1"), ()))
    assert isinstance(method, methods.ConnectionStart)
    claimed = method.server_properties["capabilities"]
    assert isinstance(claimed, dict)
    asked = re.findall(r"""has_capability\("([^"]+)"\)""", source())
    fields = {field.name for one in HANDSHAKE for field in dataclasses.fields(one)}
    return {
        "configuration": set(KEYS),
        "server_capabilities": set(claimed),
        "client_capabilities": set(asked),
        "handshake": fields,
        "parameters": {OPERATOR_POLICY, VHOST_LIMITS, *GLOBAL_PARAMETERS},
        "limits": constants() - {*BOUNDS},
    }


def constants() -> set[str]:
    """Return the limits in the code, except those that server/SECURITY.md lists."""
    return assigned(r"(?:MAX|MOST)_\w+") - limits("SECURITY.md")


def times() -> set[str]:
    """Return the times of the rooms that face clients, other members, etcd and operators."""
    return {name for name in assigned(r"[A-Z]\w*_M?S") if name.partition(".")[0] in ROOMS}


def assigned(pattern: str) -> set[str]:
    """The constants of modules whose names match, after an underscore or without one."""
    constant = re.compile(rf"^(_?{pattern})(?:: .+?)? = ", re.MULTILINE)
    return {
        f"{'.'.join(path.relative_to(SERVER).with_suffix('').parts)}.{name}"
        for path in SERVER.rglob("*.py")
        for name in constant.findall(path.read_text("utf-8"))
    }


def test_each_name_has_a_row_and_no_other_has() -> None:
    assert {name: {*rows} for name, rows in ACTS.items()} == names()


def test_what_refuses_nothing_is_there() -> None:
    assert BOUNDS.keys() <= constants()


def test_each_time_is_a_limit_of_the_manual_or_paces_the_broker() -> None:
    """A time that a user may have to wait, or after which something is ended, is in a table."""
    documented = {limit for name in TABLES for limit in limits(name)} | {*ACTS["limits"], *BOUNDS}
    assert {*PACING} == times() - documented


@pytest.mark.parametrize("kind", ACTS)
def test_what_sees_it_is_there(kind: str) -> None:
    for name, row in ACTS[kind].items():
        path, _, test = row["test"].partition("::")
        assert row["seen"], name
        assert test in functions_in(path), f"{name}: {row['test']}"
        assert reaches(name, row["test"]), f"{name}: {row['test']} lets no time pass"


def test_each_key_is_read_where_it_acts() -> None:
    read = re.findall(r"\.([a-z]\w+)", source(but=DECLARATIONS))
    assert KEYS.keys() <= {*read}
