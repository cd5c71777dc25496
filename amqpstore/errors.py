"""Every error of the storage engine. An exception holds the numbers and builds its message."""

from __future__ import annotations

import shlex

from amqpstore.terms import batch_named


class PicklableError(Exception):
    """An exception that can be pickled and copied, whatever its subclass is built from.

    As Python does it, a class would be called with the message alone: a worker process would send
    what its pool cannot read, and waits for ever.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return Exception.__new__, (self.__class__, *self.args), self.__dict__


class StoreError(PicklableError):
    """The store cannot do what was asked; nothing was changed."""


class NotAStoreError(StoreError):
    """The directory holds files, but none that say it is a store.

    Args: has_segments, whether some of them are segments, so that it may be what is left of one.
    """

    def __init__(self, path: str, reason: str, *, has_segments: bool = False) -> None:
        hint = (
            "It has segments of a store: `amqpstore check` on it shows what is left of that, and "
            "`amqpstore repair` what can be kept."
            if has_segments
            else "Name a directory that amqpstore created, or for a new store a new or empty one."
        )
        super().__init__(f"{path} is not an amqpstore data directory: {reason}. {hint}")
        self.path = path
        self.reason = reason


class UnfinishedRepairError(StoreError):
    """A repair of the store, or its undo, stopped half-way: files of two states are in it.

    Args: path, of the store; name, of the directory of the repair in it; is_undo, whether it was
    being undone, so that it can only be undone; is_damaged, whether its journal cannot be read, so
    that this is not known.
    """

    def __init__(
        self, path: str, name: str, *, is_undo: bool = False, is_damaged: bool = False
    ) -> None:
        directory = shlex.quote(path)
        plan = shlex.quote(f"{path}/{name}/plan.json")
        undo = f"`amqpstore repair {directory} --undo`"
        what = "the undo of a repair" if is_undo else "a repair"
        damaged = (
            "; its journal cannot be read, and the store's file STORE is still in the repair's "
            "directory"
        )
        how = f"`amqpstore repair {directory} --apply {plan}`, or undo it with {undo}"
        super().__init__(
            f"{path}: {what} stopped half-way ({name}), unless it is running now"
            f"{damaged if is_damaged else ''}. Finish it with "
            f"{undo if is_undo else how}. Nothing is lost, but until then files of two states are "
            "there, and the store is not opened."
        )
        self.path = path
        self.name = name
        self.is_undo = is_undo


class FormatVersionError(StoreError):
    """The store was written in a format that this version does not read."""

    def __init__(self, path: str, found: int, supported: int) -> None:
        super().__init__(
            f"{path} has format version {found}; this amqpstore reads versions up to {supported}. "
            "Open it with the version that wrote it, or a newer one. Nothing was changed."
        )
        self.path = path
        self.found = found
        self.supported = supported


class StoreLockedError(StoreError):
    """The store is open already: in another process, or in this one if `is_own`."""

    def __init__(self, path: str, holder: str, *, is_own: bool = False) -> None:
        if is_own:
            text = (
                f"{path} is open in this process already ({holder}). Use the store that is open, "
                "or close it first; a `SharedStore` is for all threads."
            )
        else:
            text = (
                f"{path} is in use by another process ({holder}). "
                "Stop that process, or name another data directory."
            )
        super().__init__(text)
        self.path = path
        self.holder = holder
        self.is_own = is_own


class MembershipError(StoreError):
    """The store is that of a member of a group, and was not opened as one; or the reverse."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path} {reason}. Nothing was changed. What one member wrote alone, no other would "
            "have: start the broker with the group's configuration, or have the member leave the "
            "group."
        )
        self.path = path
        self.reason = reason


class RefusedBatchError(StoreError):
    """A follower was sent a batch that does not continue its log, or that is not sound.

    Args: lsn, 0 if unknown; reason as text.
    """

    def __init__(self, lsn: int, reason: str) -> None:
        super().__init__(
            f"{batch_named(lsn)} was refused: {reason}. Nothing was changed. The follower has to "
            "connect to its leader again, and to agree with it on where their logs part."
        )
        self.lsn = lsn
        self.reason = reason


