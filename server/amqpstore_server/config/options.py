"""The configuration's options on a command line."""

from __future__ import annotations

import argparse
import os

from amqpstore_server.config.config import KEYS
from amqpstore_server.config.sources import DEFAULT_FILE, FILE_VARIABLE, ConfigSources


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and the options of those keys that have one."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"configuration file (TOML); default: the variable {FILE_VARIABLE}, or {DEFAULT_FILE} "
        "if it exists",
    )
    for name, key in KEYS.items():
        if key.flag:
            parser.add_argument(
                key.flag,
                dest=name,
                metavar=key.metavar or "VALUE",
                action="append" if key.is_list else "store",
                help=f"{key.meaning}{'; may be repeated' if key.is_list else ''} "
                f"(default: {key.shown(key.default)})".replace("%", "%%"),
            )


def sources_of(arguments: argparse.Namespace) -> ConfigSources:
    """Return the sources of the configuration that the parsed arguments and the environment of this
    process name.
    """
    given = vars(arguments)
    return ConfigSources(
        path=arguments.config,
        environment=dict(os.environ),
        flags={
            name: given[name] for name, key in KEYS.items() if key.flag and given[name] is not None
        },
    )
