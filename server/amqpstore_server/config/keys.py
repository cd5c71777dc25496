"""Configuration keys: a key's type, valid values and documentation, declared once, and how a value
from a file, the environment or the command line is checked against them.
"""

from __future__ import annotations

import json
import tomllib
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from amqpstore.errors import PicklableError
from amqpstore_server.config.checks import A_FILE, A_PATH_OR_EMPTY

_SHOWN_VALUE = 80
_MAX_NUMBER = (1 << 63) - 1
_HIDDEN = "(hidden)"

ENVIRONMENT_PREFIX = "AMQPSTORE_"


NONE = "none"
"""Stands for an empty list, as an option or a variable."""


class ConfigError(PicklableError):
    """The configuration cannot be used. Each problem names the source, the key, and the values that
    are valid.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


@dataclass(frozen=True)
class _Declared:
    """The declaration of a key beside its type and default; `key` describes it."""

    meaning: str
    is_live: bool
    flag: str
    metavar: str
    is_secret: bool
    expected: str
    check: Callable[[Any], object] | None


def key(
    meaning: str,
    *,
    live: bool = False,
    flag: str = "",
    metavar: str = "",
    secret: bool = False,
    expected: str = "",
    check: Callable[[Any], object] | None = None,
    **limits: Any,
) -> msgspec.Meta:
    """Declare a key, as the metadata of a field's type.

    Args: meaning, for the README and `--help`; live, whether SIGHUP changes it; flag, the option of
    `amqpstore serve`, with its metavar; secret, whether the value is hidden wherever it would be
    shown; expected, the valid values in words, if type and limits do not say it; check, called with
    a value of the right type, raises ValueError if it is not valid; limits, as of `msgspec.Meta`.
    """
    declared = _Declared(meaning, live, flag, metavar, secret, expected, check)
    return msgspec.Meta(extra={"key": declared}, **limits)


def file_key(meaning: str, *, live: bool = False) -> msgspec.Meta:
    """Declare a key that names a file, or none: see `key`."""
    return key(meaning, live=live, expected=A_FILE, pattern=A_PATH_OR_EMPTY)


@dataclass(frozen=True)
class ConfigKey:
    """A key of the configuration.

    `expected` says in words which values are valid. `is_live` tells whether SIGHUP changes it in a
    running broker, `is_secret` whether its value is never shown. `flag` is the option of
    `amqpstore serve`, or empty.
    """

    name: str
    default: Any
    meaning: str
    expected: str
    is_live: bool
    is_secret: bool
    is_list: bool
    flag: str
    metavar: str
    _type: Any
    _check: Callable[[Any], object] | None

    @property
    def variable(self) -> str:
        """The name of its environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def file_variable(self) -> str:
        """The name of the environment variable that names a file with the value of a secret."""
        return f"{self.variable}_FILE"

    def shown(self, value: object, *, whole: bool = False) -> str:
        """Return a value as text: hidden if it is secret, and shortened unless it is to be
        `whole`.
        """
        public = self.public(value)
        if isinstance(public, int | float) and not isinstance(public, bool):
            text = str(public)  # JSON has neither infinity nor integers of any size
        else:
            text = msgspec.json.encode(public, enc_hook=str).decode()
        return text if whole or len(text) <= _SHOWN_VALUE else f"{text[: _SHOWN_VALUE - 1]}…"

    def public(self, value: object) -> object:
        """Return a value as it may be shown whole."""
        # An empty secret may be shown: it only says that there is none.
        return _HIDDEN if self.is_secret and value else value

    def from_text(self, text: str) -> object:
        """Return the value that an environment variable stands for: a text as it is, a list by its
        commas (`none` is the empty one), or else a value of TOML. It is not checked yet.
        """
        if isinstance(self._bare_type, msgspec.inspect.StrType | msgspec.inspect.LiteralType):
            return text
        if self.is_list and not text.lstrip().startswith("["):
            is_empty = text.strip() in ("", NONE)
            return [] if is_empty else [item.strip() for item in text.split(",")]
        try:
            found = tomllib.loads(f"value = {text}")
        except (ValueError, RecursionError):
            return text  # has the wrong type, which `checked` says better
        # With a line end in it, a text may set other keys of TOML, too.
        return found["value"] if len(found) == 1 else text

    def checked(self, value: object, source: str) -> Any:
        """Return a value of the key's type. Raises: ConfigError, which names the source."""
        try:
            converted = msgspec.convert(value, self._type)
        except msgspec.ValidationError as error:
            raise ConfigError(
                self.mismatch(value, source, self.expected, self._detail(error))
            ) from None
        if isinstance(converted, int | float) and abs(converted) > _MAX_NUMBER:
            # TOML has infinity, and Python's integers no end: neither can be computed with.
            raise ConfigError(self.mismatch(value, source, self.expected, "too large"))
        if self._check is not None:
            try:
                self._check(converted)
            except ValueError as error:
                # The reason may quote the value.
                reason = "" if self.is_secret else str(error)
                raise ConfigError(self.mismatch(value, source, self.expected, reason)) from None
        return converted

    def mismatch(self, value: object, source: str, expected: str, reason: str = "") -> str:
        """Return the problem that a value is not among the expected ones."""
        detail = f" ({reason})" if reason else ""
        return f"{source}: {self.name} = {self.shown(value)}, but it must be {expected}{detail}"

    @property
    def _bare_type(self) -> msgspec.inspect.Type:
        return _without_metadata(msgspec.inspect.type_info(self._type))

    def _detail(self, error: msgspec.ValidationError) -> str:
        """Return where inside a list or table a value is wrong; nothing for plain values."""
        is_plain = not isinstance(
            self._bare_type, msgspec.inspect.CollectionType | msgspec.inspect.StructType
        )
        return "" if is_plain or self.is_secret else str(error)


