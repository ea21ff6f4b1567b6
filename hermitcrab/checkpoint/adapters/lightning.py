"""Lightning: its checkpoints in a verified folder, with every random state and the position in the data.

::

    from hermitcrab.checkpoint.adapters import lightning

    sampler = ResumableSampler(data, batch_size=64, seed=7)
    survive = lightning.callback("runs/exp1", sampler=sampler)
    trainer = Trainer(callbacks=[survive], use_distributed_sampler=False, enable_checkpointing=False)
    trainer.fit(module, DataLoader(data, batch_sampler=sampler), ckpt_path=survive.last())
"""

# ruff: noqa: ARG002 - the arguments are those with which the framework calls
from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from hermitcrab.checkpoint import choice, commit, ranks, record, retention, rng, start, telling
from hermitcrab.checkpoint.manifests import Describer
from hermitcrab.checkpoint.pace import OVERHEAD, Clock, Pace
from hermitcrab.checkpoint.retention import LEAST, Keep, Verified
from hermitcrab.checkpoint.saver import say
from hermitcrab.checkpoint.signals import Signals

FILE = "lightning.ckpt"
TERMINATED = 128 + 15


def callback(
    folder: str | os.PathLike[str] | None = None,
    *,
    sampler: Any = None,
    every_steps: int | None = None,
    every_minutes: float | None = None,
    overhead: float = OVERHEAD,
    keep: int = LEAST,
) -> Any:
    """Make the callback for the Trainer; without a folder it is that of CKPT_DIR."""
    base = importlib.import_module(_package()).Callback
    made = type("Survive", (_Survive, base), {})()
    made.prepare(start.folder(folder), sampler, Clock(Pace(every_steps, every_minutes, overhead)), Keep(keep))
    return made


class _Survive:
    """Saves at the end of a step while the training waits, in Lightning's own format."""

    def prepare(self, folder: Path, sampler: Any, clock: Clock, keep: Keep) -> None:
        """Take what the user gave."""
        self.folder, self._clock, self._keep = folder, clock, keep
        self._parts = {"sampler": sampler} if sampler is not None else {}
        self._signals, self._teller, self._verified = Signals(), telling.Teller(None), Verified()
        self._describer = Describer(say if ranks.rank() == 0 else lambda _: None)
        self._run = os.environ.get(start.RUN) or uuid.uuid4().hex[:12]
        self._done, self._held, self._since = 0, None, None  # type: tuple[int, Any, int | None]

    def last(self) -> str | None:
        """The newest good checkpoint for `ckpt_path`, None on a first run; as Checkpointer.resume chooses it."""
        chosen = start.choose(self.folder, None, start.wanted(None, fresh=False), load=lambda _: None)
        if chosen is None:
            return None
        self._run, self._since = str(chosen.manifest.get("run")), int(chosen.manifest["step"])
        self._describer.notes = record.differences(chosen.manifest, self._environment())
        return str(chosen.path / FILE)

    def state_dict(self) -> dict[str, Any]:
        """What Lightning does not save itself."""
        position = {name: part.state_dict() for name, part in self._parts.items()}
        return {**position, "rng": ranks.gather(rng.capture())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Bring it back; the random state once more when the loader has begun, which draws in mid-epoch."""
        sampler = self._parts.get("sampler")
        if sampler is not None:
            sampler.load_state_dict(state["sampler"])
        if len(state["rng"]) != ranks.world():
            self._describer.notes.append("the ranks' random states are new ones")
            return
        mine = state["rng"][ranks.rank()]
        rng.restore(mine)
        if sampler is not None and sampler.batch:
            sampler.on_first_index = lambda: rng.restore(mine)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Catch the signals, tell what there is to do."""
        self._describer.environment = self._environment()
        if trainer.is_global_zero:
            self._teller = telling.from_environment()
        self._signals.install(alone=True)  # Lightning's own would end in the middle of a step, with status 0
        self._done = trainer.global_step
        total = trainer.estimated_stepping_batches
        total = int(total) if total != float("inf") else None
        self._teller.tell(folder=str(self.folder), total=total, signals=self._signals.caught)
        self._clock.begun()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the batch; after the last one of a step, save if it is time to."""
        sampler = self._parts.get("sampler")
        if sampler is not None and not sampler.counts_itself:
            sampler.advance()
        step = trainer.global_step
        if step == self._done:
            return  # in the middle of an accumulated step
        self._done = step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._teller.step(step - 1, loss)
        due = ranks.rank() == 0 and self._clock.is_due(step - 1)
        due, asked, stop = ranks.any_of([due, self._signals.save, self._signals.stop])
        if due or asked:
            self._signals.save = False
            self._save(trainer, step - 1)
        if stop:
            raise SystemExit(TERMINATED)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """What a validation draws at random is given back: a resumed run may not come by it again."""
        self._held = rng.capture()
        self._teller.tell(phase="evaluating")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """It is over."""
        rng.restore(self._held)
        self._teller.tell(phase="")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the end, and say that it is one."""
        self._save(trainer, trainer.global_step - 1)
        self._signals.restore()
        self._teller.close(finished=True, phase="", signals=())

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the signals back."""
        self._signals.restore()
        self._teller.close(phase="", signals=())

    def _save(self, trainer: Any, step: int) -> None:
        self._teller.tell(phase="saving")
        self._clock.begun()
        began = self._clock.now()
        manifest = {**self._describer.describe(self._parts, {}), "run": self._run}
        try:
            temporary = ranks.from_first(lambda: commit.begin(self.folder, step))
            trainer.save_checkpoint(temporary / FILE)  # on all ranks
            path = ranks.from_first(lambda: self._publish(temporary, manifest, step))
        except OSError as error:
            self._clock.failed = True
            say(
                f"WARNING: step {step} is NOT saved: {error.strerror or error}. Training goes on, saving is tried again"
            )
        else:
            self._clock.ended(self._clock.now() - began)
            self._teller.tell(committed=step, checkpoint=str(path), exact=manifest["exact"])
        self._teller.tell(phase="")

    def _publish(self, temporary: Path, manifest: dict[str, Any], step: int) -> Path:
        try:
            if self._since is not None:
                choice.leave_behind(self.folder, self._run, self._since, say)
            commit.seal(temporary, step, manifest, commit.sums_of(temporary))
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        path = commit.publish(self.folder, step, manifest, temporary)
        self._since = None
        self._verified.trust(path)
        choice.committed(self.folder)
        say(f"saved step {step}")
        retention.prune(self.folder, self._run, self._keep, self._verified, say)
        return path

    def _environment(self) -> dict[str, Any]:
        return {**ranks.from_first(record.environment), "world_size": ranks.world()}


def _package() -> str:
    """Lightning goes by two names."""
    return "lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning"
