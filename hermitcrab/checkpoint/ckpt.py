"""`crab ckpt ls|verify|show|prune`: what checkpoints are here, are they whole, which may go.

Reads hermitcrab's own, and those of others: .pt files and safetensors, alone or in folders such as
checkpoint-500. Needs no torch, and unpickles nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Sequence

from hermitcrab.checkpoint import foreign, retention, store
from hermitcrab.checkpoint.foreign import BAD, GOOD, Verdict
from hermitcrab.checkpoint.retention import LEAST, Keep, Verified
from hermitcrab.errors import UserError

OWN, OTHER, ASIDE = "hermitcrab", "foreign", "set aside"


class Entry(NamedTuple):
    """Something in a folder that is, or should be, a checkpoint."""

    step: int | None
    path: Path
    kind: str


def main(arguments: Sequence[str]) -> int:
    """Run `crab ckpt`: 0 all is good, 1 something is bad, 65 nothing is good."""
    options = _parser().parse_args(arguments)
    work = {"ls": _ls, "verify": _verify, "show": _show, "prune": _prune}[options.command]
    if not options.path.exists():
        raise UserError(f"{options.path} is not there; give the folder of a run, or one checkpoint", code=2)
    return work(options)


def entries(folder: Path) -> list[Entry]:
    """List all checkpoints of a folder, or the one that ``folder`` is; the newest step first."""
    if (folder / store.MANIFEST).exists() or store.NAME.fullmatch(folder.name):
        return [Entry(foreign.number(folder), folder, OWN)]
    if foreign.is_foreign(folder) and folder.is_file():
        return [Entry(foreign.number(folder), folder, OTHER)]
    own = [Entry(item.step, item.path, OWN) for item in store.found(folder)]
    names = {item.path for item in own}
    others = [
        path for path in folder.iterdir() if path not in names and path.name != "bad" and foreign.is_foreign(path)
    ]
    listed = own + [Entry(foreign.number(path), path, OTHER) for path in others]
    return sorted(listed, key=lambda entry: (-1 if entry.step is None else entry.step, entry.path.name), reverse=True)


def judge(entry: Entry) -> Verdict:
    """Say whether an entry is whole, to its last byte where there are checksums."""
    if entry.kind == OTHER:
        return foreign.check(entry.path)
    reason = store.reason_of(entry.path)
    return Verdict(GOOD) if reason is None else Verdict(BAD, reason)


def _ls(options: argparse.Namespace) -> int:
    rows = [_row(entry) for entry in entries(options.path)]
    rows += [
        {"step": item.step, "path": str(item.path), "kind": ASIDE, "bytes": _size(item.path)}
        for item in _aside(options.path)
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        _print_rows(rows, options.path)
    return 0


def _verify(options: argparse.Namespace) -> int:
    judged = [(entry, judge(entry)) for entry in entries(options.path)]
    good = [entry for entry, verdict in judged if verdict.state == GOOD]
    if options.json:
        told = [{"path": str(entry.path), "step": entry.step, **verdict._asdict()} for entry, verdict in judged]
        print(json.dumps(told, indent=1))
    else:
        for entry, verdict in judged:
            print(f"{verdict.state:8}{entry.path}" + (f"  ({verdict.reason})" if verdict.reason else ""))
        print(f"newest good: {good[0].path}" if good else "nothing good here")
    if not good:
        return store.NO_GOOD_CHECKPOINT if judged else 1
    return int(any(verdict.state == BAD for _, verdict in judged))


def _show(options: argparse.Namespace) -> int:
    listed = entries(options.path)
    if not listed:
        raise UserError(f"{options.path} holds no checkpoint", code=1)
    entry = listed[0]
    try:
        told = store.read_manifest(entry.path) if entry.kind == OWN else dict(_contents(entry.path))
    except (store.BadError, OSError, ValueError) as error:
        raise UserError(f"{entry.path}: {error}") from error
    print(json.dumps({"path": str(entry.path), **told}, indent=1, sort_keys=True))
    return 0


def _prune(options: argparse.Namespace) -> int:
    if options.keep < LEAST:
        raise UserError(f"--keep {options.keep}: at least {LEAST} stay, since one may turn out to be bad", code=2)
    surplus = [*_own_surplus(options), *_foreign_surplus(options)]
    for path in surplus:
        if options.yes:
            _delete(path)
        print(f"{'removed' if options.yes else 'would remove'} {path}")
    if not surplus:
        print("nothing to remove")
    elif not options.yes:
        print("nothing is removed yet: add --yes")
    return 0


def _own_surplus(options: argparse.Namespace) -> Iterator[Path]:
    """Each run keeps its own."""
    keep = Keep(options.keep, options.keep_every, options.best)
    manifests = [store.read_manifest(item.path) for item in store.found(options.path) if _is_read(item.path)]
    for run in sorted({str(manifest.get("run")) for manifest in manifests}):
        yield from retention.surplus(options.path, run, keep, Verified())


def _foreign_surplus(options: argparse.Namespace) -> Iterator[Path]:
    """Of every series of names, such as step_N.pt, the newest good ones stay; what has no number stays."""
    kept: dict[str, int] = {}
    for entry in entries(options.path):
        if entry.kind != OTHER or entry.step is None or foreign.check(entry.path).state != GOOD:
            continue
        name = foreign.series(entry.path)
        kept[name] = kept.get(name, 0) + 1
        every = bool(options.keep_every) and entry.step % options.keep_every == 0
        if kept[name] > options.keep and not every:
            yield entry.path


def _delete(path: Path) -> None:
    if store.NAME.fullmatch(path.name) and path.is_dir():
        store.remove(path)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _contents(path: Path) -> Iterator[tuple[str, Any]]:
    if path.is_dir():
        files = [item for item in sorted(path.iterdir()) if item.is_file()]
        yield from ((item.name, dict(_contents(item)) if foreign.is_foreign(item) else {}) for item in files)
        return
    yield "bytes", path.stat().st_size
    if path.suffix == foreign.SAFETENSORS:
        yield "tensors", {name: row for name, row in foreign.header(path).items() if name != "__metadata__"}
    elif foreign.check(path).state != BAD:
        yield "imports", foreign.globals_of(path)


def _row(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"step": entry.step, "path": str(entry.path), "kind": entry.kind, "bytes": _size(entry.path)}
    if entry.kind == OWN and _is_read(entry.path):
        manifest = store.read_manifest(entry.path)
        row.update({name: manifest.get(name) for name in ("epoch", "metrics", "run", "time", "exact")})
    elif entry.kind == OWN:
        row["kind"] = "no checkpoint"
    return row


def _print_rows(rows: list[dict[str, Any]], folder: Path) -> None:
    if not rows:
        print(f"no checkpoint in {folder}")
    for row in rows:
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["time"])) if row.get("time") else ""
        metrics = " ".join(f"{name}={value:.5g}" for name, value in (row.get("metrics") or {}).items())
        step = "-" if row["step"] is None else row["step"]
        line = f"{step!s:>10} {row['bytes'] / 1e6:10.1f} MB  {row['kind']:13} {Path(row['path']).name}"
        print(f"{line}  {written} {metrics}".rstrip())


def _aside(folder: Path) -> list[store.Found]:
    return store.found(folder / "bad") if folder.is_dir() else []


def _is_read(path: Path) -> bool:
    try:
        store.read_manifest(path)
    except (store.BadError, UserError):
        return False
    return True


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    return sum(item.stat().st_size for item in files)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="crab ckpt", description=__doc__.partition("\n\n")[2])
    commands = parser.add_subparsers(dest="command", required=True, metavar="ls|verify|show|prune")
    for name, said in (
        ("ls", "list checkpoints, also those set aside"),
        ("verify", "read every byte; 1 if one is bad, 65 if none is good"),
        ("show", "print what the newest one, or the given one, says of itself"),
        ("prune", "remove old ones; tells only, without --yes"),
    ):
        command = commands.add_parser(name, help=said, description=said)
        command.add_argument("path", type=Path, help="the folder of a run, or one checkpoint")
        if name in {"ls", "verify"}:
            command.add_argument("--json", action="store_true", help="print JSON")
        if name == "prune":
            command.add_argument("--keep", type=int, default=LEAST, help="how many of the newest good ones stay")
            command.add_argument("--keep-every", type=int, default=0, metavar="N", help="every Nth step stays as well")
            command.add_argument("--best", default="", help="the best by this metric stays; +NAME if more is better")
            command.add_argument("--yes", action="store_true", help="remove them")
    return parser
