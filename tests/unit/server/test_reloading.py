"""Reloading the configuration: everything is checked before anything is applied."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import trio

from amqpstore import Store
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_server.administration.definitions import DefinitionsError
from amqpstore_server.app import App
from amqpstore_server.config.config import KEYS, Config
from amqpstore_server.config.keys import ConfigError
from amqpstore_server.reloading import Apply, Reloadable, Reloader


def test_each_live_key_is_applied_by_one_part(tmp_path: Path) -> None:
    async def reloadables() -> Sequence[Reloadable]:
        data = str(tmp_path / "store")
        with Store.open(data, worker=InlineWorker()) as store:
            app = App(Config(data=data), store, None)
            app.committer.stop()
            app.sockets.close()
            return app.reloader.reloadables

    keys = [name for reloadable in trio.run(reloadables) for name in reloadable.keys]
    assert sorted(keys) == sorted(name for name, key in KEYS.items() if key.is_live)


class Reloadables:
    """Two reloadables that note what they are told."""

    def __init__(self) -> None:
        self.noted: list[object] = []
        self.errors: list[Exception] = []

    def reloadable(self, name: str) -> Reloadable:
        async def prepare(config: Config) -> Apply:
            self.noted.append(f"prepare {name}")
            if name == "second" and self.errors:
                raise self.errors.pop(0)

            async def apply() -> None:
                self.noted.append((name, config.heartbeat_s, config.data))

            return apply

        return Reloadable((), prepare)


async def _reloaded(reloadables: Reloadables, load: Callable[[], Config]) -> tuple[Config, str]:
    """Reload once; return the configuration in force then, and what was said."""
    said: list[str] = []
    done = trio.Event()

    def on_reloaded(outcome: str) -> None:
        said.append(outcome)
        done.set()

    both = (reloadables.reloadable("first"), reloadables.reloadable("second"))
    reloader = Reloader(Config(data="running"), load, both, on_reloaded)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reloader.run)
        reloader.ask()
        await done.wait()
        nursery.cancel_scope.cancel()
    return reloader.config, said[0]


def test_live_keys_are_applied_and_others_keep_their_value() -> None:
    reloadables = Reloadables()
    found = Config(data="other", heartbeat_s=7)
    config, said = trio.run(_reloaded, reloadables, lambda: found)
    assert said == "configuration reloaded"
    assert config == msgspec.structs.replace(found, data="running")
    assert reloadables.noted == [
        "prepare first",
        "prepare second",
        ("first", 7, "running"),
        ("second", 7, "running"),
    ]


def test_what_one_part_refuses_no_part_applies() -> None:
    for error in (ConfigError("no"), DefinitionsError("no"), OSError("no"), MemoryError("no")):
        reloadables = Reloadables()
        reloadables.errors.append(error)
        config, said = trio.run(_reloaded, reloadables, lambda: Config(heartbeat_s=7))
        assert said.startswith("configuration not reloaded")
        assert config == Config(data="running")
        assert reloadables.noted == ["prepare first", "prepare second"]


def test_a_configuration_that_cannot_be_read_reaches_no_part() -> None:
    def load() -> Config:
        raise ConfigError("not TOML")

    reloadables = Reloadables()
    assert trio.run(_reloaded, reloadables, load)[0] == Config(data="running")
    assert reloadables.noted == []


def test_a_live_key_has_to_fit_the_running_values_of_the_others() -> None:
    reloadables = Reloadables()
    found = msgspec.structs.replace(Config(), connection_bytes=2 << 30, connections_bytes=1 << 30)
    assert trio.run(_reloaded, reloadables, lambda: found)[0] == Config(data="running")
    assert reloadables.noted == []
