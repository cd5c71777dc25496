"""The HTML page of a drill: one file, which loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.metadata import version
from itertools import groupby

from amqpstore_tools.drill.verdict import INVARIANTS, Account, Step

_WIDTH, _HEIGHT = 900, 120
_MAX_CHARTS = 12
_MAX_ROWS = 400

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; --dim: #7d7d7d; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; }
th, td { text-align: left; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: break-word; }
td:first-child { white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
.held { color: var(--good); } .violated { color: var(--bad); font-weight: bold; }
.not-exercised { color: var(--dim); }
code, pre { font: 13px/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; margin: .2rem 0; }
figure { margin: 1rem 0; } figcaption { color: var(--dim); }
svg { width: 100%; height: auto; background: #8881; }
.band { fill: #2f81f755; } .least { stroke: #2f81f7; fill: none; stroke-width: 1.5; }
.promised { stroke: var(--good); fill: none; stroke-width: 1.5; } .bad { fill: var(--bad); }
"""


def page(accounts: Sequence[Account]) -> str:
    """Return the page about all scenarios of a drill."""
    violated = sum(len(account.findings) for account in accounts)
    verdict = f"{violated} violations" if violated else "no violations"
    body = "".join(part for account in accounts for part in _scenario(account))
    title = f"amqpstore drill: {verdict}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{title}</h1>\n{body}<p>amqpstore {escape(version('amqpstore'))}</p></body></html>\n"
    )


def _scenario(account: Account) -> Iterator[str]:
    did = ", ".join(f"{count:,} {what}" for what, count in sorted(account.did.items()))
    yield f"<h2>{escape(account.scenario)}</h2>\n"
    if account.left_out:
        yield f"<p>Left out: {escape(account.left_out)}</p>\n"
        return
    yield f"<p>Seed {escape(account.seed)}: {escape(did)}, {account.seconds:.1f} s.</p>\n"
    yield _table(
        ("", "verdict", "#times checked", "invariant"),
        (
            (
                invariant,
                f'<span class="{verdict.value.replace(" ", "-")}">{verdict.value}</span>',
                f"{account.checks[invariant]:,}",
                escape(INVARIANTS[invariant]),
            )
            for invariant, verdict in account.verdicts.items()
        ),
    )
    if account.findings:
        yield "<h3>Violations</h3>\n"
        yield _table(
            ("", "violation", "where"),
            (
                (
                    escape(finding.invariant),
                    f"{escape(finding.text)}<pre>{escape(finding.reproduce)}</pre>",
                    escape(finding.where),
                )
                for finding in account.findings
            ),
        )
    yield "<h3>Promised and surviving messages</h3>\n"
    yield from _charts(account.timeline)
    yield from _rows(account.timeline)


def _charts(timeline: Sequence[Step]) -> Iterator[str]:
    """Yield a chart for each round with several steps; otherwise one for all rounds."""
    rounds = [list(steps) for _, steps in groupby(timeline, lambda step: step.round)]
    if rounds and all(len(steps) == 1 for steps in rounds):
        yield _chart([step for steps in rounds for step in steps], "All rounds")
        return
    for steps in rounds[:_MAX_CHARTS]:
        yield _chart(steps, f"Round {steps[0].round}")
    if len(rounds) > _MAX_CHARTS:
        yield f"<p>And {len(rounds) - _MAX_CHARTS} more rounds.</p>\n"


def _chart(steps: Sequence[Step], title: str) -> str:
    highest = max(1, *(max(step.most, step.promised) for step in steps))
    across = _WIDTH / len(steps)

    def points(heights: Iterable[tuple[int, int]]) -> str:
        return " ".join(
            f"{index * across:.1f},{_HEIGHT - 4 - height * (_HEIGHT - 8) / highest:.1f}"
            for index, height in heights
        )

    def stairs(heights: Sequence[int]) -> list[tuple[int, int]]:
        # A value holds from its step up to the next: nothing lies between the two.
        return [(index + end, height) for index, height in enumerate(heights) for end in (0, 1)]

    upper = stairs([step.most for step in steps])
    lower = stairs([step.least for step in steps])
    marks = "".join(
        f'<circle class="bad" cx="{(index + 0.5) * across:.1f}" cy="8" r="5"/>'
        for index, step in enumerate(steps)
        if step.is_violated
    )
    promised = points(stairs([step.promised for step in steps]))
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'<polygon class="band" points="{points([*upper, *reversed(lower)])}"/>'
        f'<polyline class="least" points="{points(lower)}"/>'
        f'<polyline class="promised" points="{promised}"/>{marks}</svg>'
        f"<figcaption>{escape(title)}, {len(steps)} steps, up to {highest:,} messages. Green: "
        "promised and not yet acked; blue: least and most that survived; red: a violation."
        "</figcaption></figure>\n"
    )


def _rows(timeline: Sequence[Step]) -> Iterator[str]:
    # Violations are never left out.
    shown = [step for index, step in enumerate(timeline) if index < _MAX_ROWS or step.is_violated]
    left_out = len(timeline) - len(shown)
    yield f"<details><summary>{len(shown)} steps"
    yield f" ({left_out} more are in the JSON file)" if left_out else ""
    yield "</summary>\n"
    yield _table(
        ("#round", "#step", "action", "#promised", "#survived", "#reported as damaged"),
        (
            (
                str(step.round),
                str(step.number),
                f'<span class="violated">{escape(step.did)}</span>'
                if step.is_violated
                else escape(step.did),
                f"{step.promised:,}",
                f"{step.least:,}" + (f" to {step.most:,}" if step.most != step.least else ""),
                f"{step.named:,}" if step.named else "",
            )
            for step in shown
        ),
    )
    yield "</details>\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Cells are HTML already. A heading that begins with # is for a column of
    numbers.
    """
    kinds = [' class="number"' if head.startswith("#") else "" for head in heads]
    head = "".join(
        f"<th{kind}>{escape(text.lstrip('#'))}</th>"
        for kind, text in zip(kinds, heads, strict=True)
    )
    lines = [
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>\n"
        for row in rows
    ]
    return f"<table><tr>{head}</tr>\n{''.join(lines)}</table>\n"
