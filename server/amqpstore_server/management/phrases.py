"""The reason phrases of answers: `HTTP/1.1 204 No Content`.

They mean nothing, and hypercorn leaves them out. But clients show them, compare them, and some of
them read no status line without one.
"""

from __future__ import annotations

from http import HTTPStatus

from hypercorn.events import Event, RawData, Updated
from hypercorn.trio.tcp_server import TCPServer

_HEAD = b"HTTP/1.1 "
_CODE = slice(len(_HEAD), len(_HEAD) + 3)
_NO_PHRASE = b" \r\n"


class PhrasingServer(TCPServer):
    """Serves a connection, and adds the phrase to the head of each answer."""

    _is_head_due = True
    """Whether the next answer has not begun: what a body begins with is no head."""

    async def protocol_send(self, event: Event) -> None:
        """Send what the protocol has made."""
        if isinstance(event, Updated):
            self._is_head_due = True
        elif isinstance(event, RawData) and self._is_head_due:
            event = RawData(data=self._phrased(event.data), address=event.address)
        await super().protocol_send(event)

    def _phrased(self, data: bytes) -> bytes:
        """Return the head of an answer with its phrase."""
        code = data[_CODE]
        if not (data.startswith(_HEAD) and data[_CODE.stop :].startswith(_NO_PHRASE)):
            return data
        # `100 Continue` comes before the answer.
        self._is_head_due = code.startswith(b"1")
        try:
            phrase = HTTPStatus(int(code)).phrase.encode()
        except ValueError:
            return data
        return _HEAD + code + b" " + phrase + data[_CODE.stop + 1 :]
