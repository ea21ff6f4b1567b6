"""What to do next, in a few lines."""

from __future__ import annotations

from typing import Iterator

from hermitcrab.box.bootstrap.plan import Plan
from hermitcrab.box.bootstrap.run import Run
from hermitcrab.box.bootstrap.settle import Verdict


def lines(run: Run, plan: Plan, verdict: Verdict, seconds: float) -> Iterator[str]:
    """Yield the summary."""
    part = "failed" if verdict.word == "fail" else "done in part" if plan.left_out else "done"
    yield f"{part} in {seconds:.0f} s; stamp: {run.places.stamp}" + (f", log: {run.log}" if run.log else "")
    yield from plan.left_out
    if verdict.word == "skip":
        yield f"GPU check skipped, which is no pass: {verdict.text}"
    elif verdict.word == "fail":
        yield f"GPU check FAILED: {verdict.text}"
    yield "next:"
    yield "  exec bash -l                   a shell that has the environment"
    yield "  crab check                     the GPU, the driver and torch, with speed"
    yield "  tmux new -A -s train           a session that outlives SSH; the same line attaches again"
    yield "  crab train -- python train.py  a run that survives: resume, watch, power off"
    yield "  crab seal                      before the box is saved as an image"
    if plan.platform.row.save_steps_en and plan.platform.id != "unknown":
        yield f"save as a custom image ({plan.platform.name}):"
        yield from (f"  {step}" for step in plan.platform.row.save_steps_en)
