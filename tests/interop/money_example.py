"""The example tests.money_transfer as a process, and what must hold after it."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Self

from amqpstore_tools.pika import XaResource
from tests.broker_process import REPOSITORY
from tests.interop.pika_client import connect, drain, publish_confirmed, ready
from tests.money_transfer.ledger import Ledger
from tests.money_transfer.transfer import Order

LINE_TIMEOUT_S = 40.0
ACCOUNTS = {"alice": 10_000, "bob": 500}


class Example:
    """One run. Its stderr goes to a file beside the ledger."""

    def __init__(self, url: str, money: "Money", arguments: Sequence[str] = ()) -> None:
        with open(f"{money.ledger_path}.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.money_transfer"),
                    *("--url", url, "--ledger", money.ledger_path),
                    *("--orders", money.orders, "--receipts", money.receipts),
                    *arguments,
                ],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(LINE_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def lines(self) -> Iterator[str]:
        """Yield its lines until it ends, each within LINE_TIMEOUT_S of the one before."""
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                while b"\n" in self._unread:
                    line, _, self._unread = self._unread.partition(b"\n")
                    yield line.decode()
                assert selector.select(LINE_TIMEOUT_S), "the example has said nothing for too long"
                chunk = os.read(stdout.fileno(), 4096)
                if not chunk:
                    return
                self._unread += chunk

    def go_on(self) -> None:
        """Let it leave the step at which it paused."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LINE_TIMEOUT_S)

    def exit_code(self) -> int:
        return self._process.wait(LINE_TIMEOUT_S)


class Money:
    """A ledger, two queues, and orders that were published."""

    def __init__(self, ledger_path: str, name: str) -> None:
        self.ledger_path = ledger_path
        self.orders = f"{name}.orders"
        self.receipts = f"{name}.receipts"
        self.published: list[str] = []
        with closing(Ledger(ledger_path)) as ledger:
            for account, cents in ACCOUNTS.items():
                ledger.open_account(account, cents)

    def publish_orders(self, url: str, count: int = 3) -> None:
        """Some from each account, more than the second has, and one that cannot be read."""
        orders = [
            Order(f"order {n}", account, 100 + n)
            for n, account in zip(range(count), list(ACCOUNTS) * count, strict=False)
        ]
        orders.append(Order("too much", "bob", 501))
        self.published = [str(order.id) for order in orders] + ["None"]
        with connect(url) as connection:
            channel = connection.channel()
            channel.queue_declare(self.orders, durable=True)
            channel.queue_declare(self.receipts, durable=True)
            publish_confirmed(channel, self.orders, [*(o.write() for o in orders), b"no order"])

    def run(self, url: str, *arguments: str) -> list[str]:
        """Run the example until no order comes any more; returns what it wrote."""
        with Example(url, self, ["--idle-s", "0.1", *arguments]) as example:
            lines = list(example.lines())
            assert example.exit_code() == 0, (lines, self.log())
        return lines

    def run_until_killed(self, url: str, step: str) -> None:
        with Example(url, self, ["--idle-s", "0.1", "--die-at", step]) as example:
            lines = list(example.lines())
            assert example.exit_code() == -signal.SIGKILL, (lines, self.log())

    def log(self) -> str:
        with open(f"{self.ledger_path}.log", encoding="utf-8") as log:
            return log.read()

    def check(self, url: str) -> None:
        """All orders are settled once, the sum is what it was, nothing is in doubt or left over."""
        with closing(Ledger(self.ledger_path)) as ledger, connect(url) as connection:
            channel = connection.channel()
            assert ledger.to_be_committed() == []
            assert [xid for xid in XaResource(channel).recover() if ledger.owns(xid)] == []
            channel = connection.channel()
            deadline = time.monotonic() + LINE_TIMEOUT_S
            while ready(channel, self.receipts) < len(self.published):
                assert time.monotonic() < deadline, "a receipt is lost"
            receipts = [json.loads(message.body) for message in drain(channel, self.receipts)]
            assert sorted(str(receipt["id"]) for receipt in receipts) == sorted(self.published)
            paid = sum(receipt["cents"] for receipt in receipts)
            assert paid > 0
            assert sum(ledger.accounts().values()) + paid == sum(ACCOUNTS.values())
            assert ready(channel, self.orders) == 0
            channel.queue_delete(self.orders)
            channel.queue_delete(self.receipts)
