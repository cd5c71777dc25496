"""An etcd that asks for certificates and logins."""

from base64 import b64encode
from pathlib import Path

import trustme

from amqpstore_server.etcd.settings import EtcdSettings
from tests.etcd_process import EtcdCluster

_USER = "amqpstore"
_PASSWORD = "right"


class Authority:
    """A CA, with a certificate of the server and one of its client."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ca = trustme.CA()
        self._ca.cert_pem.write_to_path(self.path("ca.pem"))
        self.issue()

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def issue(self) -> None:
        """Write new certificates over the former ones."""
        for name, identity in (("server", "127.0.0.1"), ("client", "amqpstore.example")):
            leaf = self._ca.issue_cert(identity)
            leaf.private_key_pem.write_to_path(self.path(f"{name}.key"))
            leaf.cert_chain_pems[0].write_to_path(self.path(f"{name}.pem"))

    def settings(self, urls: tuple[str, ...], user: str, password: str) -> EtcdSettings:
        """Say how a user reaches an etcd that this CA has certified."""
        ca, certificate, key = (self.path(one) for one in ("ca.pem", "client.pem", "client.key"))
        return EtcdSettings(urls, ca, certificate, key, user, password)


class SecuredEtcd(EtcdCluster):
    """One member, with a user who may use `/amqpstore/` alone."""

    def __init__(self, directory: str, authority: Authority) -> None:
        self._authority = authority
        server = [authority.path("server.pem"), "--key-file", authority.path("server.key")]
        trusted = ["--client-cert-auth", "--trusted-ca-file", authority.path("ca.pem")]
        super().__init__(
            directory,
            arguments=["--cert-file", *server, *trusted, "--bcrypt-cost", "4"],
            tls=authority.settings(("https://127.0.0.1",), "", "").tls_context(),
        )
        for user in ("root", _USER):
            self.post("/v3/auth/user/add", {"name": user, "password": _PASSWORD})
            self.post("/v3/auth/role/add", {"name": user})
            self.post("/v3/auth/user/grant", {"user": user, "role": user})
        place = {"key": b64encode(b"/amqpstore/"), "range_end": b64encode(b"/amqpstore0")}
        rights = {"permType": "READWRITE", **{key: text.decode() for key, text in place.items()}}
        self.post("/v3/auth/role/grant", {"name": _USER, "perm": rights})
        self.post("/v3/auth/enable", {})

    @property
    def settings(self) -> EtcdSettings:
        return self._authority.settings(self.urls, _USER, _PASSWORD)
