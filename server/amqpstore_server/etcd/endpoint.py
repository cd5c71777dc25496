"""One address of etcd: requests with a deadline, and answers of a limited size."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from typing import Any

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationParseError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.exceptions import TimeoutError as HTTPTimeoutError

from amqpstore_server.etcd.errors import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    UNAUTHENTICATED,
    EndpointError,
    EtcdError,
    LeaseGoneError,
    MalformedAnswerError,
)
from amqpstore_server.etcd.host_addresses import HostAddresses, connecting_to
from amqpstore_server.etcd.messages import (
    AuthenticateAnswer,
    Failure,
    authenticate_request,
    decode,
    excerpt,
    printable,
)
from amqpstore_server.etcd.settings import EtcdSettings, endpoint_url

MAX_ANSWER_BYTES = 1 << 20
"""The keys of a group are a few hundred bytes each."""
_CONNECTIONS = 4
_READ_BYTES = 65536
_AUTH_IS_OFF = 9


class Endpoint:
    """Sends requests to one address; safe in all threads.

    Args: timeout_s, for the look-up of the name, then for the connection, then for the beginning
    of the answer, then for its end.
    """

    def __init__(self, url: str, settings: EtcdSettings, timeout_s: float) -> None:
        self.url = endpoint_url(url)
        self.is_failing = False
        """Whether the last request has failed, which was logged then."""
        self._settings = settings
        self._timeout_s = timeout_s
        host = urllib3.util.parse_url(self.url).host or ""
        self._addresses = HostAddresses(host.strip("[]"), timeout_s)
        self._pool: urllib3.HTTPConnectionPool | None = None
        self._lock = threading.Lock()
        self._token = ""
        self._has_token = not settings.user

    def close(self) -> None:
        """Close idle connections; those in use are closed with their answer."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def post(self, path: str, body: bytes) -> bytes:
        """Send a request, once, and return its answer.

        A token that etcd no longer knows is renewed: such a request was not carried out, and is
        sent again.

        Raises: EndpointError.
        """
        if not self._has_token:
            self._authenticate()
        try:
            # The request is sent once: a second send after a lost answer could carry a transaction
            # out twice.
            return self._exchange(path, body, self._token)
        except EndpointError as error:
            # An invalid argument: "revision of auth store is old", or "user name is empty".
            # etcd checks the token before it looks at the request, so a refused one was not
            # carried out and may be sent again.
            if not self._settings.user or error.code not in (UNAUTHENTICATED, INVALID_ARGUMENT):
                raise
        self._authenticate()
        return self._exchange(path, body, self._token)

    def _authenticate(self) -> None:
        request = authenticate_request(self._settings.user, self._settings.password)
        try:
            body = self._exchange("/v3/auth/authenticate", request, "")
            self._token = decode(body, AuthenticateAnswer).token
        except MalformedAnswerError as error:
            raise EndpointError(self.url, str(error), may_happen=False) from None
        except EndpointError as error:
            if error.code != _AUTH_IS_OFF:
                # What was to be sent with the token was not sent.
                raise EndpointError(
                    self.url, error.reason, may_happen=False, code=error.code
                ) from None
            self._token = ""
        self._has_token = True

    def _exchange(self, path: str, body: bytes, token: str) -> bytes:
        response = self._send(path, body, self._timeout_s, token)
        answer = self._read_answer(response)
        if response.status != 200:
            raise self._failed(response.status, answer)
        return answer

    def _read_answer(self, response: urllib3.BaseHTTPResponse) -> bytes:
        # urllib3's own limit is for each read: a byte in each would keep this thread for ever.
        deadline = time.monotonic() + self._timeout_s
        answer = bytearray()
        try:
            while piece := response.read1(_READ_BYTES, decode_content=False):
                answer += piece
                if len(answer) > MAX_ANSWER_BYTES:
                    raise self._error(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise self._error(f"the answer has no end within {self._timeout_s:g} s")
            response.release_conn()
        except (HTTPError, OSError) as error:
            raise self._error(_reason(error, self._timeout_s)) from None
        finally:
            # The answer is released after an error as well: a connection with half an answer in it
            # would give the other half to the next request.
            response.close()
        return bytes(answer)

    def lines(self, path: str, body: bytes, silence_s: float) -> EndpointLines:
        """Begin a request whose answer is a stream of lines.

        Raises: EndpointError.
        """
        if not self._has_token:
            self._authenticate()
        response = self._send(path, body, silence_s, self._token)
        if response.status != 200:
            error = self._failed(response.status, self._read_answer(response))
            # Tokens expire: the watch that is begun next gets a new one.
            self._has_token = self._has_token and error.code != UNAUTHENTICATED
            raise error
        return EndpointLines(self.url, response)

    def _send(self, path: str, body: bytes, read_s: float, token: str) -> urllib3.BaseHTTPResponse:
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = token
        timeout = urllib3.Timeout(connect=self._timeout_s, read=read_s)
        try:
            return self._connections().urlopen(
                "POST",
                path,
                body=body,
                headers=headers,
                timeout=timeout,
                # Neither repeated nor redirected: the caller knows what may be sent again.
                retries=False,
                preload_content=False,
                decode_content=False,
            )
        except EtcdError as error:
            raise EndpointError(self.url, str(error), may_happen=False) from None
        except (NewConnectionError, ConnectTimeoutError, LocationParseError) as error:
            reason = _reason(error, self._timeout_s)
            raise EndpointError(self.url, reason, may_happen=False) from None
        except (HTTPError, OSError) as error:
            if isinstance(error, SSLError):
                # Certificates are renewed: their files are read again for the next connection.
                self.close()
            raise self._error(_reason(error, read_s)) from None

    def _connections(self) -> urllib3.HTTPConnectionPool:
        with self._lock:
            if self._pool is None:
                tls = (
                    {"ssl_context": self._settings.tls_context()}
                    if self.url.startswith("https:")
                    else {}
                )
                pool = urllib3.connection_from_url(self.url, maxsize=_CONNECTIONS, **tls)
                kind: Any = connecting_to(self._addresses, pool.ConnectionCls)
                pool.ConnectionCls = kind
                self._pool = pool
            return self._pool

    def _failed(self, status: int, answer: bytes) -> EndpointError:
        """Return what an answer with another status than 200 says."""
        try:
            said = decode(answer, Failure)
        except MalformedAnswerError:
            return self._error(f"HTTP {status}: {excerpt(answer)}")
        reason = printable(said.message or said.error) or excerpt(answer)
        # The gateway says NOT_FOUND for a lease that is gone.
        kind = LeaseGoneError if said.code == NOT_FOUND else EndpointError
        return kind(self.url, f"HTTP {status}: {reason}", may_happen=True, code=said.code)

    def _error(self, reason: str) -> EndpointError:
        return EndpointError(self.url, reason, may_happen=True)


class EndpointLines:
    """The lines of a stream. `stop` ends it from another thread."""

    def __init__(self, url: str, response: urllib3.BaseHTTPResponse) -> None:
        self._url = url
        self._response = response
        self._is_stopped = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield each line. Ends when nothing came for the stream's time of silence, or by `stop`.

        Raises: EndpointError.
        """
        rest = b""
        try:
            while piece := self._response.read1(_READ_BYTES, decode_content=False):
                *lines, rest = (rest + piece).split(b"\n")
                yield from filter(None, lines)
                # Bytes without a line end are limited too: an endpoint that is not etcd could send
                # them for ever.
                if len(rest) > MAX_ANSWER_BYTES:
                    reason = f"a line of the answer has more than {MAX_ANSWER_BYTES} bytes"
                    raise EndpointError(self._url, reason, may_happen=False)
        except ReadTimeoutError:
            return
        except (HTTPError, OSError) as error:
            if self._is_stopped:
                return
            raise EndpointError(self._url, _reason(error, 0), may_happen=False) from None

    def stop(self) -> None:
        """End the stream, in whatever thread it is read."""
        self._is_stopped = True
        # It may have ended, and be closed, this moment: what is raised here would take the place of
        # the error that ends the process, and of its exit code.
        with suppress(OSError, RuntimeError):
            self._response.shutdown()

    def close(self) -> None:
        self._response.close()


def _reason(error: Exception, timeout_s: float) -> str:
    """Return in plain words what urllib3 says in its own."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, HTTPException):
        return f"not HTTP: {type(cause).__name__}: {printable(str(cause))}"
    if isinstance(error, TimeoutError | HTTPTimeoutError) and not isinstance(
        error, NewConnectionError
    ):
        return f"no answer within {timeout_s:g} s"
    return str(cause or error)
