"""From the matrix to bootstrap/bootstrap.sh: one self-contained file with the wheel, the pins and the locks."""

from __future__ import annotations

import base64
import bz2
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2

from hermitcrab import __version__
from hermitcrab.box.bootstrap import apt, pins
from hermitcrab.build import lock, wheel
from hermitcrab.errors import UserError
from hermitcrab.matrix import Combo, Matrix

ROOT: Final = Path(__file__).resolve().parents[2]
TEMPLATES: Final = ROOT / "templates"
SCRIPT: Final = ROOT / "bootstrap" / "bootstrap.sh"
LOCKS: Final = ROOT / "bootstrap" / "locks"  # <combo id>/py<version>.lock, for Pythons other than the row's own
WIDTH: Final = 120
# Shell holds every other kind of bracket; these two it never has.
BRACKETS: Final = ("<@", "@>")


def render(matrix: Matrix) -> dict[Path, bytes]:
    """The rendered script, by its path."""
    return {SCRIPT: script(matrix).encode("ascii")}


def script(matrix: Matrix) -> str:
    """The whole script."""
    packed = payload(matrix)
    text = base64.b85encode(packed).decode("ascii")
    values = {
        "version": __version__,
        "payload_sha256": hashlib.sha256(packed).hexdigest(),
        "wheel_sha256": hashlib.sha256(wheel.box_wheel()).hexdigest(),
        "payload": "\n".join(text[start : start + WIDTH] for start in range(0, len(text), WIDTH)),
        "parts": {name: text.rstrip("\n") for name, text in _parts().items()},
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # this is a shell script, not HTML
        variable_start_string=BRACKETS[0],
        variable_end_string=BRACKETS[1],
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
    )
    try:
        return environment.get_template("bootstrap.sh.j2").render(values)
    except jinja2.TemplateError as error:
        raise UserError(f"templates/bootstrap.sh.j2: {error}") from error


def payload(matrix: Matrix) -> bytes:
    """What a box unpacks: tar, bzip2, which is smaller here than xz, and the same in every version.

    Code and data go apart, since the statistics of one are no good for the other. See docs/adr/0011.
    """
    content = _content(matrix)
    code = {name: data for name, data in content.items() if name.endswith(".py")}
    rest = {name: data for name, data in content.items() if name not in code}
    return b"".join(bz2.compress(_tar(part), 9) for part in (code, rest))


def pinned(matrix: Matrix) -> dict[str, Any]:
    """The pins a box needs of the matrix."""
    uv = matrix.tools["uv"]
    texts = {combo.id: _lock_lines(combo) for combo in matrix.combos}
    lines = sorted({line for of in texts.values() for text in of.values() for line in text})
    numbers = {line: number for number, line in enumerate(lines)}
    return {
        "packages": list(matrix.packages),
        "uv": {"version": uv.version, "sha256": uv.sha256},
        "lines": lines,
        "combos": [_row(combo, texts[combo.id], numbers) for combo in matrix.combos],
    }


def wanted(combo: Combo) -> dict[str, Any]:
    """The row in the words of a manifest, which `crab check` compares with what is installed."""
    trio = {name: getattr(combo, name).split("+")[0] for name in ("torch", "torchvision", "torchaudio")}
    row = {"combo": combo.id, "cuda": combo.cuda, "python": combo.python, "driver": combo.driver, **trio}
    return {**row, "arch": list(combo.arch), "ptx": list(combo.ptx), "compiles": combo.compiles}


def locks(combo: Combo) -> dict[str, Path]:
    """The locks of a combo by Python; none where its wheels are on no index that a mirror has."""
    if combo.wheels != "pypi":
        return {}
    others = {f"3.{path.stem.removeprefix('py3')}": path for path in sorted(LOCKS.glob(f"{combo.id}/py3*.lock"))}
    return {**others, combo.python: lock.lock_path(combo)}


def _content(matrix: Matrix) -> Mapping[str, bytes]:
    return {
        **wheel.content(),
        pins.PINS: json.dumps(pinned(matrix), separators=(",", ":"), sort_keys=True).encode(),
        apt.FUNCTIONS: "".join(_parts()[name] for name in ("say.sh", "apt.sh")).encode(),
    }


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _row(combo: Combo, texts: Mapping[str, list[str]], numbers: Mapping[str, int]) -> dict[str, Any]:
    own = {python: [numbers[line] for line in text] for python, text in texts.items()}
    return {"wanted": wanted(combo), "disk_gb": combo.disk_gb, "reason": combo.reason, "locks": own}


def _lock_lines(combo: Combo) -> dict[str, list[str]]:
    return {python: path.read_text(encoding="ascii").splitlines() for python, path in locks(combo).items()}


def _parts() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted((TEMPLATES / "boot").glob("[a-z]*.sh"))}
