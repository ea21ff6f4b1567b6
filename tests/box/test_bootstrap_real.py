"""Claim: a bootstrapped Debian 12 is what the image of the same combo is, and stays it when sealed, saved and started.

The real script with its real locks: some gigabytes and minutes. The module is one story, in a box with 2 GB of memory
and no card, which is what platforms let people set boxes up in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from hermitcrab import matrix as matrices
from hermitcrab.box import sshd
from hermitcrab.build import bootstrap, image
from hermitcrab.build.engine import Engine
from hermitcrab.errors import UserError
from hermitcrab.matrix import Combo
from tests.box import bootstrapping, machine
from tests.box.bootstrapping import changed, run
from tests.box.conftest import Start
from tests.box.debian import SUITES
from tests.box.machine import Box
from tests.image.conftest import missing

SAVED: Final = "hermitcrab-test:bootstrapped"
CUDA: Final = "12.1"
STAMP: Final = "/etc/hermitcrab/bootstrap.json"
MEMORY: Final = 2 << 30
# What the settings come to, whatever files they are in. Who may log in, and how, is left as the platform has it.
SETTINGS: Final = {
    "tmux": "tmux -L parity new-session -d; tmux -L parity show -g; tmux -L parity show -s; tmux -L parity kill-server",
    "git": "git config --system --list",
    "ssh": f"mkdir -p /run/sshd; ssh-keygen -A >/dev/null; /usr/sbin/sshd -T | grep -viE '^({'|'.join(sshd.IMAGE)}) '",
    "shell": "env -i HOME=/root TERM=dumb bash -lc 'env | grep -vE \"^(SHLVL|PWD)=\" | sort'",
    "constraints": "cat /etc/hermitcrab/constraints.txt",
}
# A product with a known value, the versions, and whether torch.compile's compiler is there.
TORCH: Final = (
    "import torch, torchvision, torchaudio; a = torch.arange(16.).reshape(4, 4);"
    " print(torch.__version__, torchvision.__version__, (a @ a.T).diagonal().sum().item())"
)
WHEELS: Final = (
    "import importlib.metadata as m, json; print(json.dumps(sorted((d.metadata['Name'].lower(), d.version)"
    " for d in m.distributions(path=__import__('site').getsitepackages()))))"
)


@pytest.fixture(scope="module", autouse=True)
def no_image_stays(engine: Engine) -> Iterator[None]:
    """Remove the saved image after the last box of it."""
    yield
    engine.remove(SAVED)


@pytest.fixture(scope="module")
def row() -> Combo:
    """The combo of this story."""
    return matrices.select(matrices.load(), CUDA)


@pytest.fixture(scope="module")
def box(start: Start, engine: Engine) -> Box:
    """A bare Debian 12, bootstrapped through a pipe."""
    if engine.network != "host":
        pytest.skip("the engine's containers have a network of their own: this machine's loopback is not theirs")
    try:
        name = bootstrapping.bare(engine, SUITES[1])
    except UserError as error:
        pytest.skip(str(error))
    little = {"mem_limit": MEMORY, "memswap_limit": MEMORY}
    box = start(name, ["sleep", "infinity"], **little, **bootstrapping.options())
    with bootstrapping.serving({"bootstrap.sh": bootstrap.script(matrices.load()).encode()}) as served:
        status, said = run(box, f"{served.curl('bootstrap.sh')} | bash -s -- --cuda {CUDA}", seconds=580)
    assert status == 0, said
    assert "GPU check skipped, which is no pass" in said
    return box


def test_2_gb_were_enough(box: Box) -> None:
    """Without swap; nothing was killed for want of memory on the way."""
    if json.loads(box.ask("bash", "-lc", "crab platform --json"))["memory"] != MEMORY:
        pytest.skip("this engine sets no limits")
    box.container.reload()
    assert not box.container.attrs["State"]["OOMKilled"]


def test_it_works_and_is_stamped(box: Box, row: Combo) -> None:
    """The stamp names the combo, torch computes, the check is skipped for want of a card, and no cache is left."""
    assert json.loads(box.read(STAMP))["combo"] == row.id
    assert box.ask("bash", "-lc", f'python -c "{TORCH}"').split()[::2] == [f"{row.torch}+cu121", "1240.0"]
    done = box.host.run("bash -lc 'crab check --quick --json'")
    found = {one["id"]: one["status"] for one in json.loads(done.stdout)["findings"]}
    assert done.rc == 3
    assert (found["torch.combo"], found["torch.packages"], found["gpu.count"]) == ("pass", "pass", "skip")
    assert box.shell("ls -A /opt") == "venv"


def test_what_it_takes(box: Box, row: Combo) -> None:
    """No more on disk than the row's budget and what the image strips."""
    assert int(box.shell("du -sx --block-size=1 /opt/venv | cut -f1")) / 1e9 <= row.disk_gb + 0.4


