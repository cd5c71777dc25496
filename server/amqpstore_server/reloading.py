"""Reloading: on SIGHUP the configuration is read again, and applied to the running broker.

All of it or nothing: first every part checks what it would apply, and reads the files it needs, and
only when nothing is wrong they are applied, one after the other. What fails there fails before it
has changed anything; so the one part that may, the definitions, has to be the first.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import trio

from amqpstore_server import logs
from amqpstore_server.administration.definitions import Definitions, DefinitionsError, load
from amqpstore_server.broker.monitoring.faults import FATAL
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.clients.limits import Limits
from amqpstore_server.config.config import KEYS, Config, conflicts
from amqpstore_server.config.effects import without_effect
from amqpstore_server.config.keys import ConfigError
from amqpstore_server.config_values import client_limits, least_free_bytes, memory_watermark_bytes
from amqpstore_server.listening.doors import Doors
from amqpstore_server.logins.logins import LOGIN_KEYS, Logins, tokens_of
from amqpstore_server.loop.alarms import Alarms
from amqpstore_server.loop.tls import TLS_KEYS

if TYPE_CHECKING:
    from amqpstore_server.logins.certificates import Certificates

_log = logging.getLogger(__name__)

Apply = Callable[[], Awaitable[None]]
"""Applies what was prepared."""


@dataclass(frozen=True)
class Reloadable:
    """A part of the broker that takes over live keys.

    `keys` are their names. `prepare` is given the new configuration, in which all other keys have
    the running values. It changes nothing, and returns what applies it.
    It may raise ConfigError or DefinitionsError.
    """

    keys: tuple[str, ...]
    prepare: Callable[[Config], Awaitable[Apply]]

    @classmethod
    def unchecked(cls, keys: tuple[str, ...], apply: Callable[[Config], None]) -> Reloadable:
        """Make a part for which any valid configuration is right, and whose `apply` cannot fail."""

        async def prepare(config: Config) -> Apply:
            async def apply_it() -> None:
                apply(config)

            return apply_it

        return cls(keys, prepare)


def reloadables_of(
    import_definitions: Callable[[Definitions, str], Awaitable[None]],
    certificates: Certificates | None,
    logins: Logins,
    services: BrokerServices,
    alarms: Alarms,
    doors: Doors,
    set_limits: Callable[[Limits], None],
    reload_member: Callable[[Config], None],
) -> tuple[Reloadable, ...]:
    """Return the parts of a running broker to which a new configuration is applied, in this order.

    Args: import_definitions, imports those of a file, and is told its path; set_limits, is given
    the limits of clients that connect from now on; reload_member, is given the configuration if
    this broker is a member of a group.
    """

    def apply_to_store(config: Config) -> None:
        services.store.memory.limit(config.memory_bytes)
        services.store.space.require(least_free_bytes(config))

    def apply_to_alarms(config: Config) -> None:
        alarms.watermark_bytes = memory_watermark_bytes(config)

    def apply_to_broker(config: Config) -> None:
        services.consumer_timeout_ms = config.consumer_timeout_s * 1000
        services.purge_undo_s = config.purge_undo_s

    def apply_to_doors(config: Config) -> None:
        doors.limit(config.max_connections, config.max_connections_per_peer, config.accepts_per_s)

    return (
        _definitions(import_definitions),
        _certificates(certificates),
        _logins(logins),
        *member_reloadables(reload_member),
        Reloadable.unchecked(("memory_bytes", "least_free_bytes"), apply_to_store),
        Reloadable.unchecked(("memory_watermark",), apply_to_alarms),
        Reloadable.unchecked(("consumer_timeout_s", "purge_undo_s"), apply_to_broker),
        Reloadable.unchecked(
            ("max_connections", "max_connections_per_peer", "accepts_per_s"), apply_to_doors
        ),
        # Those from connections_bytes on are read from the configuration in force whenever they are
        # needed.
        Reloadable.unchecked(
            (
                "channel_max",
                "frame_max",
                "heartbeat_s",
                "max_message_bytes",
                "max_consumers",
                "max_prefetch",
                "send_timeout_s",
                "connection_bytes",
                "connections_bytes",
                "drain_s",
                "management_max_connections",
                "management_max_body_bytes",
                "metrics_max_objects",
                "management_cors_origins",
                "management_path_prefix",
                "management_public_origins",
            ),
            lambda config: set_limits(client_limits(config)),
        ),
    )


def member_reloadables(reload_member: Callable[[Config], None]) -> tuple[Reloadable, ...]:
    """Return the parts of a process that serves no clients, as a follower's."""
    return (
        Reloadable.unchecked(
            ("log_level", "log_format"),
            lambda config: logs.set_up(config.log_level, config.log_format),
        ),
        Reloadable.unchecked(("cluster_keep_log_bytes",), reload_member),
    )


