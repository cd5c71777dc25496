"""`amqpstore config`: check a configuration, and show what is in force and where it comes from."""

from __future__ import annotations

import argparse

from amqpstore_server.config.config import KEYS
from amqpstore_server.config.effects import without_effect
from amqpstore_server.config.keys import ConfigError
from amqpstore_server.config.options import add_options, sources_of
from amqpstore_server.config.sources import DEFAULT, EffectiveConfig
from amqpstore_tools.offline.exits import UsageError, add_json, run_tool
from amqpstore_tools.offline.json_output import write_json
from amqpstore_tools.offline.terminal import console, say, shown, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `serve` has, too."""
    parser.description = (
        "Check the configuration that `amqpstore serve` would use with the same options and in the "
        "same environment, and show it, with the source of each value. Secrets are hidden."
    )
    add_options(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show it. Returns the exit code."""
    return run_tool("config", lambda: _config(arguments), as_json=arguments.json)


def _config(arguments: argparse.Namespace) -> None:
    try:
        effective = sources_of(arguments).load()
    except ConfigError as error:
        raise UsageError(str(error)) from None
    (_write if arguments.json else _show)(effective)


def _write(effective: EffectiveConfig) -> None:
    write_json(
        {
            "file": effective.path or None,
            "keys": {
                name: {
                    "value": key.public(getattr(effective.config, name)),
                    "source": effective.sources[name],
                    "live": key.is_live,
                }
                for name, key in KEYS.items()
            },
            "unknown_variables": list(effective.unknown_variables),
            "without_effect": dict(without_effect(effective.config)),
        }
    )


def _show(effective: EffectiveConfig) -> None:
    say(f"configuration file: {effective.path or 'none'}")
    rows = table("key", "value", "source", wrap="value source")
    for name, key in KEYS.items():
        source = effective.sources[name]
        value = key.shown(getattr(effective.config, name), whole=True)
        rows.add_row(name, shown(value), shown(source), style="dim" if source == DEFAULT else "")
    console().print(rows)
    for variable in effective.unknown_variables:
        say(f"unknown environment variable: {variable}")
    for name, needed in without_effect(effective.config):
        say(f"{name} has no effect: it needs {needed}")
