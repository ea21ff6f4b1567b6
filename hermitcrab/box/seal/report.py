"""What `crab seal` tells: a line for each item, the disk beside the image's limit, the platform's steps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Iterable, Iterator

from hermitcrab.box.disks import size
from hermitcrab.box.platform import Platform
from hermitcrab.box.seal.plan import remaining
from hermitcrab.box.seal.scan import Item

if TYPE_CHECKING:
    from hermitcrab.box.seal import Outcome

GB = 10**9  # what a platform's limit is told in
# What to know when something of a row was cleaned.
_NOTES = (
    (
        "shell-history",
        "In each open shell: unset HISTFILE. Else it writes its history when it ends.",
        "在每个已打开的 shell 中执行 unset HISTFILE，否则其退出时会再次写入历史记录。",
    ),
    (
        "host-keys",
        "Stay logged in until it is saved: a running sshd may refuse new logins until the restart makes new host keys.",
        "保存完成前请保持登录：重启生成新的主机密钥之前，正在运行的 sshd 可能拒绝新的登录。",
    ),
)
_SHOWN = 5  # paths of one row; the rest is a number, and in --json


def as_text(outcome: Outcome, box: Platform) -> str:
    """Tell a person."""
    lines = [*_head(outcome), *_sections(outcome), *(f"failed: {shown(line)}" for line in outcome.failures)]
    lines += [f"not looked at: {shown(path)}: {why}" for path, why in outcome.plan.unread]
    lines += [f"armed: {shown(line)} would power the box off while it is saved" for line in outcome.armed]
    lines += ["       `crab poweroff --disarm` ends it; --yes is refused until then"] if outcome.armed else []
    lines += ["", *_disk(outcome, box)]
    if outcome.mode != "check":
        lines += ["", *_next(outcome, box)]
    return "\n".join(lines)


def as_json(outcome: Outcome, box: Platform) -> str:
    """Tell a program; all paths, none shortened."""
    plan = outcome.plan
    decisions = (("remove", plan.chosen), ("ask", plan.asked), ("keep", plan.kept))
    told: dict[str, Any] = {
        "mode": outcome.mode,
        "passed": outcome.passed,
        "items": [_item(item, decision) for decision, items in decisions for item in items],
        "used_bytes": outcome.used,
        "waste_bytes": gain(plan.chosen),
        "limit_bytes": _limit(box),
        "fits": fits(outcome, box),
        "unread": [{"path": path, "reason": why} for path, why in plan.unread],
        "failures": list(outcome.failures),
        "armed": list(outcome.armed),
        "platform": {"id": box.id, "name": box.name, "confidence": box.confidence, "saves": box.row.saves},
        "steps_en": list(box.row.save_steps_en),
        "steps_zh": list(box.row.save_steps_zh),
    }
    return json.dumps(told, indent=2)


def shown(path: str) -> str:
    """Return a path on one line, whatever bytes are in it."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in path)


def gain(items: Iterable[Item]) -> int:
    """Add up what is free without the items."""
    return sum(item.bytes for item in items)


def fits(outcome: Outcome, box: Platform) -> bool | None:
    """Whether the disk without the waste is within the platform's limit; None when no limit is known."""
    limit = _limit(box)
    return None if limit is None else outcome.used - gain(outcome.plan.chosen) <= limit


def _limit(box: Platform) -> int | None:
    return None if box.row.image_limit_gb is None else int(box.row.image_limit_gb * GB)


def _item(item: Item, decision: str) -> dict[str, Any]:
    row = item.row
    told = {"row": row.id, "kind": row.kind, "what": row.what, "path": item.path, "bytes": item.bytes}
    told.update(files=item.files, clean=row.clean, decision=decision, note=item.note)
    return told


def _head(outcome: Outcome) -> Iterator[str]:
    left, asked = len(remaining(outcome.plan)), len(set(remaining(outcome.plan)) & set(outcome.plan.asked))
    if outcome.mode == "check":
        yield (
            "crab seal: the box is ready to be saved"
            if outcome.passed
            else f"crab seal: NOT ready, {_what(left, outcome)}"
        )
    elif outcome.mode == "apply":
        word = "sealed" if outcome.passed else "NOT sealed, some things could not be removed"
        but = f", but {asked} secret{'s are' if asked > 1 else ' is'} left to you: see ? below" if asked else ""
        yield f"crab seal: {word}{but}"
    else:
        yield "crab seal: dry run, nothing is changed; `crab seal --yes` removes what is marked -"


def _what(left: int, outcome: Outcome) -> str:
    return f"{left} remain" if left or not outcome.armed else "a deadline is armed"


def _sections(outcome: Outcome) -> Iterator[str]:
    plan = outcome.plan
    done = {"apply": "removed", "check": "remains"}.get(outcome.mode, "to remove")
    for title, sign, items in (
        (f"{done}: {size(gain(plan.chosen))}", "-", plan.chosen),
        ("asked, and left: --include NAME removes it, --keep NAME accepts it", "?", plan.asked),
        ("kept", "+", plan.kept),
    ):
        if items:
            yield from ("", title)
            yield from _rows(items, sign)


def _rows(items: Iterable[Item], sign: str) -> Iterator[str]:
    by_row: dict[str, list[Item]] = {}
    for item in items:
        by_row.setdefault(item.row.id, []).append(item)
    for name, group in by_row.items():
        yield f"{sign} {size(gain(group)):>10}  {name:<18} {group[0].row.kind}: {group[0].row.what}"
        # Of a secret each path counts; of waste the largest few tell enough.
        few = group if group[0].row.kind in {"token", "key"} else sorted(group, key=lambda item: -item.bytes)[:_SHOWN]
        for item in few:
            note = f"  ({shown(item.note)})" if item.note else ""
            yield f"  {size(item.bytes):>10}    {shown(item.path)}{note}"
        if len(group) > len(few):
            yield f"                … and {len(group) - len(few)} more"


def _disk(outcome: Outcome, box: Platform) -> Iterator[str]:
    after = outcome.used - gain(outcome.plan.chosen)
    verb = "now" if outcome.mode == "apply" else "without what is marked -"
    yield f"system disk: {size(outcome.used)} in files; {size(after)} {verb}"
    limit = _limit(box)
    if limit is None:
        yield f"image limit of {box.name}: none known"
    else:
        word = "fits" if after <= limit else f"TOO BIG by {size(after - limit)}"
        yield f"image limit of {box.name}: {size(limit)} ({box.row.image_limit_gb:g} GB): {word}"
    yield f"saved with it: {box.row.saves}"
    if outcome.off_disk:
        yield f"the Python environment {outcome.off_disk} is on another disk: no image of this box will hold it"


def _next(outcome: Outcome, box: Platform) -> Iterator[str]:
    rows = {item.row.id for item in outcome.plan.chosen}
    notes = [(en, zh) for row, en, zh in _NOTES if row in rows]
    yield f"then, on {box.name}:" if box.confidence != "none" else "then:"
    yield from _numbered([*(en for en, _ in notes), *box.row.save_steps_en])
    yield f"然后（{box.row.name_zh}）："
    yield from _numbered([*(zh for _, zh in notes), *box.row.save_steps_zh])


def _numbered(steps: Iterable[str]) -> Iterator[str]:
    return (f"  {number}. {step}" for number, step in enumerate(steps, 1))
