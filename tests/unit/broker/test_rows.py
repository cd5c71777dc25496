"""Tests of the error of a declare that differs from what is there."""

from typing import Any

import pytest

from amqpstore_server.broker.definitions.rows import check_equivalent
from amqpstore_server.broker.errors import PreconditionFailedError


@pytest.mark.parametrize(
    ("received", "said"),
    [("lazy", "'lazy'"), (True, "'true'"), (b"l\xffzy", r"'l\xffzy'"), ([1], "'[1]'")],
)
def test_a_value_of_any_type_is_said(received: Any, said: str) -> None:
    with pytest.raises(PreconditionFailedError, match="inequivalent arg 'mode' for it") as raised:
        check_equivalent("it", {"mode": received}, {"mode": 7})
    assert f"received {said} but current is '7'" in str(raised.value)
