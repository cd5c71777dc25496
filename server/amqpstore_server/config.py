"""Configuration: a TOML file, checked against its types and ranges before anything is started."""

from __future__ import annotations

import tomllib
from typing import Annotated

import msgspec

from amqpstore.files import open_regular

_MAX_FILE_BYTES = 1 << 20

_Path = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]+$")]


class ConfigError(Exception):
    """The configuration cannot be used. The message names the file, the key and the valid
    values.
    """


class Config(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """All configuration settings. Sizes are in bytes, times in seconds.

    `memory_bytes` limits the messages that wait in memory. Publishers are blocked while less than
    twice `least_free_bytes` of the disk is free. Bodies of at least `compress_from_bytes` are
    compressed; 0 disables compression. `listen` are HOST:PORT pairs, an IPv6 address in brackets;
    port 0 lets the system choose. `names` is the rule for names of queues and exchanges: "lenient"
    as in RabbitMQ, "strict" as in AMQP 0-9-1, or "0-10". `definitions` is a file as RabbitMQ
    exports it, read at start and on SIGHUP. `product` and `version` are sent to clients; an empty
    version means amqpstore's own. A client that reads nothing for `send_timeout_s` is closed. So is
    a client whose partial bodies and open transactions take more than `connection_bytes`, and the
    one that takes the most when those of all clients exceed `connections_bytes`.
    """

    data: _Path = "data"
    listen: Annotated[list[str], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["127.0.0.1:5672"]
    )
    log_level: Annotated[str, msgspec.Meta(pattern="^(debug|info|warning|error)$")] = "info"
    segment_bytes: Annotated[int, msgspec.Meta(ge=1 << 16, le=1 << 30)] = 16 << 20
    memory_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 64 << 20
    least_free_bytes: Annotated[int, msgspec.Meta(ge=0)] = 128 << 20
    compress_from_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_message_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 128 << 20
    frame_max: Annotated[int, msgspec.Meta(ge=8192, le=1 << 24)] = 131_072
    channel_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 2047
    names: Annotated[str, msgspec.Meta(pattern="^(lenient|strict|0-10)$")] = "lenient"
    definitions: Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")] = ""
    product: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] = "amqpstore"
    version: Annotated[str, msgspec.Meta(max_length=255)] = ""
    heartbeat_s: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 60
    send_timeout_s: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 300
    connection_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 256 << 20
    connections_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 1 << 30


def load(path: str) -> Config:
    """Read the configuration in a file. Raises: ConfigError."""
    try:
        with open(open_regular(path), "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            most = f"{_MAX_FILE_BYTES >> 10} KiB"
            raise ConfigError(f"cannot read the configuration {path}: it has more than {most}")
        return msgspec.convert(tomllib.loads(content.decode()), Config)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: also invalid UTF-8, a number of 5,000 digits, deeply nested
        # lists.
        raise ConfigError(f"{path} is not TOML: {error}") from None


def host_and_port(address: str) -> tuple[str, int]:
    """Split HOST:PORT or [IPv6]:PORT. Raises: ConfigError."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ConfigError(
            f"cannot listen on {address!r}: give HOST:PORT or [IPV6]:PORT, a port from 0 to 65535"
        )
    return host, int(port)
