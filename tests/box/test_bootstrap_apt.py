"""Claim: whatever apt, dpkg, the network or the power do, a run waits, mends, or says why; and the next goes on."""

from __future__ import annotations

import re
from typing import Final

import pytest

from hermitcrab.build.engine import Engine
from hermitcrab.errors import UserError
from tests.box import bootstrapping, machine
from tests.box.bootstrapping import HASTE, LOG, STAMP, TREE, WORDS, Ready, Served, begin, changed, run, told
from tests.box.conftest import Start
from tests.box.debian import SUITES
from tests.box.machine import Box
from tests.image.boxes import until

LACKING: Final = "dpkg --purge nano >/dev/null 2>&1"  # one small package is missing: enough for every step of apt
HOLD: Final = """
import fcntl, os, sys, time
held = [open(path, "w") for path in sys.argv[2:]]
for file in held:
    fcntl.lockf(file, fcntl.LOCK_EX)
open(sys.argv[1], "w").close()
while os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""
LOCKS: Final = {
    "dpkg": ["/var/lib/dpkg/lock-frontend /var/lib/dpkg/lock"],
    "lists, then archives": ["/var/lib/apt/lists/lock", "/var/cache/apt/archives/lock"],
}


def bare(start: Start, engine: Engine, **options: object) -> Box:
    """A bare Debian 12, or a skip with the reason."""
    try:
        return start(bootstrapping.bare(engine, SUITES[1]), ["sleep", "infinity"], **bootstrapping.options(), **options)
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("locks", LOCKS.values(), ids=LOCKS.keys())
def test_a_held_lock(locks: list[str], start_once: Start, ready: Ready, served: Served) -> None:
    """C20: somebody's apt holds it; the run waits, says for whom, and goes on when it is given up. The lock stays."""
    box = ready(start_once)
    box.shell(LACKING)
    machine.put(box.container, {"/hold.py": HOLD})
    for number, paths in enumerate(locks):
        box.container.exec_run(["sh", "-c", f"exec python3 /hold.py /held{number} {paths}"], detach=True)
        until("the lock", lambda: box.host.file(f"/held{number}").exists)  # noqa: B023 - called at once
    inodes = box.shell(f"stat -c %i {' '.join(locks)}")
    begin(box, f"{served.curl()} | bash -s -- {WORDS}", HERMITCRAB_APT_PAUSE="1")
    said = r"waiting for \d+ \(python3\), which holds"
    for number in range(len(locks)):
        until("it waits", lambda: len(re.findall(said, box.shell("cat /said || true"))) > number, seconds=120)  # noqa: B023
        assert not box.host.file("/status").exists
        assert box.shell(f"stat -c %i {' '.join(locks)}") == inodes
        box.shell(f"rm /held{number}")
    until("its end", lambda: box.host.file("/status").exists, seconds=300)
    assert (box.read("/status"), told(box)["result"]) == ("0\n", "done"), box.read("/said")
    assert box.shell("command -v nano")


def test_an_interrupted_dpkg(start_once: Start, ready: Ready, served: Served) -> None:
    """What a cut installation left is finished, once."""
    box = ready(start_once)
    box.shell(f"{LACKING}; : > /var/lib/dpkg/updates/0001")
    assert "dpkg was interrupted" in run(box, "apt-get install -y nano </dev/null")[1]
    status, said = run(box, f"{served.curl()} | bash -s -- {WORDS}")
    assert status == 0, said
    assert "dpkg was interrupted before: finishing" in said
    assert box.shell("command -v nano; dpkg --audit") == "/usr/bin/nano"


BROKEN: Final = (
    "mkdir -p /broken/DEBIAN; cd /broken/DEBIAN;"
    " printf 'Package: broken\\nVersion: 1\\nArchitecture: all\\nMaintainer: me\\nDescription: none\\n' > control;"
    " printf '#!/bin/sh\\nexit 1\\n' > postinst; chmod 755 postinst;"
    " dpkg-deb -b /broken /broken.deb; ! dpkg -i /broken.deb"
)


def test_a_package_that_cannot_be_set_up(start_once: Start, ready: Ready, served: Served) -> None:
    """Somebody's broken package: it is named in one line, nothing is stamped; when it is mended a run ends well."""
    box = ready(start_once)
    box.shell(f"{LACKING}; {BROKEN}")
    command = f"{served.curl()} | bash -s -- {WORDS}"
    status, said = run(box, command)
    assert status == 1, said
    assert re.search(r"^bootstrap: .*broken", said.splitlines()[-1]), said
    assert not box.host.file(STAMP).exists
    box.shell("echo 'exit 0' > /var/lib/dpkg/info/broken.postinst")
    status, said = run(box, command)
    assert (status, told(box)["result"]) == (0, "done"), said


MOMENTS: Final = {
    "packages": "cat /tmp/hermitcrab.*/packages/apt.out 2>/dev/null | grep -q 'Unpacking gcc'",
    "wheels": "test -d /opt/venv/bin",
    "settings": f"grep -qs '^settings' {LOG}",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_cut_off_in_the_middle(moment: str, start_once: Start, ready: Ready, engine: Engine, served: Served) -> None:
    """The machine goes off at some moment: no stamp; the next run goes on and ends well."""
    box = bare(start_once, engine) if moment == "packages" else ready(start_once)
    box.shell(f"rm -f {LOG}")
    command = f"{served.curl()} | bash -s -- {WORDS}"
    begin(box, command)
    box.ask("bash", "-c", f"until {MOMENTS[moment]}; do [ ! -e /status ] || exit 1; done")
    box.container.kill()
    box.container.start()
    assert not box.host.file(STAMP).exists
    status, said = run(box, command)
    assert (status, told(box)["result"]) == (0, "done"), said
    assert box.shell("dpkg --audit; find /opt -maxdepth 1 -name '.*'") == ""


@pytest.mark.parametrize("box_is", ["bare", "lacking a package", "lacking wheels alone"])
def test_without_network(box_is: str, start_once: Start, ready: Ready, engine: Engine, served: Served) -> None:
    """One clear line at the end, status 1, and nothing changed: neither a file nor a folder."""
    bare_one = box_is == "bare"
    box = bare(start_once, engine, network_mode="none") if bare_one else ready(start_once, network_mode="none")
    machine.put(box.container, {"/bootstrap.sh": served.scripts["small"]})
    box.shell(LACKING if box_is == "lacking a package" else "true")
    before = box.shell(TREE)
    status, said = run(box, f"bash /bootstrap.sh {WORDS}", environ=HASTE)
    assert status == 1
    assert re.search(r"^bootstrap: .*(resol|cannot be reached)", said.splitlines()[-1]), said
    assert changed(before, box.shell(TREE)) == []
