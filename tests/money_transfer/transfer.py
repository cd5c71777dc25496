"""An example: pays out money from a SQLite table for orders from one queue, with receipts into
another.

    python -m tests.money_transfer --url amqp://guest:guest@localhost \\
        --ledger money.db --account alice=10000 --order alice=2500

An order says `{"id": ..., "account": ..., "cents": ...}`. For each, exactly one receipt is
published, `{"id": ..., "cents": ...}`: the money is in the account or in the receipt, never in both
and never in neither, whenever this process or the broker dies.

A small transaction manager, `Transfers`, ensures this. The order's ack and the receipt are one
branch of the broker's; the account and the decision to commit are one transaction of SQLite:

1. start the branch; change the account; publish the receipt; ack the order; end the branch.
2. prepare. From here on the broker can commit whatever happens.
3. write the decision beside the account, and commit SQLite. This decides.
4. commit the branch; forget the decision.

A crash before 2 leaves nothing: SQLite and the broker both roll back. A crash between 2 and 3
leaves a branch in doubt and no decision: the next start rolls it back. A crash between 3 and 4
leaves a branch in doubt and a decision: the next start commits it. A crash within 4 leaves a
decision for a branch that is no longer in doubt: the next start forgets it.
"""

from __future__ import annotations

import argparse
import json
import logging
import sqlite3
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    AuthenticationError,
    ChannelClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from amqpstore_tools.pika.errors import ExtensionMissingError, PikaChangedError
from amqpstore_tools.pika.get import get
from amqpstore_tools.pika.xa import XaResource
from tests.money_transfer.ledger import LARGEST_CENTS, Ledger, LedgerError
from tests.money_transfer.steps import STEPS, Steps

_PERSISTENT = pika.BasicProperties(delivery_mode=2, content_type="application/json")
_FAILED, _INTERRUPTED = 1, 130
_RETRY_EVERY_S = 0.1
_LONGEST_WAIT_S = 5.0
"""How long to wait for an order before checking again for branches in doubt."""
_HOPELESS = (
    AuthenticationError,
    ProbableAuthenticationError,
    ProbableAccessDeniedError,
    ChannelClosedByBroker,
    ExtensionMissingError,
    PikaChangedError,
)
"""Errors that another attempt does not fix."""


class Names(NamedTuple):
    """The names of the queues."""

    orders: str
    receipts: str


class Order(NamedTuple):
    """A payment order. An unreadable order is for nothing."""

    id: object
    account: str
    cents: int

    @classmethod
    def read(cls, body: bytes) -> Order:
        try:
            fields = json.loads(body)
            identity, account, cents = fields["id"], fields["account"], fields["cents"]
            account.encode()  # JSON has strings that UTF-8, and so SQLite, does not have
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls(None, "", 0)
        if type(account) is str and type(cents) is int and 0 < cents <= LARGEST_CENTS:
            return cls(identity, account, cents)
        return cls(identity, "", 0)

    def write(self) -> bytes:
        return json.dumps(self._asdict()).encode()


class Transfers:
    """The transaction manager: moves money between a ledger and two queues of one connection."""

    def __init__(
        self, ledger: Ledger, channel: BlockingChannel, names: Names, steps: Steps
    ) -> None:
        channel.queue_declare(names.orders, durable=True)
        channel.queue_declare(names.receipts, durable=True)
        self._ledger = ledger
        self._channel = channel
        self._names = names
        self._steps = steps
        self._xa = XaResource(channel)
        self.settled = 0
        """Orders that were paid or refused."""

    def settle_in_doubt(self) -> None:
        """Decide, by the log of decisions, the branches that an earlier session left in doubt, and
        clean up the log.
        """
        to_be_committed = set(self._ledger.to_be_committed())
        in_doubt = {xid for xid in self._xa.recover() if self._ledger.owns(xid)}
        self._steps.reached("in-doubt-listed")
        for xid in sorted(in_doubt):
            if xid in to_be_committed:
                self._xa.commit(xid)
            else:
                self._xa.rollback(xid)
            _say(f"in doubt: {xid} {'committed' if xid in to_be_committed else 'rolled back'}")
            self._steps.reached("in-doubt-decided")
        for xid in to_be_committed:
            # The decision is written after the prepare: a branch that is no longer in doubt is
            # committed.
            self._ledger.forget_decision(xid)

    def settle_next(self, wait_s: float) -> bool:
        """Settle one order; False if none came in time."""
        message = get(self._channel, self._names.orders, wait_s=wait_s)
        if message is None:
            return False
        method, _, body = message
        self._steps.reached("order-received")
        self._settle(Order.read(body), method.delivery_tag or 0)
        self.settled += 1
        return True

    def _settle(self, order: Order, delivery_tag: int) -> None:
        steps = self._steps
        xid = self._ledger.new_xid()
        with self._ledger.transaction():
            self._xa.start(xid)
            steps.reached("branch-started")
            paid = order.cents if self._ledger.withdraw(order.account, order.cents) else 0
            steps.reached("account-changed")
            receipt = json.dumps({"id": order.id, "cents": paid}).encode()
            self._channel.basic_publish("", self._names.receipts, receipt, _PERSISTENT)
            steps.reached("receipt-published")
            self._channel.basic_ack(delivery_tag)
            steps.reached("order-acked")
            self._xa.end(xid)
            steps.reached("branch-ended")
            self._xa.prepare(xid)
            steps.reached("branch-prepared")
            self._ledger.decide_commit(xid)
        steps.reached("decided")
        self._xa.commit(xid)
        steps.reached("branch-committed")
        self._ledger.forget_decision(xid)
        steps.reached("decision-forgotten")
        outcome = f"{paid} cents from {order.account!a}" if paid else "refused"
        _say(f"order {order.id!a}: {outcome}")


