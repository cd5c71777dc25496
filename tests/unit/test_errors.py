"""Every error goes through pools of processes: it is pickled and copied as it is."""

import copy
import errno
import importlib
import inspect
import pickle
import pkgutil
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import amqpstore
import amqpstore_server
import amqpstore_tools
from amqpstore import DeposedError, DurabilityError, StoreError
from amqpstore_server.etcd.errors import EndpointError
from amqpstore_server.protocol.errors import AmqpError, ChannelException, ConnectionException
from amqpstore_tools.pika.status import XaStatus
from amqpstore_tools.verbs import serve

PACKAGES = (amqpstore, amqpstore_server, amqpstore_tools)
WITHOUT_CODE = {AmqpError, ChannelException, ConnectionException}
"""Errors of which only subclasses are raised."""


def import_all() -> None:
    for package in PACKAGES:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)


def kinds(base: type[BaseException]) -> Iterator[type[BaseException]]:
    for kind in base.__subclasses__():
        if kind.__module__.partition(".")[0] in (
            "amqpstore",
            "amqpstore_server",
            "amqpstore_tools",
        ):
            yield kind
        yield from kinds(kind)


def value_of(annotation: Any) -> Any:
    """A value of an argument's type."""
    if typing.get_origin(annotation) is not None or "|" in str(annotation):
        arguments = typing.get_args(annotation)
        if typing.get_origin(annotation) is tuple:
            return (value_of(arguments[0]),)
        if typing.get_origin(annotation) in (list, frozenset, set):
            return typing.get_origin(annotation)([value_of(arguments[0])])
        if typing.get_origin(annotation) in (Mapping, dict) or str(annotation).startswith("coll"):
            return None
        return value_of(arguments[0])
    known: dict[Any, Any] = {
        str: "it",
        int: 3,
        float: 0.5,
        bool: True,
        bytes: b"it",
        object: "anything",
        BaseException: OSError(5, "broken"),
        OSError: OSError(5, "broken"),
        Exception: OSError(5, "broken"),
        XaStatus: next(iter(XaStatus)),
    }
    if annotation not in known and issubclass(annotation, EndpointError):
        return annotation("http://a", "it is away", may_happen=True)
    return known[annotation] if annotation in known else annotation("broken")


def example(kind: type[BaseException]) -> BaseException:
    """An error of that kind, as its own code makes it."""
    if not any("__init__" in vars(one) for one in kind.__mro__ if one.__module__ != "builtins"):
        return kind("it happened")
    signature = inspect.signature(kind, eval_str=True)
    positional, named = [], {}
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(value_of(parameter.annotation))
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = value_of(parameter.annotation)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            positional += [value_of(parameter.annotation)] * 2
    return kind(*positional, **named)


def same(one: object, other: object) -> bool:
    if isinstance(one, BaseException):
        return type(one) is type(other) and str(one) == str(other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def check_copied(error: BaseException) -> None:
    copies = [copy.copy(error), copy.deepcopy(error)]
    copies += [
        pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL)
    ]
    for copied in copies:
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert same(copied.args, error.args)
        assert vars(copied).keys() == vars(error).keys()
        for name, value in vars(error).items():
            assert same(vars(copied)[name], value), name


def test_every_error_can_be_pickled_and_copied() -> None:
    import_all()
    found = {kind for kind in kinds(BaseException) if issubclass(kind, Exception)} - WITHOUT_CODE
    assert len(found) > 120
    for kind in sorted(found, key=lambda one: (one.__module__, one.__qualname__)):
        check_copied(example(kind))


def test_what_was_added_to_an_error_is_there_again() -> None:
    error = StoreError("it happened")
    error.add_note("at midnight")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["at midnight"]


def test_the_cause_of_an_error_goes_with_it() -> None:
    error = pickle.loads(pickle.dumps(DurabilityError("/store", OSError(28, "full"))))
    assert isinstance(error.cause, OSError)
    assert error.cause.errno == 28
    deposed = pickle.loads(pickle.dumps(DeposedError("/store", "another leads")))
    assert deposed.cause is deposed


@pytest.mark.parametrize("name", sorted(set(amqpstore.__all__)))
def test_every_error_of_the_library_is_a_store_error(name: str) -> None:
    found = getattr(amqpstore, name)
    if name.endswith("Error"):
        assert issubclass(found, StoreError)


def test_an_error_of_the_system_that_names_no_file_is_told_with_the_data_directory() -> None:
    assert "/data" in serve._where(OSError(errno.EIO, "Input/output error"), "/data")
    assert not serve._where(OSError(errno.EIO, "Input/output error", "/data/x"), "/data")
    assert not serve._where(StoreError("closed"), "/data")
