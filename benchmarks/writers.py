"""One small training under one of several checkpoint writers, for `benchmarks.checkpointers`.

`python -m benchmarks.writers WRITER WORK FOLDER [--die-at STEP]`; WORK is one of

- stall: a model of 100 MB with its optimizer, saved every 5th step; how much longer such a step takes
- save: the same, saved every step for ever, a line per step, until killed
- check: go on from what that left; whether the newest checkpoint loads, and whether the training goes on
- train: 20 steps of a tiny model with dropout and shuffled data, saved every 4th; a digest of the weights
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

SAMPLES, BATCH, SAVES = 27, 4, 4
LARGE: Final = 3000  # 9 million weights
ENDLESS: Final = 10**6


class Data(torch.utils.data.Dataset):  # type: ignore[misc] # torch is untyped where it is not installed
    """Samples that are a function of their index."""

    def __init__(self, *, as_dict: bool = False) -> None:
        self.as_dict = as_dict

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(int(index))
        pair = torch.randn(6, generator=generator), torch.randn(1, generator=generator)
        return {"inputs": pair[0], "labels": pair[1]} if self.as_dict else pair


class Net(nn.Module):  # type: ignore[misc] # as above
    """Notes when a step begins; the loss is its output, as every writer's trainer can use it."""

    def __init__(self, width: int, die_at: int, *, tells: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, width), nn.Dropout(0.3), nn.Linear(width, width), nn.Linear(width, 1))
        self.die_at, self.tells, self.began = die_at, tells, []  # type: tuple[int, bool, list[float]]

    def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
        """The loss."""
        self.began.append(time.monotonic())
        if self.tells:
            print("step", flush=True)
        if self.die_at and len(self.began) > self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"loss": (self.layers(inputs) - labels).pow(2).mean()}


