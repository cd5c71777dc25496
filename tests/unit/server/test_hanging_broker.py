"""A verb whose broker does not answer says that it waits, and for what."""

from __future__ import annotations

import io
import socket
import sys
import threading
from pathlib import Path

import pytest

from amqpstore_server.administration.framing import address_in, framed
from amqpstore_tools.administration import client
from amqpstore_tools.administration.client import asked
from amqpstore_tools.offline.exits import ToolError


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    (tmp_path / "STORE").touch()
    monkeypatch.setattr(client, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(client, "_CONNECT_S", 0.05)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with address_in(str(tmp_path)) as address:
        listener.bind(address)
    return listener


def test_a_broker_that_does_not_answer_is_waited_for_with_a_word(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener.listen()
    texts: list[str] = []
    has_said = threading.Event()

    class Told(io.StringIO):
        def write(self, text: str) -> int:
            texts.append(text)
            if "\n" in text:
                has_said.set()
            return len(text)

    # Not pytest's own, which loses what is written while another thread reads it.
    monkeypatch.setattr(sys, "stderr", Told())

    def answer() -> None:
        connection, _ = listener.accept()
        has_said.wait()
        connection.sendall(framed(b'{"result": 7}'))
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    assert asked(str(tmp_path), {"operation": "anything"}) == 7
    thread.join()
    listener.close()
    text = " ".join("".join(texts).split())
    assert "has not answered" in text
    assert "look at its log" in text


def test_a_broker_that_takes_no_requests_is_said_to_hang(
    listener: socket.socket, tmp_path: Path
) -> None:
    listener.listen(0)
    with address_in(str(tmp_path)) as address:
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(2)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
    with pytest.raises(ToolError, match="does not take requests"):
        asked(str(tmp_path), {"operation": "anything"})
    for one in (*waiting, listener):
        one.close()
