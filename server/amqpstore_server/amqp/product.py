"""The product names in the handshake, and how clients react to the server's."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from amqpstore_server.protocol import methods

_CAPABILITIES = (
    "publisher_confirms",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "exchange_exchange_bindings",
    "consumer_priorities",
    "per_consumer_qos",
    "direct_reply_to",
    "authentication_failure_close",
    "dtx",
    "basic.get.wait",
)


class Product(NamedTuple):
    """The name and version that the server reports; some clients switch features by them."""

    name: str
    version: str


@lru_cache(maxsize=64)
def start(product: Product, mechanisms: tuple[str, ...]) -> bytes:
    """Return the payload of the first method of a connection. It is the same for most clients."""
    return methods.ConnectionStart(
        version_major=0,
        version_minor=9,
        server_properties={
            "product": product.name,
            "version": product.version,
            "platform": f"Python {platform.python_version()}",
            "copyright": "The amqpstore authors",
            "information": "Licensed under the Apache License 2.0",
            "capabilities": dict.fromkeys(_CAPABILITIES, True),
        },
        mechanisms=" ".join(mechanisms).encode(),
        locales=b"en_US",
    ).encode()


def shares_prefetch(product: Product, client: Mapping[str, Any]) -> bool:
    """Tell whether a client expects basic.qos without `global` to limit the whole channel.

    The specification says so. RabbitMQ limits each new consumer instead, and clients rely on that;
    but py-amqp, and with it kombu and Celery, follow the specification if the product's name is not
    RabbitMQ. Celery then raises the limit of running consumers for each task with an ETA, and would
    stop receiving if that had no effect.
    """
    return client.get("product") == "py-amqp" and product.name != "RabbitMQ"