def optimizer(model: Any) -> Any:
    """The same for all."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def loader(**options: Any) -> Any:
    """Shuffled, as one has it."""
    return torch.utils.data.DataLoader(Data(), batch_size=BATCH, shuffle=True, **options)


def by_torch(model: Any, folder: Path, steps: int, every: int) -> int:
    """The usual recipe: over the one file; on resume the random state comes back and batches are skipped."""
    path, optim, first = folder / "last.pt", optimizer(model), 0
    folder.mkdir(parents=True, exist_ok=True)
    batches = iter(loader())
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optim.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        first = saved["step"] + 1
        batches = iter(loader())
        for _ in range(first % -(-SAMPLES // BATCH)):
            next(batches)
    for step in range(first, steps):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader())
            batch = next(batches)
        model(*batch)["loss"].backward()
        optim.step()
        optim.zero_grad()
        if (step + 1) % every == 0:
            state = {"model": model.state_dict(), "optimizer": optim.state_dict(), "step": step}
            torch.save({**state, "rng": torch.get_rng_state()}, path)
    return first


def by_hermitcrab(model: Any, folder: Path, steps: int, every: int) -> int:
    """The four lines."""
    crab = importlib.import_module("hermitcrab")
    sampler, optim = crab.ResumableSampler(Data(), batch_size=BATCH), optimizer(model)
    ckpt = crab.Checkpointer(folder, model=model, optimizer=optim, sampler=sampler, every_steps=every, rehearse=False)
    first = int(ckpt.resume())
    batches = sampler.batches(torch.utils.data.DataLoader(Data(), batch_sampler=sampler))
    for step in range(first, steps):
        loss = model(*next(batches))["loss"]
        loss.backward()
        optim.step()
        optim.zero_grad()
        ckpt.step(step, loss=loss)
    ckpt.close()
    return first


def by_lightning(model: Any, folder: Path, steps: int, every: int) -> int:
    """Its own checkpoint callback, and ``ckpt_path="last"``."""
    library = importlib.import_module("lightning.pytorch")

    class Module(library.LightningModule):  # type: ignore[misc, name-defined] # untyped where it is not installed
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: Any) -> Any:
            return self.net(*batch)["loss"]

        def configure_optimizers(self) -> Any:
            return optimizer(self)

    save = importlib.import_module("lightning.pytorch.callbacks").ModelCheckpoint(
        dirpath=folder, every_n_train_steps=every, save_top_k=1, save_last=True, save_on_train_epoch_end=False
    )
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = library.Trainer(max_steps=steps, max_epochs=-1, accelerator="cpu", callbacks=[save], **quiet)
    there = bool(list(folder.glob("last*.ckpt")))
    trainer.fit(Module(), loader(), ckpt_path="last" if there else None)
    return int(trainer.global_step) if there else 0  # with nothing left to train it tells no start


def by_huggingface(model: Any, folder: Path, steps: int, every: int) -> int:
    """Its Trainer, and get_last_checkpoint."""
    library = importlib.import_module("transformers")
    last = importlib.import_module("transformers.trainer_utils").get_last_checkpoint
    quiet = {"report_to": [], "disable_tqdm": True, "logging_steps": ENDLESS, "use_cpu": True}
    batch = {"per_device_train_batch_size": BATCH, "max_steps": steps, "learning_rate": 1e-3}
    arguments = library.TrainingArguments(str(folder), save_steps=every, save_total_limit=2, **batch, **quiet)
    trainer = library.Trainer(model, arguments, train_dataset=Data(as_dict=True))
    newest = last(str(folder)) if folder.is_dir() else None
    trainer.train(resume_from_checkpoint=newest)
    return int(newest.rpartition("-")[2]) if newest else 0


def by_composer(model: Any, folder: Path, steps: int, every: int) -> int:
    """Its Trainer with autoresume."""
    library = importlib.import_module("composer")

    class Model(library.ComposerModel):  # type: ignore[misc, name-defined] # untyped where it is not installed
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, batch: Any) -> Any:
            return self.net(*batch)["loss"]

        def loss(self, outputs: Any, batch: Any) -> Any:  # noqa: ARG002 - as Composer calls it
            return outputs

    whole = Model()
    trainer = library.Trainer(
        model=whole,
        train_dataloader=loader(),
        optimizers=optimizer(whole),
        max_duration=f"{steps}ba",
        run_name="benchmark",
        save_folder=str(folder),
        save_interval=f"{every}ba",
        save_num_checkpoints_to_keep=2,
        autoresume=True,
        progress_bar=False,
        device="cpu",
        seed=1,
    )
    first = int(trainer.state.timestamp.batch)
    if first < steps:  # otherwise fit() raises that there is nothing to do
        trainer.fit()
    return first


BY: Final[dict[str, Callable[[Any, Path, int, int], int]]] = {
    "torch.save": by_torch,
    "lightning": by_lightning,
    "huggingface": by_huggingface,
    "composer": by_composer,
    "hermitcrab": by_hermitcrab,
}


def stall(work: Callable[[Any, Path, int, int], int], folder: Path) -> dict[str, Any]:
    """How much longer a step takes that saves."""
    model = Net(LARGE, 0, tells=False)
    work(model, folder, 41, 5)
    steps = [later - earlier for earlier, later in zip(model.began, model.began[1:], strict=False)][5:]
    saving = statistics.median(steps[4::5])
    return {"stall": saving - statistics.median(steps[1::5])}  # the second after a save: the write may go on then


def check(work: Callable[[Any, Path, int, int], int], folder: Path) -> dict[str, Any]:
    """Whether the newest loads, and whether a start goes on from any, without help."""
    whole = sorted((path for path in folder.rglob("*") if path.is_file() and path.suffix in {".pt", ".ckpt"}), key=when)
    tensors = sorted(folder.rglob("*.safetensors"), key=when)
    newest = max([*whole, *tensors], key=when).parent if work is by_huggingface else None
    files = [path for path in [*whole, *tensors] if path.parent == newest] if newest else whole[-1:]
    loads = all(map(is_whole, files)) and bool(files)
    if work is by_hermitcrab:
        store = importlib.import_module("hermitcrab.checkpoint.store")
        loads = all(store.reason_of(item.path) is None for item in store.found(folder)[:1])
    try:
        first = work(Net(LARGE, 0, tells=False), folder, 2, ENDLESS)  # 2 steps are done long since: nothing to train
    except Exception as error:  # noqa: BLE001 - whatever keeps it from going on
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        first = 0
    return {"loads": loads, "goes_on": first > 0}


def when(path: Path) -> float:
    """When it was written."""
    return path.stat().st_mtime


def is_whole(path: Path) -> bool:
    """Whether its library reads it."""
    try:
        if path.suffix == ".safetensors":
            importlib.import_module("safetensors.torch").load_file(str(path))
        else:
            torch.load(path, weights_only=False)
    except Exception:  # noqa: BLE001 - whatever it is, it does not load
        return False
    return True


def main() -> None:
    """Do one kind of work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("writer", choices=BY)
    parser.add_argument("work", choices=("stall", "save", "check", "train"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--die-at", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    work, told = BY[options.writer], {}
    if options.work == "train":
        model = Net(8, options.die_at, tells=False)
        resumed = work(model, options.folder, 20, SAVES)
        weights = b"".join(tensor.detach().numpy().tobytes() for tensor in model.state_dict().values())
        told = {"weights": hashlib.sha256(weights).hexdigest(), "resumed": resumed}
    elif options.work == "save":
        work(Net(LARGE, 0, tells=True), options.folder, ENDLESS, 1)
    else:
        told = {"stall": stall, "check": check}[options.work](work, options.folder)
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
