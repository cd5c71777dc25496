"""Objects have to be freed as soon as they are not used, not when the garbage collector runs: it
runs seldom here, by design, so what waits for it adds up. `conftest` has the fixtures
`no_collections` and `unreachable`.
"""

import gc
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def only_what_is_new() -> Generator[None]:
    """Hide from `gc`, and so from what it shows, all objects that exist before the block."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@contextmanager
def no_collections() -> Generator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@contextmanager
def unreachable() -> Generator[Callable[[], Counter[str]]]:
    """Give what counts our objects that only a collection would free, by their types."""

    def counted() -> Counter[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(f"{type(one).__module__}.{type(one).__name__}" for one in gc.garbage)
        return Counter({name: found[name] for name in found if name.startswith("amqpstore")})

    with no_collections():
        yield counted
        gc.set_debug(0)
        gc.garbage.clear()


def living(*types: type) -> Counter[str]:
    """Return how many objects there are of these types."""
    return Counter(type(found).__name__ for found in gc.get_objects() if isinstance(found, types))
