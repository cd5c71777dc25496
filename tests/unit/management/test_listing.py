"""Lists: what pages, filters, orders and columns give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import trio
from starlette.datastructures import QueryParams

from amqpstore_server.management.answers import json_answer
from amqpstore_server.management.errors import HttpError
from amqpstore_server.management.listing import ABSENT, MADE, Columns, ListQuery, listed
from amqpstore_server.management.steps import InSteps

QUEUES = [
    {
        "vhost": "/",
        "name": f"q{number:02}",
        "messages": number % 5,
        "stats": {"rate": -number, "n": 1},
    }
    for number in range(30)
]


async def asked(query: str, rows: Any = QUEUES, kind: Any = MADE) -> Any:
    return await listed(ListQuery.of(QueryParams(query)), rows, kind)


def names(rows: Any) -> list[str]:
    return [row["name"] for row in rows]


@pytest.mark.trio
async def test_without_parameters_all_rows_are_there_by_virtual_host_and_name() -> None:
    rows = [{"vhost": "b", "name": "a"}, {"vhost": "a", "name": "c"}, {"vhost": "a", "name": "b"}]
    assert await asked("", rows) == [rows[2], rows[1], rows[0]]


@pytest.mark.trio
async def test_a_page_says_how_many_there_are() -> None:
    page = await asked("page=2&page_size=12")
    assert names(page.pop("items")) == [f"q{number}" for number in range(12, 24)]
    assert page == {
        "total_count": 30,
        "item_count": 12,
        "filtered_count": 30,
        "page": 2,
        "page_size": 12,
        "page_count": 3,
    }
    assert (await asked("page=2&page_size=30"))["items"] == []


@pytest.mark.trio
async def test_a_name_is_searched_for_anywhere_and_in_any_case() -> None:
    page = await asked("page=1&name=Q1")
    assert names(page["items"]) == [f"q{number}" for number in range(10, 20)]
    assert (page["total_count"], page["filtered_count"], page["page_count"]) == (30, 10, 1)
    loud = [{"vhost": "/", "name": "Q1"}]
    assert names((await asked("page=1&name=q1", loud))["items"]) == ["Q1"]
    # Without pages RabbitMQ returns all.
    assert len(await asked("name=q1")) == 30
    assert names((await asked("page=1&name=Q.[37]$&use_regex=true"))["items"]) == [
        "q03",
        "q07",
        "q13",
        "q17",
        "q23",
        "q27",
    ]


@pytest.mark.trio
async def test_a_list_is_ordered_by_any_column_and_by_one_inside_it() -> None:
    rows = await asked("sort=messages&sort_reverse=true")
    assert [row["messages"] for row in rows] == sorted([one % 5 for one in range(30)], reverse=True)
    assert names(await asked("sort=stats.rate"))[:2] == ["q29", "q28"]
    # What is not there comes first, as in RabbitMQ, and text is after numbers.
    mixed = [{"name": name, "x": x} for name, x in (("a", "t"), ("b", 1), ("d", None), ("c", 2.5))]
    assert names(await asked("sort=x", [*mixed, {"name": "e"}])) == ["d", "e", "b", "c", "a"]


@pytest.mark.trio
async def test_columns_may_be_inside_others() -> None:
    page = await asked("page=1&page_size=1&columns=name,stats.rate,nothing,name.x,stats.no")
    assert page["items"] == [{"name": "q00", "stats": {"rate": 0}}]
    for columns in ("stats,stats.rate", "stats.rate,stats"):
        page = await asked(f"page=1&page_size=1&columns={columns}")
        assert page["items"] == [{"stats": {"rate": 0, "n": 1}}]
    rows = [{"name": "a", "list": [{"x": 1, "y": 2}, {"x": 3}]}]
    assert await asked("columns=list.x", rows) == [{"list": [{"x": 1}, {"x": 3}]}]


@pytest.mark.trio
@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("page=0", "invalid_pagination_parameters"),
        ("page=1&page_size=501", "invalid_pagination_parameters"),
        ("page=1&page_size=-1", "invalid_pagination_parameters"),
        ("page=x", "bad_request"),
        ("page=1&page_size=1e3", "bad_request"),
        ("page=99999999999999999999999999", "page_out_of_range"),
        ("page=3", "page_out_of_range"),
        ("page=1&name=(&use_regex=true", "bad_request"),
        (f"page=1&name={'(a%2B)' * 9999}&use_regex=true", "bad_request"),
    ],
)
async def test_what_cannot_be_is_refused(query: str, error: str) -> None:
    with pytest.raises(HttpError) as caught:
        await asked(query)
    assert (caught.value.status, caught.value.error) == (400, error)


@pytest.mark.trio
async def test_a_pattern_takes_linear_time() -> None:
    """An engine with backtracking would never return: CVE-2026-66074."""
    rows = [{"name": "a" * 200 + "!", "vhost": "/"}] * 100
    page = await asked("page=1&name=(a|a|aa)%2B%2B$&use_regex=true".replace("%2B%2B", "%2B"), rows)
    assert page["filtered_count"] == 0


@pytest.mark.trio
async def test_only_the_columns_that_are_needed_are_computed() -> None:
    calls: list[tuple[str, int]] = []

    def column(name: str) -> Any:
        def value(item: int) -> Any:
            calls.append((name, item))
            return ABSENT if name == "none" else item

        return value

    kind = Columns({name: column(name) for name in ("name", "messages", "slow", "none")})
    page = await asked("page=1&page_size=2&sort=messages", list(range(50)), kind)
    assert page["items"] == [
        {"name": number, "messages": number, "slow": number} for number in (0, 1)
    ]
    assert [item for name, item in calls if name == "slow"] == [0, 1]


@pytest.mark.trio
async def test_a_part_of_what_is_made_together_is_read_alone_if_it_can_be() -> None:
    made = []

    def more(item: int) -> dict[str, Any]:
        made.append(item)
        return {"stats": {"rate": -item, "other": item}}

    def of_more(path: Sequence[str]) -> Callable[[int], int] | None:
        return (lambda item: -item) if path == ["stats", "rate"] else None

    kind = Columns[int]({"vhost": lambda _: "/", "name": str}, more, of_more)
    for path, expected in (("stats.rate", ["49", "48"]), ("stats.other", ["0", "1"])):
        made.clear()
        page = await asked(f"page=1&page_size=2&sort={path}", list(range(50)), kind)
        assert names(page["items"]) == expected
        assert len(made) == (2 if path == "stats.rate" else 52)


@pytest.mark.trio
async def test_a_list_is_ordered_by_what_is_inside_a_function_s_column() -> None:
    kind = Columns[int](
        {"vhost": lambda _: "/", "name": str, "arguments": lambda item: {"x": -item}}
    )
    assert names(await asked("sort=arguments.x", [1, 3, 2], kind)) == ["3", "2", "1"]
    assert names(await asked("sort=arguments.none", [1, 3, 2], kind)) == ["1", "2", "3"]


@pytest.mark.trio
async def test_a_list_of_any_length_is_ordered_in_steps() -> None:
    """A list is ordered as a whole and up to a position; equal keys stay in their order."""
    items = [(number * 7919) % 10_007 // 2 for number in range(10_007)]
    for reverse in (False, True):
        expected = sorted(range(len(items)), key=lambda one: (items[one], one), reverse=reverse)
        for end in (None, 0, 10, 10_007, 20_000):
            found = await InSteps().ordered(
                list(range(len(items))), [items], reverse=reverse, end=end
            )
            assert found == expected[:end]


@pytest.mark.trio
async def test_others_have_their_turn_during_a_long_list() -> None:
    turns = 0
    is_done = False

    async def other() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await trio.lowlevel.checkpoint()

    rows = [{"vhost": "/", "name": str(number)} for number in range(100_000)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await asked("", rows)
        is_done = True
    assert turns > 10


@pytest.mark.trio
@pytest.mark.parametrize("count", [0, 1, 100, 3000])
async def test_an_answer_is_sent_in_few_parts(count: int) -> None:
    """Each part waits for a turn of the event loop, which takes long under load."""
    rows = [{"name": f"queue {number}", "more": "x" * 100} for number in range(count)]
    answer = await json_answer({"total_count": count, "page": 1, "items": rows, "last": None})
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    await answer({"type": "http"}, receive, send)
    start, *parts = sent
    content = b"".join(part["body"] for part in parts)
    assert msgspec.json.decode(content)["items"] == rows
    assert dict(start["headers"])[b"content-length"] == b"%d" % len(content)
    assert [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]
    assert len(parts) <= 1 + len(content) // (48 << 10)
    assert all(len(part["body"]) < 2 * (64 << 10) for part in parts)


@pytest.mark.trio
async def test_an_expression_that_is_a_text_is_looked_for_as_one() -> None:
    rows = [{"vhost": "/", "name": name} for name in ("a-B 7", "ab", "A-b", "a.b")]
    for expression, found in (
        ("a-b", ["A-b", "a-B 7"]),
        ("A.B", ["A-b", "a-B 7", "a.b"]),
        ("^a-b$", ["A-b"]),
    ):
        answer = await asked(f"page=1&use_regex=true&name={expression}", rows)
        assert names(answer["items"]) == found
