"""Why an attempt ended: classes as a table, told by the exit status and by what the program said last.

Launchers mask exit codes and programs catch exceptions, so the status is one witness of several.
"""

from __future__ import annotations

import re
import signal
from typing import NamedTuple, Sequence

RESTART, END, ALTERNATIVE, SPACE = "restart", "end", "alternative", "space"
EARLY = 60.0  # seconds within which a wrong path or a missing module shows itself
REQUEUE, NO_GOOD_CHECKPOINT = 75, 65


class Kind(NamedTuple):
    """One class of endings, and what is done about it."""

    policy: str  # restart; end; alternative: only if the user gave one; space: once the disk has room
    what: str
    advice: tuple[str, ...] = ()


KINDS = {
    "done": Kind(END, "finished"),
    "usage": Kind(END, "the command is wrong, it would fail again", ("mend the command or its files, start again",)),
    "crash": Kind(RESTART, "the program crashed"),
    "crash-loop": Kind(END, "it fails again and again without getting on"),
    "gpu-oom": Kind(
        ALTERNATIVE,
        "the GPU's memory is full: the same batch would not fit again",
        (
            "half the batch size, twice the gradient accumulation: the same training",
            "torch.autocast with bfloat16; activation checkpointing",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation",
            "restart by itself with another setting: --on-oom 'BATCH=16 ACCUM=4' (variables your program reads)",
        ),
    ),
    "host-oom": Kind(
        ALTERNATIVE,
        "the memory of the box is full",
        (
            "fewer num_workers, a smaller prefetch_factor, pin_memory=False",
            "data as memory-mapped files instead of lists in every worker",
            "restart by itself with another setting: --on-oom 'WORKERS=2' (variables your program reads)",
        ),
    ),
    "nan": Kind(
        END,
        "the numbers are no numbers any more",
        (
            "a lower learning rate, a longer warm-up, clipping of the gradient norm",
            "bfloat16 instead of float16; with float16 a GradScaler",
            "look at the batch of that step; then go on from an older checkpoint: --resume PATH",
        ),
    ),
    "hang": Kind(
        RESTART,
        "no progress any more",
        ("the stacks are in log.txt", "a collective that one rank never enters", "a data loader waiting for a disk"),
    ),
    "gpu-lost": Kind(
        END,
        "the GPU is gone: only the machine's owner can bring it back",
        ("nvidia-smi and the kernel's log (Xid) say more", "restart the box, or rent another: the checkpoints stay"),
    ),
    "disk-full": Kind(
        SPACE,
        "the disk is full",
        ("crab ckpt prune, old logs and caches; checkpoints on the data disk", "du -xh / | sort -h | tail"),
    ),
    "preempted": Kind(END, "the machine is taken away; the run goes on elsewhere from its checkpoint"),
    "stopped": Kind(END, "stopped from outside, so it is not started again", ("the same command goes on from here",)),
    "no-checkpoint": Kind(
        END,
        "there are checkpoints, and none is good",
        ("crab ckpt verify FOLDER says what is wrong", "to begin anew on purpose: --resume none"),
    ),
}


class Sign(NamedTuple):
    """What a line of output means; the one nearest to the end is believed."""

    kind: str
    pattern: str
    advice: tuple[str, ...] = ()


