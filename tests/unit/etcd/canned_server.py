"""A server that answers every request with the same bytes, whatever was asked."""

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Self

READ_BYTES = 65536
PAUSE_S = 0.001


def http(body: bytes, status: str = "200 OK", headers: Sequence[str] = ()) -> bytes:
    """An answer as etcd's gateway gives it."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class CannedServer:
    """Listens on a port of its own.

    It answers each request with the next piece of `answers`, and those after the last one with the
    last. An empty one is no answer, and the connection stays. `then_closes`: after an answer, the
    connection is closed. `is_slow`: after the head of an answer, each byte comes by itself.
    `is_given_up`: who asks does not wait for long.
    """

    def __init__(
        self,
        *answers: bytes,
        then_closes: bool = False,
        is_slow: bool = False,
        is_given_up: bool = False,
    ) -> None:
        self.requests: list[bytes] = []
        self.is_given_up = is_given_up
        self._answers = list(answers)
        self._then_closes = then_closes
        self._is_slow = is_slow
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="canned")]
        self._threads[0].start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), name="canned one")
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while request := _read_request(connection):
                self.requests.append(request)
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                if self._is_slow:
                    self._send_slowly(connection, answer)
                else:
                    connection.sendall(answer)
                if answer and self._then_closes:
                    connection.shutdown(socket.SHUT_RDWR)

    def _send_slowly(self, connection: socket.socket, answer: bytes) -> None:
        head, end, body = answer.partition(b"\r\n\r\n")
        connection.sendall(head + end)
        for number in range(len(body)):
            connection.sendall(body[number : number + 1])
            if self._closed.wait(PAUSE_S):
                return


def _read_request(connection: socket.socket) -> bytes:
    read = b""
    while piece := connection.recv(READ_BYTES):
        read += piece
        head, end, body = read.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if end and len(body) >= int(length):
            return read
    return b""
