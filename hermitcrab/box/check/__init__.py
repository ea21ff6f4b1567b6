"""`crab check`: does this GPU train? A verdict with cause and remedy for whatever is in the way.

Exit status: 0 pass, 1 fail, 2 wrong use, 3 skipped (there is no GPU). All that could hang, crash or
hold memory runs in a child process, so that nothing stays allocated.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

from hermitcrab.box import files
from hermitcrab.box.check import build, devices, disk, driver, kernels, probe, report, speed, verdict
from hermitcrab.box.check.child import Child, Failure
from hermitcrab.box.check.driver import Facts
from hermitcrab.box.check.findings import EXIT_CODES, FAIL, SKIP, WARN, Finding
from hermitcrab.box.check.findings import verdict as judge
from hermitcrab.box.check.messages import explain, one_line
from hermitcrab.box.check.verdict import Box
from hermitcrab.box.limits import read_limits
from hermitcrab.box.platform import detect

ROOT = Path("/")
MANIFEST = "etc/hermitcrab/manifest.json"
DRIVER_SECONDS = 30  # many cards without persistence mode take long to wake
IMPORT_SECONDS = 300  # a cold network disk


class Step(NamedTuple):
    """One question to the child about all GPUs."""

    id: str
    function: Callable[..., Finding]
    arguments: tuple[object, ...] = ()
    seconds: float = 60
    quick: bool = True


KERNELS = (
    Step("kernel.fp32", kernels.matmul, ("float32",)),
    Step("kernel.fp16", kernels.matmul, ("float16",)),
    Step("kernel.bf16", kernels.matmul, ("bfloat16",)),
    Step("kernel.conv", kernels.convolution),
    Step("kernel.compile", kernels.compiled, seconds=300, quick=False),
    Step("kernel.cudnn", kernels.cudnn),
    Step("kernel.nccl", kernels.nccl, seconds=120, quick=False),
)


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Check, print each finding as it comes, and return the exit status."""
    options = _parser().parse_args(arguments)
    findings = []
    for finding in check(root, os.environ, expect=options.expect, quick=options.quick):
        findings.append(finding)
        if not options.json:
            print(report.line(finding, color=sys.stdout.isatty()), flush=True)
    print(report.as_json(findings) if options.json else report.summary(findings))
    return EXIT_CODES[judge(findings)]


def check(
    root: Path, environ: Mapping[str, str], *, expect: str | None = None, quick: bool = False
) -> Iterator[Finding]:
    """Look at everything, in order: driver, cards, torch, kernels, speed, disk."""
    box = Box(detect(root, environ), read_limits(root), environ)
    with Child() as child:
        facts = child.ask(driver.read, root, seconds=DRIVER_SECONDS)
        facts = driver.unanswered(facts) if isinstance(facts, Failure) else facts
        yield from _cards(facts, box, root, expect)
        yield from _torch(child, facts, root, quick=quick)
    yield from _beside(box, quick=quick)


def _cards(facts: Facts, box: Box, root: Path, expect: str | None) -> Iterator[Finding]:
    judged = verdict.judge(facts, box)
    yield driver.library_finding(facts, judged.status)
    yield driver.version_finding(facts, judged.status)
    yield judged
    yield from devices.findings(facts, expect, root)


def _torch(child: Child, facts: Facts, root: Path, *, quick: bool) -> Iterator[Finding]:
    """Ask torch; kernels run only where torch can use the GPU, else they say why not."""
    has_gpu = bool(facts.cuda.devices)
    torch = child.ask(probe.torch_facts, has_gpu, seconds=IMPORT_SECONDS)
    if isinstance(torch, Failure):
        yield _unimportable(torch, has_gpu=has_gpu)
    else:
        sms = [device.sm for device in facts.cuda.devices]
        found = list(build.findings(torch, manifest=_manifest(root), driver=facts.version, knows=facts.knows, sms=sms))
        yield from found
        if torch.devices and not torch.error:
            yield from _run(child, facts, torch.devices, quick=quick)
            return
    reason = "torch cannot use the GPU" if has_gpu else "there is no GPU"
    yield from (Finding(step.id, SKIP, f"not run: {reason}") for step in KERNELS)


def _run(child: Child, facts: Facts, count: int, *, quick: bool) -> Iterator[Finding]:
    for step in (*KERNELS, *_speeds(facts, count)):
        if quick and not step.quick:
            yield Finding(step.id, SKIP, "not run: --quick")
            continue
        answer = child.ask(step.function, *step.arguments, seconds=step.seconds)
        yield _failed(step.id, answer) if isinstance(answer, Failure) else answer


def _speeds(facts: Facts, count: int) -> Iterator[Step]:
    """Measure every GPU; the link is known only where each card is one GPU."""
    links = [card.link for card in facts.nvml.cards] if len(facts.nvml.cards) == count else [None] * count
    for index in range(count):
        yield Step(f"gpu{index}.tflops", speed.compute, (index,), quick=False)
        yield Step(f"gpu{index}.bandwidth", speed.bandwidth, (index,), quick=False)
        yield Step(f"gpu{index}.pcie", speed.pcie, (index, links[index]), quick=False)


def _failed(id_: str, failure: Failure) -> Finding:
    """A kernel raised, crashed or hung: that is a finding, not the end of the check."""
    said = f"{failure.why}\n{failure.said}".strip()
    if id_ == "kernel.nccl":
        remedy = "Try NCCL_P2P_DISABLE=1, then NCCL_DEBUG=INFO; with one GPU you can train without it."
        return Finding(id_, FAIL, one_line(said), "The GPUs of this host do not reach each other.", remedy)
    if id_.startswith("gpu"):
        return Finding(id_, WARN, f"not measured: {one_line(said)}", *explain(said))
    return Finding(id_, FAIL, one_line(said), *explain(said))


def _unimportable(failure: Failure, *, has_gpu: bool) -> Finding:
    said = f"{failure.why}\n{failure.said}".strip()
    if "No module named 'torch'" in failure.why:
        cause = f"It is not installed in {sys.executable}."
        text, remedy = "there is no torch", "Install it, or call `crab` of the environment that has it."
        return Finding("torch.build", FAIL if has_gpu else WARN, text, cause, remedy)
    return Finding("torch.build", FAIL, f"torch cannot be imported: {one_line(said)}", *explain(said))


def _beside(box: Box, *, quick: bool) -> Iterator[Finding]:
    if quick:
        yield Finding("disk.write", SKIP, "not run: --quick")
    else:
        with Child() as child:  # a network disk may hang
            answer = child.ask(disk.write, *disk.target(box.platform), seconds=60)
        yield _failed("disk.write", answer) if isinstance(answer, Failure) else answer
    yield disk.shm(box.limits.shm)
    yield disk.files()


def _manifest(root: Path) -> Mapping[str, Any] | None:
    """Read what the image was made of, or the bootstrapped environment that this runs in."""
    return files.read_json(root / MANIFEST) or files.read_json(Path(sys.prefix) / build.MANIFEST) or None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="crab check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--expect", metavar="CARD", help='fail unless every GPU is this card, such as "RTX 4090"')
    parser.add_argument("--quick", action="store_true", help="only what takes seconds: no compiler, NCCL, speed, disk")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser
