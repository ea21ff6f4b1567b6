"""Proves before a run starts that this machine can be stopped, and says what that will mean; changes nothing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Callable, Iterator, Mapping, NamedTuple

from hermitcrab.box import platform as recognition
from hermitcrab.box.disks import NETWORK, NO_DISKS, find_mount, read_mounts
from hermitcrab.box.files import read
from hermitcrab.box.platform import Platform, detect
from hermitcrab.box.power import calls, http
from hermitcrab.box.power.stops import STOPS, Call, Stop, Value, Way
from hermitcrab.box.session import pid1
from hermitcrab.errors import UserError

CONFIDENCE = ("none", "low", "medium", "high")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
METADATA_LIMIT = 2.0  # seconds


class Plan(NamedTuple):
    """A stop that was shown to be possible, with all that it needs: no file and no variable is read later."""

    platform: str
    name: str
    identity: str
    ways: tuple[Way, ...]  # the proven ones first
    settle: float
    destroys: bool


class View(NamedTuple):
    """What a machine says of itself when it is asked whether it can be stopped."""

    platform: Platform
    stop: Stop | None
    plan: Plan | None  # None: it cannot be stopped from inside
    refused: str  # why, one line
    notes: tuple[str, ...] = ()  # what each way was found to be


def examine(
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    *,
    stops: Mapping[str, Stop] = STOPS,
    terminate: bool = False,
) -> View:
    """Find out who rents out this machine and whether it can be stopped from inside; asks, and changes nothing."""
    platform = detect(root, environ)
    stop = stops.get(platform.id)
    given = pid1(root)
    seen = recognition.View(root, environ, given, read_mounts(root))
    plain = platform.kind == "container" and not recognition.in_container(seen)
    kind = "machine without a container" if plain else platform.kind
    refused = _unfit(platform, stop, kind, terminate=terminate) or _hearsay(platform, given)
    if refused or stop is None:
        return View(platform, stop, None, refused)
    try:
        values = _values(stop, environ, {**_written(root), **given}, root)
    except UserError as error:
        return View(platform, stop, None, str(error))
    proven: list[Way] = []
    others: list[Way] = []
    notes = []
    for way in stop.ways:
        ready, said = _ready(way, values, environ, root)
        proof = calls.make(ready.proof) if ready and ready.proof else None
        if ready:
            (others if proof and not proof.ok else proven).append(ready)
        notes.append(f"{way.name}: {said or (proof.said if proof else 'is there')}")
    if not proven:
        return View(platform, stop, None, f"the stop path of {platform.name} is not open: {'; '.join(notes)}")
    plan = Plan(
        stop.platform, platform.name, values.get("id", ""), (*proven, *others), stop.settle, destroys=stop.destroys
    )
    return View(platform, stop, plan, "", tuple(notes))


def keeps(stop: Stop, path: Path, root: Path = Path("/")) -> bool:
    """Say whether what lies at a path is still there after the stop."""
    where = os.path.realpath(path)
    mounts = read_mounts(root)
    mount = find_mount(where, mounts)
    if mount is not None and mount.type in NO_DISKS - {"overlay"}:
        return False  # memory
    if stop.keeps == ("/",) or (mount is not None and mount.type in NETWORK):
        return True
    # A plain folder of that name lies on the disk that goes: it must be mounted there.
    return mount is not None and any(re.fullmatch(_pattern(kept), mount.path) for kept in stop.keeps)


def lines(view: View) -> Iterator[tuple[str, str]]:
    """Yield name and text of each fact for a human."""
    platform, row = view.platform, view.platform.row
    yield "platform", f"{platform.name} ({platform.kind}), confidence {platform.confidence}"
    for evidence in platform.evidence or ("nothing that names a platform",):
        yield "evidence", evidence
    for note in view.notes:
        yield "proof", note
    if view.plan is None or view.stop is None:
        yield "stop path", "NOT AVAILABLE: you must stop this by hand"
        yield "why", view.refused
        if row.stop_path not in view.refused and not row.stop_path.startswith("not known"):
            yield "by hand", row.stop_path
        return
    verb = "terminate, which DESTROYS the instance" if view.stop.destroys else "stop"
    yield "stop path", f"{verb}, by {', else '.join(way.name for way in view.plan.ways)}"
    yield "ends", view.stop.ends
    yield "still billed", row.billed_after_stop
    yield "release clock", row.release_clock
    if view.stop.keeps != ("/",):
        yield "stays", ", ".join(view.stop.keeps)
    if view.stop.caution:
        yield "caution", view.stop.caution


def _unfit(platform: Platform, stop: Stop | None, kind: str, *, terminate: bool) -> str:
    """Say why this machine is never stopped from inside, before anything is asked of anyone."""
    known = not platform.row.stop_path.startswith("not known")
    by_hand = (
        f"; by hand: {platform.row.stop_path}" if known else "; stop it where you rent it, and see that it stopped"
    )
    if stop is None:
        who = "this machine is not known" if platform.id == "unknown" else f"this is {platform.name}"
        return f"{who}: nothing here may power it off{by_hand}"
    if CONFIDENCE.index(platform.confidence) < CONFIDENCE.index(stop.confidence):
        evidence = "; ".join(platform.evidence)
        return f"{platform.name} is only guessed, confidence {platform.confidence} ({evidence}): no power-off{by_hand}"
    if kind != stop.kind:
        return f"{platform.name} is expected to be a {stop.kind}, and this is a {kind}: no power-off{by_hand}"
    if stop.destroys and not terminate:
        return f"{platform.name} knows no stop, only terminate, which destroys the disk: --allow-terminate allows it"
    return ""


def _hearsay(platform: Platform, given: Mapping[str, str]) -> str:
    """Refuse what only this session's variables say: a platform gives them to PID 1, a copied .env file does not."""
    for evidence in platform.evidence:
        said = re.fullmatch(r"(\w+) is set", evidence)
        if said and given and said[1] not in given:
            return f"{said[1]} is set in this session but not for PID 1: {platform.name} did not set it; no power-off"
    return ""


