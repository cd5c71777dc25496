"""`amqpstore serve`: the broker, until a signal stops it."""

from __future__ import annotations

import argparse
import logging
import sys
from importlib.metadata import version

from amqpstore import (
    DurabilityError,
    NotAStoreError,
    OtherOwnerError,
    StoreError,
    StoreLockedError,
)
from amqpstore.files import raise_descriptor_limit
from amqpstore_tools.offline.exits import text_of
from amqpstore_tools.offline.terminal import shown_lines

_log = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_LOCKED = 3
EXIT_NOT_A_STORE = 4
EXIT_DISK_FAILED = 70


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serve`; they override the configuration file."""
    parser.add_argument("--data", metavar="DIR", help="data directory (default: ./data)")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        action="append",
        help="address for AMQP, may be repeated; port 0 lets the system choose "
        "(default: 127.0.0.1:5672)",
    )
    parser.add_argument("--config", metavar="FILE", help="configuration file (TOML)")


def run(arguments: argparse.Namespace) -> int:
    """Run the broker. Returns the exit code."""
    # Imported here, so that the other verbs start without the broker.
    from amqpstore_server import app, config, definitions, logs

    try:
        settings = config.load(arguments.config) if arguments.config else config.Config()
        settings.data = arguments.data or settings.data
        settings.listen = arguments.listen or settings.listen
        logs.set_up(settings.log_level)
        before, most = raise_descriptor_limit()
        _log.debug("descriptors", extra={"before": before, "most": most})
        app.serve(settings, _print_ready)
    except (config.ConfigError, definitions.DefinitionsError) as error:
        return _fail(EXIT_USAGE, error)
    except StoreLockedError as error:
        return _fail(EXIT_LOCKED, error)
    except (NotAStoreError, OtherOwnerError) as error:
        return _fail(EXIT_NOT_A_STORE, error)
    except DurabilityError as error:
        return _fail(EXIT_DISK_FAILED, error)
    except (StoreError, OSError) as error:
        return _fail(EXIT_FAILED, error)
    return 0


def _print_ready(addresses: list[tuple[str, int]], data_directory: str) -> None:
    urls = " ".join(
        f"amqp://[{host}]:{port}" if ":" in host else f"amqp://{host}:{port}"
        for host, port in addresses
    )
    print(  # noqa: T201 - the one line that says connections are accepted
        f"amqpstore {version('amqpstore')} ready: {urls} data {data_directory}", flush=True
    )


def _fail(code: int, error: Exception) -> int:
    sys.stderr.write(f"amqpstore serve: {shown_lines(text_of(error))}\n")
    return code
