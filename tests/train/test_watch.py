"""Claims: each way in which a training goes wrong gets its verdict, at its time, and a healthy one gets none.

The clock is a fake, so that hours are tested in milliseconds; one test runs a real process.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hermitcrab.status import Status
from hermitcrab.train import watch
from hermitcrab.train.journal import Journal
from hermitcrab.train.places import Run
from hermitcrab.train.watch import Watch
from hermitcrab.train.watch.finding import Finding

FATAL = {"nan", "hang", "gpu-lost", "smoke-done", "preempted"}


class Box:
    """A watch, a clock and a run; time goes on by `go`."""

    def __init__(self, folder: Path, *options: str) -> None:
        parser = argparse.ArgumentParser()
        watch.add_options(parser)
        self.now = 1000.0
        (folder / "runs/exp").mkdir(parents=True, exist_ok=True)
        self.run = Run(folder / "runs/exp")
        self.watch = Watch(parser.parse_args(options), self.run, environ={}, root=folder, clock=lambda: self.now)
        self.watch.begin(1, os.getpid())
        self.start = self.now
        self.said: list[tuple[float, Finding]] = []

    def go(
        self,
        seconds: float,
        output: Callable[[int], Sequence[str]] = lambda _: (),
        status: Callable[[int], Status] = lambda _: Status(),
    ) -> Finding | None:
        """Let seconds pass with one tick each; return the first fatal finding."""
        for _ in range(int(seconds)):
            self.now += 1
            second = int(self.now - self.start)
            for line in output(second):
                self.watch.line(line)
            for finding in self.watch.tick(status(second), self.now):
                self.said.append((self.now - self.start, finding))
                if finding.fatal:
                    assert finding.kind in FATAL
                    return finding
        return None

    @property
    def told(self) -> list[str]:
        """The kinds of what was told without ending anything."""
        return [finding.kind for _, finding in self.said if not finding.fatal]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A box without cards."""
    made = Box(tmp_path)
    yield made
    made.watch.close()


def plain(second: int) -> Sequence[str]:
    """A program that prints each step."""
    return [f"iter {second}: loss {3.0 / second:.4f}, time 1000ms"]


def test_a_healthy_run_is_left_alone(box: Box) -> None:
    """Three hours of good steps."""
    assert box.go(3 * 3600, plain) is None
    assert box.told == []
    sample = box.watch.sample()
    assert (sample["step"], sample["rate"]) == (10_800, pytest.approx(1.0, rel=0.05))
    assert sample["loss"] == pytest.approx(3.0 / 10_800, abs=1e-4)


def test_it_prints_nan(box: Box) -> None:
    """Five steps after the first."""
    found = box.go(600, lambda second: [f"step {second}/1000 loss {'nan' if second >= 100 else 1.0}"])
    assert found is not None
    assert (found.kind, box.now - box.start) == ("nan", 104)
    assert "first at step 100" in found.text
    assert box.watch.sample()["loss"] is None


def test_every_rank_prints_the_same_nan(box: Box) -> None:
    """Eight lines of one step are one step."""
    found = box.go(600, lambda second: [f"[rank{rank}] step {second} loss nan" for rank in range(8)])
    assert found is not None
    assert box.now - box.start == 5


def test_hugging_face_hides_its_nan(box: Box) -> None:
    """A loss of 0.0 and a grad norm of nan, each minute."""

    def output(second: int) -> Sequence[str]:
        if second % 60:
            return [f"  1%|▏      | {second}/100000 [00:30<16:10,  9.99it/s]"] if second % 10 == 0 else []
        return [f"{{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': {second / 1e5}}}"]

    found = box.go(3600, output)
    assert found is not None
    assert (found.kind, box.now - box.start) == ("nan", 300)
    assert "Hugging Face" in found.text


def test_it_hangs_silently(box: Box) -> None:
    """Ten minutes after its last step."""
    found = box.go(7200, lambda second: plain(second) if second <= 100 else [])
    assert found is not None
    assert (found.kind, box.now - box.start) == ("hang", 700)
    assert "since step 100" in found.text
    assert "it last printed 10 min ago" in found.text


def test_it_hangs_and_goes_on_printing(box: Box) -> None:
    """Output is no progress."""
    found = box.go(7200, lambda second: plain(second) if second <= 100 else ["still waiting for rank 3", *plain(100)])
    assert found is not None
    assert (found.kind, box.now - box.start) == ("hang", 700)
    assert "it last printed 0 s ago" in found.text


