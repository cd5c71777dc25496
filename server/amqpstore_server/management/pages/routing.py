"""The explanation of a message's way, as a tree for the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from amqpstore_server.management.path_names import segment


class WayStep(NamedTuple):
    """A line of the tree. `kind` colours the `badge`; `steps` are what follows from it."""

    text: str
    link: str = ""
    badge: str = ""
    kind: str = ""
    why: str = ""
    steps: tuple[WayStep, ...] = ()


class Way(NamedTuple):
    """The whole answer: the names of the queues, and the tree."""

    queues: tuple[str, ...]
    steps: tuple[WayStep, ...]
    refused: str


def steps_of(found: Mapping[str, Any], vhost: str) -> Way:
    """Return an explanation of the broker (`broker.explaining`) as a tree."""
    queues = tuple(str(queue["name"]) for queue in found["queues"])
    steps: tuple[WayStep, ...] = ()
    if found["steps"]:
        steps = (_exchange(found["steps"], 0, vhost, set()),)
    left_out = found["matches_left_out"] + found["queues_left_out"]
    if left_out:
        steps = (*steps, WayStep(f"{left_out:,} more are not shown"))
    return Way(queues, steps, str(found["refused"]))


def _exchange(steps: list[dict[str, Any]], number: int, vhost: str, shown: set[int]) -> WayStep:
    step = steps[number]
    shown.add(number)
    name = step["exchange"]
    found = [_match(steps, number, match, vhost, shown) for match in step["matches"]]
    if step.get("alternate"):
        following = _following(steps, number, step["alternate"], "alternate")
        inner: tuple[WayStep, ...] = ()
        if following is not None and following not in shown:
            inner = (_exchange(steps, following, vhost, shown),)
        why = "nothing is bound here for this message, so the alternate exchange gets it"
        found.append(WayStep(f"alternate exchange '{step['alternate']}'", "", "", "", why, inner))
    elif not step["matches"]:
        found.append(WayStep("Nothing is bound here for this message.", kind="warn"))
    link = f"/exchanges/{segment(vhost)}/{segment(name or 'amq.default')}"
    return WayStep(name or "(default exchange)", link, str(step["type"]), "", "", tuple(found))


def _match(
    steps: list[dict[str, Any]], number: int, match: Mapping[str, Any], vhost: str, shown: set[int]
) -> WayStep:
    name = match["name"]
    why = str(match["why"])
    if match.get("is_repeated"):
        why += " (it is there already, by another way)"
    if match["to"] == "queue":
        link = f"/queues/{segment(vhost)}/{segment(name)}"
        return WayStep(name, link, "queue", "good", why)
    following = _following(steps, number, name, "binding")
    link = f"/exchanges/{segment(vhost)}/{segment(name)}"
    if following is None or following in shown:
        return WayStep(name, link, "exchange", "", why)
    inner = _exchange(steps, following, vhost, shown)
    return WayStep(name, link, f"exchange, {inner.badge}", "", why, inner.steps)


def _following(steps: list[dict[str, Any]], number: int, exchange: str, by: str) -> int | None:
    """Return the number of the step that a match led to."""
    for index, step in enumerate(steps):
        if step.get("from") == number and step["exchange"] == exchange and step["by"] == by:
            return index
    return None
