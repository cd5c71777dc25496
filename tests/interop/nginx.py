"""A real nginx in front of a broker's pages: with TLS, below a path."""

import os
import socket
import subprocess
from pathlib import Path
from typing import Self

from tests.etcd_process import free_port
from tests.interop.external_client import need
from tests.interop.tls_files import TlsFiles
from tests.waiting import wait_until

_CONFIG = """
daemon off;
master_process off;
pid {directory}/pid;
error_log {directory}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{port} {tls};
        ssl_certificate {certificate};
        ssl_certificate_key {certificate};
        {locations}
    }}
}}
"""


class Nginx:
    """An nginx on a free port of localhost. Args: locations, what is in its block `server`."""

    def __init__(
        self, directory: Path, files: TlsFiles, locations: str, *, has_tls: bool = True
    ) -> None:
        self._program = need("nginx", "apt-get install nginx-light")
        directory.mkdir()
        self._directory = directory
        self.port = free_port()
        self.url = f"{'https' if has_tls else 'http'}://localhost:{self.port}"
        self._config = directory / "nginx.conf"
        self._config.write_text(
            _CONFIG.format(
                directory=directory,
                port=self.port,
                tls="ssl" if has_tls else "",
                certificate=files.path("server.pem"),
                locations=locations,
            )
        )
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        log = str(self._directory / "error.log")
        command = [self._program, "-e", log, "-p", str(self._directory), "-c", str(self._config)]
        self._process = process = subprocess.Popen(command)

        def listens() -> bool:
            assert process.poll() is None, self.log
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(listens, "nginx")
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)

    @property
    def log(self) -> str:
        """Return the errors that nginx has logged."""
        path = self._directory / "error.log"
        return path.read_text() if os.path.exists(path) else ""
