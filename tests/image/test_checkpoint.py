"""Claim: checkpoints of the image's own torch survive and resume exactly; tests/checkpoint, run inside."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest

from hermitcrab.matrix import Combo
from tests.image import boxes
from tests.image.conftest import Start

ROOT: Final = Path(__file__).parents[2]
DEPS: Final = sysconfig.get_paths()["purelib"]  # holds pytest, which the image does not
# The image holds no compiled files, and the tests start many Pythons: each but the first would compile torch anew.
COMPILED: Final = "/tmp/compiled"
PYTEST: Final = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:testinfra")


@pytest.mark.timeout(2400)
def test_checkpoints_in_the_image(create_once: Start, combo: Combo) -> None:
    """No test fails there, and some have run."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if combo.python != here:
        pytest.skip(f"the image has Python {combo.python}, pytest is here for {here} only")
    mounts = {str(ROOT): {"bind": "/repo", "mode": "ro"}, DEPS: {"bind": "/deps", "mode": "ro"}}
    container = create_once(
        combo,
        [*PYTEST, "/repo/tests/checkpoint"],
        volumes=mounts,
        environment={"PYTHONPATH": "/repo:/deps", "PYTHONPYCACHEPREFIX": COMPILED},
        working_dir="/repo",
        shm_size="256m",  # the data loader's workers
    )
    done = boxes.finish(container, seconds=2200)
    said = done.out.decode()[-5000:]
    assert done.status == 0, said + done.err.decode()[-2000:]
    assert " passed" in said and "no torch here" not in said
