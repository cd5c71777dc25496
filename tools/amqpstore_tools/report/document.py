"""The frame of a page with charts: one file of HTML, which loads nothing."""

from html import escape
from importlib.metadata import version

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #7d7d7d; --a: #2f6fdb; --b: #2a9d5c;
  --c: #d98e04; --bad: #cf222e; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
h2 { margin: 2.2rem 0 .2rem; } p { margin: .3rem 0 .8rem; } .dim { color: var(--dim); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem; }
.tile { border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.4rem; line-height: 1.3; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
svg .n { fill: var(--dim); font-size: 11px; } svg .e { text-anchor: end; }
.axis { stroke: var(--line); } .none { fill: #8881; }
.a { fill: var(--a); } .b { fill: var(--b); } .c { fill: var(--c); } .bad { fill: var(--bad); }
.s0 { fill: #9ecae1; } .s1 { fill: #6baed6; } .s2 { fill: #3182bd; } .s3 { fill: #e6a23c; }
.s4 { fill: #d9730d; } .s5 { fill: #b3261e; } .s6 { fill: #8888; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: .15rem .6rem .15rem 0; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; white-space: nowrap; }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
.keys { font-size: 13px; color: var(--dim); } .key { margin-right: 1.2em; white-space: nowrap; }
.key svg { width: .75em; height: .75em; display: inline-block; }
footer { margin-top: 3rem; color: var(--dim); font-size: 13px; }
"""


def document(title: str, body: str) -> str:
    """Return a page; `body` is HTML, to which the version is added."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>\n{body}"
        f"<footer>amqpstore {escape(version('amqpstore'))}</footer></body></html>\n"
    )
