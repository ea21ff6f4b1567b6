"""Claims: the cards' figures come through NVML's own functions, and a card that is lost or hangs holds nobody up.

The library is a stub that is really loaded by ctypes, in the process that really asks; see tests/stubs/nvml.c.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermitcrab.status import Status
from hermitcrab.train import watch
from hermitcrab.train.places import Run
from hermitcrab.train.watch import gpu
from hermitcrab.train.watch.finding import Finding
from hermitcrab.train.watch.gpu import Card, Gpu
from hermitcrab.train.watch.health import Health
from hermitcrab.train.watch.progress import Progress

STUBS = Path(__file__).parents[1] / "stubs"
GCC = shutil.which("gcc")
pytestmark = pytest.mark.skipif(GCC is None, reason="needs gcc to compile the stub library")

# NAME:MIB:USED:MIG:SLICES:ECC:THROTTLE:UTIL:TEMPERATURE
A100 = "NVIDIA A100-SXM4-40GB:40960:30720:off:-:0:0:97:63"
TWO = f"{A100};NVIDIA A100-SXM4-40GB:40960:10240:off:-:0:0:3:41"
SILENT = "NVIDIA A100-SXM4-40GB:-:-:-:-:-:-:-:-"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub of NVML, and that of a driver that lacks half of the functions."""
    folder = tmp_path_factory.mktemp("stubs")
    for name, flags in (("new", ()), ("old", ("-DOLD",))):
        (folder / name).mkdir()
        command = [str(GCC), "-Wall", "-Wno-unused-function", "-Werror", "-shared", "-fPIC", *flags]
        target = folder / name / "libnvidia-ml.so.1"
        subprocess.run([*command, "-o", str(target), str(STUBS / "nvml.c")], check=True)
    return folder


class Machine:
    """A box with cards; the news go to the driver while it runs."""

    def __init__(self, root: Path, library: Path) -> None:
        self.root, self.library = root, library
        (root / "dev").mkdir()
        (root / "dev/nvidiactl").touch()
        self.file = root / "news"
        self.made: list[Gpu] = []

    def gpu(self, cards: str, *, silent: float = 60.0, **environ: str) -> Gpu:
        """Return what asks the cards of this machine."""
        made = Gpu({**self.environ(cards), **environ}, self.root, silent=silent)
        self.made.append(made)
        return made

    def environ(self, cards: str) -> dict[str, str]:
        """The variables by which the stub tells of cards."""
        return {"STUB_CARDS": cards, "STUB_NEWS": str(self.file), "LD_LIBRARY_PATH": str(self.library)}

    def news(self, text: str) -> None:
        """Change what the driver tells."""
        self.file.write_text(text)


@pytest.fixture
def machine(tmp_path: Path, libraries: Path) -> Iterator[Machine]:
    """A machine with a driver of today."""
    made = Machine(tmp_path, libraries / "new")
    yield made
    for one in made.made:
        one.close()


def answer(asked: Gpu, seconds: float = 20.0) -> bool:
    """Ask, and wait for the answer."""
    asked.ask(time.monotonic())
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if asked.poll():
            return True
        if asked.pid is None:
            return False
        time.sleep(0.01)
    return False


def test_the_figures_of_a_card_are_read(machine: Machine) -> None:
    """Utilisation, memory, temperature, throttling and errors."""
    asked = machine.gpu(A100)
    assert answer(asked)
    assert asked.cards == (Card(0, 97, 30 << 30, 40 << 30, 63, 0, 0, lost=False),)
    machine.news(f"cards={A100.replace('97:63', '12:60')}")
    assert answer(asked)
    assert (asked.cards[0].util, asked.cards[0].temperature) == (12, 60)


