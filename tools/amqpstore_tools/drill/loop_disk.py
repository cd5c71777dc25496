"""A real file system on a loop device, whose power can be cut.

The cut is the kernel's own (FS_IOC_SHUTDOWN): the file system stops at once and writes nothing of
what it has in memory, neither data nor journal; mounted again, it recovers as after a crash. It
needs root, and a kernel or container that allows it to mount.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator

_SHUTDOWN = 0x8004587D
_WITHOUT_THE_LOG = 2
_TIMEOUT_S = 60.0

KINDS = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f")}
"""The command that makes each file system, by its name, with a size that it accepts."""

_BYTES = 320 << 20


class NoDiskError(Exception):
    """A disk cannot be made here; the message says why."""


class LoopDisk:
    """A mounted file system, at `path`."""

    def __init__(self, image: str, path: str) -> None:
        self.path = path
        self._image = image

    def mount(self) -> None:
        """Raises: NoDiskError."""
        _run("mount", "-o", "loop", self._image, self.path)

    def cut_power(self) -> None:
        """Raises: NoDiskError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _WITHOUT_THE_LOG))
        except OSError as error:
            raise NoDiskError(f"the file system cannot be stopped: {error.strerror}") from None
        finally:
            os.close(descriptor)

    def restart(self) -> None:
        """Mount it as after a power cut. Raises: NoDiskError."""
        _run("umount", self.path)
        self.mount()


@contextlib.contextmanager
def loop_disk(work: str, kind: str) -> Iterator[LoopDisk]:
    """Make a file system of a kind in a file in `work`, and mount it. Raises: NoDiskError."""
    if os.geteuid() != 0:
        raise NoDiskError("only root may mount a file system on a loop device")
    image, path = os.path.join(work, f"{kind}.img"), os.path.join(work, kind)
    with open(image, "wb") as file:
        file.truncate(_BYTES)
    os.makedirs(path, exist_ok=True)
    try:
        _run(*KINDS[kind], image)
        disk = LoopDisk(image, path)
        disk.mount()
        try:
            yield disk
        finally:
            with contextlib.suppress(NoDiskError):
                _run("umount", "-l", path)
    finally:
        os.unlink(image)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603 (commands of the system, with paths of the drill)
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise NoDiskError(f"{command[0]} is not installed") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoDiskError(f"{command[0]}: {error}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise NoDiskError(f"{command[0]}: {said[0]}")
