"""`amqpstore serve`: the broker, until a signal stops it."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
from importlib.metadata import version

from amqpstore import (
    DamageError,
    DurabilityError,
    FormatVersionError,
    MembershipError,
    NotAStoreError,
    OtherOwnerError,
    StoreError,
    StoreLockedError,
    UnfinishedRepairError,
    UnreadableLogError,
)
from amqpstore.system.durability import is_of_failed_disk, reason_of
from amqpstore.system.files import raise_descriptor_limit
from amqpstore_tools.offline.terminal import shown_lines

_log = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_LOCKED = 3
EXIT_NOT_A_STORE = 4
EXIT_DAMAGED = 5
EXIT_DISK_FAILED = 70


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the configuration."""
    # Imported here, as is the broker in `run`, so that the other verbs start without it.
    from amqpstore_server.config.options import add_options

    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the broker. Returns the exit code."""
    from amqpstore_server import app, logs
    from amqpstore_server.administration import definitions
    from amqpstore_server.config.effects import without_effect
    from amqpstore_server.config.keys import ConfigError
    from amqpstore_server.config.options import sources_of
    from amqpstore_server.logs.streams import decouple

    decouple()
    try:
        sources = sources_of(arguments)
        effective = sources.load()
        logs.set_up(effective.config.log_level, effective.config.log_format)
        _log.info("configuration", extra={"file": effective.path or "none"})
        for name in effective.unknown_variables:
            _log.warning("unknown environment variable", extra={"variable": name})
        for name, needed in without_effect(effective.config):
            _log.warning("key without effect", extra={"key": name, "needs": needed})
        before, most = raise_descriptor_limit()
        _log.debug("descriptors", extra={"before": before, "most": most})
        app.serve(effective.config, lambda: sources.load().config, _print_ready)
    except (ConfigError, definitions.DefinitionsError) as error:
        return _fail(EXIT_USAGE, error)
    except StoreLockedError as error:
        return _fail(EXIT_LOCKED, error)
    except (NotAStoreError, OtherOwnerError, FormatVersionError, MembershipError) as error:
        return _fail(EXIT_NOT_A_STORE, error)
    except UnfinishedRepairError as error:
        return _fail(EXIT_DAMAGED, error)
    except (DamageError, UnreadableLogError) as error:
        return _fail(EXIT_DAMAGED, error, _what_to_do(effective.config.data))
    except DurabilityError as error:
        return _fail(EXIT_DISK_FAILED, error)
    except PermissionError as error:
        return _fail(EXIT_NOT_A_STORE, error, _who_may(effective.config.data))
    except (StoreError, OSError) as error:
        code = EXIT_DISK_FAILED if is_of_failed_disk(error) else EXIT_FAILED
        return _fail(code, error, _where(error, effective.config.data))
    return 0


def _print_ready(urls: list[str], data_directory: str, password: str) -> None:
    """Print the one line that says connections are accepted, and the password of the administrator
    that the broker has added: it is on stdout only, never in the log.
    """
    sys.stderr.flush()  # whoever reads both finds what the start has logged
    print(  # noqa: T201
        f"amqpstore {version('amqpstore')} ready: {' '.join(urls)} data {data_directory}"
    )
    if password:
        print(  # noqa: T201
            f"amqpstore: user administrator added, password {password} (shown only now)"
        )


def _what_to_do(directory: str) -> str:
    name = shlex.quote(os.path.abspath(directory))
    return (
        f"`amqpstore check {name}` shows the damage, and `amqpstore repair {name} --plan "
        "plan.json` what can be kept"
    )


def _where(error: Exception, directory: str) -> str:
    """Say where an error of the system may have come from that names no file."""
    if not isinstance(error, OSError) or error.filename is not None:
        return ""
    return (
        f"the system says so, of no file in particular; the data directory is {directory}: look "
        "whether its disk is well"
    )


def _who_may(path: str) -> str:
    """Say who owns a file that could not be opened, and who asked."""
    try:
        owner = os.stat(path)
    except OSError:
        return ""
    user, group = os.geteuid(), os.getegid()
    text = f"it belongs to uid {owner.st_uid}, and the broker runs as uid {user}"
    return text if owner.st_uid == user else f"{text}: run `chown -R {user}:{group}` on it"


def _fail(code: int, error: Exception, hint: str = "") -> int:
    text = ". ".join(filter(None, (reason_of(error), hint)))
    sys.stderr.write(f"amqpstore serve: {shown_lines(text)}\n")
    return code