def test_several_cards_are_put_together(machine: Machine) -> None:
    """Mean work, all memory, the hottest; only those that the training may use."""
    asked = machine.gpu(TWO)
    assert answer(asked)
    assert gpu.figures(asked.cards) == {
        "gpu_util": 50.0,
        "gpu_memory": 40 << 30,
        "gpu_memory_total": 80 << 30,
        "gpu_temperature": 63,
    }
    asked = machine.gpu(TWO, CUDA_VISIBLE_DEVICES="1")
    assert answer(asked)
    assert gpu.figures(asked.cards)["gpu_util"] == 3


def test_what_a_card_does_not_tell_is_unknown(machine: Machine, libraries: Path) -> None:
    """No rights, a slice of a card, an old driver: None is not zero."""
    asked = machine.gpu(SILENT)
    assert answer(asked)
    assert asked.cards == (Card(0),)
    assert set(gpu.figures(asked.cards).values()) == {None}
    machine.library = libraries / "old"
    asked = machine.gpu(A100)
    assert answer(asked)
    assert (asked.cards[0].util, asked.cards[0].memory, asked.lost()) == (None, 30 << 30, "")


def test_without_a_driver_nobody_is_asked(tmp_path: Path) -> None:
    """No process is started for nothing."""
    asked = Gpu({}, tmp_path)
    asked.ask(0.0)
    assert (asked.pid, asked.poll(), asked.cards) == (None, False, ())


def test_a_driver_that_does_not_start_is_asked_once(machine: Machine) -> None:
    """As after an update of the driver under a running container."""
    asked = machine.gpu(A100, STUB_NVML="18")
    assert answer(asked)
    assert "error 18" in asked.error
    asked.ask(0.0)
    assert (asked.pid, asked.lost()) == (None, "")


def test_a_driver_that_crashes_takes_only_its_asker_along(machine: Machine) -> None:
    """It is asked again a few times, then left alone; that is no lost card."""
    machine.news("crash")
    asked = machine.gpu(A100)
    for _ in range(gpu.MOST_STARTS):
        assert not answer(asked)
    asked.ask(0.0)
    assert (asked.pid, asked.lost(), asked.cards) == (None, "", ())


def test_a_killed_asker_is_replaced(machine: Machine) -> None:
    """Somebody cleans up too much: the figures come again."""
    asked = machine.gpu(A100)
    assert answer(asked)
    assert asked.pid
    os.kill(asked.pid, 9)
    assert not answer(asked)
    assert answer(asked)
    assert asked.cards[0].util == 97


def test_nobody_waits_for_a_driver_that_hangs(machine: Machine) -> None:
    """Asking and looking return at once; the silence is known after its time."""
    machine.news("hang")
    asked = machine.gpu(A100, silent=1.0)
    begun = time.monotonic()
    asked.ask(begun)
    for _ in range(20):
        assert not asked.poll()
        asked.ask(begun + 0.5)
    assert time.monotonic() - begun < 10
    assert not asked.silent(begun + 0.9)
    assert asked.silent(begun + 1.1)
    begun = time.monotonic()
    asked.close()
    assert time.monotonic() - begun < 10