def test_it_hangs_while_its_card_works(tmp_path: Path) -> None:
    """The status file stands still: that the output counts something else is life, that it repeats itself is none."""
    box = Box(tmp_path)
    found = box.go(3000, lambda _: ["Evaluating:  10%|█  | 1/10 [00:01<00:09]"], lambda s: Status(step=min(s, 50)))
    assert found is not None
    assert (found.kind, box.now - box.start) == ("hang", 650)


def test_a_slow_start_is_no_hang(box: Box) -> None:
    """An hour of downloads and compilation, then steps."""

    def output(second: int) -> Sequence[str]:
        if second < 1200:
            return [f"Downloading:  10%|█   | {second}/1200 [00:30<04:30]"]
        return [] if second < 3600 else plain(second)

    assert box.go(6000, output) is None
    assert box.told == ["slow-start"]


def test_a_bar_with_carriage_returns_only(box: Box) -> None:
    """It moves: no hang. It stands: a hang, though it is drawn again and again."""
    bar = "\r  {0}%|█   | {0}/1000 [00:30<04:30,  1.0it/s, loss=0.5]"
    found = box.go(3000, lambda second: [bar.format(min(second, 200))])
    assert found is not None
    assert (found.kind, box.now - box.start) == ("hang", 800)
    assert box.watch.state()["total"] == 1000


