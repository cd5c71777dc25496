"""A file in a form is found without a look at each of its lines and parts."""

from typing import Any

import pytest
import trio
from starlette.requests import Request

from amqpstore_server.management.bodies import file_in, read_body
from amqpstore_server.management.errors import HttpError
from amqpstore_server.management.pages.actions import body_of, read_fields
from tests.calls import Counts
from tests.unit.management.turns import others

KIND = "multipart/form-data; boundary=x"
FILE = b"--x\r\nContent-Disposition: form-data; name=file; filename=d.json\r\n\r\n%s\r\n--x--\r\n"


def field(name: str, value: bytes) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="%b"' % name.encode()
    return head + b"\r\n\r\n" + value + b"\r\n"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (FILE % b"{}", b"{}"),
        (FILE % b"a\r\n--y\r\n\r\n", b"a\r\n--y\r\n\r\n"),
        (FILE % b"", b""),
        (b"preamble\r\n" + FILE % b"{}" + b"epilogue", b"{}"),
        (field("a", b"1") + FILE % b"{}", b"{}"),
        (field("a", b"1") + b"--x--", b"1"),
        (FILE % (b"\n" * 1_000_000), b"\n" * 1_000_000),
    ],
)
def test_the_file_is_found_as_it_is(form: bytes, expected: bytes) -> None:
    assert file_in(form, KIND) == expected


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (b"", KIND),
        (b"--x--", KIND),
        ((FILE % b"{}").removesuffix(b"--x--\r\n"), KIND),
        (field("a", b"1") + field("b", b"2") + b"--x--", KIND),
        (FILE % b"{}", "multipart/form-data"),
        (FILE % b"{}", "multipart/form-data; boundary=y"),
        (field("a", b"1") * 100_000 + b"--x--", KIND),
        (b"--x\r\n" + b"a: b\r\n" * 100_000 + b"\r\n{}\r\n--x--", KIND),
    ],
)
def test_what_has_not_one_file_is_refused(form: bytes, kind: str) -> None:
    counts = Counts()
    with pytest.raises(HttpError), counts:
        file_in(form, kind)
    assert sum(counts.python.values()) < 2000


@pytest.mark.trio
@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "deflate, gzip", "x" * 10_000])
async def test_a_body_with_a_content_coding_is_refused_as_such(coding: str) -> None:
    with pytest.raises(HttpError, match="content coding") as refused:
        await read_body(posted(b"{}", coding), 1 << 20, trio.Semaphore(1))
    assert refused.value.status == 415
    assert len(refused.value.reason) < 100


@pytest.mark.trio
@pytest.mark.parametrize("coding", ["", "identity", " Identity "])
async def test_a_body_without_one_is_read(coding: str) -> None:
    assert await read_body(posted(b"{}", coding), 1 << 20, trio.Semaphore(1)) == b"{}"


def posted(content: bytes, coding: str = "") -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    headers = [(b"content-encoding", coding.encode())]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


@pytest.mark.trio
async def test_others_have_their_turn_while_a_large_form_is_read() -> None:
    async with others() as turns:
        fields = await read_fields(posted(b"a=" + b"%4" * 500_000), 1 << 20)
        assert fields == [("a", "%4" * 500_000)]
        assert turns.count > 10


@pytest.mark.parametrize("field", ["arguments:json", "properties:merge"])
def test_json_in_a_field_that_is_nested_without_end_is_refused(field: str) -> None:
    with pytest.raises(HttpError, match="not valid JSON"):
        body_of([(field, "[" * 100_000)])


def test_a_name_with_very_many_dots_is_one_of_a_few_levels() -> None:
    body: Any = body_of([("a." * 100_000, "x")])
    levels = 0
    while isinstance(body, dict):
        (body,) = body.values()
        levels += 1
    assert levels < 20
