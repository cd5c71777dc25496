"""The messages of a queue: seen and handled without a consumer (see `administration.messages`)."""

from __future__ import annotations

import msgspec

from amqpstore_server.administration.messages import Browsing, Messages, Replaying, Selecting
from amqpstore_server.broker.messages.filters import MessageFilter
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.management.answers import Answer
from amqpstore_server.management.bodies import decoded
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import bad_request
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import ApiRoute

_PATH = "/api/queues/{vhost}/{name}/messages"

_PAGE = tuple(field.name for field in msgspec.structs.fields(Browsing))


class Moving(Selecting, kw_only=True):
    """A selection of messages, and the queue that they go to, in the same virtual host."""

    target: str


class Undoing(msgspec.Struct):
    """Nothing but the path says what is to be undone; a body may be an empty object."""


async def browse_messages(call: Call) -> Answer:
    """Return a page of messages; in the query, `filter` is an object of JSON."""
    messages, queue = _of(call)
    asked = {name: call.query[name] for name in _PAGE if name in call.query}
    text = asked.pop("filter", "{}")
    try:
        page = msgspec.convert({**asked, "filter": {}}, Browsing, strict=False)
        _, page.filter = await decoded(text.encode(), MessageFilter)
    except msgspec.ValidationError as error:
        raise bad_request(str(error)) from None
    return await call.json(await call.carry_out(messages.browse(queue, page)))


async def move_messages(call: Call) -> Answer:
    """Move messages to another queue."""
    return await _moved(call, copies=False)


async def copy_messages(call: Call) -> Answer:
    """Put copies of messages in a queue."""
    return await _moved(call, copies=True)


async def _moved(call: Call, *, copies: bool) -> Answer:
    asked = await call.body(Moving)
    messages, queue = _of(call)
    vhost = call.path["vhost"]
    target = messages.queue(vhost, asked.target)
    work = messages.move(vhost, queue, target, asked, copies=copies)
    return await call.json(await call.carry_out(work))


async def delete_messages(call: Call) -> Answer:
    """Delete messages."""
    asked = await call.body(Selecting)
    messages, queue = _of(call)
    work = messages.delete(call.path["vhost"], queue, asked)
    return await call.json(await call.carry_out(work))


async def replay_messages(call: Call) -> Answer:
    """Send dead letters back to where they died."""
    asked = await call.body(Replaying)
    messages, queue = _of(call)
    work = messages.replay(call.path["vhost"], queue, asked)
    return await call.json(await call.carry_out(work))


async def get_purges(call: Call) -> Answer:
    """Return the purges of a queue that can be undone, the last one first."""
    messages, queue = _of(call)
    return await call.json({"purges": messages.purges(queue)})


async def undo_purge(call: Call) -> Answer:
    """Undo the last purge of a queue."""
    await call.body(Undoing)
    messages, queue = _of(call)
    return await call.json(await call.carry_out(messages.undo_purge(call.path["vhost"], queue)))


def _of(call: Call) -> tuple[Messages, Queue]:
    """Return the operations that the user may do, and the queue. Raises: MissingError,
    NotAllowedError.
    """
    vhost = call.path["vhost"]
    messages = Messages(call.context.broker, call.identity.access(vhost), call.by)
    return messages, messages.queue(vhost, call.path["name"])


ROUTES = (
    ApiRoute(
        "GET", _PATH, browse_messages, "A page of messages, which stay", Needs.VHOST, query=_PAGE
    ),
    ApiRoute("POST", f"{_PATH}/move", move_messages, "Move messages", Needs.VHOST, body=Moving),
    ApiRoute("POST", f"{_PATH}/copy", copy_messages, "Copy messages", Needs.VHOST, body=Moving),
    ApiRoute(
        "POST", f"{_PATH}/delete", delete_messages, "Delete messages", Needs.VHOST, body=Selecting
    ),
    ApiRoute(
        "POST",
        f"{_PATH}/replay",
        replay_messages,
        "Send dead letters back",
        Needs.VHOST,
        body=Replaying,
    ),
    ApiRoute(
        "GET",
        "/api/queues/{vhost}/{name}/purge",
        get_purges,
        "The purges that can be undone",
        Needs.VHOST,
    ),
    ApiRoute(
        "POST",
        "/api/queues/{vhost}/{name}/purge/undo",
        undo_purge,
        "Undo the last purge",
        Needs.VHOST,
        body=Undoing,
    ),
)
