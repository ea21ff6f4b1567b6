"""The page of a report: its frame and its looks, light and dark. All that comes from outside is escaped here."""

from __future__ import annotations

import html
import unicodedata
from typing import Iterable

# Nothing may be loaded and nothing may run, whatever a log line tries.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2430; --soft: #5d6b7e; --rule: #e3e7ed;
  --s1: #2563eb; --s2: #d97706; --s3: #0d9488; --good: #15803d; --bad: #b91c1c; --warn: #b45309; --calm: #475569; }
@media (prefers-color-scheme: dark) { :root { --page: #0f141b; --card: #18202a; --ink: #e6ebf2; --soft: #93a1b5;
  --rule: #2a3442; --s1: #60a5fa; --s2: #fbbf24; --s3: #2dd4bf; --good: #4ade80; --bad: #f87171; --warn: #fbbf24;
  --calm: #94a3b8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1160px; padding: 28px 20px 48px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "PingFang SC", "Microsoft YaHei",
  "Noto Sans CJK SC", sans-serif; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 6px 14px; }
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 32px 0 12px; }
.kicker { flex-basis: 100%; color: var(--soft); letter-spacing: .04em; }
.badge { border: 1.5px solid currentColor; border-radius: 999px; padding: 1px 12px; font-weight: 600; }
.done, .smoke { color: var(--good); } .failed { color: var(--bad); }
.preempted, .stopped { color: var(--warn); }
.running, .waiting, .restarting, .closing, .unknown { color: var(--calm); }
.reason { margin: 8px 0 0; white-space: pre-wrap; overflow-wrap: anywhere; }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
pre { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 10px 14px; margin: 14px 0 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(165px, 1fr)); gap: 12px; margin-top: 18px; }
.card, figure, .end { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 12px 16px; }
.card b { display: block; font-size: 20px; line-height: 1.3; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.card span, figcaption span, .more { color: var(--soft); font-size: 13px; }
.card small { color: var(--soft); font-size: 13px; font-weight: 400; }
.charts { margin-top: 18px; display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); }
figure { margin: 0; }
figcaption { display: flex; flex-wrap: wrap; gap: 2px 14px; font-weight: 600; margin-bottom: 4px; }
figcaption i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin: 0 5px 3px 0; }
svg { display: block; width: 100%; height: auto; }
svg path { fill: none; stroke-width: 1.5; stroke-linejoin: round; stroke-linecap: round; }
.s1 { stroke: var(--s1); background: var(--s1); } .s2 { stroke: var(--s2); background: var(--s2); }
.s3 { stroke: var(--s3); background: var(--s3); }
.grid { stroke: var(--rule); } .tick { fill: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
.mark line { stroke: var(--calm); stroke-dasharray: 3 4; stroke-width: 1.2; }
.mark.failure line, .mark.preemption line { stroke: var(--bad); } .mark.warning line { stroke: var(--warn); }
.end p { margin: 0 0 6px; white-space: pre-wrap; overflow-wrap: anywhere; }
.end ul { margin: 4px 0; padding-left: 20px; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--rule); border-radius: 12px; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; color: var(--soft); font-weight: 600; }
td, th { padding: 7px 14px; border-top: 1px solid var(--rule); vertical-align: top; font-size: 14px; }
tr:first-child th { border-top: 0; } td:first-child { white-space: nowrap; font-variant-numeric: tabular-nums; }
td:nth-child(2) { white-space: nowrap; font-weight: 600; }
td:last-child { min-width: 240px; white-space: pre-wrap; overflow-wrap: anywhere; }
tr.failure td:nth-child(2), tr.preemption td:nth-child(2) { color: var(--bad); }
tr.warning td:nth-child(2) { color: var(--warn); } tr.ended td:nth-child(2) { color: var(--s1); }
footer { margin-top: 28px; color: var(--soft); font-size: 13px; }
@media print { body { background: #fff; max-width: none; } .card, figure, .scroll { break-inside: avoid; } }
"""


def text(said: object, most: int = 4000) -> str:
    """Escape a text; what a terminal or a reader could be fooled with is left out."""
    shown = "".join(char for char in str(said)[:most] if char in "\n\t" or unicodedata.category(char) not in HIDDEN)
    return html.escape(shown, quote=True)


# Control characters, half characters, and those that turn the direction of writing.
HIDDEN = {"Cc", "Cs", "Cf"}


def page(title: str, language: str, body: Iterable[str]) -> str:
    """Put the page together."""
    return (
        f'<!DOCTYPE html>\n<html lang="{text(language)}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def card(name: str, value: str, more: str = "") -> str:
    """One figure with its name."""
    return f'<div class="card"><span>{text(name)}</span><b>{text(value)} <small>{text(more)}</small></b></div>'


def figure(name: str, svg: str, legend: Iterable[str]) -> str:
    """One chart with its heading; a legend where it has several lines."""
    names = list(legend)
    keys = "".join(f'<span><i class="s{number}"></i>{text(one)}</span>' for number, one in enumerate(names, 1))
    return f"<figure><figcaption>{text(name)}{keys if len(names) > 1 else ''}</figcaption>{svg}</figure>"


def table(headings: Iterable[str], rows: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Rows of cells, each with its class."""
    head = "".join(f"<th>{text(heading)}</th>" for heading in headings)
    lines = (
        f'<tr class="{text(kind)}">{"".join(f"<td>{text(cell)}</td>" for cell in cells)}</tr>' for kind, cells in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>\n' + "\n".join(lines) + "\n</table></div>"
