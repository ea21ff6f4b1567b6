"""Claim: a run fits itself to the machine it is on: little memory, little disk, an odd /tmp, another distribution."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
from docker.types import Mount

from tests.box import bootstrapping, machine
from tests.box.bootstrapping import TREE, WORDS, Ready, Served, changed, run, told
from tests.box.conftest import Start

AUTODL: Final = {"AutoDLContainerUUID": "x"}
LIMIT: Final = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null | head -n 1"


def test_a_box_with_2_gb_and_no_card(start_once: Start, ready: Ready, served: Served) -> None:
    """AutoDL's mode for setting up, half a core: it ends well, and says skipped and how to save the box."""
    little: dict[str, Any] = {"mem_limit": "2g", "memswap_limit": "2g", "nano_cpus": 500_000_000}
    box = ready(start_once, environment=AUTODL, **little)
    if box.shell(LIMIT) != str(2 << 30):
        pytest.skip("this engine sets no limits")
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}")
    assert status == 0, said
    assert "GPU check skipped, which is no pass: AutoDL in no-GPU mode (无卡模式)" in said
    assert "save as a custom image (AutoDL" in said
    assert (told(box)["result"], told(box)["check"]) == ("done", "skip")
    box.container.reload()
    assert not box.container.attrs["State"]["OOMKilled"]


@pytest.mark.parametrize("disk", ["/opt", "/small"], ids=["where torch goes", "TMPDIR"])
def test_too_little_disk(disk: str, start_once: Start, ready: Ready, served: Served) -> None:
    """C35: what is needed and what is free, before anything is fetched; nothing is changed."""
    box = ready(start_once, tmpfs={disk: "rw,exec,size=100m"})
    before = box.shell(TREE)
    environ = {**bootstrapping.environment(), **({"TMPDIR": disk} if disk == "/small" else {})}
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}", environ=environ)
    assert status == 1
    assert re.search(rf"{disk} has \d+\.\d MiB free", said.splitlines()[-1]), said
    assert changed(before, box.shell(TREE)) == []


def test_a_data_disk_with_room(start_once: Start, ready: Ready, served: Served, tmp_path: Path) -> None:
    """Then the environment goes there, found by the usual name, and the plan says that no saved image holds it."""
    mounts = [*bootstrapping.options().get("mounts", []), Mount("/root/autodl-tmp", str(tmp_path), type="bind")]
    box = ready(start_once, environment=AUTODL, tmpfs={"/opt": "rw,exec,size=100m"}, mounts=mounts)
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}")
    assert status == 0, said
    assert "NOT part of a saved image" in said
    assert box.shell("readlink /opt/venv") == "/root/autodl-tmp/hermitcrab/venv"
    assert box.shell("bash -lc 'crab --version'").startswith("crab ")


def test_a_tmp_that_runs_nothing(start_once: Start, ready: Ready, served: Served) -> None:
    """Noexec on /tmp, an empty environment but for the certificate, and a Chinese locale."""
    box = ready(start_once, tmpfs={"/tmp": "rw,noexec,size=300m"})
    box.shell("dpkg --purge nano >/dev/null 2>&1")
    command = f"{served.curl()} > /root/b.sh; env -i HERMITCRAB_CA=$HERMITCRAB_CA LC_ALL=zh_CN.UTF-8"
    status, said = run(box, f"{command} PATH=$PATH sh -s -- {WORDS} < /root/b.sh")
    assert status == 0, said
    assert told(box)["result"] == "done"


ALINUX: Final = 'ID="alinux"\nID_LIKE="rhel fedora centos"\nVERSION_ID="3"\n'


def test_another_distribution(start_once: Start, ready: Ready, served: Served) -> None:
    """A clear answer and the user part only: apt is not touched, though it is there."""
    box = ready(start_once)
    box.shell(f"dpkg --purge nano >/dev/null 2>&1; {bootstrapping.NO_PIP}")
    machine.put(box.container, {"/etc/os-release": ALINUX})
    packages = "dpkg-query -W; ls -l --full-time /var/lib/apt/lists"
    before = box.shell(packages)
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}; exit ${{PIPESTATUS[1]}}")
    assert status == 3, said
    assert "alinux 3 is not served; Debian 11, 12, 13, Ubuntu 20.04, 22.04, 24.04 are" in said
    assert "left out: torch (there is no pip here" in said
    assert box.shell("bash -lc 'crab --version'").startswith("crab ")
    assert box.shell(packages) == before
