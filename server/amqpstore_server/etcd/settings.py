"""The endpoints of etcd, and the identity with which this process asks them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from amqpstore_server.etcd.errors import EtcdError

DEFAULT_PORT = 2379


@dataclass(frozen=True)
class EtcdSettings:
    """The addresses and credentials with which etcd is reached.

    `endpoints` are URLs, as `endpoint_url` accepts them. `ca`, `certificate` and `key` are PEM
    files; without `ca`, the system's are trusted, and without `key`, it is in the certificate's
    file. etcd's gateway does not take a user's name from a certificate: where etcd asks for one,
    `user` and `password` are needed as well.
    """

    endpoints: tuple[str, ...]
    ca: str = ""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ValueError("etcd needs at least one endpoint")
        for url in self.endpoints:
            endpoint_url(url)

    def tls_context(self) -> ssl.SSLContext:
        """Return what checks etcd's certificate, and shows one's own; the files are read now.

        Raises: EtcdError, which names the file that is not what it should be.
        """
        # The `ssl` module does not say which of the files it could not read.
        for path in filter(None, (self.ca, self.certificate, self.key)):
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise EtcdError(str(error)) from None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except ssl.SSLError as error:
            raise EtcdError(f"the CA in {self.ca}: {error}") from None
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.key or None, _no_password)
            except ssl.SSLError as error:
                files = " and ".join(filter(None, (self.certificate, self.key)))
                raise EtcdError(f"the certificate and key in {files}: {error}") from None
        return context


def _no_password() -> str:
    """Keep OpenSSL from asking for one at the terminal."""
    raise EtcdError("its private key has a password, which nobody is there to enter")


def endpoint_url(text: str) -> str:
    """Return an endpoint's URL with its port. Raises: ValueError, which says what is wrong."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not http://HOST:PORT or https://HOST:PORT")
    # Credentials in a URL would be in the log with each failure; a path would be cut off in
    # silence.
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"{text!r} has more than a host and a port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or DEFAULT_PORT}"
