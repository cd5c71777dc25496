"""Charts as inline SVG: no script, and nothing to load. Every mark has its number as a title."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

_WIDTH = 900
_LABEL = 230
_ROW = 22
_AXIS = 18
_LETTER = 6.4
"""Approximate width of a letter of small text."""


class Series(NamedTuple):
    """Numbers in the order of the columns, and the CSS class that they are drawn in."""

    name: str
    style: str
    values: Sequence[float]


def bars(rows: Sequence[tuple[str, float, str]], *styles: str) -> str:
    """Return one bar per row: its label, its length, and the text at its end."""
    if not rows:
        return ""
    most = max(value for _, value, _ in rows) or 1
    room = _WIDTH - _LABEL - max(150, 12 + _LETTER * max(len(text) for _, _, text in rows))
    parts = []
    for index, (name, value, text) in enumerate(rows):
        y = index * _ROW
        style = styles[index % len(styles)] if styles else "a"
        length = max(value / most * room, 1 if value else 0)
        parts.append(_name(name, y))
        parts.append(_rect(_LABEL, y + 3, length, _ROW - 6, style, f"{name}: {text}"))
        parts.append(
            f'<text x="{_LABEL + length + 6:.1f}" y="{y + 15}" class="n">{escape(text)}</text>'
        )
    return _svg(len(rows) * _ROW, parts)


def shares(rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], unit: str) -> str:
    """Return one bar per row, all of the same length, in parts: classes `s0`, `s1` and so on."""
    parts = []
    room = _WIDTH - _LABEL - 150
    for index, (name, values) in enumerate(rows):
        y = index * _ROW
        parts.append(_name(name, y))
        total = sum(values)
        x = float(_LABEL)
        for number, (value, what) in enumerate(zip(values, names, strict=True)):
            if value:
                length = value / total * room
                title = f"{name}, {what}: {value:,.0f} {unit}"
                parts.append(_rect(x, y + 3, length, _ROW - 6, f"s{number}", title))
                x += length
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 15}" class="n">{total:,.0f}</text>')
    legend = _legend([(what, f"s{number}") for number, what in enumerate(names)])
    return legend + _svg(len(rows) * _ROW, parts)


def columns(
    series: Sequence[Series], labels: Sequence[str], unit: str, *, stacked: bool, height: int = 150
) -> str:
    """Return columns over time or size: several series beside each other, or stacked."""
    count = len(labels)
    if not count:
        return ""
    tops = [
        (sum if stacked else max)(one.values[index] for one in series) for index in range(count)
    ]
    most = max(tops) or 1
    width = (_WIDTH - 60) / count
    parts = [
        f'<text x="52" y="12" class="n e">{_short(most)}</text>',
        f'<text x="52" y="{height}" class="n e">0</text>',
        f'<line x1="58" x2="{_WIDTH}" y1="{height}" y2="{height}" class="axis"/>',
    ]
    for index in range(count):
        base = float(height)
        for number, row in enumerate(series):
            value = row.values[index]
            if not value:
                continue
            tall = max(value / most * (height - 4), 1)
            title = f"{labels[index]}: {value:,.0f} {unit} {row.name}".strip()
            x = 60 + index * width
            if stacked:
                parts.append(_rect(x, base - tall, max(width - 1, 0.5), tall, row.style, title))
                base -= tall
            else:
                wide = max(width - 1, 0.5) / len(series)
                parts.append(_rect(x + number * wide, height - tall, wide, tall, row.style, title))
    parts += _axis(labels, width, height)
    legend = _legend([(one.name, one.style) for one in series])
    return legend + _svg(height + _AXIS, parts)


def heat(rows: Sequence[tuple[str, Sequence[float]]], labels: Sequence[str], unit: str) -> str:
    """Return a row of squares each: the more, the darker, on one common scale."""
    if not rows or not labels:
        return ""
    most = max((value for _, values in rows for value in values), default=0) or 1
    width = (_WIDTH - _LABEL) / len(labels)
    parts = []
    for number, (name, values) in enumerate(rows):
        y = number * _ROW
        parts.append(_name(name, y))
        for index, value in enumerate(values):
            x = _LABEL + index * width
            title = f"{name}, {labels[index]}: {value:,.0f} {unit}"
            dark = 0.06 + 0.94 * (value / most) ** 0.5 if value else 0.0
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 2}" width="{max(width - 0.5, 0.5):.1f}" '
                f'height="{_ROW - 4}" class="{"a" if value else "none"}" '
                f'fill-opacity="{dark if value else 1:.2f}"><title>{escape(title)}</title></rect>'
            )
    parts += _axis(labels, width, len(rows) * _ROW, _LABEL)
    return _svg(len(rows) * _ROW + _AXIS, parts)


def _legend(names: Sequence[tuple[str, str]]) -> str:
    square = '<svg viewBox="0 0 10 10"><rect width="10" height="10" class="{}"/></svg>'
    keys = "".join(
        f'<span class="key">{square.format(style)} {escape(name)}</span>' for name, style in names
    )
    return f'<p class="keys">{keys}</p>'


def _axis(labels: Sequence[str], width: float, y: float, start: float = 60) -> Iterator[str]:
    longest = 10 + _LETTER * max(map(len, labels))
    step = max(len(labels) // 8, math.ceil(longest / width))
    for index in range(0, len(labels), step):
        x = start + index * width
        if x + longest < _WIDTH:
            yield f'<text x="{x:.1f}" y="{y + 14}" class="n">{escape(labels[index])}</text>'


def _name(name: str, y: float) -> str:
    shown = name if len(name) <= 34 else f"{name[:33]}…"
    return (
        f'<text x="{_LABEL - 8}" y="{y + 15}" class="e"><title>{escape(name)}</title>'
        f"{escape(shown)}</text>"
    )


def _rect(x: float, y: float, width: float, height: float, style: str, title: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'class="{style}"><title>{escape(title)}</title></rect>'
    )


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img">{"".join(parts)}</svg>'


def _short(value: float) -> str:
    for limit, divisor, unit in ((1e3, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if value < limit:
            return f"{value / divisor:.3g}{unit}"
    return f"{value / 1e9:.3g}G"
