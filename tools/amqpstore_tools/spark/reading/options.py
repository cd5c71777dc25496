"""Options of the format, checked."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import msgspec

from amqpstore_tools.offline.times import time_ms
from amqpstore_tools.spark.reading.schemas import VIEWS
from amqpstore_tools.spark.reading.wanted import ALL, Wanted

READ_VIEWS = ("messages", "transactions", "queues", "segments", "findings")
MODES = ("tap", "consume")

_ROW_BY_ROW = ("messages", "transactions")
WANTED = ("vhost", "queue", "state", "segments", "from", "to")
_SEGMENTS = re.compile(r"(\d+)(-)?(\d+)?")


class OptionError(ValueError):
    """An option is invalid."""


@dataclass(frozen=True)
class ReadOptions:
    """Options of `spark.read`: the store in `path`, one of its views, and how to read it.

    `wanted` selects rows of views `messages` and `transactions`; with `pushdown` the filters of a
    query do so too. `lease_directory` is for the hard links, empty for the one beside the store;
    `lease_idle_s` is how long they stay without being read. A task reads about
    `partition_bytes` of segments; 0 means a size that suits the store.
    """

    path: str
    view: str = "messages"
    columns: tuple[str, ...] | None = None
    bodies: bool = True
    wanted: Wanted = ALL
    pushdown: bool = False
    partition_bytes: int = 0
    lease_directory: str = ""
    lease_idle_s: int = 3600

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Raises: OptionError."""
        view = options.get("view", "messages")
        if view not in READ_VIEWS:
            raise OptionError(f"there is no view {view!r}: use one of {', '.join(READ_VIEWS)}")
        return cls(
            path=store_directory(options),
            view=view,
            columns=columns_of(options, view),
            bodies=boolean(options, "bodies", default=True),
            wanted=wanted_by(options, view),
            pushdown=boolean(options, "pushdown", default=False) and view in _ROW_BY_ROW,
            partition_bytes=number(options, "partition_bytes", 0, least=0),
            lease_directory=directory(options.get("lease_directory", "")),
            lease_idle_s=number(options, "lease_idle_s", 3600, least=1),
        )


def wanted_by(options: Mapping[str, str], view: str) -> Wanted:
    """Return the rows that options select. Raises: OptionError."""
    known = {"messages": WANTED, "transactions": [one for one in WANTED if one != "state"]}
    for name in WANTED:
        if name in options and name not in known.get(view, ()):
            views = " and ".join(one for one, names in known.items() if name in names)
            raise OptionError(f"option {name} is for {views}, not for view {view}")
    before = _time(options, "to")
    segments = _SEGMENTS.fullmatch(options.get("segments", "0-"))
    if segments is None:
        raise OptionError(
            f"option segments is a number, or two as in 3-7, not {options['segments']!r}"
        )
    first, dash, last = segments.groups()
    return Wanted(
        vhosts=_names(options, "vhost"),
        queues=_names(options, "queue"),
        states=_names(options, "state"),
        least_segment=int(first) or None,
        most_segment=int(last or first) if last or not dash else None,
        least_ms=_time(options, "from"),
        # Bounds are inclusive, and `to` is not.
        most_ms=None if before is None else before - 1,
    )


def _names(options: Mapping[str, str], name: str) -> frozenset[str] | None:
    """Parse one name, or several as a JSON list."""
    if name not in options:
        return None
    text = options[name]
    if not text.startswith("["):
        return frozenset([text])
    try:
        return frozenset(msgspec.json.decode(text, type=list[str]))
    except msgspec.MsgspecError:
        raise OptionError(
            f"option {name} is a name or a JSON list of names, not {text!r}"
        ) from None


