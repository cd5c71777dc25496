"""Tests of which names are reserved or invalid, by each rule (A12, A14)."""

import pytest

from amqpstore_server.broker.errors import AccessRefusedError, PreconditionFailedError
from amqpstore_server.broker.rules.names import NAME_RULES, check_name, without_line_ends


@pytest.mark.parametrize("rule", NAME_RULES)
@pytest.mark.parametrize("name", ["amq.", "amq.direct", "amq.gen-x", "amq.anything at all"])
def test_names_that_begin_with_amq_are_reserved(name: str, rule: str) -> None:
    with pytest.raises(AccessRefusedError, match=r"contains reserved prefix 'amq\.\*'"):
        check_name("queue", name, "/", rule)


@pytest.mark.parametrize("name", ["amq", "amqx", "AMQ.direct", "x.amq.", " amq."])
def test_names_that_look_like_reserved_ones_are_none(name: str) -> None:
    check_name("queue", name, "/", "lenient")


@pytest.mark.parametrize(
    ("name", "lenient", "strict", "oldest"),
    [
        ("orders", True, True, True),
        ("_", True, True, True),
        ("a-b_c.d:e", True, True, True),
        ("-first", True, True, False),
        (".first", True, True, False),
        ("with blank", True, False, True),
        ("größe", True, False, True),
        ("ä", True, False, False),
        ("a/b", True, False, True),
        ("", True, True, True),
        ("x" * 127, True, True, True),
        ("x" * 128, True, False, True),
        ("x" * 255, True, False, True),
        ("tab\t", True, False, True),
        ("line\n", False, False, False),
        ("li\rne", False, False, False),
    ],
)
def test_which_names_each_rule_lets_pass(
    name: str, lenient: bool, strict: bool, oldest: bool
) -> None:
    for rule, allowed in (("lenient", lenient), ("strict", strict), ("0-10", oldest)):
        if allowed:
            check_name("exchange", name, "/", rule)
        else:
            with pytest.raises(
                PreconditionFailedError, match=f"is invalid under the rule '{rule}'"
            ):
                check_name("exchange", name, "/", rule)


def test_line_ends_are_taken_out_wherever_they_are() -> None:
    assert without_line_ends("\r\nor\nde\rrs\r\n") == "orders"
    assert without_line_ends("orders") == "orders"
