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
from tests.broker_process import REPOSITORY
from tests.conformance.test_limits_table import reaches
from tests.conformance.test_rules_table import functions_in
from tests.format.document import table

ACTS = tomllib.loads(Path(__file__).with_name("acts.toml").read_text("utf-8"))
BOUNDS = ACTS.pop("bounds")
SECURITY = Path(REPOSITORY, "server", "SECURITY.md").read_text("utf-8")
SERVER = Path(amqpstore_server.__file__).parent
DECLARATIONS = {f"config/{name}.py" for name in ("config", "cluster", "checks", "effects")}
HANDSHAKE = (methods.ConnectionStartOk, methods.ConnectionTuneOk, methods.ConnectionOpen)


def source(*, but: Iterable[str] = ()) -> str:
    paths = (path for path in SERVER.rglob("*.py") if str(path.relative_to(SERVER)) not in but)
    return "\n".join(path.read_text("utf-8") for path in paths)


def names() -> dict[str, set[str]]:
    """What there is, by the table that has to have it."""
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
    """The numbers of the code that bound something, but for those that server/SECURITY.md lists."""
    found = set()
    for path in SERVER.rglob("*.py"):
        module = ".".join(path.relative_to(SERVER).with_suffix("").parts)
        names = re.findall(r"^(_?(?:MAX|MOST)_\w+) = ", path.read_text("utf-8"), re.MULTILINE)
        found |= {f"{module}.{name}" for name in names}
    return found - {row.cells["set by"].strip("`") for row in table(SECURITY, "Limits")}


def test_each_name_has_a_row_and_no_other_has() -> None:
    assert {name: {*rows} for name, rows in ACTS.items()} == names()


def test_what_refuses_nothing_is_there() -> None:
    assert BOUNDS.keys() <= constants()


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