def test_the_asker_ends_with_the_supervisor(machine: Machine) -> None:
    """Also when that is killed: its input ends."""
    program = (
        "import os, sys, time; from pathlib import Path; from hermitcrab.train.watch.gpu import Gpu\n"
        "asked = Gpu(dict(os.environ), Path(sys.argv[1])); asked.ask(0.0); print(asked.pid, flush=True); time.sleep(60)"
    )
    environ = {**machine.environ(A100), "PYTHONPATH": str(STUBS.parents[1])}
    command = [sys.executable, "-c", program, str(machine.root)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout
        pid = int(supervisor.stdout.readline())
        supervisor.kill()
    end = time.monotonic() + 10
    while time.monotonic() < end and alive(pid):
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid: int) -> bool:
    """Say whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def judge(asked: Gpu, last_step: float, times: range) -> list[tuple[int, Finding]]:
    """Look at these times at a training whose last step was done at one of them."""
    health, progress = Health(asked), Progress(0.0, hang_after=None, first_step=None)
    progress.heartbeat(last_step, step=1, committed=None, phase="")
    return [(now, finding) for now in times for finding in health.judge(now, progress)]


@pytest.mark.parametrize(
    ("news", "said"), [("lost", "the driver says that it is lost"), ("xid=79", "fell off the bus")]
)
def test_a_lost_card_ends_a_run_that_stands_still(machine: Machine, news: str, said: str) -> None:
    """Told at once, fatal after a minute without a step."""
    asked = machine.gpu(A100)
    assert answer(asked)
    assert not judge(asked, 0.0, range(100))
    machine.news(news)
    assert answer(asked)
    found = judge(asked, 0.0, range(100))
    assert [(now, one.kind, one.fatal) for now, one in found[:2]] == [
        (0, "gpu-trouble", False),
        (60, "gpu-lost", True),
    ]
    assert said in found[0][1].text


def test_a_lost_card_that_is_not_used_ends_nothing(machine: Machine) -> None:
    """The steps go on: it is another one."""
    machine.news("lost")
    asked = machine.gpu(A100)
    assert answer(asked)
    health, progress = Health(asked), Progress(0.0, hang_after=None, first_step=None)
    for now in range(1000):
        progress.heartbeat(float(now), step=now, committed=None, phase="")
        assert not any(finding.fatal for finding in health.judge(now, progress))


def test_a_lost_card_that_is_hidden_from_the_training_is_not_its_own(machine: Machine) -> None:
    """Xid 79 of the second card, and the training has the first."""
    machine.news("xid=79")
    asked = machine.gpu(TWO, CUDA_VISIBLE_DEVICES="0")
    assert answer(asked)
    assert (asked.lost(), len(asked.cards)) == ("", 1)
    asked = machine.gpu(TWO, CUDA_VISIBLE_DEVICES="1")
    assert answer(asked)
    assert "GPU 1" in asked.lost()


def test_a_silent_driver_ends_only_what_stands_still_too(machine: Machine) -> None:
    """It may be slow: the limit is that of a hang."""
    machine.news("hang")
    asked = machine.gpu(A100, silent=120.0)
    asked.ask(0.0)
    found = judge(asked, 0.0, range(2000))
    assert [(now, one.kind) for now, one in found[:2]] == [(120, "gpu-trouble"), (720, "gpu-lost")]
    assert "has not answered for" in found[1][1].text


def test_errors_heat_and_faults_of_the_program_are_told_once(machine: Machine) -> None:
    """None of them ends the run."""
    asked = machine.gpu(A100)
    health = Health(asked)
    said: list[Finding] = []
    for news in (
        "xid=31",
        f"cards={A100.replace('0:0:97', '2:0x40:97')}",
        f"cards={A100.replace('0:0:97', '2:0x40:97')}",
    ):
        assert answer(asked)
        said += health.news()
        machine.news(news)
        assert answer(asked)
        said += health.news()
    assert sorted(one.kind for one in said) == ["ecc", "throttled", "xid"]
    assert not any(one.fatal for one in said)
    texts = {one.kind: one.text for one in said}
    assert texts["ecc"] == "GPU 0: 2 new uncorrected memory errors"
    assert texts["throttled"] == "GPU 0 is slowed down: too hot (hardware), 63 °C"
    assert "Xid 31, most often a fault of the program" in texts["xid"]


def test_the_watch_samples_the_cards(machine: Machine) -> None:
    """From the library to samples.jsonl."""
    parser = argparse.ArgumentParser()
    watch.add_options(parser)
    run = Run(machine.root)
    watched = watch.Watch(parser.parse_args([]), run, environ=machine.environ(A100), root=machine.root)
    now = time.monotonic()
    while watched.sample().get("gpu_util") is None and time.monotonic() < now + 20:
        watched.tick(Status(), now + 10 * (time.monotonic() - now) * 10)
        time.sleep(0.05)
    sample = watched.sample()
    watched.close()
    assert (sample["gpu_util"], sample["gpu_memory"], sample["gpu_temperature"]) == (97, 30 << 30, 63)