def keys_of(config: type[msgspec.Struct]) -> dict[str, ConfigKey]:
    """Return the keys of a configuration by their names, in their order; those that it inherits
    come after its own.
    """
    types = typing.get_type_hints(config, include_extras=True)
    keys = {}
    fields = msgspec.structs.fields(config)
    for field in sorted(fields, key=lambda one: one.name not in config.__annotations__):
        kind = types[field.name]
        (meta,) = (one for one in kind.__metadata__ if isinstance(one, msgspec.Meta))
        declared: _Declared = (meta.extra or {})["key"]
        bare = _without_metadata(msgspec.inspect.type_info(kind))
        keys[field.name] = ConfigKey(
            name=field.name,
            default=field.default
            if field.default is not msgspec.NODEFAULT
            else field.default_factory(),
            meaning=declared.meaning,
            expected=declared.expected or _one_of(kind) or _words(bare),
            is_live=declared.is_live,
            is_secret=declared.is_secret,
            is_list=isinstance(bare, msgspec.inspect.ListType),
            flag=declared.flag,
            metavar=declared.metavar,
            _type=kind,
            _check=declared.check,
        )
    return keys


def _without_metadata(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    while isinstance(kind, msgspec.inspect.Metadata):
        kind = kind.type
    return kind


def _words(kind: msgspec.inspect.Type) -> str:
    """Say which values a type accepts."""
    match _without_metadata(kind):
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType() as number:
            return f"an integer{_range(number)}"
        case msgspec.inspect.FloatType() as number:
            return f"a number{_range(number)}"
        case msgspec.inspect.StrType() as text:
            return f"a string{_lengths(text, 'character')}"
        case msgspec.inspect.ListType() as values:
            item = _words(values.item_type)
            return f"a list{_lengths(values, 'item')}, each {item}"
        case other:
            raise TypeError(f"a key of type {other} needs `expected`")


def _one_of(kind: Any) -> str:
    """Name the values of a literal, in the order of their declaration; nothing for other types."""
    if typing.get_origin(kind.__origin__) is not typing.Literal:
        return ""
    *most, last = [json.dumps(value) for value in typing.get_args(kind.__origin__)]
    return f"{', '.join(most)} or {last}"


def _range(number: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> str:
    if number.gt is not None:
        more = f" more than {number.gt}"
        return f"{more} and at most {number.le}" if number.le is not None else more
    if number.ge is None:
        return "" if number.le is None else f" up to {number.le}"
    if number.le is None:
        return f" from {number.ge} on"
    return f" from {number.ge} to {number.le}"


def _lengths(sized: msgspec.inspect.StrType | msgspec.inspect.ListType, noun: str) -> str:
    if sized.min_length and sized.max_length:
        return f" of {sized.min_length} to {sized.max_length} {noun}s"
    if sized.max_length:
        return f" of at most {sized.max_length} {noun}s"
    return f" of at least {sized.min_length} {noun}" if sized.min_length else ""
