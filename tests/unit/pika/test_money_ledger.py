"""The example's ledger: a decision is there exactly if the account was changed."""

from collections.abc import Generator
from contextlib import closing

import pytest

from amqpstore_tools.pika import Xid
from tests.money_transfer.ledger import LARGEST_CENTS, XID_FORMAT, Ledger, LedgerError
from tests.money_transfer.transfer import Order


@pytest.fixture
def path(tmp_path: object) -> str:
    return f"{tmp_path}/ledger.db"


@pytest.fixture
def ledger(path: str) -> Generator[Ledger]:
    with closing(Ledger(path)) as opened:
        opened.open_account("alice", 1000)
        yield opened


def test_a_withdrawal_and_its_decision_are_one(ledger: Ledger) -> None:
    xid = ledger.new_xid()
    with ledger.transaction():
        assert ledger.withdraw("alice", 1000)
        ledger.decide_commit(xid)
    assert ledger.accounts() == {"alice": 0}
    assert ledger.to_be_committed() == [xid]
    ledger.forget_decision(xid)
    assert ledger.to_be_committed() == []


def test_a_transaction_that_fails_leaves_neither(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), ledger.transaction():
        ledger.withdraw("alice", 1)
        ledger.decide_commit(ledger.new_xid())
        _ = 1 // 0
    assert ledger.accounts() == {"alice": 1000}
    assert ledger.to_be_committed() == []


@pytest.mark.parametrize(("name", "cents"), [("alice", 1001), ("bob", 1), ("", 0)])
def test_what_is_not_there_is_not_paid(ledger: Ledger, name: str, cents: int) -> None:
    with ledger.transaction():
        assert not ledger.withdraw(name, cents)
    assert ledger.accounts() == {"alice": 1000}


def test_a_ledger_knows_its_own_branches_for_ever(path: str, tmp_path: object) -> None:
    with closing(Ledger(path)) as first:
        xid = first.new_xid()
    with closing(Ledger(path)) as again, closing(Ledger(f"{tmp_path}/other.db")) as other:
        assert again.owns(xid)
        assert again.owns(again.new_xid())
        assert not other.owns(xid)
        assert not again.owns(Xid(XID_FORMAT + 1, xid.global_id))


def test_an_account_is_opened_once(ledger: Ledger) -> None:
    ledger.open_account("alice", 5)
    assert ledger.accounts() == {"alice": 1000}


def test_a_ledger_has_one_user_at_a_time(ledger: Ledger, path: str) -> None:
    with pytest.raises(LedgerError, match="locked"):
        Ledger(path)


def test_another_file_is_no_ledger(path: str) -> None:
    with open(path, "wb") as file:
        file.write(b"not a database, by any means" * 100)
    with pytest.raises(LedgerError, match="not a database"):
        Ledger(path)


@pytest.mark.parametrize(
    ("body", "order"),
    [
        (b'{"id": 1, "account": "alice", "cents": 2}', Order(1, "alice", 2)),
        (b'{"id": 1, "account": "alice", "cents": -2}', Order(1, "", 0)),
        (b'{"id": 1, "account": "alice", "cents": true}', Order(1, "", 0)),
        (b'{"id": 1, "account": "alice", "cents": 2.5}', Order(1, "", 0)),
        (b'{"id": 1, "account": ["alice"], "cents": 2}', Order(None, "", 0)),
        (b'{"id": 1, "account": "\\ud800", "cents": 2}', Order(None, "", 0)),
        (b'{"id": 1, "account": "alice", "cents": %d}' % (LARGEST_CENTS + 1), Order(1, "", 0)),
        (b'{"id": 1}', Order(None, "", 0)),
        (b"[]", Order(None, "", 0)),
        (b"\xff\x00", Order(None, "", 0)),
        (b"", Order(None, "", 0)),
        (b"[" * 200_000, Order(None, "", 0)),
    ],
)
def test_an_order_that_cannot_be_read_is_one_of_nothing(body: bytes, order: Order) -> None:
    assert Order.read(body) == order
