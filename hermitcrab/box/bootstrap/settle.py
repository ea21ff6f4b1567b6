"""The last steps, which are Python's own: settings by `crab setup`, and the verdict of `crab check`."""

from __future__ import annotations

import contextlib
import glob
import io
import json
import shlex
from pathlib import Path
from typing import NamedTuple, Sequence

from hermitcrab.box import files, setup
from hermitcrab.box.bootstrap.run import Run
from hermitcrab.errors import UserError

SSHD, SSHD_FOLDER = Path("/usr/sbin/sshd"), Path("/run/sshd")  # without the folder it refuses every setting
HOST_KEYS = "/etc/ssh/ssh_host_*_key"
USER_FILE = "environment.sh"  # read by templates/home/profile.sh, for a user without root's rights


class Verdict(NamedTuple):
    """What `crab check` came to."""

    word: str  # pass, fail or skip
    text: str


def settings(run: Run, *, undo: bool = False, dry: bool = False) -> list[str]:
    """Let `crab setup` do its work; return a line for each thing that it changed, or would."""
    if run.root and SSHD.exists() and not dry and not undo:
        files.make_folder(SSHD_FOLDER)
        if lacks_host_keys(run):
            run.attempt("ssh-keygen", "-A")  # without them crab setup says what is wrong
    words = ["--undo"] * undo + ["--dry-run"] * dry + ["--system"] * (run.root and not undo)
    said, warned = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(warned):
        setup.main(words)
    for line in said.getvalue().splitlines():
        run.note(line)
    for line in [] if dry else warned.getvalue().splitlines():
        run.warn(line.replace("crab: warning: ", "", 1))
    return [line for line in said.getvalue().splitlines() if line.startswith("/") and ": " in line]


def lacks_host_keys(run: Run) -> bool:
    """Whether the SSH server could not start: a sealed image holds no keys, and not every platform makes new ones."""
    return run.root and SSHD.exists() and not glob.glob(HOST_KEYS)


def protect(run: Run, pins: Sequence[str], venv: Path | None) -> None:
    """Write the constraint file; and, for a plain user, where it and the environment are."""
    _write(run.places.constraints, "".join(f"{pin}\n" for pin in pins).encode())
    if run.root:
        return
    file = shlex.quote(str(run.places.constraints))
    lines = [f"export PIP_CONSTRAINT={file} UV_CONSTRAINT={file}"]
    if venv:
        folder = shlex.quote(str(venv))
        case = f'case ":$PATH:" in *:{folder}/bin:*) ;;'
        lines.insert(0, f'{case} *) export PATH={folder}/bin:"$PATH" VIRTUAL_ENV={folder} ;; esac')
    _write(run.places.settings / USER_FILE, "".join(f"{line}\n" for line in lines).encode())


def check(run: Run, python: str) -> Verdict:
    """Let the new environment check itself."""
    status, said = run.attempt(python, "-m", "hermitcrab.cli", "check", "--quick", "--json", environ=_plain(run))
    try:
        found = json.loads(said[said.index("{") :])
    except ValueError:
        raise UserError(f"crab check ended with {status} and said nothing: see the log") from None
    rows = {row["id"]: row for row in found["findings"]}
    failed = [f"{row['id']}: {row['text']}" for row in found["findings"] if row["status"] == "fail"]
    if failed:
        return Verdict("fail", "; ".join(failed[:3]))
    return Verdict(found["verdict"], rows["gpu.count"]["text"])


def _plain(run: Run) -> dict[str, str]:
    return {name: value for name, value in run.environ.items() if not name.startswith("PYTHON")}


def _write(path: Path, data: bytes) -> None:
    if files.read(path) != data:
        files.write(path, data, 0o644)