class RefusedCopyError(StoreError):
    """A follower was sent a copy of its leader's store that is not sound, or not whole."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"a copy of the leader's store for {path} was refused: {reason}. Nothing was changed. "
            "The follower has to connect to its leader again."
        )
        self.path = path
        self.reason = reason


class DivergedError(StoreError):
    """A follower has something that a leader asks it to discard, and that it must not discard."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path} cannot follow this leader: {reason}. Nothing was changed. Fill a new "
            "directory with a copy of the leader's store, and keep this one until all messages "
            "are accounted for."
        )
        self.path = path
        self.reason = reason


class DamageError(StoreError):
    """Bytes that were durable have changed (never a torn tail).

    Args: path; offset in bytes from the start of the file; reason as text.
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at offset {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class UnreadableFileError(DamageError):
    """A file that the store needs is missing, or the disk cannot read it.

    Args: path; reason, the operating system's words.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, 0, reason)
        self.args = (f"{path} cannot be read: {reason}",)


class UnreadableLogError(StoreError):
    """The disk cannot read the end of the log, so it is unknown whether it is a torn tail.

    Args: path; offset in bytes of the first page that cannot be read; reason as text.
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{path} cannot be read at offset {offset}: {reason}. Confirmed messages may be there, "
            "so the store was not opened and nothing was changed. Check the disk and its cables, "
            "and start again. If the disk has lost these bytes for good, `amqpstore repair` keeps "
            "everything that can be read."
        )
        self.path = path
        self.offset = offset
        self.reason = reason


class CatalogDamageError(DamageError):
    """A row of the catalog is damaged.

    Args: path, of the catalog's file; offset, of the page it is in, 0 if unknown; table and key, as
    far as they can be read; reason as text.
    """

    def __init__(self, path: str, offset: int, table: str, key: str, reason: str) -> None:
        super().__init__(
            path,
            offset,
            f"table {table}, row {key!r}: {reason}. Nothing was changed. `amqpstore check` says "
            "what else is damaged, and `amqpstore repair` repairs it",
        )
        self.table = table
        self.key = key


class MessageDamagedError(StoreError):
    """A message that its queue still holds cannot be read back from its segment; or with an index
    file `message_count` of them.

    `path` is that of the file, empty if unknown; `body_bytes` are the bytes of ready bodies that
    cannot be read, as far as known.
    """

    def __init__(
        self,
        message_id: int,
        reason: str,
        body_bytes: int = 0,
        *,
        path: str = "",
        message_count: int = 1,
    ) -> None:
        super().__init__(f"message {message_id} cannot be read: {reason}")
        self.message_id = message_id
        self.reason = reason
        self.body_bytes = body_bytes
        self.path = path
        self.message_count = message_count


class ReadLaterError(StoreError):
    """A message cannot be read now, because this process has no descriptor or memory left.

    It stays in its queue; the read should be repeated later.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be read now: {reason}. Nothing is lost: try again later.")
        self.path = path
        self.reason = reason


class PartlyReadError(ReadLaterError):
    """A large message is being read, a part of it at each call: call again soon."""


class DurabilityError(StoreError):
    """A write or an fdatasync failed. Fatal: nothing is confirmed, nothing is retried.

    After a failed fdatasync the kernel may have dropped the pages and will report the next one as a
    success, so the only honest reaction is to stop and to recover from what the disk holds. The
    same applies to any other error during a write, such as a lack of memory: it is unknown how much
    of it was done.
    """

    def __init__(self, path: str, cause: BaseException) -> None:
        advice = "free memory" if isinstance(cause, MemoryError) else "check the disk"
        reason = str(cause) or type(cause).__name__
        if isinstance(cause, OSError) and cause.filename == path and cause.strerror:
            reason = cause.strerror
        super().__init__(
            f"writing {path} failed: {reason}. Nothing after the last "
            f"confirm is promised. The broker stops; {advice}, then start it again."
        )
        self.path = path
        self.cause = cause