def test_a_bar_with_nan(box: Box) -> None:
    """One reading for each move of the bar, not for each time that it is drawn."""
    bar = "\r  {0}%|█   | {0}/1000 [00:30<04:30,  1.0it/s, loss=nan]"
    found = box.go(3000, lambda second: [bar.format(second // 10)] * 3)
    assert found is not None
    assert (found.kind, box.now - box.start) == ("nan", 40)


def test_a_program_that_says_nothing_is_told_and_never_ended(box: Box) -> None:
    """Without any signal there is no verdict."""
    assert box.go(8 * 3600) is None
    assert box.told == ["slow-start"]


def test_the_status_file_is_enough(box: Box) -> None:
    """A program that prints nothing, but whose steps are known."""
    found = box.go(3600, status=lambda second: Status(step=min(second // 2, 40), total=100, loss=1.0, attempt=1))
    assert found is not None
    assert (found.kind, box.now - box.start) == ("hang", 680)
    state = box.watch.state()
    assert (state["step"], state["total"], state["loss"]) == (40, 100, 1.0)


def test_a_status_file_of_an_earlier_attempt_says_nothing(box: Box) -> None:
    """It was left by the one before."""
    assert box.go(3600, status=lambda _: Status(step=40, loss=math.nan, attempt=7)) is None
    assert box.watch.state()["step"] is None


def test_nan_in_the_status_file(box: Box) -> None:
    """One count for each new step, however often the file is read."""
    found = box.go(3600, status=lambda second: Status(step=second // 10, loss=math.nan))
    assert found is not None
    assert (found.kind, box.now - box.start) == ("nan", 40)


def test_after_a_fatal_finding_nothing_more_is_said(box: Box) -> None:
    """Until the next attempt begins, and then nothing of the old counts."""
    assert box.go(600, lambda second: [f"step {second} loss nan"]) is not None
    assert box.go(600, lambda second: [f"step {second} loss nan"]) is None
    box.watch.begin(2)
    assert box.watch.sample()["step"] is None
    assert box.go(4, lambda second: [f"step {second} loss nan"]) is None
    assert box.go(1, lambda second: [f"step {second} loss nan"]) is not None


def test_after_a_hang_the_next_attempt_has_twice_the_time(box: Box) -> None:
    """A long evaluation without output survives the second time."""
    assert box.go(7200, lambda second: plain(second) if second <= 100 else []) is not None
    box.watch.begin(2)
    box.start = box.now
    found = box.go(7200, lambda second: plain(second) if second <= 100 else [])
    assert found is not None
    assert box.now - box.start == 1300


def test_full_memory_and_a_full_disk_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both against what may be used here, not against the host's."""
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text("0::/\n")
    (proc / "mountinfo").write_text("1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (group / "memory.max").write_text(f"{8 << 30}\n")
    (group / "memory.current").write_text(f"{8 << 30}\n")
    (group / "memory.stat").write_text(f"inactive_file {100 << 20}\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 999999999 kB\nMemAvailable: 9999999 kB\n")
    box = Box(tmp_path)
    free: dict[str, int | None] = {"now": 1 << 30}
    monkeypatch.setattr(box.watch._box, "disk_free", lambda _: free["now"])

    assert box.go(600, plain) is None
    assert sorted(box.told) == ["disk", "ram"]
    sample = box.watch.sample()
    assert (sample["ram"], sample["ram_limit"], sample["disk_free"]) == ((8 << 30) - (100 << 20), 8 << 30, 1 << 30)
    free["now"] = None  # a network disk: unknown is not zero
    assert box.go(60, plain) is None


def test_the_bill_goes_on_from_an_earlier_supervisor(tmp_path: Path) -> None:
    """The box was paid for then as well."""
    box = Box(tmp_path, "--price", "4.5/h", "--currency", "CNY")
    box.go(3600, plain)
    assert box.watch.state()["spent"] == 4.5
    journal = Journal(box.run)
    journal.update(**box.watch.state())
    again = Box(tmp_path, "--price", "4.5/h", "--currency", "CNY")
    again.go(1800, plain)
    assert again.watch.sample()["spent"] == pytest.approx(6.75)


def test_what_it_gives_to_the_journal_is_json(box: Box) -> None:
    """Numbers or null, also after NaN."""
    box.go(3, lambda second: [f"step {second} loss nan grad_norm inf"])
    for given in (box.watch.sample(), box.watch.state()):
        assert json.loads(json.dumps(given, allow_nan=False)) == given
    assert set(box.watch.sample()) == {
        *("step", "loss", "grad_norm", "rate", "gpu_util", "gpu_memory", "gpu_memory_total", "gpu_temperature"),
        *("ram", "ram_limit", "disk_free", "spent"),
    }


def test_a_flood_of_output_is_not_all_read(box: Box) -> None:
    """Whoever prints a hundred thousand lines a second must not wait for us."""
    begun = time.process_time()
    for number in range(100_000):
        box.watch.line(f"step {number} loss 1.0 and more of it")
    assert time.process_time() - begun < 2.0
    assert len(box.watch._readings) <= watch.LINES


def test_a_run_in_a_flood_is_not_ended_for_a_step_that_was_passed_over(box: Box) -> None:
    """The step stands after a hundred lines that look as if they told something."""
    noise = [f"update of layer {number}" for number in range(100)]
    assert box.go(60, plain) is None
    assert box.go(900, lambda second: [*noise, *plain(second)]) is None
    assert box.told == ["quiet"]


def test_hostile_output_breaks_nothing(box: Box) -> None:
    """Whatever is printed."""
    texts = [
        "",
        "\0",
        "loss: nan" * 500,
        "step 99999999999999999999999",
        "\x1b[31mloss",
        "epoch 1e999",
        "%|",
        "loss 1e9999",
    ]
    assert box.go(60, lambda _: texts) is None or box.said[-1][1].kind == "nan"


PROGRAM = """
import sys, time
for step in range(1, 400):
    if step < 12:
        sys.stdout.write(f"\\r {step}%|# | {step}/400 [00:01<00:01, 9it/s, loss=0.5]")
    sys.stdout.flush()
    time.sleep(0.05)
"""


def test_a_real_process_that_hangs_is_told_from_one_that_works(tmp_path: Path) -> None:
    """Its bar with carriage returns stands still: the verdict comes within the time given."""
    parser = argparse.ArgumentParser()
    watch.add_options(parser)
    run = Run(tmp_path)
    watched = Watch(parser.parse_args(["--hang-after", "1s"]), run, environ={}, root=tmp_path)
    child = subprocess.Popen([sys.executable, "-u", "-c", PROGRAM], stdout=subprocess.PIPE)
    assert child.stdout
    os.set_blocking(child.stdout.fileno(), False)
    watched.begin(1, child.pid)
    said: list[Finding] = []
    moved: dict[str, Any] = {}
    end = time.monotonic() + 20
    while not said and time.monotonic() < end:
        for piece in (child.stdout.read() or b"").decode().split("\r"):
            watched.line(piece)
        said += watched.tick(Status(), time.monotonic())
        moved = watched.state()
        time.sleep(0.05)
    child.kill()
    child.wait()
    child.stdout.close()
    watched.close()
    assert [finding.kind for finding in said] == ["hang"]
    assert (moved["step"], moved["total"]) == (11, 400)
