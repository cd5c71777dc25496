"""The SQLite side of the example: accounts, and the transaction manager's log of decisions."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Generator
from contextlib import contextmanager

from amqpstore_tools.pika.xid import Xid

XID_FORMAT = 0x4D4F4E59
"""Marks the xids of this example, whatever ledger they belong to: "MONY"."""

LARGEST_CENTS = 2**63 - 1

_TABLES = (
    "CREATE TABLE IF NOT EXISTS account (name TEXT PRIMARY KEY, cents INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS decision (global_id BLOB PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS identity (ledger BLOB NOT NULL)",
)


class LedgerError(Exception):
    """The file cannot be used as a ledger; the message says why and what to do."""


class Ledger:
    """Accounts in whole cents, and the branches to be committed.

    A decision to commit is a row, written by the same transaction that changes the account. So
    there is a decision exactly if the account was changed; no row means rollback (presumed abort).
    """

    def __init__(self, path: str) -> None:
        """Open the file, or makes it, and keeps every other process out.

        Two at once would take each other's branches for leftovers and roll them back.

        Raises: LedgerError when it is in use, is not a ledger, or cannot be opened.
        """
        try:
            self._connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        except sqlite3.Error as error:
            raise LedgerError(f"{path}: {error}; check that the directory exists") from error
        try:
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            # The decision must not be undone by a power cut: EXTRA syncs the directory as well.
            self._connection.execute("PRAGMA synchronous = EXTRA")
            with self.transaction():
                for table in _TABLES:
                    self._connection.execute(table)
                self._identity = self._identify()
        except sqlite3.Error as error:
            self._connection.close()
            raise LedgerError(
                f"{path}: {error}; another money_transfer may be using it, or it is not a ledger"
            ) from error

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Do everything within the context atomically; it is on disk when the context ends."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def open_account(self, name: str, cents: int) -> None:
        """Create an account, unless one of this name exists."""
        with self.transaction():
            self._connection.execute(
                "INSERT OR IGNORE INTO account (name, cents) VALUES (?, ?)", (name, cents)
            )

    def accounts(self) -> dict[str, int]:
        return dict(self._connection.execute("SELECT name, cents FROM account ORDER BY name"))

    def withdraw(self, name: str, cents: int) -> bool:
        """Take money from an account; False when it does not exist or has not enough."""
        changed = self._connection.execute(
            "UPDATE account SET cents = cents - ? WHERE name = ? AND cents >= ?",
            (cents, name, cents),
        )
        return changed.rowcount == 1

    def new_xid(self) -> Xid:
        return Xid.new(XID_FORMAT, self._identity)

    def owns(self, xid: Xid) -> bool:
        """Tell whether the branch belongs to this ledger, which then decides it."""
        return xid.format_id == XID_FORMAT and xid.global_id.startswith(self._identity)

    def decide_commit(self, xid: Xid) -> None:
        """Decide that the branch is committed, once the surrounding transaction is."""
        self._connection.execute("INSERT INTO decision (global_id) VALUES (?)", (xid.global_id,))

    def forget_decision(self, xid: Xid) -> None:
        """Forget the decision: the branch is committed, and will not be asked for again."""
        self._connection.execute("DELETE FROM decision WHERE global_id = ?", (xid.global_id,))

    def to_be_committed(self) -> list[Xid]:
        rows = self._connection.execute("SELECT global_id FROM decision")
        return [Xid(XID_FORMAT, global_id) for (global_id,) in rows]

    def _identify(self) -> bytes:
        """Return the identity of this ledger in its xids: 16 random octets, never changed."""
        row = self._connection.execute("SELECT ledger FROM identity").fetchone()
        if row is not None:
            return bytes(row[0])
        identity = uuid.uuid4().bytes
        self._connection.execute("INSERT INTO identity (ledger) VALUES (?)", (identity,))
        return identity
