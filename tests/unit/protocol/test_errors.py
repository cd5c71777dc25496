"""Exceptions: their numbers, their names and the text that a close method carries."""

import pytest

from amqpstore_server.protocol.errors import (
    AmqpError,
    ChannelException,
    ConnectionException,
    FatalFramingError,
    InternalError,
    NotFound,
)
from amqpstore_server.protocol.spec import ReplyCode

KINDS = (ChannelException, ConnectionException)


def test_every_reply_code_has_one_exception() -> None:
    codes = [cls.reply_code for kind in KINDS for cls in kind.__subclasses__()]
    assert sorted(codes) == sorted(ReplyCode)


SHADOWING = {ReplyCode.SYNTAX_ERROR, ReplyCode.NOT_IMPLEMENTED}
"""Reply codes whose names Python has for something else."""


def test_each_exception_is_named_after_its_reply_code() -> None:
    for kind in KINDS:
        for cls in kind.__subclasses__():
            name = cls.reply_code.name.title().replace("_", "")
            assert cls.__name__ == name or cls.reply_code in SHADOWING


def test_an_error_holds_its_numbers_and_builds_its_text() -> None:
    error = NotFound("no queue 'x' in vhost '/'")
    assert (error.reply_code, error.reply_name) == (404, "NOT_FOUND")
    assert error.reply_text == str(error) == "NOT_FOUND - no queue 'x' in vhost '/'"
    assert error.detail == "no queue 'x' in vhost '/'"
    assert (error.class_id, error.method_id) == (0, 0)


@pytest.mark.parametrize("character", ["x", "é", "日", "🙂"])
def test_a_reply_text_is_cut_between_characters_to_255_bytes(character: str) -> None:
    error = InternalError(character * 300)
    text = error.reply_text
    size = len(character.encode())
    assert 255 - size < len(text.encode()) <= 255
    assert text == str(error)[: len(text)]


def test_a_reply_text_can_always_be_encoded() -> None:
    assert NotFound("\ud800").reply_text == "NOT_FOUND - ?"


def test_a_framing_error_has_no_reply() -> None:
    """No reply is sent for it, so it must not be caught as an error that has one."""
    assert not issubclass(FatalFramingError, AmqpError)
