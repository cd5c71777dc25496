"""Options of a store."""

from __future__ import annotations

from typing import NamedTuple

from amqpstore.format.compression import Compressor
from amqpstore.format.limits import LIMITS, StoreLimits
from amqpstore.queues.arguments import check_bool, check_whole


class Options(NamedTuple):
    """Options of a store. Sizes in bytes, times in ms.

    `segment_bytes`: a segment of this size gets no further batch. `memory_bytes`: of messages that
    wait in memory. A checkpoint is due after `checkpoint_bytes` of log, `checkpoint_messages`
    changes, where messages in several queues count in each, or `checkpoint_ms`. Compaction reads
    and writes `compaction_bytes_s` at most.

    Bodies of at least `compress_from_bytes` are compressed with zstd, 0 disables it; with
    `train_dictionary` compaction compresses small ones too, with a dictionary that is trained once.

    Publishers are refused while less than `least_free_bytes` of the disk is free, and
    `reserve_bytes` are reserved for everything else. `limits` are sizes that do not have to be
    changed.
    """

    segment_bytes: int = 16 << 20
    memory_bytes: int = 32 << 20
    checkpoint_bytes: int = 64 << 20
    checkpoint_messages: int = 131_072
    checkpoint_ms: int = 5_000
    compaction_bytes_s: int = 64 << 20
    compress_from_bytes: int = 0
    compression_level: int = 3
    train_dictionary: bool = False
    least_free_bytes: int = 128 << 20
    reserve_bytes: int = 64 << 20
    limits: StoreLimits = LIMITS


DEFAULTS = Options()


_LEAST = {"segment_bytes": 1, "compression_level": -(1 << 31)}


def check_options(options: Options) -> None:
    """Check options when a store is opened: later they would fail during its work.

    Raises: TypeError, ValueError.
    """
    if not isinstance(options, Options):
        raise TypeError(f"options must be Options, not {type(options).__name__}")
    check_bool("option train_dictionary", options.train_dictionary)
    for name, value in options._asdict().items():
        if name not in {"limits", "train_dictionary"}:
            check_whole(f"option {name}", value, _LEAST.get(name, 0))
    compressor_of(options)


def compressor_of(options: Options) -> Compressor | None:
    """Return a compressor, for one thread; None if bodies are not compressed."""
    if not options.compress_from_bytes:
        return None
    return Compressor(options.compress_from_bytes, options.compression_level)