def _values(stop: Stop, environ: Mapping[str, str], given: Mapping[str, str], root: Path) -> dict[str, str]:
    """Collect what the calls need; raises UserError for what is missing.

    Which machine this is, the platform says; a key of the user's own may be stronger than the one it gave.
    """
    known = {"key": {**given, **environ}}
    found = {value.name: _value(value, known.get(value.name, {**environ, **given}), stop) for value in stop.values}
    finder = FINDERS.get(stop.platform)
    if finder:
        found["id"] = finder(stop, found, root)
    return found


def _value(value: Value, environ: Mapping[str, str], stop: Stop) -> str:
    text, source = "", " or ".join(value.variables) or value.url
    if value.url:
        text = http.ask("GET", value.url, timeout=METADATA_LIMIT, tries=2, proxies=False).text.strip()
    for name in value.variables:
        text = text or environ.get(name, "").strip()
    if value.prefix and text.startswith(value.prefix):
        text = text[len(value.prefix) :]
    if not text:
        raise UserError(f"the stop of {stop.platform} needs {source}, which is not there (nor for PID 1)")
    if not re.fullmatch(value.form, text):
        raise UserError(f"{source} is nothing that the stop of {stop.platform} can use")
    return text


def _lambda_instance(stop: Stop, values: Mapping[str, str], root: Path) -> str:
    """Find this very machine in the account's list: by its address and by its file systems, so that no other dies."""
    answer = calls.make(calls.fill(_proof(stop)._replace(names=""), values))
    if not answer.ok:
        raise UserError(f"the list of Lambda's instances cannot be read: {answer.said}")
    mine, mounted = addresses(root), {path.name for path in (root / "lambda/nfs").glob("*")}
    listed = answer.data.get("data", []) if isinstance(answer.data, dict) else []
    found = [
        str(one.get("id", ""))
        for one in listed
        if isinstance(one, dict)
        and mine & {one.get("ip"), one.get("private_ip")}
        and mounted & {name for name in one.get("file_system_names") or () if isinstance(name, str)}
    ]
    if len(found) != 1 or not re.fullmatch(r"[0-9a-zA-Z-]{8,64}", found[0]):
        raise UserError(f"{len(found)} of the key's instances have this machine's address and file systems: not one")
    return found[0]


FINDERS: dict[str, Callable[[Stop, Mapping[str, str], Path], str]] = {"lambda": _lambda_instance}


def addresses(root: Path = Path("/")) -> set[str]:
    """Return the IPv4 addresses of this machine's interfaces, loopback left out."""
    text = os.fsdecode(read(root / "proc/net/fib_trie") or b"")
    found = re.findall(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL", text)
    return {address for address in found if not address.startswith("127.")}


def _proof(stop: Stop) -> Call:
    return stop.ways[0].proof or stop.ways[0].stop


def _ready(way: Way, values: Mapping[str, str], environ: Mapping[str, str], root: Path) -> tuple[Way | None, str]:
    """Fill a way with what it needs; or say why it cannot be gone."""
    filled = []
    for call in (way.stop, way.proof):
        if call is not None and call.argv:
            program, why = _program(call.argv[0], environ, root)
            if why:
                return None, why
            call = call._replace(argv=(program, *call.argv[1:]))  # noqa: PLW2901
        filled.append(calls.fill(call, values) if call else None)
    stop, proof = filled
    return (Way(way.name, stop, proof) if stop else None), ""


def _program(name: str, environ: Mapping[str, str], root: Path) -> tuple[str, str]:
    """Return where a program is, or why it is not the one that is meant."""
    if not name.startswith("/"):
        found = shutil.which(name, path=f"{environ.get('PATH', '')}:{SYSTEM_PATH}")
        return (os.path.abspath(found), "") if found else ("", f"{name} is not installed")
    place = root / name.lstrip("/")
    if not (os.path.isfile(place) and os.access(str(place), os.X_OK)):
        return "", f"{name} is not there"
    # A platform brings its own; the one of systemd stops no bill.
    if os.path.basename(os.path.realpath(place)) in {"systemctl", "halt", "molly-guard"}:
        return "", f"{name} is the system's own, not the platform's"
    return str(place), ""


def _written(root: Path) -> dict[str, str]:
    """Read the variables that RunPod's own images write for SSH sessions."""
    found = {}
    for line in os.fsdecode(read(root / "etc/rp_environment") or b"").splitlines():
        name, equals, value = line.partition("=")
        if name.startswith("export RUNPOD_") and equals:
            try:
                words = shlex.split(value)
            except ValueError:
                continue
            found[name[len("export ") :]] = words[0] if words else ""
    return found


def _pattern(kept: str) -> str:
    return re.escape(kept).replace(r"\*", "[^/]+")
