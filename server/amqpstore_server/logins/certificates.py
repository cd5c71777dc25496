"""The server's certificates, and the settings of TLS: loaded together, replaced together.

Clients that are connected keep what they were accepted with; a file that cannot be used leaves
everything as it was.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509

from amqpstore_server.clients.client_log import ClientLog
from amqpstore_server.config.config import Config
from amqpstore_server.config.keys import ConfigError
from amqpstore_server.config.small_files import MAX_BYTES, read_small

_log = logging.getLogger(__name__)

_MAX_PAIRS = 1000
_EXPIRES_SOON_DAYS = 30
_MAX_CRL_BYTES = 64 << 20
_PEM_BEGINS = re.compile(b"-----BEGIN ([^-\n]+)-----")
_CRL = re.compile(b"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secrecy and authenticated encryption. Those of TLS 1.3 are all sound."""

_CLIENT = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


@dataclass(frozen=True)
class _Pair:
    """A certificate and the context that uses it. `names` are the DNS names it is valid for."""

    path: str
    context: ssl.SSLContext
    names: list[str]
    expires: datetime


class Certificates:
    """The certificates that new clients are shown. Raises: ConfigError."""

    def __init__(self, config: Config) -> None:
        self._revocations = _revocations(config.tls_crl)
        self._pairs = _loaded(config)
        self._login_from = config.tls_login_from

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context that a new client is accepted with; the name that it asks for may choose
        another certificate.
        """
        return self._pairs[0].context

    def prepare(self, config: Config) -> Callable[[], None]:
        """Load the files that a configuration names, as they are now. Returns the function that has
        new clients shown them. Raises: ConfigError, also if one has expired that is not in use yet.
        """
        revocations = _revocations(config.tls_crl)
        pairs = _loaded(config)
        in_use, now = self.expiries(), datetime.now(UTC)
        for pair in pairs:
            # A start with an expired certificate is let through, as a broker that is down helps
            # less than a warning; a reload keeps what works.
            if pair.expires <= now and (pair.path, pair.expires) not in in_use:
                raise ConfigError(
                    f"{pair.path}: the certificate expired at {pair.expires.isoformat()}: replace "
                    "it, the one in use stays"
                )

        def use() -> None:
            self._pairs = pairs
            self._revocations = revocations
            self._login_from = config.tls_login_from

        return use

    def user_of(self, certificate: bytes, log: ClientLog) -> str:
        """Return the user in a client's certificate (DER), which was verified; empty if it has
        none, or more than one.
        """
        try:
            return _user(x509.load_der_x509_certificate(certificate), self._login_from)
        except ValueError as error:
            log.warning("client certificate without a user", extra={"reason": str(error)})
            return ""

    def expiries(self) -> list[tuple[str, datetime]]:
        """Return the file of each certificate, and when it expires."""
        return [(pair.path, pair.expires) for pair in self._pairs]

    def log_expiry(self, now: datetime) -> None:
        """Log which certificates have expired, or do so within 30 days, and which lists of revoked
        certificates have: no client of their CAs is accepted any more.
        """
        for pair in self._pairs:
            days = (pair.expires - now).days
            extra = {"file": pair.path, "expires": pair.expires.isoformat(), "days": days}
            if pair.expires <= now:
                _log.error("certificate has expired", extra=extra)
            elif days < _EXPIRES_SOON_DAYS:
                _log.warning("certificate expires soon", extra=extra)
        for crl in self._revocations:
            expires = crl.next_update_utc
            if expires is not None and expires <= now:
                extra = {"issuer": crl.issuer.rfc4514_string(), "expires": expires.isoformat()}
                _log.error("list of revoked certificates has expired", extra=extra)


def _loaded(config: Config) -> list[_Pair]:
    """Load the default certificate, and those for other names. Raises: ConfigError."""
    pairs = [_pair(config, *files) for files in _files(config)]
    by_name: dict[str, ssl.SSLContext] = {}
    for pair in pairs:
        for name in pair.names:
            # The first file that names a host keeps it: adding another one must not change what
            # its clients see.
            by_name.setdefault(name, pair.context)
    pairs[0].context.sni_callback = _chooser(by_name)
    return pairs


def _files(config: Config) -> Iterator[tuple[str, str]]:
    """Return each certificate's file, with its key's, the default first. Raises: ConfigError."""
    yield config.tls_certificate, config.tls_key or config.tls_certificate
    directory = config.tls_certificates
    if not directory:
        return
    try:
        found = sorted(os.listdir(directory))
    except OSError as error:
        raise ConfigError(f"tls_certificates: {directory}: {error.strerror}") from None
    names = [name for name in found if name.endswith(".crt")]
    if len(names) > _MAX_PAIRS:
        raise ConfigError(f"tls_certificates: {directory}: more than {_MAX_PAIRS} certificates")
    for name in names:
        path = os.path.join(directory, name)
        yield path, path.removesuffix(".crt") + ".key"


def _pair(config: Config, certificate: str, key: str) -> _Pair:
    """Raises: ConfigError, which names the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    is_13 = config.tls_min_version == "1.3"
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if is_13 else ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    # A client could have the server do many handshakes on one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    # Connections live long: nothing is saved by resuming a session, whose client's certificate
    # would not be verified again.
    context.num_tickets = 0
    context.verify_mode = _CLIENT[config.tls_client]
    if config.tls_client != "none":
        _trust(context, config.tls_ca)
        if config.tls_crl:
            _refuse_revoked(context, config.tls_crl)
    leaf = _leaf(certificate)
    _read(key)
    try:
        context.load_cert_chain(certificate, key, _no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{key}: not the key of {certificate}") from None
        raise ConfigError(f"{key}: not a PEM key that can be used: {error.reason}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: {error}") from None
    return _Pair(certificate, context, _dns_names(leaf), leaf.not_valid_after_utc)


def _trust(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(cadata=_read(path).decode())
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{path}: not a PEM file of certificates: {error}") from None


def _refuse_revoked(context: ssl.SSLContext, path: str) -> None:
    try:
        # OpenSSL reads lists from files only; `_revocations` has looked at the content.
        context.load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"{path}: not a PEM file of CRLs: {error}") from None
    # Of the CAs as well: whoever got hold of the key of one signs any certificate with it.
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def _revocations(path: str) -> list[x509.CertificateRevocationList]:
    """Return the lists of revoked certificates in a file; none without a path. Raises:
    ConfigError.
    """
    if not path:
        return []
    content = _read(path, _MAX_CRL_BYTES)
    kinds = set(_PEM_BEGINS.findall(content))
    if kinds != {b"X509 CRL"}:
        # A certificate in it would be trusted as that of a CA.
        others = b", ".join(sorted(kinds)).decode(errors="replace") or "nothing in PEM"
        raise ConfigError(f"{path}: not a PEM file of CRLs, and nothing else: it has {others}")
    try:
        return [x509.load_pem_x509_crl(one) for one in _CRL.findall(content)]
    except ValueError as error:
        raise ConfigError(f"{path}: not a PEM file of CRLs: {error}") from None


def _leaf(path: str) -> x509.Certificate:
    """Return the first certificate of a file."""
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path}: not a PEM certificate: {error}") from None


