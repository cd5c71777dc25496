"""Datasyncs in the background: the kernel syncs a file while this thread does other work.

A thread that syncs costs more than the sync itself when batches are small: it has to be woken, it
waits for the interpreter before and after the call, and it has to wake the thread that gave it the
batch. Linux can do without it: its asynchronous I/O (`io_submit(2)`) has an operation for
fdatasync, and signals its end through an eventfd, which a selector can wait for with the sockets.

This is a second way to the operating system besides `files`, for this one call. Files that have no
descriptor, such as simulated ones, are synced by their own `datasync`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from typing import NamedTuple, Protocol

from amqpstore.system.files import File


class Datasyncs(Protocol):
    """Syncs one file at a time in the background."""

    def start(self, file: File) -> bool:
        """Start what `File.datasync` does. None may be under way.

        Returns whether it was started; if not, nothing was done, and the file has to be synced by
        `File.datasync`. Its end is signalled.
        """

    def is_done(self, *, wait: bool = False) -> bool:
        """Return whether the one that was started has ended; True once, then none is under way.

        Raises: OSError, as `File.datasync`: it has ended then.
        """

    def close(self) -> None:
        """Return when none is under way any more."""


class _Calls(NamedTuple):
    """Numbers of system calls."""

    setup: int
    destroy: int
    getevents: int
    submit: int


_CALLS = {"x86_64": _Calls(206, 207, 208, 209), "aarch64": _Calls(0, 1, 4, 2)}

# linux/aio_abi.h: struct iocb and struct io_event, of little-endian machines.
_REQUEST = struct.Struct("<QIiHhIQQqQII")
_EVENT = struct.Struct("<QQqq")
_FDSYNC = 3
_SIGNALS = 1  # IOCB_FLAG_RESFD: through the eventfd in the last field


class KernelDatasyncs:
    """Datasyncs by Linux's asynchronous I/O. Created by `open`."""

    def __init__(self, calls: _Calls, context: int, signal: int) -> None:
        # Neither call waits, so the interpreter is not released for them.
        submit = ctypes.PyDLL(None, use_errno=True).syscall
        self._wait = ctypes.CDLL(None, use_errno=True).syscall
        submit.restype = self._wait.restype = ctypes.c_long
        self._submit = self._poll = submit
        self._calls = calls
        self._context = ctypes.c_ulong(context)
        self._signal = signal
        self._request = ctypes.create_string_buffer(_REQUEST.size)
        self._event = ctypes.create_string_buffer(_EVENT.size)
        requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._submitted = (ctypes.c_long(calls.submit), self._context, ctypes.c_long(1), requests)
        # By whether to wait. Made once: they would cost more than the call that does not.
        self._asked = tuple(
            (
                ctypes.c_long(calls.getevents),
                self._context,
                ctypes.c_long(least),
                ctypes.c_long(1),
                self._event,
                None,
            )
            for least in (0, 1)
        )
        self._descriptor = -1

    @classmethod
    def open(cls, signal: int) -> KernelDatasyncs | None:
        """Prepare for them; None where the kernel has none.

        Args: signal, an eventfd, to which the end of each is written.
        """
        calls = _CALLS.get(platform.machine())
        if calls is None or sys.platform != "linux" or sys.byteorder != "little":
            return None
        context = ctypes.c_ulong(0)
        # It fails where a container forbids the call (EPERM, ENOSYS), and where other processes use
        # all that fs.aio-max-nr allows (EAGAIN).
        if ctypes.CDLL(None).syscall(ctypes.c_long(calls.setup), 1, ctypes.byref(context)):
            return None
        return cls(calls, context.value, signal)

    def start(self, file: File) -> bool:
        if file.descriptor is None:
            return False
        if file.descriptor != self._descriptor:
            self._descriptor = file.descriptor
            _REQUEST.pack_into(
                self._request, 0, *(0, 0, 0, _FDSYNC, 0, file.descriptor, 0, 0, 0, 0),
                _SIGNALS, self._signal,
            )  # fmt: skip
        # Linux before 4.18 has the call, but not this operation (EINVAL): a thread syncs then.
        return bool(self._submit(*self._submitted) == 1)

    def is_done(self, *, wait: bool = False) -> bool:
        call = self._wait if wait else self._poll
        if call(*self._asked[wait]) != 1:
            return False  # also when a signal of the process ended the wait
        result = _EVENT.unpack(self._event)[2]
        if result:
            raise OSError(-result, os.strerror(-result))
        return True

    def close(self) -> None:
        # io_destroy(2) waits until what was started has ended: the kernel writes to `_event` until
        # then.
        self._wait(ctypes.c_long(self._calls.destroy), self._context)