def _definitions(
    import_definitions: Callable[[Definitions, str], Awaitable[None]],
) -> Reloadable:
    async def prepare(config: Config) -> Apply:
        """Read the file, even if its name has not changed. Raises: DefinitionsError."""
        path = config.definitions
        definitions = await trio.to_thread.run_sync(load, path) if path else None

        async def apply() -> None:
            if definitions is not None:
                await import_definitions(definitions, path)
                _log.info("definitions read", extra={"file": path})

        return apply

    return Reloadable(("definitions",), prepare)


def _certificates(certificates: Certificates | None) -> Reloadable:
    async def prepare(config: Config) -> Apply:
        """Read the files of TLS, even if their names have not changed. Raises: ConfigError."""
        use = await trio.to_thread.run_sync(certificates.prepare, config) if certificates else None

        async def apply() -> None:
            if certificates is not None and use is not None:
                use()
                _log.info("certificates read")
                certificates.log_expiry(datetime.now(UTC))

        return apply

    return Reloadable(TLS_KEYS, prepare)


def _logins(logins: Logins) -> Reloadable:
    async def prepare(config: Config) -> Apply:
        """Read the keys of tokens. Raises: ConfigError."""
        tokens = await trio.to_thread.run_sync(tokens_of, config)

        async def apply() -> None:
            logins.change(config, tokens)

        return apply

    return Reloadable(LOGIN_KEYS, prepare)


class Reloader:
    """Reloads the configuration whenever `ask` was called; `run` has to run for that.

    Args: config, which is in force; load, reads it again (in a worker thread), and may raise
    ConfigError; reloadables, to which it is applied, in their order; on_reloaded, called after each
    attempt, successful or not, with a sentence about it.
    """

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        reloadables: Sequence[Reloadable],
        on_reloaded: Callable[[str], None],
    ) -> None:
        self.config = config
        self.reloadables = reloadables
        self._load = load
        self._on_reloaded = on_reloaded
        self._asked = trio.Event()

    def ask(self) -> None:
        """Reload soon; once more if a reload is running."""
        self._asked.set()

    async def run(self) -> None:
        """Reload when asked. Never returns."""
        while True:
            await self._asked.wait()
            # Before anything is read: a file may have changed behind its reading when somebody asks
            # next.
            self._asked = trio.Event()
            self._on_reloaded(await self._reload())

    async def _reload(self) -> str:
        """Read, check and apply the configuration; an error leaves the broker as it is."""
        try:
            loaded = await trio.to_thread.run_sync(self._load)
            config = _with_live(self.config, loaded)
            applying = [await one.prepare(config) for one in self.reloadables]
            for apply in applying:
                await apply()
        except ConfigError as error:
            for problem in error.problems:
                _log.error("configuration not reloaded", extra={"reason": problem})
        except DefinitionsError as error:
            _log.error("definitions not loaded", extra={"reason": str(error)})
        except FATAL:
            raise
        except Exception:  # noqa: BLE001 - no file may end a running broker
            _log.exception("configuration not reloaded")
        else:
            self._log_changes(loaded)
            self.config = config
            return "configuration reloaded"
        return "configuration not reloaded: see the log"

    def _log_changes(self, found: Config) -> None:
        for name, key in KEYS.items():
            running, wanted = getattr(self.config, name), getattr(found, name)
            if running == wanted:
                continue
            extra = {"key": name, "from": key.shown(running), "to": key.shown(wanted)}
            if key.is_live:
                _log.info("configuration changed", extra=extra)
            else:
                _log.warning("a change of the configuration needs a restart", extra=extra)
        before = dict(without_effect(self.config))
        for name, needed in without_effect(found):
            if name not in before:
                _log.warning("key without effect", extra={"key": name, "needs": needed})
        _log.info("configuration reloaded")


def _with_live(running: Config, found: Config) -> Config:
    """Return the running configuration with the live keys of the one that was found.

    Raises: ConfigError, if they do not fit together.
    """
    live = {name: getattr(found, name) for name, key in KEYS.items() if key.is_live}
    config = msgspec.structs.replace(running, **live)
    problems = [
        KEYS[name].mismatch(getattr(config, name), "without a restart", expected)
        for name, expected in conflicts(config)
    ]
    if problems:
        raise ConfigError(*problems)
    return config
