"""Checks of arguments, made in the call, before anything is changed.

The log would only notice a wrong message when it encodes the batch. A batch contains messages of
many publishers, and one that cannot be encoded stops the store for all of them. So does an error in
the midst of a change. So each value of a caller is checked here, whichever way it comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import TypeVar

from amqpstore.format.message import Envelope, Message
from amqpstore.format.runs import Run
from amqpstore.queues.queue import Queue

T = TypeVar("T")

MAX_WHOLE = (1 << 63) - 1
"""The largest number that every part of a store can hold."""

MAX_LABEL_BYTES = 64 << 10
"""The longest label of a prepared transaction: a row of the catalog has it."""


def check_messages(messages: Sequence[Message]) -> None:
    """Raises: TypeError, ValueError, if these cannot be published together."""
    for message in messages:
        if not isinstance(message, Message):
            raise TypeError(f"a message must be a Message, not {_kind(message)}")
        if not isinstance(message.envelope, Envelope):
            raise TypeError(f"a message must have an Envelope, not {_kind(message.envelope)}")
    kinds = {message.body.__class__ for message in messages}
    # Only `bytes` will do: the owner of a `bytearray` could change it between the call and the
    # write.
    if kinds != {bytes}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
        raise ValueError(f"a message to publish must have a body of type bytes, not {names}")
    if len({message.envelope.persistent for message in messages}) > 1:
        raise ValueError("messages that are published together are all persistent, or none is")


def check_many(what: str, values: Iterable[T]) -> list[T]:
    """Return values as a list. Raises: TypeError, for text, bytes, or what is no iterable."""
    if isinstance(values, (str, bytes, bytearray, memoryview)) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be in a list, not {_kind(values)}")
    return list(values)


def check_queue(queue: Queue) -> None:
    """Raises: TypeError, if it is not a queue.

    What is called for each message or two looks at the class first, and calls this only for another
    one: the call would be a tenth of its time.
    """
    if not isinstance(queue, Queue):
        raise TypeError(
            "a queue must be a Queue, from `Store.create_queue` or `Store.queues`, not "
            f"{_kind(queue)}"
        )


def check_own(queues: Iterable[Queue], own: Mapping[int, Queue]) -> list[Queue]:
    """Return queues. Args: own, all those of the store, by id.

    Raises: TypeError, if they are not queues; ValueError, if one is not among its own ones.
    """
    found = check_many("queues", queues)
    for queue in found:
        check_queue(queue)
        if own.get(queue.id) is not queue:
            raise ValueError(
                f"the queue with id {queue.id} was deleted, or is another store's: pass one of "
                "`Store.queues`"
            )
    return found


def check_taken(queue: Queue, run: Run) -> None:
    """Raises: TypeError, if these are not a queue, and a run that was taken from one."""
    check_queue(queue)
    if not isinstance(run, Run):
        raise TypeError(
            "a run must be a Run, as `Store.take` returns it if a message is ready and can be "
            f"read, not {_kind(run)}"
        )


def messages_of(envelope: Envelope, messages: Iterable[Message | bytes]) -> list[Message]:
    """Return messages to publish. Args: envelope, of those that are bytes.

    Raises: TypeError, ValueError, as `check_messages`; but there may be none.
    """
    found: list[Message] = []
    for one in messages:
        if isinstance(one, bytes):
            found.append(Message(envelope, one))
        elif isinstance(one, Message):
            found.append(one)
        else:
            raise TypeError(f"a message must be bytes or a Message, not {_kind(one)}")
    if found:
        check_messages(found)
    return found


def check_names(names: str | Iterable[str]) -> list[str]:
    """Return the names of queues, of one or of several. Raises: TypeError, ValueError."""
    found = [names] if isinstance(names, str) else check_many("names of queues", names)
    if not found:
        raise ValueError("a message needs at least one queue")
    for name in found:
        check_str("a queue name", name)
    # Twice in one queue, a message would be delivered twice under one id.
    if len(set(found)) < len(found):
        raise ValueError("messages are put in a queue once: a queue is named twice")
    return found


def check_str(what: str, text: str) -> None:
    """Raises: TypeError, if it is not text."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {_kind(text)}")


def check_text(what: str, text: str, most_bytes: int) -> str:
    """Return a text. Raises: TypeError, ValueError, if it cannot be stored."""
    check_str(what, text)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} must be text that UTF-8 can encode: {error}") from None
    if size > most_bytes:
        raise ValueError(f"{what} may have at most {most_bytes} bytes, not {size}")
    return text


def check_whole(what: str, number: int, least: int = 0, most: int = MAX_WHOLE) -> int:
    """Return a whole number.

    Raises: TypeError, if it is not one; ValueError, if it is not from `least` to `most`.
    """
    try:
        found = index(number)
    except TypeError:
        found = None
    # `operator.index` takes True for 1.
    if found is None or isinstance(number, bool):
        raise TypeError(f"{what} must be a whole number, not {_kind(number)}")
    if found < least:
        raise ValueError(f"{what} must be at least {least}, not {found}")
    if found > most:
        raise ValueError(f"{what} must be at most {most}, not {found}")
    return found


def check_bool(what: str, flag: object) -> None:
    """Raises: TypeError, if it is not True or False."""
    if not isinstance(flag, bool):
        raise TypeError(f"{what} must be a bool, not {_kind(flag)}")


def check_real(what: str, number: float) -> float:
    """Return a number that may have a fraction. Raises: TypeError, ValueError, if it is not one."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{what} must be a number, not {_kind(number)}")
    try:
        is_nan = math.isnan(number)
    except OverflowError:
        # An integer beyond the largest float, which `isnan` cannot convert.
        raise ValueError(f"{what} must be a number that a float can hold") from None
    if is_nan:
        # Every comparison with nan is false: a wait until then would never end.
        raise ValueError(f"{what} must be a number, not nan")
    return number


def check_span(first_ms: float, last_ms: float | None) -> None:
    """Raises: TypeError, ValueError, if these are no times, in ms since 1970."""
    check_real("a time", first_ms)
    if last_ms is not None:
        check_real("a time", last_ms)


def _kind(value: object) -> str:
    return value.__class__.__name__