def serve(arguments: argparse.Namespace, ledger: Ledger) -> int:
    """Settle orders until none came for `--idle-s`; reconnect when the connection is lost.

    Returns the number of orders.
    Raises: AMQPError when nothing succeeded for `--retry-s`.
    """
    names = Names(arguments.orders, arguments.receipts)
    steps = Steps(arguments.die_at, arguments.pause_at)
    settled = 0
    went_well = time.monotonic()
    while True:
        try:
            with pika.BlockingConnection(arguments.url) as connection:
                steps.reached("connected")
                transfers = Transfers(ledger, connection.channel(), names, steps)
                transfers.settle_in_doubt()
                last_order = went_well = time.monotonic()
                while (idle_s := time.monotonic() - last_order) < arguments.idle_s:
                    wait_s = min(_LONGEST_WAIT_S, arguments.idle_s - idle_s)
                    if transfers.settle_next(wait_s):
                        settled += 1
                        last_order = time.monotonic()
                    else:
                        # The last prepare of a lost connection may have reached the broker late.
                        transfers.settle_in_doubt()
                    went_well = time.monotonic()
                return settled
        except _HOPELESS:
            raise
        except AMQPError as error:
            if time.monotonic() - went_well > arguments.retry_s:
                raise
            _say(f"connecting again: {type(error).__name__} {error}".rstrip())
            time.sleep(_RETRY_EVERY_S)


def send_orders(arguments: argparse.Namespace) -> None:
    """Publish the orders of the command line, each confirmed."""
    with pika.BlockingConnection(arguments.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(arguments.orders, durable=True)
        for account, cents in arguments.order:
            order = Order(uuid.uuid4().hex[:12], account, cents)
            channel.basic_publish("", arguments.orders, order.write(), _PERSISTENT)


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the example. Returns the exit code."""
    arguments = _parser().parse_args(command_line)
    # pika also raises an exception for a lost connection that it logs.
    logging.getLogger("pika").addHandler(logging.NullHandler())
    try:
        with closing(Ledger(arguments.ledger)) as ledger:
            for name, cents in arguments.account:
                ledger.open_account(name, cents)
            if arguments.order:
                send_orders(arguments)
            settled = serve(arguments, ledger)
            for name, cents in ledger.accounts().items():
                _say(f"{name:20} {cents:12} cents")
            _say(f"{settled} orders settled")
    except LedgerError as error:
        return _fail(str(error))
    except sqlite3.Error as error:
        return _fail(f"{arguments.ledger}: {error}; fix that and start again, nothing is lost")
    except AMQPConnectionError as error:
        where = f"{arguments.url.host}:{arguments.url.port}"
        return _fail(f"no connection to {where}: {type(error).__name__} {error}".rstrip())
    except AMQPError as error:
        return _fail(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.money_transfer",
        description="Pay out money from a SQLite table against orders from one queue, and publish "
        "receipts to another: all or nothing, by two-phase commit.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="steps:\n"
        + "\n".join(f"  {step:19} {about}" for step, about in STEPS.items())
        + "\n\nExit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.",
    )
    parser.add_argument(
        "--url",
        default="amqp://guest:guest@127.0.0.1:5672/%2F",
        type=_url,
        help="the broker",
    )
    parser.add_argument(
        "--ledger", required=True, metavar="FILE", help="created if it does not exist"
    )
    parser.add_argument("--orders", default="orders", metavar="QUEUE")
    parser.add_argument("--receipts", default="receipts", metavar="QUEUE")
    parser.add_argument(
        "--account",
        action="append",
        default=[],
        type=_amount,
        metavar="NAME=CENTS",
        help="create this account, if there is none of this name",
    )
    parser.add_argument(
        "--order",
        action="append",
        default=[],
        type=_amount,
        metavar="NAME=CENTS",
        help="first publish this order",
    )
    parser.add_argument(
        "--idle-s",
        type=float,
        default=float("inf"),
        metavar="N",
        help="end when no order has come for N seconds (default: never)",
    )
    parser.add_argument(
        "--retry-s",
        type=float,
        default=30.0,
        metavar="N",
        help="give up when nothing has succeeded for N seconds (default 30)",
    )
    for option, about in (
        ("--die-at", "kill this process with SIGKILL there, to see what a crash leaves"),
        ("--pause-at", "the first time there, write `at STEP` and wait for a line on stdin"),
    ):
        parser.add_argument(
            option, action="append", default=[], choices=list(STEPS), metavar="STEP", help=about
        )
    return parser


def _url(text: str) -> pika.URLParameters:
    try:
        return pika.URLParameters(text)
    except (ValueError, IndexError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a URL such as amqp://guest:guest@127.0.0.1:5672/%2F"
        ) from None


def _amount(text: str) -> tuple[str, int]:
    name, _, cents = text.rpartition("=")
    if not name or not cents.isdecimal() or int(cents) > LARGEST_CENTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=CENTS, such as alice=2500")
    return name, int(cents)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _fail(message: str) -> int:
    sys.stderr.write(f"money_transfer: {message}\n")
    return _FAILED