SHM = ("a larger /dev/shm (docker run --shm-size=8g), or num_workers=0",)
BUILD = ("the torch build does not fit this card: crab check names one that does",)
SIGNS = (
    Sign("gpu-oom", r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"),
    Sign("gpu-oom", r"HIP out of memory|CUDA_ERROR_OUT_OF_MEMORY"),
    Sign("gpu-lost", r"Xid.{0,40}\b79\b|fallen off the bus|GPU is lost|GPU_IS_LOST|[Uu]ncorrectable ECC error"),
    Sign("disk-full", r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing file"),
    Sign("disk-full", r"unexpected pos \d+ vs \d+"),  # what torch.save says of a full disk
    Sign("host-oom", r"DataLoader worker.{0,40}killed by signal: Killed"),
    Sign("host-oom", r"DataLoader worker.{0,40}(?:killed by signal: Bus error|insufficient shared memory)", SHM),
    Sign("host-oom", r"unable to (?:mmap|allocate shared memory)|shared memory object.{0,80}No space", SHM),
    Sign("host-oom", r"^MemoryError|DefaultCPUAllocator|Cannot allocate memory"),
    Sign("nan", r"NonFiniteError|[Ll]oss is (?:nan|NaN|inf)|non-?finite loss|FloatingPointError"),
    Sign("no-checkpoint", r"NoGoodCheckpointError|no checkpoint in .* is good"),
    Sign("usage", r"no kernel image is available", BUILD),
    Sign("usage", r"CUDA driver version is insufficient|Torch not compiled with CUDA enabled", BUILD),
    Sign("usage", r"^(?:\w+\.)*(?:ModuleNotFoundError|ImportError|SyntaxError|IndentationError|ArgumentError)\b"),
    Sign("usage", r"^FileNotFoundError\b|: error: (?:unrecognized|the following|argument)|can't open file"),
    Sign("usage", r": (?:command not found|No such file or directory|Permission denied)$"),
)
_SIGNS = [(sign, re.compile(sign.pattern)) for sign in SIGNS]
DISK_BEFORE_SHM = re.compile(r"shared memory")
RANK = re.compile(r"^\s*\[\w+\]:\s?")  # torchrun's and torch's: [rank0]:, [default1]:
EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Warning|Exit)\b(?::.*)?$|^(?:\w+\.)+\w+: .*$")
TORCHRUN = re.compile(r"failed \(exitcode: (-?\d+)\)|^\s*exitcode\s*:\s*(-?\d+)\b")


class Ended(NamedTuple):
    """All that is known of an attempt that ended."""

    code: int  # as Python tells it: negative for a signal
    tail: Sequence[str] = ()
    seconds: float = 0.0
    committed: bool = False  # a new checkpoint since it started
    progressed: bool = False  # steps were done, in this attempt or an earlier one
    finished: bool | None = None  # what the program said itself, if it speaks of it
    done_file: bool | None = None  # whether the file of --done-file is there
    piped: bool = False  # the code may be that of a `| tee`
    killed_for_memory: str = ""  # who saw the kernel kill for memory
    asked: str = ""  # the class, when it was us who ended it
    said: str = ""  # and why
    advice: tuple[str, ...] = ()


class Failure(NamedTuple):
    """The verdict over an attempt: its class, what happened with the evidence, and what to try."""

    kind: str
    reason: str
    evidence: str = ""
    advice: tuple[str, ...] = ()


def classify(ended: Ended) -> Failure:
    """Say why an attempt ended."""
    code = unmask(ended.code, ended.tail)
    if ended.asked and not (ended.asked == "stopped" and code == 0 and ended.finished):
        return _failure(ended.asked, ended.said, last_words(ended.tail), ended.advice)
    if code == 0:
        return _success(ended)
    return _by_status(code, ended) or _by_words(code, ended)


def unmask(code: int, tail: Sequence[str]) -> int:
    """Return the worker's code where a launcher reports its own; 128+N of a shell becomes -N."""
    if code == 1:
        told = [match for match in map(TORCHRUN.search, tail) if match]
        # The first to fail is the cause: the others were ended for its sake.
        code = int(told[0][1] or told[0][2]) if told else code
    return 128 - code if 128 < code <= 128 + 64 else code


def shell_status(code: int) -> int:
    """Return what a shell would call it."""
    return 128 - code if code < 0 else code


def spell(code: int) -> str:
    """Say an exit status in words."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def last_words(tail: Sequence[str]) -> str:
    """Return the line that says most: the last exception, else the last line."""
    lines = [RANK.sub("", line) for line in tail if line.strip()]
    exceptions = [line for line in lines if EXCEPTION.match(line)]
    return (exceptions or lines or ["(it printed nothing)"])[-1].strip()[:500]


def _success(ended: Ended) -> Failure:
    if ended.piped and _ends_in_traceback(ended.tail):
        said = "exit status 0, but that of a pipe: the last thing printed is a traceback"
        return _failure("crash", said, last_words(ended.tail), ("bash -o pipefail -c '…'",))
    if ended.done_file is False:
        return _failure("crash", "exit status 0, but the file of --done-file is not there", last_words(ended.tail))
    if ended.finished is False and ended.done_file is None:
        said = "exit status 0, but the program never said that it finished (Checkpointer.close() was not reached)"
        return _failure("crash", said, last_words(ended.tail), ("is an exception swallowed on the way?",))
    return Failure("done", KINDS["done"].what)


def _by_status(code: int, ended: Ended) -> Failure | None:
    if code == REQUEUE:
        return _failure("preempted", "exit status 75: the program asks to be started elsewhere", last_words(ended.tail))
    if code == NO_GOOD_CHECKPOINT and _sign(ended):
        return _failure("no-checkpoint", KINDS["no-checkpoint"].what, last_words(ended.tail))
    if code == -signal.SIGKILL and ended.killed_for_memory:
        return _failure("host-oom", f"the kernel killed it for memory ({ended.killed_for_memory})")
    if code in {-signal.SIGTERM, -signal.SIGINT} and not _sign(ended):
        return _failure("stopped", f"{spell(code)}, which did not come from here", last_words(ended.tail))
    return None


def _by_words(code: int, ended: Ended) -> Failure:
    found = _sign(ended)
    if found:
        sign, line = found
        return _failure(sign.kind, f"{KINDS[sign.kind].what} ({spell(code)})", line, sign.advice)
    if code in {2, 126, 127} and _is_early(ended):
        return _failure("usage", f"{KINDS['usage'].what} ({spell(code)})", last_words(ended.tail))
    return _failure("crash", f"{KINDS['crash'].what} ({spell(code)})", last_words(ended.tail), _crash_advice(code))


def _sign(ended: Ended) -> tuple[Sign, str] | None:
    for raw in reversed(ended.tail):
        line = RANK.sub("", raw)
        for sign, pattern in _SIGNS:
            if not pattern.search(line) or (sign.kind == "usage" and not _is_early(ended)):
                continue
            if sign.kind == "disk-full" and DISK_BEFORE_SHM.search(line):
                continue
            return sign, line.strip()[:500]
    return None


def _is_early(ended: Ended) -> bool:
    """Say whether a wrong command may be the cause: what has worked before is not wrong."""
    return ended.seconds < EARLY and not ended.committed and not ended.progressed


def _ends_in_traceback(tail: Sequence[str]) -> bool:
    lines = [line for line in tail if line.strip()]
    starts = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    return bool(starts) and bool(EXCEPTION.match(lines[-1]))


def _crash_advice(code: int) -> tuple[str, ...]:
    if code == -signal.SIGKILL:
        return ("SIGKILL comes from the kernel for lack of memory, or from a person: crab platform shows the limits",)
    if code == -signal.SIGBUS:
        return SHM
    if code in {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE}:
        return ("the stack is in log.txt; a library built for another torch or CPU is the usual cause",)
    return ()


def _failure(kind: str, reason: str, evidence: str = "", advice: tuple[str, ...] = ()) -> Failure:
    return Failure(kind, reason or KINDS[kind].what, evidence, advice or KINDS[kind].advice)
