"""What a verb says about an error of the operating system."""

from __future__ import annotations

import os

import pytest

from amqpstore_tools.offline.exits import text_of


@pytest.mark.parametrize("path", ["/not/there", b"/not/there"])
def test_an_error_names_its_file_without_a_number(path: str | bytes) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        os.stat(path)
    assert text_of(raised.value) == "/not/there: No such file or directory"


def test_an_error_without_the_name_of_a_file_keeps_its_text() -> None:
    """Two names, a descriptor instead of a name, a text alone, another error."""
    with pytest.raises(FileNotFoundError) as two:
        os.rename("/not/there", "/not/here")
    for error in (two.value, OSError(5, "failed", 3), OSError("it failed"), ValueError("7")):
        assert text_of(error) == str(error)
