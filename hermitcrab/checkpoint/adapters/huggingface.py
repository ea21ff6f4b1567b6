"""Hugging Face Trainer: a manifest into each of its checkpoints, and only whole ones found again.

::

    from hermitcrab.checkpoint.adapters import huggingface

    trainer = Trainer(…, callbacks=[huggingface.callback()])
    trainer.train(resume_from_checkpoint=huggingface.get_last_verified_checkpoint(args.output_dir))
"""

# ruff: noqa: ARG002 - the arguments are those with which the framework calls
from __future__ import annotations

import contextlib
import importlib
import os
import re
from pathlib import Path
from typing import Any

import torch

from hermitcrab.checkpoint import choice, commit, ranks, record, store, telling
from hermitcrab.checkpoint.background import Background
from hermitcrab.checkpoint.saver import say
from hermitcrab.checkpoint.signals import Signals
from hermitcrab.checkpoint.store import Found

NAME = re.compile(r"checkpoint-(\d+)")  # the Trainer's own
TERMINATED = 128 + 15


def get_last_verified_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """Return the newest checkpoint whose every byte is as it was written, None on a first run.

    In place of `get_last_checkpoint`. Bad and unfinished ones are set aside in ``bad/`` with the reason. When
    there are only such, it raises: a run never begins again at 0 unnoticed.
    """
    chosen = ranks.from_first(lambda: choice.choose(Path(folder), None, lambda _: None, say, found))
    return None if chosen is None else str(chosen.path)


def found(folder: Path) -> list[Found]:
    """List the Trainer's checkpoints, the newest first."""
    paths = folder.iterdir() if folder.is_dir() else ()
    named = ((NAME.fullmatch(path.name), path) for path in paths if path.is_dir())
    return sorted((Found(int(match[1]), path) for match, path in named if match), reverse=True)


def seal(path: Path) -> None:
    """Give a checkpoint its manifest; also one that was written before, if you know that it is good."""
    with contextlib.suppress(FileNotFoundError):
        (path / store.MANIFEST).unlink()
    commit.seal(path, int(path.name.rpartition("-")[2]), record.environment(), commit.sums_of(path))


def callback() -> Any:
    """Make the callback for the Trainer."""
    base = importlib.import_module("transformers").TrainerCallback
    return type("VerifiedCheckpoints", (_Verified, base), {})()


class _Verified:
    """Seals beside the training, tells the supervisor, heeds SIGTERM and SIGUSR2 at the next step."""

    def __init__(self) -> None:
        self._background, self._signals, self._teller = Background(), Signals(), telling.Teller(None)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Catch the signals, tell what there is to do."""
        if state.is_world_process_zero:
            self._teller = telling.from_environment()
            if args.save_total_limit == 1:
                say("WARNING: save_total_limit=1 keeps one checkpoint: if that is damaged, all is lost; give 2 or more")
        self._signals.install()
        self._teller.tell(folder=str(args.output_dir), total=state.max_steps, signals=self._signals.caught)
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Tell of the step; ask for a save, or the end, when a signal came."""
        self._background.raise_error()
        self._teller.step(state.global_step)
        save, stop = ranks.any_of([self._signals.save, self._signals.stop])
        self._signals.save = False
        control.should_save |= save and args.save_strategy != "no"
        control.should_training_stop |= stop
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> Any:
        """Tell loss and gradient norm as the Trainer logs them."""
        told = {name: logs[name] for name in ("loss", "grad_norm") if isinstance((logs or {}).get(name), float)}
        self._teller.tell(**told)
        return control

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """An evaluation takes its time."""
        self._teller.tell(phase="evaluating")
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """It is over."""
        self._teller.tell(phase="")
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Seal what the Trainer wrote, once all ranks have written."""
        if ranks.world() > 1:
            torch.distributed.barrier()
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and path.is_dir():
            self._background.start(lambda: self._seal(path, state.global_step))
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Wait for the last seal. After SIGTERM the program ends as SIGTERM would have ended it."""
        self._background.wait()
        self._background.raise_error()
        stopped = ranks.any_of([self._signals.stop])[0]
        self._signals.restore()
        self._teller.close(finished=not stopped, phase="", signals=())
        if stopped:
            raise SystemExit(TERMINATED)
        return control

    def _seal(self, path: Path, step: int) -> None:
        try:
            seal(path)
        except OSError as error:
            say(f"WARNING: {path.name} has no manifest: {error.strerror or error}")
            return
        choice.committed(path.parent)
        self._teller.tell(committed=step, checkpoint=str(path), exact=None)
