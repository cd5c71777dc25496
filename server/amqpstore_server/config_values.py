"""Values that follow from the configuration, and some of them from the machine too."""

from __future__ import annotations

import logging
import os
import shutil

from amqpstore import Options, Store
from amqpstore.provenance.client_trails import FILE_BYTES, ClientTrails
from amqpstore_server.clients.limits import Limits
from amqpstore_server.config.config import Config
from amqpstore_server.loop.alarms import available_bytes, watermark_bytes

_log = logging.getLogger(__name__)

_FREE_BYTES = 1 << 30


def store_options(config: Config) -> Options:
    """Return the options of the store."""
    return Options(
        segment_bytes=config.segment_bytes,
        memory_bytes=config.memory_bytes,
        least_free_bytes=least_free_bytes(config),
        compress_from_bytes=config.compress_from_bytes,
    )


def least_free_bytes(config: Config) -> int:
    """Return the option of the store. By default publishers are blocked below 1 GiB, or three
    segments if that is more, but never for more than a tenth of the disk.
    """
    if config.least_free_bytes >= 0:
        return config.least_free_bytes
    path = os.path.abspath(config.data)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    blocked_below = max(_FREE_BYTES, 3 * config.segment_bytes)
    return min(blocked_below, shutil.disk_usage(path).total // 10) // 2


def memory_watermark_bytes(config: Config) -> int:
    """Return the memory above which publishers are blocked; 0 means never."""
    return watermark_bytes(config.memory_watermark, available_bytes())


def trails_of(config: Config, store: Store) -> ClientTrails | None:
    """Return what notes who published messages and who got them; None if that is disabled."""
    if not config.provenance_bytes:
        return None
    try:
        file_bytes = min(FILE_BYTES, config.provenance_bytes // 2)
        return store.provenance.client_trails(config.provenance_bytes // file_bytes, file_bytes)
    except OSError as error:
        _log.warning("who publishes and receives messages is not noted: %s", error)
        return None


def client_limits(config: Config) -> Limits:
    """Return the limits of a client."""
    return Limits(
        channel_max=config.channel_max,
        frame_max=config.frame_max,
        heartbeat_s=config.heartbeat_s,
        max_message_bytes=config.max_message_bytes,
        send_timeout_s=config.send_timeout_s,
        consumers=config.max_consumers,
        prefetch=config.max_prefetch,
        # Whatever is configured: a message of the largest size can be received while another is
        # pending.
        unfinished_bytes=max(config.connection_bytes, 2 * config.max_message_bytes),
    )
