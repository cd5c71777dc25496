"""Parameters of components, and those of no virtual host.

RabbitMQ keeps operator policies and the limits of virtual hosts as parameters, and exported
definitions name them so: each is listed, set and cleared as what it is. A parameter of any other
component, which a plug-in of RabbitMQ would read (`shovel`, `federation-upstream`), is refused as
RabbitMQ refuses it without that plug-in: nothing would act on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from amqpstore_server.administration.changes import AdministrationError, MissingError
from amqpstore_server.administration.definitions import (
    OPERATOR_POLICY,
    VHOST_LIMITS,
    GlobalParameter,
    ParameterDefinition,
)
from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.telling import global_parameter_event
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.monitoring.audit import By

_LIMITS = "limits"
"""The one parameter of `vhost-limits`."""


def parameters(
    administration: Administration, vhost: str = "", component: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield all parameters, or those in a virtual host or of a component."""
    if component in ("", OPERATOR_POLICY):
        for policy in administration.policies.all(vhost, operator=True):
            about = {key: policy.pop(key) for key in ("vhost", "name")}
            yield {"component": OPERATOR_POLICY, **about, "value": policy}
    if component in ("", VHOST_LIMITS):
        for where in list(administration.broker.vhosts.values()):
            if where.limits and vhost in ("", where.name):
                about = {"vhost": where.name, "name": _LIMITS}
                yield {"component": VHOST_LIMITS, **about, "value": dict(where.limits)}


def set_parameter(administration: Administration, by: By, asked: ParameterDefinition) -> Work[None]:
    """Set a parameter. Raises: AdministrationError."""
    administration.changes.check_vhost(asked.vhost)
    try:
        if asked.component == OPERATOR_POLICY:
            yield from administration.policies.set(by, asked.operator_policy, operator=True)
        elif asked.component == VHOST_LIMITS and asked.name == _LIMITS:
            yield from administration.set_vhost_limits(by, *asked.vhost_limits)
        elif asked.component == VHOST_LIMITS:
            raise AdministrationError(f"the only parameter of {VHOST_LIMITS} is '{_LIMITS}'")
        elif asked.component == "policy":
            raise AdministrationError("policies may not be set using this method")
        else:
            raise AdministrationError(f"component {asked.component} not found")
    except (msgspec.ValidationError, ValueError) as error:
        raise AdministrationError(f"value: {error}") from None


def clear_parameter(
    administration: Administration, by: By, vhost: str, component: str, name: str
) -> Work[None]:
    """Remove a parameter. Raises: MissingError."""
    administration.changes.check_vhost(vhost)
    if all(one["name"] != name for one in parameters(administration, vhost, component)):
        raise MissingError(f"no parameter '{name}' of '{component}' in vhost '{vhost}'")
    if component == OPERATOR_POLICY:
        yield from administration.policies.clear(by, vhost, name, operator=True)
    else:
        yield from administration.set_vhost_limits(by, vhost, {})


def set_global_parameter(
    administration: Administration, by: By, asked: GlobalParameter
) -> Work[None]:
    """Set a parameter of no virtual host. Raises: AdministrationError."""
    if asked.value is None:
        raise AdministrationError("a parameter needs a value")
    try:
        administration.broker.global_parameters.define({asked.name: asked.value})
    except (ValueError, TypeError, OverflowError) as error:
        raise AdministrationError(f"this cannot be stored: {error}") from error
    event = global_parameter_event(asked.name, asked.value)
    events = administration.broker.services.events
    events.happened("global parameter set", event, by=by, parameter=asked.name)
    yield None


def clear_global_parameter(administration: Administration, by: By, name: str) -> Work[None]:
    """Remove a parameter of no virtual host. Raises: MissingError."""
    if name not in administration.broker.global_parameters.values:
        raise MissingError(f"no global parameter '{name}'")
    administration.broker.global_parameters.define({name: None})
    events = administration.broker.services.events
    event = global_parameter_event(name)
    events.happened("global parameter cleared", event, by=by, parameter=name)
    yield None
