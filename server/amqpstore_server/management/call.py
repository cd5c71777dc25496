"""One request to a route: who asks for what, and how it is answered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from starlette.requests import Request

from amqpstore_server.administration.unread_fields import unread_of_body
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.definitions.accepted import shortened, unread_notes
from amqpstore_server.broker.monitoring.audit import By
from amqpstore_server.management.answers import Answer, json_answer, no_content
from amqpstore_server.management.bodies import NoBody, decoded, read_body
from amqpstore_server.management.errors import (
    HttpError,
    bad_request,
    not_authorised,
    not_found,
)
from amqpstore_server.management.listing import ListQuery, RowKind, listed, shown_row
from amqpstore_server.management.needs import Needs
from amqpstore_server.protocol.bounds import MAX_BODY_ENTRIES
from amqpstore_server.statistics.ranges import SampleRanges, ranges_of

if TYPE_CHECKING:
    from amqpstore_server.broker.vhost import VirtualHost
    from amqpstore_server.management.context import ManagementContext
    from amqpstore_server.management.login import Identity

_log = logging.getLogger(__name__)

DOOR = "HTTP API"
"""The name of this door in the audit log."""

PASSED_ON = "is_passed_on"
"""In the state of a connection: whether it comes through a follower."""

_SLOT_S = 30.0

T = TypeVar("T")
BodyT = TypeVar("BodyT")
ResultT = TypeVar("ResultT")


class LargeAnswer:
    """The slot of an answer among those of much content, of which few are made and sent at a time:
    each takes its content several times. Args: slots, of all of them; held, ends when the answer
    is sent.
    """

    def __init__(self, slots: trio.Semaphore, held: AsyncExitStack) -> None:
        self._slots = slots
        self._held = held

    async def take(self) -> None:
        """Wait for a slot. Raises: HttpError."""
        with trio.move_on_after(_SLOT_S):
            await self._held.enter_async_context(self._slots)
            return
        text = "other large answers are under way: try again later"
        raise HttpError(503, "service_unavailable", text)

    async def release(self) -> None:
        """Give the slot back: the answer is not a large one."""
        await self._held.aclose()


class Call:
    """A request whose login was checked. `path` has the decoded parameters of the path, `query`
    those behind it. `notes` becomes what of the request has no effect. Who answers with much
    content takes the slot of a `large_answer` first.
    """

    def __init__(
        self,
        context: ManagementContext,
        request: Request,
        identity: Identity,
        path: Mapping[str, str],
        large_bodies: trio.Semaphore,
        large_answer: LargeAnswer,
    ) -> None:
        self.context = context
        self.request = request
        self.identity = identity
        self.path = path
        self.query = request.query_params
        self.notes: list[str] = []
        self.large_answer = large_answer
        self._large_bodies = large_bodies

    @property
    def by(self) -> By:
        """The user who asks, for the audit log."""
        return By(self.identity.user, DOOR)

    @property
    def vhost(self) -> VirtualHost:
        """The virtual host in the path. Raises: NotFoundError."""
        return self.context.broker.vhost(self.path["vhost"])

    @property
    def is_passed_on(self) -> bool:
        """Whether a follower has passed the request on to this broker, which leads."""
        return bool((self.request.scope.get("state") or {}).get(PASSED_ON))

    @property
    def ranges(self) -> SampleRanges:
        """The samples that the parameters ask for. Raises: HttpError."""
        try:
            return ranges_of(self.query)
        except ValueError as error:
            raise HttpError(400, "invalid_range_parameters", str(error)) from None

    def is_true(self, name: str) -> bool:
        """Tell whether a parameter is `true`."""
        return self.query.get(name, "").lower() == "true"

    def is_condition(self, name: str) -> bool:
        """Tell whether a parameter is `true`, of one without which something is deleted. Raises:
        HttpError, if it is neither that nor `false`.
        """
        value = self.query.get(name, "false").lower()
        if value not in ("true", "false"):
            raise bad_request(f"parameter {name} is '{value}': expected true or false")
        return value == "true"

    def check(self, needs: Needs, method: str) -> None:
        """Make sure that the user may call a route. Args: method, of the route. Raises:
        HttpError.
        """
        identity = self.identity
        match needs:
            case Needs.ADMINISTRATOR if not identity.is_administrator:
                raise not_authorised("Not administrator user")
            case Needs.MONITORING if not identity.is_monitor:
                raise not_authorised("Not monitor user")
            case Needs.POLICYMAKER if not identity.is_policymaker:
                raise not_authorised("Not policymaker user")
        if "vhost" not in self.path or needs is Needs.ADMINISTRATOR:
            return
        name = self.path["vhost"]
        if name not in self.context.broker.vhosts:
            raise not_found(f"no vhost '{name}'")
        only_looks = method == "GET" and needs is not Needs.POLICYMAKER
        if identity.is_administrator or identity.may_open(name):
            return
        if not (only_looks and identity.may_see(name)):
            raise not_authorised("User not authorised to access virtual host")

    async def body(self, kind: type[BodyT], most_entries: int = MAX_BODY_ENTRIES) -> BodyT:
        """Return the body, an object of JSON, as a value of a type. Fields that the type does not
        have, and that do not say the same as the path, are noted. Raises: HttpError.

        Args: most_entries, as of `decoded`.
        """
        found, value = await decoded(await self._content(), kind, most_entries)
        self.note_fields(unread_of_body(found, kind, self.path))
        return value

    async def note_unread(self, parameters: Sequence[str], *, has_body: bool) -> None:
        """Note what of the request a route that changes something does not read: parameters that it
        does not have, and a body, if it has none. Raises: HttpError.
        """
        unread = [name for name in self.query if name not in parameters]
        lines = unread_notes(unread, parameters, what="parameter")
        if not has_body and (content := await self._content()):
            try:
                found, _ = await decoded(content, dict[str, Any])
            except HttpError:
                lines.append("the body of the request has no effect: nothing reads it")
            else:
                lines += unread_of_body(found, NoBody, self.path)
        self.note_fields(lines)

    async def _content(self) -> bytes:
        max_bytes = self.context.config().management_max_body_bytes
        return await read_body(self.request, max_bytes, self._large_bodies)

    def note(self, lines: Iterable[str]) -> None:
        """Note what of the request has no effect: the answer says it."""
        self.notes += lines

    def note_fields(self, lines: Sequence[str]) -> None:
        """Note fields that have no effect, and log them: nothing else does."""
        if not lines:
            return
        self.note(lines)
        now = self.context.broker.services.clock.wall_ms() / 1000
        if self.context.notes_limit.passes(self.identity.user, now):
            extra = {
                "request": f"{self.request.method} {self.request.url.path}",
                "user": self.identity.user,
                "note": "; ".join(shortened(lines)),
                **self.context.notes_limit.suppressed(),
            }
            _log.info("asked for something that has no effect", extra=extra)

    def without_effect(self, reason: str) -> Answer:
        """Return the answer for a request that is taken, as programs for RabbitMQ send it, and
        changes nothing here. Args: reason, why nothing is missed.
        """
        self.note([f"the request has no effect: {reason}"])
        return no_content()

    async def carry_out(self, work: Work[ResultT]) -> ResultT:
        """Carry out the work of an operator, in steps."""
        return await self.context.carry_out(work)

    async def json(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Return an answer with a value as JSON."""
        return await json_answer(value, status, headers)

    async def listed(
        self,
        items: Sequence[T],
        kind: RowKind[T],
        default_sort: Sequence[str] = ("vhost", "name"),
        other_name: Callable[[T], str] = lambda _item: "",
    ) -> Answer:
        """Return an answer with the rows that the parameters ask for: see `listing`."""
        query = ListQuery.of(self.query)
        rows = await listed(query, items, kind, default_sort, other_name)
        return await json_answer(rows)

    async def row(self, item: T, kind: RowKind[T]) -> Answer:
        """Return an answer with one row, of which `columns` may ask for a part."""
        return await json_answer(shown_row(ListQuery.of(self.query), kind, item))