class DeposedError(DurabilityError):
    """A member of a group leads no longer. What it had not seen committed was not confirmed."""

    def __init__(self, path: str, reason: str) -> None:
        StoreError.__init__(
            self,
            f"{path} is not led from here any longer: {reason}. What was not confirmed is unknown "
            "to its clients. They go on at the new leader.",
        )
        self.path = path
        self.cause = self
        self.reason = reason


class TransactionEndedError(StoreError):
    """The transaction was committed or rolled back before this call."""

    def __init__(self) -> None:
        super().__init__("the transaction has ended; begin a new one")


class UndecidableError(StoreError):
    """A prepared transaction could not be committed completely, and so it is still prepared."""

    def __init__(self, label: object, reason: str) -> None:
        super().__init__(
            f"the prepared transaction {label!r} cannot be committed: {reason}. It stays prepared. "
            "Check the disk, start again, and commit it then; or roll it back."
        )
        self.label = label
        self.reason = reason


class DiskFullError(StoreError):
    """The disk has no space for more messages. Acks, purges and deletes still work, and free
    some.
    """

    def __init__(self, path: str, free_bytes: int, needed_bytes: int, problem: str = "") -> None:
        if problem:
            text = (
                f"{path} cannot be reached: {problem}. Was it removed, renamed or unmounted? No "
                "messages are accepted until it is back."
            )
        else:
            text = (
                f"the disk of {path} has {free_bytes} bytes free, but {needed_bytes} are needed to "
                "accept more messages. Free some space, or consume or purge messages. (A disk that "
                "can hold hardly any more files, as df -i shows, counts as full.)"
            )
        super().__init__(text)
        self.path = path
        self.free_bytes = free_bytes
        self.needed_bytes = needed_bytes


class NoMemoryError(DiskFullError):
    """The catalog cannot grow, because memory or address space is exhausted. Nothing was changed.

    For the caller it is the same as a full disk: the call can be repeated later.
    """

    def __init__(self, path: str, reason: str) -> None:
        StoreError.__init__(
            self,
            f"the catalog of {path} cannot grow: {reason}. Nothing is lost. Free memory, or raise "
            "the address space limit of the process, and try again.",
        )
        self.path = path
        self.free_bytes = self.needed_bytes = 0


class StoreClosedError(StoreError):
    """The store was closed, or stopped by a DurabilityError, before this call."""


class ForkedError(StoreError):
    """The store was opened by a process of which this one is a fork."""

    def __init__(self, path: str, process: int) -> None:
        super().__init__(
            f"the store in {path} was opened by process {process}, and this process was forked "
            "from it. Open the store after the fork, and in one process only."
        )
        self.path = path
        self.process = process


class ReenteredError(StoreError):
    """A signal handler or a finalizer used the store during a call of its own thread."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the store in {path} is in a call of this thread already: a signal handler or a "
            "finalizer (`__del__`, `weakref`) cannot use it. Have it put what it has to send into "
            "a `queue.SimpleQueue`, for a thread that uses the store."
        )
        self.path = path


class NotInTransactionError(StoreError):
    """Messages are sent and received in transactions only, and this one was not begun."""

    def __init__(self) -> None:
        super().__init__("the transaction has not begun; use it in a `with` statement")


class OtherOwnerError(StoreError):
    """The queues of the store were defined by another program, in another form.

    Args: expected, what the store was opened as; found, why it is not that.
    """

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(
            f"{path} is a store, but not {expected}: {found}. It was not changed. Name another "
            "directory, or open this one with the program that created it."
        )
        self.path = path
        self.expected = expected
        self.found = found


class QueueNotFoundError(StoreError):
    """There is no queue of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no queue {name!r}; declare it first")
        self.name = name


class QueueDiffersError(StoreError):
    """The queue exists, but with another history than it was declared with."""

    def __init__(self, name: str, declared: str, found: str) -> None:
        super().__init__(
            f"queue {name!r} exists with {found}, but was declared with {declared}. Declare it "
            "as it exists, or delete it first."
        )
        self.name = name
        self.declared = declared
        self.found = found
