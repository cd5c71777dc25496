"""An issuer of tokens (OAuth 2) that serves its keys over HTTPS."""

import http.server
import json
import ssl
import threading
import time
from typing import Any

import jwt
import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ALL = "broker.read:*/* broker.write:*/* broker.configure:*/*"


class Issuer:
    """Signs tokens, and serves its keys."""

    def __init__(self, ca: trustme.CA) -> None:
        self.keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        self.new_key("first")
        self.fetches = 0
        self.status = 200
        self.drips = False
        self.closing = threading.Event()
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetches += 1
                while issuer.drips and not issuer.closing.wait(0.5):
                    self.wfile.write(b"X")  # never a whole line
                content = issuer.key_set() if self.path == "/keys?x=1" else b"{}"
                self.send_response(issuer.status)
                self.send_header("Location", "/keys?x=1")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_arguments: object) -> None:
                """Be silent."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("localhost").configure_cert(context)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"https://localhost:{self._server.server_address[1]}/keys?x=1"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def new_key(self, key_id: str) -> None:
        """Sign with another key from now on, and withdraw the others."""
        self.keys = {key_id: ec.generate_private_key(ec.SECP256R1())}

    def public_pem(self) -> bytes:
        """The public half of its key, for a broker that has it in a file."""
        ((_, key),) = self.keys.items()
        return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def key_set(self) -> bytes:
        to_jwk = jwt.algorithms.ECAlgorithm.to_jwk
        keys = [
            {**json.loads(to_jwk(key.public_key())), "kid": key_id}
            for key_id, key in self.keys.items()
        ]
        return json.dumps({"keys": keys}).encode()

    def token(self, user: str = "anna", scope: str = ALL, lasts_s: float = 60, **other: Any) -> str:
        ((key_id, key),) = self.keys.items()
        claims = {"sub": user, "aud": "broker", "scope": scope, "exp": time.time() + lasts_s}
        return jwt.encode({**claims, **other}, key, "ES256", headers={"kid": key_id})
