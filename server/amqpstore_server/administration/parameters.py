"""Parameters of components, which are kept and exported although nothing here uses them.

Tools set them for plug-ins of RabbitMQ, and expect to find them again. Two components have a
meaning here, operator policies and the limits of virtual hosts; they are listed with the others,
and set as what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from amqpstore_server.administration.operations import (
    Administration,
    AdministrationError,
    MissingError,
)
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.audit import By, audit
from amqpstore_server.broker.broker import Broker
from amqpstore_server.definitions import (
    OPERATOR_POLICY,
    VHOST_LIMITS,
    GlobalParameter,
    ParameterDefinition,
)

_OWN = (OPERATOR_POLICY, VHOST_LIMITS)


def parameters(
    administration: Administration, vhost: str = "", component: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield all parameters, or those in a virtual host or of a component."""
    for where in list(administration.broker.vhosts.values()):
        if vhost not in ("", where.name):
            continue
        by_component: dict[str, Mapping[str, Any]] = {
            OPERATOR_POLICY: _operator_policies(administration, where.name),
            VHOST_LIMITS: {"limits": dict(where.limits)} if where.limits else {},
            **where.parameters,
        }
        for kind, values in by_component.items():
            if component in ("", kind):
                for name, value in values.items():
                    row = {"component": kind, "vhost": where.name, "name": name, "value": value}
                    yield row


def _operator_policies(administration: Administration, vhost: str) -> dict[str, Any]:
    return {
        row["name"]: {key: value for key, value in row.items() if key not in ("name", "vhost")}
        for row in administration.policies(vhost, operator=True)
    }


def set_parameter(administration: Administration, by: By, asked: ParameterDefinition) -> Work[None]:
    """Set a parameter. Raises: AdministrationError."""
    administration.check_vhost(asked.vhost)
    if asked.component in _OWN:
        raise AdministrationError(f"'{asked.component}' is not set as a parameter")
    present = _copied(administration.broker, asked.vhost)
    present.setdefault(asked.component, {})[asked.name] = asked.value
    _store(administration.broker, asked.vhost, present)
    what = {"vhost": asked.vhost, "component": asked.component, "parameter": asked.name}
    audit("parameter set", by=by.who, door=by.door, **what)
    yield None


def clear_parameter(
    administration: Administration, by: By, vhost: str, component: str, name: str
) -> Work[None]:
    """Remove a parameter. Raises: MissingError."""
    administration.check_vhost(vhost)
    present = _copied(administration.broker, vhost)
    if name not in present.get(component, {}):
        raise MissingError(f"no parameter '{name}' of '{component}' in vhost '{vhost}'")
    del present[component][name]
    _store(administration.broker, vhost, present)
    what = {"vhost": vhost, "component": component, "parameter": name}
    audit("parameter cleared", by=by.who, door=by.door, **what)
    yield None


def set_global_parameter(
    administration: Administration, by: By, asked: GlobalParameter
) -> Work[None]:
    """Set a parameter of no virtual host. Raises: AdministrationError."""
    if asked.value is None:
        raise AdministrationError("a parameter needs a value")
    try:
        administration.broker.define_global_parameters({asked.name: asked.value})
    except (ValueError, TypeError, OverflowError) as error:
        raise AdministrationError(f"this cannot be stored: {error}") from error
    audit("global parameter set", by=by.who, door=by.door, parameter=asked.name)
    yield None


def clear_global_parameter(administration: Administration, by: By, name: str) -> Work[None]:
    """Remove a parameter of no virtual host. Raises: MissingError."""
    if name not in administration.broker.global_parameters:
        raise MissingError(f"no global parameter '{name}'")
    administration.broker.define_global_parameters({name: None})
    audit("global parameter cleared", by=by.who, door=by.door, parameter=name)
    yield None


def _copied(broker: Broker, vhost: str) -> dict[str, dict[str, Any]]:
    return {component: dict(values) for component, values in broker.vhost(vhost).parameters.items()}


def _store(broker: Broker, vhost: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises: AdministrationError."""
    try:
        broker.define_parameters(vhost, found)
    except (ValueError, TypeError, OverflowError) as error:
        raise AdministrationError(f"this cannot be stored: {error}") from error