def test_parity_with_the_image(box: Box, row: Combo, start: Start) -> None:
    """The same wheels, packages, settings and findings; of packages the box has only what its own base had more."""
    if missing(row):
        pytest.skip(missing(row))
    other = start(image.tag(row), ["sleep", "infinity"], mem_limit=MEMORY, memswap_limit=MEMORY)
    assert _wheels(box) == _wheels(other)
    assert _packages(box) == _packages(other)
    for what, command in SETTINGS.items():
        assert (what, changed(box.shell(command), other.shell(command))) == (what, [])
    assert _findings(box) == _findings(other)


def test_sealed_saved_and_started(box: Box, start: Start, row: Combo) -> None:
    """What platforms do when they save an image: all is there, and a bootstrap of the new box installs nothing."""
    machine.put(box.container, {"/root/train.py": "print(1)\n", "/root/.netrc": "machine x password y\n"})
    before = {what: box.shell(command) for what, command in SETTINGS.items()}
    # Nobody makes host keys at the start of such a box, so it keeps its own.
    box.ask("/opt/venv/bin/crab", "seal", "--yes", "--keep", "host-keys")
    box.ask("/opt/venv/bin/crab", "seal", "--check", "--keep", "host-keys")
    repository, _, tag = SAVED.partition(":")
    box.container.commit(repository=repository, tag=tag)
    new = start(SAVED, ["sleep", "infinity"], **bootstrapping.options())
    assert not new.host.file("/root/.netrc").exists
    assert new.read("/root/train.py") == "print(1)\n"
    assert new.ask("bash", "-lc", f'python -c "{TORCH}"').startswith(row.torch)
    assert (_wheels(new), _packages(new), _findings(new)) == (_wheels(box), _packages(box), _findings(box))
    assert {what: new.shell(command) for what, command in SETTINGS.items()} == before
    with bootstrapping.serving({"bootstrap.sh": bootstrap.script(matrices.load()).encode()}) as served:
        status, said = run(new, f"{served.curl('bootstrap.sh')} | bash -s -- --cuda {CUDA}")
    assert status == 0, said
    assert "done before: nothing to change" in said


def test_uninstalled(box: Box) -> None:
    """The environment goes, the user's work stays."""
    with bootstrapping.serving({"bootstrap.sh": bootstrap.script(matrices.load()).encode()}) as served:
        status, said = run(box, f"{served.curl('bootstrap.sh')} | bash -s -- --uninstall")
    assert status == 0, said
    assert box.shell("ls /opt; ls /root/train.py") == "/root/train.py"


def _wheels(box: Box) -> Any:
    return json.loads(box.ask("/opt/venv/bin/python", "-c", WHEELS))


def _packages(box: Box) -> set[str]:
    return set(box.shell("dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n'").splitlines())


def _findings(box: Box) -> dict[str, tuple[str, str]]:
    done = box.host.run("bash -lc 'crab check --quick --json'")
    rows = json.loads(done.stdout)["findings"]
    told = ("torch", "gpu", "driver", "kernel")  # the others tell of the machine's load
    return {row["id"]: (row["status"], row["text"] if row["id"].startswith(told) else "") for row in rows}
