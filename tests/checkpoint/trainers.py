"""The same small training under other people's trainers: `python trainers.py WHICH FOLDER [STEPS [DIE_AT]]`.

Prints a digest of the weights at the end; at DIE_AT it kills itself, once a checkpoint of that step is safe.
"""

# ruff: noqa: ARG002 - the arguments are those with which the framework calls
from __future__ import annotations

import hashlib
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hermitcrab import ResumableSampler
from hermitcrab.checkpoint import store
from hermitcrab.checkpoint.adapters import huggingface, lightning

SAMPLES, BATCH = 26, 4


class Data(torch.utils.data.Dataset):  # type: ignore[misc] # torch is untyped where it is not installed
    """Samples that are a function of their index."""

    by_index = True

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(int(index))
        return {"inputs": torch.randn(6, generator=generator), "labels": torch.randn(1, generator=generator)}


class Net(nn.Module):  # type: ignore[misc] # as above
    """With dropout, so that the random state matters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 1))

    def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
        """As the Trainer of Hugging Face wants it."""
        out = self.layers(inputs)
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


def die(at: int, step: int, saved: int) -> None:
    """SIGKILL in the step after."""
    if at and step > at and saved >= at:
        os.kill(os.getpid(), signal.SIGKILL)


def by_huggingface(folder: Path, steps: int, at: int) -> Any:
    """With a checkpoint every 3 steps."""
    library = importlib.import_module("transformers")
    model, survive = Net(), huggingface.callback()

    class Die(library.TrainerCallback):  # type: ignore[misc, name-defined] # untyped where it is not installed
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            survive._background.wait()
            die(at, state.global_step, max([0, *(item.step for item in huggingface.found(folder))]))

    arguments = library.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        save_steps=3,
        save_total_limit=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    trainer = library.Trainer(model=model, args=arguments, train_dataset=Data(), callbacks=[survive, Die()])
    trainer.train(resume_from_checkpoint=huggingface.get_last_verified_checkpoint(folder))
    return model


def by_lightning(folder: Path, steps: int, at: int) -> Any:
    """With a checkpoint every 3 steps, two batches to a step, and a validation that draws at random."""
    library = importlib.import_module("lightning.pytorch")

    class Module(library.LightningModule):  # type: ignore[misc, name-defined] # untyped where it is not installed
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(batch["inputs"] * torch.rand(()), batch["labels"])["loss"]

        def validation_step(self, batch: Any, number: int) -> None:
            torch.rand(3)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

        def on_train_batch_start(self, batch: Any, number: int) -> None:
            die(at, self.global_step, max([-1, *(item.step for item in store.found(folder))]))

    module, data = Module(), Data()
    sampler = ResumableSampler(data, batch_size=BATCH, seed=5)
    survive = lightning.callback(folder, sampler=sampler, every_steps=3)
    trainer = library.Trainer(
        max_steps=steps,
        max_epochs=-1,
        accumulate_grad_batches=2,
        accelerator="cpu",
        callbacks=[survive],
        enable_checkpointing=False,
        logger=False,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    trainer.fit(module, loader, torch.utils.data.DataLoader(data, batch_size=13), ckpt_path=survive.last())
    return module


def main(which: str, folder: str, steps: str = "14", at: str = "0") -> None:
    """Train, and say what came of it."""
    torch.manual_seed(1)
    model = {"huggingface": by_huggingface, "lightning": by_lightning}[which](Path(folder), int(steps), int(at))
    weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
