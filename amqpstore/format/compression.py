"""Compression of bodies with zstd, used only where it saves enough."""

from __future__ import annotations

from collections.abc import Sequence

import zstandard

_WORTH_IT = 0.9
"""A body that is not compressed to less than this fraction of its size is stored as it is."""

_DICTIONARY_BYTES = 16 << 10
_LEAST_SAMPLES = 64
_LEAST_WITH_DICTIONARY = 32
_SMALL_BODY_BYTES = 4 << 10
"""Larger bodies contain enough repetition themselves, and a dictionary hardly helps."""

MAX_BODY_BYTES = 1 << 30
"""The largest body that is decompressed: a few bytes of zstd can expand to any number of zeros."""

_MEASURED_AT_ONCE_BYTES = 16 << 20
_MEASURED_PIECE_BYTES = 1 << 20


class Compressor:
    """Compresses for one thread.

    Args: least_bytes, the smallest body that is tried; level, of zstd; dictionary, trained by
    `train`, or empty.
    """

    def __init__(self, least_bytes: int, level: int, dictionary: bytes = b"") -> None:
        self._least_bytes = least_bytes
        self._level = level
        trained = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        # The record has a checksum already. The size is needed: `body_size` refuses a body by it
        # before it is decompressed.
        self._zstd = zstandard.ZstdCompressor(
            level=level, dict_data=trained, write_content_size=True, write_checksum=False
        )

    def with_dictionary(self, dictionary: bytes) -> Compressor:
        """Return the same with a dictionary, which also compresses small bodies."""
        return Compressor(min(self._least_bytes, _LEAST_WITH_DICTIONARY), self._level, dictionary)

    def compress(self, body: bytes) -> bytes | None:
        """Return the compressed body; None if it is not worth it."""
        if not self._least_bytes <= len(body) <= MAX_BODY_BYTES:
            return None
        compressed = self._zstd.compress(body)
        return compressed if len(compressed) < _WORTH_IT * len(body) else None


class Decompressor:
    """Decompresses the output of any compressor of the store, for one thread.

    `dictionaries` are those of the store, by their zstd ids.
    """

    def __init__(self, dictionaries: dict[int, bytes]) -> None:
        self._dictionaries = dictionaries
        self._zstd: dict[int, zstandard.ZstdDecompressor] = {}

    def decompress(self, compressed: bytes) -> bytes:
        """Decompress a body. Raises: ValueError, when it is invalid, is too large, or its
        dictionary is missing.
        """
        size = body_size(compressed)
        try:
            return self._of(compressed).decompress(compressed, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(f"the body cannot be decompressed: {error}") from None
        except MemoryError:
            raise ValueError(f"the body's {size} bytes do not fit in memory") from None

    def measure(self, compressed: bytes) -> int:
        """Measure a body by decompressing all of it. Raises: as `decompress`."""
        size = body_size(compressed)
        if size <= _MEASURED_AT_ONCE_BYTES:
            return len(self.decompress(compressed))
        found = 0
        try:
            with self._of(compressed).stream_reader(compressed) as reader:
                while piece := reader.read(_MEASURED_PIECE_BYTES):
                    found += len(piece)
        except zstandard.ZstdError as error:
            raise ValueError(f"the body cannot be decompressed: {error}") from None
        if found != size:
            raise ValueError(f"the body has {found} bytes, but its header says {size}")
        return found

    def _of(self, compressed: bytes) -> zstandard.ZstdDecompressor:
        number = zstandard.get_frame_parameters(compressed).dict_id
        if number not in self._zstd:
            if number and number not in self._dictionaries:
                raise ValueError(f"the body was compressed with dictionary {number}, which is lost")
            trained = zstandard.ZstdCompressionDict(self._dictionaries[number]) if number else None
            self._zstd[number] = zstandard.ZstdDecompressor(dict_data=trained)
        return self._zstd[number]


def body_size(compressed: bytes) -> int:
    """Return the size of a body as the header of its frame says. Raises: ValueError."""
    try:
        size = zstandard.frame_content_size(compressed)
    except zstandard.ZstdError as error:
        raise ValueError(f"it is not a compressed body: {error}") from None
    if not 0 <= size <= MAX_BODY_BYTES:
        raise ValueError(
            f"the header of the body says {size} bytes; at most {MAX_BODY_BYTES} are allowed"
        )
    return size


def train(bodies: Sequence[bytes]) -> tuple[int, bytes] | None:
    """Return a dictionary for bodies like these, and its id; None if it would not help.

    It helps for small, similar bodies.
    """
    small: list[bytes | bytearray | memoryview] = [
        body for body in bodies if 8 <= len(body) <= _SMALL_BODY_BYTES
    ]
    if len(small) < _LEAST_SAMPLES or 2 * len(small) < len(bodies):
        return None
    try:
        trained = zstandard.train_dictionary(_DICTIONARY_BYTES, small)
    except zstandard.ZstdError:
        return None  # They have nothing in common.
    return trained.dict_id(), trained.as_bytes()


def compress_columns(columns: bytes) -> bytes:
    """Return a zstd frame of an index block's columns, most of which hardly change from row to
    row.
    """
    return zstandard.ZstdCompressor(level=1, write_checksum=False).compress(columns)


def decompress_columns(frame: bytes, *sizes: int) -> bytes:
    """Return the columns, of one of `sizes` bytes. Raises: ValueError, when it is not such a
    frame.
    """
    try:
        # Asked first, as decompressing allocates whatever the frame claims.
        if (found := zstandard.frame_content_size(frame)) not in sizes:
            raise ValueError(f"its columns have {found} bytes, but {sizes[0]} were written")
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"they are not compressed columns: {error}") from None