def _time(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    try:
        return time_ms(options[name])
    except argparse.ArgumentTypeError as error:
        raise OptionError(f"option {name}: {error}") from None


def columns_of(options: Mapping[str, str], view: str) -> tuple[str, ...] | None:
    """Return the requested columns; None for all. Raises: OptionError."""
    if "columns" not in options:
        return None
    names = tuple(name.strip() for name in options["columns"].split(",") if name.strip())
    known = [name for name, _ in VIEWS[view]]
    for name in names:
        if name not in known:
            raise OptionError(f"view {view} has no column {name!r}; it has {', '.join(known)}")
    if not names:
        raise OptionError("option columns names no column")
    return names


def store_directory(options: Mapping[str, str]) -> str:
    """Return the directory that `load` was called with. Raises: OptionError."""
    return directory(required(options, "path", "load(DIR) must name the store"))


def directory(text: str) -> str:
    """Return a directory of an option as an absolute path, since Spark's processes may be in
    others; also of a URL such as file:///var/lib/store, as Spark takes it. Empty, if the text is.
    """
    path = unquote(urlsplit(text).path) if text.startswith("file:") else text
    return os.path.abspath(path) if path else ""


def boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Raises: OptionError."""
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"option {name} is true or false, not {text!r}")
    return text == "true"


def number(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    """Raises: OptionError."""
    text = options.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise OptionError(f"option {name} is a number from {least} on, not {text!r}")
    return int(text)


def choice(options: Mapping[str, str], name: str, default: str, among: Sequence[str]) -> str:
    """Raises: OptionError."""
    text = options.get(name, default)
    if text not in among:
        raise OptionError(f"option {name} is one of {', '.join(among)}, not {text!r}")
    return text


def required(options: Mapping[str, str], name: str, hint: str) -> str:
    if not options.get(name):
        raise OptionError(f"option {name} is missing: {hint}")
    return options[name]


@dataclass(frozen=True)
class TapOptions:
    """Options of `spark.readStream` in mode tap: the store in `path`, and where to start.

    A micro-batch ends about `max_bytes` of the log after its start. Leases as in `ReadOptions`.
    """

    path: str
    start: str = "earliest"
    max_bytes: int = 64 << 20
    fail_on_loss: bool = True
    lease_directory: str = ""
    lease_idle_s: int = 86_400

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TapOptions:
        """Raises: OptionError."""
        return cls(
            path=store_directory(options),
            start=choice(options, "start", "earliest", ("earliest", "latest")),
            max_bytes=number(options, "max_bytes", 64 << 20, least=1),
            fail_on_loss=boolean(options, "fail_on_loss", default=True),
            lease_directory=directory(options.get("lease_directory", "")),
            lease_idle_s=number(options, "lease_idle_s", 86_400, least=1),
        )


@dataclass(frozen=True)
class ConsumeOptions:
    """Options of `spark.readStream` in mode consume: a queue of the broker at `url`.

    `stream` names this consumer: the broker stores its progress under that name. A micro-batch has
    up to `max_messages`, and about `max_bytes` of bodies; a task gets `task_messages` of them.
    """

    url: str
    queue: str
    stream: str
    max_messages: int = 50_000
    max_bytes: int = 64 << 20
    task_messages: int = 10_000

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ConsumeOptions:
        """Raises: OptionError."""
        return cls(
            url=required(options, "url", 'option("url", "amqp://USER:PASSWORD@HOST/VHOST")'),
            queue=required(options, "queue", "which queue to consume"),
            stream=required(options, "stream", "a name of your own for this consumer"),
            max_messages=number(options, "max_messages", 50_000, least=1),
            max_bytes=number(options, "max_bytes", 64 << 20, least=1),
            task_messages=number(options, "task_messages", 10_000, least=1),
        )


@dataclass(frozen=True)
class PublishOptions:
    """Options of `df.write` and `df.writeStream`: an exchange of the broker at `url`.

    `routing_key` is for rows without a column of that name. `stream` names this writer: the broker
    stores its progress under that name; empty for a single use. `batch_id` is for `df.write` with
    such a name.
    """

    url: str
    exchange: str = ""
    routing_key: str = ""
    stream: str = ""
    batch_id: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_stream: bool) -> PublishOptions:
        """Raises: OptionError."""
        stream = options.get("stream", "")
        if is_stream and not stream:
            raise OptionError("option stream is missing: a name of your own for this writer")
        batch_id = number(options, "batch_id", 0, least=0) if "batch_id" in options else None
        if not is_stream and (batch_id is None) == bool(stream):
            raise OptionError("options stream and batch_id belong together")
        return cls(
            url=required(options, "url", 'option("url", "amqp://USER:PASSWORD@HOST/VHOST")'),
            exchange=options.get("exchange", ""),
            routing_key=options.get("routing_key", ""),
            stream=stream,
            batch_id=batch_id,
        )
