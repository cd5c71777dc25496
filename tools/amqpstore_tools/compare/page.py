"""The page of a comparison: one file of HTML, which loads nothing."""

import os
import shlex
from collections.abc import Iterator, Sequence
from html import escape

from amqpstore_tools.compare.report import CompareReport, spread_text
from amqpstore_tools.compare.summary import Rounds
from amqpstore_tools.compare.workloads import Figure
from amqpstore_tools.offline.terminal import counted
from amqpstore_tools.report.charts import bars
from amqpstore_tools.report.document import document

_MAX_CHARTS = 6
_STYLES = ("a", "c", "b", "bad")
"""A CSS class of the page for each broker."""


def page(report: CompareReport) -> str:
    """Return the page about all workloads."""
    labels = [broker.label for broker in report.brokers]
    title = " and ".join(labels)
    brokers = "".join(
        f'<div class="tile"><b>{escape(broker.label)}</b>{escape(broker.product)} '
        f"{escape(broker.version)} at {escape(broker.address)}</div>"
        for broker in report.brokers
    )
    rounds = counted(report.settings.rounds, "round")
    intro = (
        f"<p class=dim>Measured on {escape(report.started)}, on {os.cpu_count()} cores that the "
        f"load generator shares. {rounds}, the brokers by turns. Each number is the median, "
        "with the least and the most of the rounds.</p>\n"
    )
    failed = "".join(f"<p>Failed: {escape(line)}</p>\n" for line in report.failed())
    sections = "".join(
        f"<section><h2>{escape(name)}: {escape(one.workload.title)}</h2>\n"
        f"{_workload(report, one)}</section>\n"
        for name, one in report.rounds.items()
    )
    return document(
        title,
        f'{intro}<div class="tiles">{brokers}</div>\n{failed}{_ratios(report)}{sections}'
        f"<section><h2>All figures</h2>\n{_table(report)}</section>\n",
    )


def _ratios(report: CompareReport) -> str:
    """Return a chart of the ratios of the first broker to each other one, by workload."""
    parts = []
    for other in range(1, len(report.brokers)):
        rows, styles = [], []
        for name, rounds in report.rounds.items():
            for figure in rounds.figures()[:1]:
                if (ratio := rounds.ratio(figure, other)) is not None:
                    text = f"{spread_text(ratio, 2)} x"
                    rows.append((f"{name}: {figure.title}", ratio.median, text))
                    styles.append("c" if figure.unit == "ms" else "b")
        first, second = (escape(report.brokers[index].label) for index in (0, other))
        if rows:
            parts.append(
                f"<section><h2>{first} compared with {second}</h2>\n<p class=dim>Times as many a "
                f"second; of waits, times as long.</p>\n{bars(rows, *styles)}</section>\n"
            )
    return "".join(parts)


def _workload(report: CompareReport, rounds: Rounds) -> str:
    command = shlex.join(["amqpstore", "bench", *rounds.workload.arguments])
    return f"<p class=dim><code>{escape(command)}</code></p>\n" + "".join(_charts(report, rounds))


def _charts(report: CompareReport, rounds: Rounds) -> Iterator[str]:
    """Yield a chart for each figure, with a bar for each broker; one for all if they are many."""
    figures = rounds.figures()
    if len(figures) > _MAX_CHARTS:
        rows = [
            ("" if index else figure.title, value, f"{text} {figure.unit}, {label}")
            for figure in figures
            for index, (label, value, text) in enumerate(_bars(report, rounds, figure))
        ]
        yield bars(rows, *_STYLES[: len(report.brokers)])
        return
    for figure in figures:
        yield f"<p>{escape(figure.title)}, {escape(figure.unit)}</p>\n"
        yield bars(list(_bars(report, rounds, figure)), *_STYLES)


def _bars(
    report: CompareReport, rounds: Rounds, figure: Figure
) -> Iterator[tuple[str, float, str]]:
    """Yield a bar for each broker."""
    for index, broker in enumerate(report.brokers):
        spread = rounds.spread(figure, index)
        yield broker.label, spread.median if spread else 0.0, spread_text(spread, figure.digits)


def _table(report: CompareReport) -> str:
    """Return the table that the terminal shows."""
    others = range(1, len(report.brokers))
    head = ["", *(broker.label for broker in report.brokers)]
    head += [f"ratio to {report.brokers[other].label}" for other in others]
    rows = [_row(head, "th")]
    for name, rounds in report.rounds.items():
        for figure in rounds.figures():
            spreads = [rounds.spread(figure, index) for index in range(len(report.brokers))]
            cells = [f"{name}: {figure.title}, {figure.unit}"]
            cells += [spread_text(spread, figure.digits) for spread in spreads]
            cells += [spread_text(rounds.ratio(figure, other), 2) for other in others]
            rows.append(_row(cells, "td"))
    return f"<table>{''.join(rows)}</table>"


def _row(cells: Sequence[str], tag: str) -> str:
    first, *rest = (escape(cell) for cell in cells)
    numbers = "".join(f"<{tag} class=number>{cell}</{tag}>" for cell in rest)
    return f"<tr><{tag}>{first}</{tag}>{numbers}</tr>\n"
