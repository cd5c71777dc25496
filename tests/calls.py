"""Counts the calls of the broker or a tool, which are the same however busy the machine is."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

_ROOT = Path(__file__).parents[1]


class Counts:
    """Counts of calls within its block, without calls of files in the folders `without`, and of the
    collection of garbage that other tests have left, which may come at any time.
    """

    def __init__(self, without: tuple[str, ...] = ("tests", "tools")) -> None:
        # Of this checkout: it may be below a folder of that name itself.
        self._foreign = tuple(f"{_ROOT / folder}/" for folder in without)
        self.python: Counter[str] = Counter()
        self.built_in: Counter[str] = Counter()
        self.modules: Counter[str] = Counter()
        """Calls of Python functions, by module."""

    def __enter__(self) -> None:
        gc.disable()
        sys.setprofile(self._called)

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        path, module = frame.f_code.co_filename, frame.f_globals.get("__name__")
        if path.startswith("<") and frame.f_back is not None:
            path = frame.f_back.f_code.co_filename  # generated, as of a named tuple: its maker's
        if path.startswith(self._foreign):
            return
        if event == "call":
            self.python[f"{module}.{frame.f_code.co_qualname}"] += 1
            if str(module).startswith("namedtuple_") and frame.f_back is not None:
                module = frame.f_back.f_globals.get("__name__")
            self.modules[str(module)] += 1
        elif event == "c_call":
            self.built_in[getattr(argument, "__qualname__", str(argument))] += 1
