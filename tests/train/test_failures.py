"""Claims: an ending is told by what shows it, and what follows is in the table."""

from __future__ import annotations

import re
import signal

import pytest

from hermitcrab.train import failures
from hermitcrab.train.failures import KINDS, SIGNS, Ended, classify, last_words, shell_status, unmask

TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    main()"]
# As torchrun tells of a worker; measured with torch.
TORCHRUN = [
    "E1130 12:00:00.0 1 site-packages/torch/distributed/elastic/multiprocessing/api.py:874] "
    "failed (exitcode: {0}) local_rank: 0 (pid: 77) of binary: /usr/bin/python3",
    *TRACEBACK,
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "============================================================",
    "train.py FAILED",
    "Root Cause (first observed failure):",
    "[0]:",
    "  rank      : 0 (local_rank: 0)",
    "  exitcode  : {0} (pid: 77)",
]


def torchrun(code: int) -> list[str]:
    """What torchrun prints of a worker's status."""
    return [line.format(code) for line in TORCHRUN]


@pytest.mark.parametrize(
    ("kind", "ended"),
    [
        ("done", Ended(0)),
        ("done", Ended(0, finished=True)),
        ("crash", Ended(0, finished=False)),
        ("done", Ended(0, finished=False, done_file=True)),
        ("crash", Ended(0, done_file=False)),
        ("crash", Ended(0, [*TRACEBACK, "ValueError: no"], piped=True)),
        ("done", Ended(0, [*TRACEBACK, "ValueError: no", "tried again", "fine"], piped=True)),
        ("done", Ended(0, [*TRACEBACK, "ValueError: no"])),
        ("usage", Ended(2, ["train.py: error: unrecognized arguments: --lrr"], 1)),
        ("usage", Ended(127, ["bash: line 1: pyhton: command not found"], 1)),
        ("usage", Ended(1, [*TRACEBACK, "ModuleNotFoundError: No module named 'timm'"], 5)),
        ("usage", Ended(1, [*TRACEBACK, "FileNotFoundError: [Errno 2] No such file or directory: 'a'"], 5)),
        ("crash", Ended(1, [*TRACEBACK, "FileNotFoundError: [Errno 2] No such file or directory: 'a'"], 600)),
        ("crash", Ended(1, [*TRACEBACK, "FileNotFoundError: [Errno 2] No such file: 'a'"], 5, progressed=True)),
        ("crash", Ended(1, [*TRACEBACK, "ImportError: lazy"], 5, committed=True)),
        ("crash", Ended(1, [*TRACEBACK, "ValueError: no"])),
        ("crash", Ended(-9)),
        ("crash", Ended(137)),
        ("crash", Ended(-11)),
        ("host-oom", Ended(-9, killed_for_memory="memory.events")),
        ("host-oom", Ended(137, killed_for_memory="memory.events")),
        ("host-oom", Ended(1, torchrun(-9), killed_for_memory="memory.events")),
        ("crash", Ended(1, torchrun(-9))),
        ("host-oom", Ended(1, ["RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."])),
        ("host-oom", Ended(1, ["RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error."])),
        (
            "host-oom",
            Ended(1, ["RuntimeError: unable to allocate shared memory(shm) for file: No space left on device"]),
        ),
        ("gpu-oom", Ended(1, [*TRACEBACK, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried"])),
        ("gpu-oom", Ended(1, ["[rank0]: torch.OutOfMemoryError: CUDA out of memory.", *torchrun(1)])),
        ("gpu-oom", Ended(1, ["RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"])),
        ("gpu-lost", Ended(1, ["NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."])),
        ("disk-full", Ended(1, ["OSError: [Errno 28] No space left on device: 'ckpt.pt'"], 5)),
        (
            "disk-full",
            Ended(1, ["RuntimeError: [enforce fail at inline_container.cc:778] . unexpected pos 704 vs 598"]),
        ),
        ("disk-full", Ended(1, ["OSError: [Errno 122] Disk quota exceeded"])),
        ("nan", Ended(1, ["hermitcrab.checkpoint.parts.NonFiniteError: weights"])),
        ("nan", Ended(1, ["Loss is nan, stopping training"])),
        ("preempted", Ended(75)),
        ("preempted", Ended(1, torchrun(75))),
        ("no-checkpoint", Ended(65, ["no checkpoint in runs/exp1 is good (step_1: changed)"])),
        ("crash", Ended(65, ["my own status"])),
        ("stopped", Ended(-15)),
        ("stopped", Ended(143)),
        ("stopped", Ended(130, [*TRACEBACK, "KeyboardInterrupt"])),
        ("gpu-oom", Ended(143, ["torch.OutOfMemoryError: CUDA out of memory."])),
        ("hang", Ended(-9, asked="hang", said="no step for 10 min")),
        ("stopped", Ended(0, asked="stopped", said="stopped by SIGTERM")),
        ("done", Ended(0, asked="stopped", said="stopped by SIGTERM", finished=True)),
    ],
)
def test_an_ending_has_its_class(kind: str, ended: Ended) -> None:
    """By status, by last words, by what the kernel and the program say."""
    failure = classify(ended)
    assert failure.kind == kind, failure
    assert failure.reason


def test_the_line_nearest_to_the_end_is_believed() -> None:
    """A program may have caught one and died of another."""
    tail = ["CUDA out of memory, trying half the batch", "step 4", "OSError: [Errno 28] No space left on device"]
    failure = classify(Ended(1, tail))
    assert (failure.kind, failure.evidence) == ("disk-full", tail[-1])


def test_the_line_that_says_most_is_the_evidence() -> None:
    """The exception, not the last line of a launcher's report."""
    assert last_words([*TRACEBACK, "ValueError: no", "wandb: synced"]) == "ValueError: no"
    assert last_words(["[rank0]: ValueError: no", "bye"]) == "ValueError: no"
    assert last_words([]) == "(it printed nothing)"


@pytest.mark.parametrize(("code", "status"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_python_and_shells_mean_the_same(code: int, status: int) -> None:
    """A child killed by N is -N to one and 128+N to the other."""
    assert shell_status(code) == status
    assert unmask(status, []) == code


def test_a_status_above_the_signals_is_one() -> None:
    """255 is what ssh and Python's sys.exit(-1) give."""
    assert unmask(255, []) == 255 and unmask(128, []) == 128


def test_the_first_worker_to_fail_is_the_cause() -> None:
    """The others were ended for its sake."""
    assert unmask(1, [*torchrun(75), "  exitcode  : -15 (pid: 78)"]) == 75
    assert unmask(1, ["nothing of torchrun's"]) == 1


def test_the_table_is_whole() -> None:
    """Every sign leads to a class, every class that fails has advice or needs none, every pattern compiles."""
    assert {sign.kind for sign in SIGNS} <= set(KINDS)
    assert {kind.policy for kind in KINDS.values()} == {"restart", "end", "alternative", "space"}
    for sign in SIGNS:
        re.compile(sign.pattern)
    for name in set(KINDS) - {"done", "crash", "crash-loop", "preempted"}:
        assert KINDS[name].advice, name


def test_a_hostile_log_is_read_in_time() -> None:
    """No pattern may take long over a long line."""
    lines = ["a.b" * 20_000, "DataLoader worker " * 4000, "Xid" * 20_000, "no checkpoint in " * 4000]
    assert classify(Ended(1, lines)).kind == "crash"


def test_signals_are_named() -> None:
    """Also those without a name."""
    assert failures.spell(-signal.SIGSEGV) == "ended by SIGSEGV"
    assert failures.spell(-60) == "ended by signal 60"