def _read(path: str, max_bytes: int = MAX_BYTES) -> bytes:
    try:
        return read_small(path, max_bytes)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _no_password() -> str:
    # Without this OpenSSL would ask for it on the terminal, and wait.
    raise ValueError("the key is encrypted: give one without a password")


def _dns_names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    names = extension.value.get_values_for_type(x509.DNSName)
    return [_without_dot(name.lower()) for name in names]


def _without_dot(name: str) -> str:
    """Return a name without the dot of the root: `a.example.` is the same host as `a.example`."""
    return name.removesuffix(".")


def _chooser(
    by_name: dict[str, ssl.SSLContext],
) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]:
    """Return the function that chooses the certificate for the name that a client asks for. A name
    that none is valid for gets the default.
    """

    def choose(tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        if name is not None:
            name = _without_dot(name.lower())
            wildcard = "*." + name.partition(".")[2]
            if chosen := by_name.get(name) or by_name.get(wildcard):
                tls.context = chosen

    return choose


_SAN_TYPES: dict[str, Callable[[x509.SubjectAlternativeName], list[object]]] = {
    "san_dns": lambda names: [*names.get_values_for_type(x509.DNSName)],
    "san_email": lambda names: [*names.get_values_for_type(x509.RFC822Name)],
    "san_uri": lambda names: [*names.get_values_for_type(x509.UniformResourceIdentifier)],
    "san_ip": lambda names: [*names.get_values_for_type(x509.IPAddress)],
}


def _user(certificate: x509.Certificate, login_from: str) -> str:
    """Return the user that a client's certificate names. Raises: ValueError."""
    if login_from == "distinguished_name":
        return certificate.subject.rfc4514_string()
    if login_from == "common_name":
        found = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        if len(found) != 1:
            # RabbitMQ joins them with a comma; who may choose one could then be another user.
            raise ValueError(f"{len(found)} common names")
        return str(found[0].value)
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        raise ValueError("no subject alternative name") from None
    names = _SAN_TYPES[login_from](extension.value)
    if not names:
        raise ValueError(f"no subject alternative name of the type {login_from}")
    return str(names[0])
