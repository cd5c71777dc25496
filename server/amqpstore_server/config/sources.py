"""The sources of the configuration: command line options, then environment variables, then a TOML
file, then the defaults.

A secret may also be in a file that a variable names, with `_FILE` behind the name of its own: so
Docker and Kubernetes hand out secrets.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from amqpstore_server.config.config import KEYS, Config, conflicts
from amqpstore_server.config.keys import ENVIRONMENT_PREFIX, NONE, ConfigError
from amqpstore_server.config.small_files import read_small

DEFAULT_FILE = "/etc/amqpstore/amqpstore.toml"
FILE_VARIABLE = f"{ENVIRONMENT_PREFIX}CONFIG"
DEFAULT = "default"

_LIKE_A_KEY = 0.7

# Kubernetes gives each container variables of this form for a service that is called amqpstore.
_OF_KUBERNETES = re.compile(rf"{ENVIRONMENT_PREFIX}(SERVICE_HOST|SERVICE_PORT|PORT)(_.*)?")


@dataclass(frozen=True)
class EffectiveConfig:
    """A configuration, and where each of its values comes from.

    `sources` has the source of each key: an option, a variable, a file, or "default". `path` is the
    file that was read, or empty. `unknown_variables` look like keys in the environment, but are
    not.
    """

    config: Config
    sources: Mapping[str, str]
    path: str = ""
    unknown_variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConfigSources:
    """The sources that a broker was started with, from which its configuration can be loaded again.

    Args: path, of the file that the command line names, if any; environment, all variables; flags,
    the texts of options by key; default_path, of the file that is read if it exists and none is
    named.
    """

    path: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str | list[str]] = field(default_factory=dict)
    default_path: str = DEFAULT_FILE

    def load(self) -> EffectiveConfig:
        """Read and check all sources. Raises: ConfigError, with all problems there are."""
        path, found = self._file()
        values = {name: (value, path) for name, value in found.items()}
        values |= self._variables()
        for name, text in self.flags.items():
            value = KEYS[name].from_text(text) if isinstance(text, str) else text
            if value == [NONE]:
                value = []
            values[name] = (value, KEYS[name].flag)
        config = _checked(values)
        return EffectiveConfig(
            config=config,
            sources={name: values[name][1] if name in values else DEFAULT for name in KEYS},
            path=path,
            unknown_variables=tuple(_unknown(self.environment)),
        )

    def _variables(self) -> dict[str, tuple[object, str]]:
        """Return the values, each with its variable. Raises: ConfigError."""
        found: dict[str, tuple[object, str]] = {}
        for name, key in KEYS.items():
            if key.variable in self.environment:
                found[name] = key.from_text(self.environment[key.variable]), key.variable
            if key.is_secret and (path := self.environment.get(key.file_variable)):
                # Neither of the two comes first: the forgotten one may be the password that was
                # replaced.
                if name in found:
                    raise ConfigError(
                        f"{key.variable} and {key.file_variable} are both set: remove one of them"
                    )
                found[name] = key.from_text(_read_secret(path, key.file_variable)), path
        return found

    def _file(self) -> tuple[str, dict[str, Any]]:
        """Return the path and the content of the file; both empty if there is none."""
        path = self.path if self.path is not None else self.environment.get(FILE_VARIABLE)
        if path is not None:
            # An empty path means no file, not even the default one.
            return (path, _read(path)) if path else ("", {})
        try:
            return self.default_path, _read(self.default_path)
        # Only the default file may be missing: a file that was named has to be there.
        except _MissingFileError:
            return "", {}


def _read_secret(path: str, variable: str) -> str:
    """Return the text of a file, without the line end behind it. Raises: ConfigError."""
    try:
        text = read_small(path).decode()
    except OSError as error:
        raise ConfigError(
            f"{variable}: cannot read {path}: {error.strerror}; it has to be a file with the secret"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{variable}: {path} is not text in UTF-8") from None
    # One line end, as `echo` and editors write it: spaces may belong to the secret.
    return text.removesuffix("\n").removesuffix("\r")


class _MissingFileError(ConfigError):
    """There is no such file."""


def _read(path: str) -> dict[str, Any]:
    """Return the content of a TOML file. Raises: ConfigError."""
    try:
        return tomllib.loads(read_small(path).decode())
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        kind = _MissingFileError if is_missing else ConfigError
        raise kind(f"cannot read the configuration {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: also invalid UTF-8, a number of 5,000 digits, deeply nested
        # lists.
        raise ConfigError(f"{path} is not TOML: {error}") from None


def _checked(values: Mapping[str, tuple[object, str]]) -> Config:
    """Return the configuration of these values, each with its source. Raises: ConfigError."""
    problems: list[str] = []
    checked = {}
    for name, (value, source) in values.items():
        if name not in KEYS:
            problems.append(f"{source}: {name} is not a key{_similar(name, KEYS)}")
            continue
        try:
            checked[name] = KEYS[name].checked(value, source)
        except ConfigError as error:
            problems += error.problems
    # Rules about several keys say little where one of the values is wrong by itself.
    if not problems:
        config = Config(**checked)
        for name, expected in conflicts(config):
            source = values[name][1] if name in values else DEFAULT
            problems.append(KEYS[name].mismatch(getattr(config, name), source, expected))
    if problems:
        raise ConfigError(*problems)
    return config


def _similar(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, 1, _LIKE_A_KEY)
    return f"; did you mean {close[0]}?" if close else ""


def _unknown(environment: Mapping[str, str]) -> list[str]:
    known = {key.variable for key in KEYS.values()} | {FILE_VARIABLE}
    known |= {key.file_variable for key in KEYS.values() if key.is_secret}
    return sorted(
        name
        for name in environment.keys() - known
        if name.startswith(ENVIRONMENT_PREFIX) and not _OF_KUBERNETES.fullmatch(name)
    )
