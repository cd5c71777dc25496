"""The settings of a run, checked: the options of each workload and their defaults."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields

from amqpstore_tools.client.connection import Address
from amqpstore_tools.client.errors import CommandLineError

DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/%2F"
_UNTIMED_LIMIT_S = 600.0  # of a run that ends with a number of messages
_GRACE_S = 30.0  # in addition to the timed part, to drain the remaining messages
_BACKLOG_MESSAGES = 1_000_000
_MAX_WORKERS = 64
_MAX_CONNECTIONS = 4096
_STAMP_BYTES = 8

_MESSAGES: dict[str, object] = {"size": 1024, "persistent": True, "vary": False}
_PUBLISHING: dict[str, object] = {
    **_MESSAGES,
    "confirm": 2000,
    "producers": 1,
    "queues": 1,
    "queue_type": "",
}
_ROUTING: dict[str, object] = {"topic": False, "matches": 3}
_CONSUMING: dict[str, object] = {
    "prefetch": 500,
    "auto_ack": False,
    "ack_every": 1,
    "consumers": 1,
    "queues": 1,
}
# The options of each workload, with their defaults; any other option is a usage error.
WORKLOADS: Mapping[str, Mapping[str, object]] = {
    "through": {**_PUBLISHING, **_ROUTING, **_CONSUMING},
    "sync": {
        **_MESSAGES,
        "connections": 100,
        "processes": 1,
        "queues": 1,
        "queue_type": "",
    },
    "fill": {**_PUBLISHING, **_ROUTING},
    "drain": _CONSUMING,
    "backlog": {**_PUBLISHING, **_CONSUMING},
    "fanout": {**_PUBLISHING, **_CONSUMING, "queues": 4},
    "batches": {
        **_MESSAGES,
        "batch": 100,
        "by": "tx",
        "producers": 1,
        "queues": 10,
        "queue_type": "",
    },
    "connect": {"connections": 10},
    "latency": {**_PUBLISHING, **_ROUTING, **_CONSUMING, "rate": 1000},
}
ABOUT = {
    "through": "producers and consumers at once",
    "sync": "many connections, each waiting for the confirm of one message at a time",
    "fill": "publish only; the messages stay in the queue",
    "drain": "consume the messages in the queue",
    "backlog": "publish --messages, then consume them: both rates, and the memory in between",
    "fanout": "one fanout exchange to --queues queues, all consumed",
    "batches": "publish --batch messages, ack the batch before, and wait until both are safe",
    "connect": "open a connection and a channel, close both, and repeat",
    "latency": "publish at --rate and measure from the intended send time to the delivery",
}


@dataclass(frozen=True)
class BenchSettings:
    """One run. Options that the workload does not take have values that are ignored."""

    workload: str
    address: Address
    queue: str
    keep: bool
    seconds: float  # of the measured window; 0 when the run ends with `messages`
    messages: int  # 0 when the run ends with `seconds`, or with what the queue held
    warmup: float  # seconds before the measured window
    timeout: float  # seconds until the run is given up
    pid: int  # of the broker; 0: the process that listens on the port
    size: int = 1024  # bytes of a body
    persistent: bool = True
    vary: bool = False  # each message has properties of its own
    topic: bool = False  # through a topic exchange, to `matches` of the queues each
    matches: int = 1
    confirm: int = 0  # unconfirmed publishes allowed to a producer; 0 means no confirm mode
    prefetch: int = 0  # unacked deliveries allowed to a consumer
    auto_ack: bool = False
    ack_every: int = 1  # deliveries; acked at the end of the chunk in which they are reached
    producers: int = 1
    consumers: int = 1
    queues: int = 1
    queue_type: str = ""
    connections: int = 1
    processes: int = 1
    rate: int = 0  # messages a second
    batch: int = 1  # messages of a batch; each batch waits until it is safe
    by: str = "tx"  # what makes a batch safe: tx or confirms

    def parameters(self) -> dict[str, object]:
        """Return everything that influences the run, for the report, except the password."""
        names = ["queue", "seconds", "messages", "warmup", "timeout", *WORKLOADS[self.workload]]
        if "topic" in names and not self.topic:
            names.remove("matches")
        chosen: dict[str, object] = {name: getattr(self, name) for name in names}
        address = self.address
        return {"host": address.host, "port": address.port, "vhost": address.vhost, **chosen}

    def queue_names(self) -> list[str]:
        """Return the queue names of the run, all equally long."""
        if self.queues == 1:
            return [self.queue]
        return [f"{self.queue}-{index:04d}" for index in range(self.queues)]

    @classmethod
    def of(cls, args: argparse.Namespace) -> "BenchSettings":
        """Return the settings of a parsed command line.

        Raises:
            UsageError: an option does not fit the workload or another option.
        """
        workload: str = args.workload
        chosen = dict(WORKLOADS[workload])
        optional = {field.name for field in fields(cls)} - set(_COMMON)
        for name in sorted(optional):
            given = getattr(args, name, None)
            if given is None:
                continue
            if name not in chosen:
                raise CommandLineError(f"{workload} takes no --{name.replace('_', '-')}")
            chosen[name] = given
        settings = cls(**_common(args), **chosen)  # type: ignore[arg-type]
        settings._check()
        return settings

    def _check(self) -> None:
        takes = WORKLOADS[self.workload]
        for name, lowest, highest in _RANGES:
            number = getattr(self, name)
            if name in takes and not lowest <= number <= highest:
                option = f"--{name.replace('_', '-')}"
                raise CommandLineError(f"{option} must be {lowest} to {highest}, not {number}")
        if self.workload == "latency" and self.size < _STAMP_BYTES:
            raise CommandLineError(
                f"latency needs --size {_STAMP_BYTES} or more, for the send time"
            )
        if self.rate and self.rate < self.producers:
            raise CommandLineError("--rate must be at least 1 for each of --producers")
        if self.topic and self.matches > self.queues:
            raise CommandLineError("--topic needs at least as many --queues as --matches")
        if "prefetch" in takes and not self.auto_ack and 0 < self.prefetch < self.ack_every:
            raise CommandLineError("--ack-every above --prefetch would wait forever")
        if self.workload == "batches" and self.producers > self.queues:
            raise CommandLineError("batches needs at least one of --queues for each of --producers")
        if self.workload == "sync" and self.processes > self.connections:
            raise CommandLineError(
                "sync needs at least one of --connections for each of --processes"
            )
        if not 0 < len(self.queue.encode()) <= 200:
            raise CommandLineError("--queue must be 1 to 200 octets long")


_COMMON = (
    "workload",
    "address",
    "queue",
    "keep",
    "seconds",
    "messages",
    "warmup",
    "timeout",
    "pid",
)
_RANGES = (
    ("matches", 1, 1000),
    ("size", 0, 128 * 1024 * 1024),
    ("confirm", 0, 1_000_000),
    ("prefetch", 0, 65_535),
    ("ack_every", 1, 65_535),
    ("producers", 1, _MAX_WORKERS),
    ("consumers", 1, _MAX_WORKERS),
    ("queues", 1, 1000),
    ("connections", 1, _MAX_CONNECTIONS),
    ("processes", 1, _MAX_WORKERS),
    ("rate", 1, 1_000_000),
    ("batch", 1, 10_000),
)


def _common(args: argparse.Namespace) -> dict[str, object]:
    """Return the options that every workload takes, with their durations decided."""
    if args.seconds is not None and args.messages is not None:
        raise CommandLineError("give --seconds or --messages, not both")
    if args.messages is not None and args.messages < 1:
        raise CommandLineError(f"--messages must be 1 or more, not {args.messages}")
    counted = args.messages is not None or args.workload in ("drain", "backlog")
    if args.workload == "connect" and args.messages is not None:
        raise CommandLineError("connect takes no --messages")
    if args.workload in ("drain", "backlog") and args.seconds is not None:
        raise CommandLineError(
            f"{args.workload} takes no --seconds: it ends when the messages are gone"
        )
    seconds = 0.0 if counted else (10.0 if args.seconds is None else args.seconds)
    if not counted and seconds <= 0:
        raise CommandLineError(f"--seconds must be above 0, not {seconds}")
    warmup = args.warmup if args.warmup is not None else (0.0 if counted else 1.0)
    if warmup < 0:
        raise CommandLineError(f"--warmup must not be negative: {warmup}")
    timeout = args.timeout
    if timeout is None:
        timeout = warmup + (_UNTIMED_LIMIT_S if counted else seconds + _GRACE_S)
    if timeout <= 0:
        raise CommandLineError(f"--timeout must be above 0, not {timeout}")
    messages = args.messages or (_BACKLOG_MESSAGES if args.workload == "backlog" else 0)
    return {
        "workload": args.workload,
        "address": Address.parse(args.url),
        "queue": args.queue,
        "keep": args.keep or args.workload == "fill",
        "seconds": seconds,
        "messages": messages,
        "warmup": warmup,
        "timeout": timeout,
        "pid": args.pid,
    }
