"""Compression of bodies with zstd: what is worth it is smaller on disk, and nobody else notices."""

from __future__ import annotations

from collections.abc import Sequence

import zstandard

_WORTH_IT = 0.9
"""A body that stays larger than this part of itself is kept as it is."""

_DICTIONARY_BYTES = 16 << 10
_LEAST_SAMPLES = 64
_LEAST_WITH_DICTIONARY = 32
_SMALL_BODY_BYTES = 4 << 10
"""Above, a body has enough to itself, and a dictionary hardly helps."""


class Compressor:
    """Compresses for one thread.

    Args: least_bytes, the smallest body that is tried; level, of zstd; dictionary, trained by
    `train`, or empty.
    """

    def __init__(self, least_bytes: int, level: int, dictionary: bytes = b"") -> None:
        self._least_bytes = least_bytes
        self._level = level
        trained = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._zstd = zstandard.ZstdCompressor(
            level=level, dict_data=trained, write_content_size=True, write_checksum=False
        )

    def with_dictionary(self, dictionary: bytes) -> Compressor:
        """The same with a dictionary, and so for small bodies as well."""
        return Compressor(min(self._least_bytes, _LEAST_WITH_DICTIONARY), self._level, dictionary)

    def compress(self, body: bytes) -> bytes | None:
        """The compressed body; None where it is not worth it."""
        if len(body) < self._least_bytes:
            return None
        compressed = self._zstd.compress(body)
        return compressed if len(compressed) < _WORTH_IT * len(body) else None


class Decompressor:
    """Decompresses what any compressor of the store made, for one thread.

    `dictionaries` are those of the store, by the id that zstd gave each.
    """

    def __init__(self, dictionaries: dict[int, bytes]) -> None:
        self._dictionaries = dictionaries
        self._zstd: dict[int, zstandard.ZstdDecompressor] = {}

    def decompress(self, compressed: bytes) -> bytes:
        """The body. Raises: ValueError, when it is none, or its dictionary is not there."""
        try:
            number = zstandard.get_frame_parameters(compressed).dict_id
            return self._of(number).decompress(compressed, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(f"the body cannot be decompressed: {error}") from None

    def _of(self, number: int) -> zstandard.ZstdDecompressor:
        if number not in self._zstd:
            if number and number not in self._dictionaries:
                raise ValueError(f"the body was compressed with dictionary {number}, which is lost")
            trained = zstandard.ZstdCompressionDict(self._dictionaries[number]) if number else None
            self._zstd[number] = zstandard.ZstdDecompressor(dict_data=trained)
        return self._zstd[number]


def body_size(compressed: bytes) -> int:
    """How large the body is that was compressed. Raises: ValueError."""
    try:
        return zstandard.frame_content_size(compressed)
    except zstandard.ZstdError as error:
        raise ValueError(f"no compressed body: {error}") from None


def train(bodies: Sequence[bytes]) -> tuple[int, bytes] | None:
    """A dictionary for bodies like these, and its id; None where it would not help.

    It helps where bodies are small and alike.
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
    """A zstd frame of an index block's columns: most of them hardly change from row to row."""
    return zstandard.ZstdCompressor(level=1, write_checksum=False).compress(columns)


def decompress_columns(frame: bytes) -> bytes:
    """The columns. Raises: ValueError, when it is no such frame."""
    try:
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"no compressed columns: {error}") from None
