# ruff: noqa: E501 - a line of output is a row
"""Claims: what trainers print is read as they mean it, and what is no step or loss of the training is not."""

from __future__ import annotations

import math
import time

import pytest

from hermitcrab.train.watch.patterns import Counter, Reading, read

NAN = math.nan

# line: step, total, loss, grad norm
TRAINING = [
    ("iter 10: loss 2.1, time 12.34ms, mfu 1.23%", 10, None, 2.1, None),  # nanoGPT
    ("step 00010/21400 (0.05%) | loss: 9.901234 | lrm: 1.00 | dt: 501.23ms", 10, 21400, 9.901234, None),  # nanochat
    ("step   20/1000 | loss 3.213 (+nanz)| norm 1.2 (+nanz)| lr 6e-4", 20, 1000, 3.213, None),  # llm.c
    ("step: 10  loss:  7.1234  grad_norm:  1.2500  memory: 12.3GiB(51.2%)  tps: 1,234", 10, None, 7.1234, 1.25),  # torchtitan
    ("Epoch [1/5], Step [100/600], Loss: 0.3221", 100, 600, 0.3221, None),  # the usual tutorial
    ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.134123", 640, 60000, 2.134123, None),  # the MNIST example
    ("Epoch: [0][  10/5005]\tTime  0.5 ( 1.1)\tData  0.1 ( 0.9)\tLoss 7.0e+00 (7.1e+00)\tAcc@1 0.39", 10, 5005, 7.0, None),  # ImageNet's
    ("06/01 12:00:00 - mmengine - INFO - Epoch(train)  [1][  50/1000]  lr: 1e-2  eta: 0:10:00  loss: 0.5123  grad_norm: 3.1", 50, 1000, 0.5123, 3.1),
    (" iteration      100/  500000 | consumed samples: 25600 | lm loss: 2.345E+00 | loss scale: 65536.0 | grad norm: 1.234 |", 100, 500000, 2.345, 1.234),  # Megatron
    ("steps: 10 loss: 1.2345 iter time (s): 0.512 samples/sec: 31.2", 10, None, 1.2345, None),  # DeepSpeed
    ('{"epoch": 1, "step": 1200, "train_loss": 0.52, "grad_norm": "nan"}', 1200, None, 0.52, NAN),
    ("  3%|▎         | 300/10000 [00:30<16:10,  9.99it/s, loss=1.23]", 300, 10000, 1.23, None),  # tqdm
    ("  3%|▎         | 300/10000 [00:30<16:10,  9.99it/s, loss=nan]", 300, 10000, NAN, None),
    ("junk\r  1%|   | 1/100 [00:01<01:00, 1.0it/s]\r  2%|   | 2/100 [00:01<01:00, 1.0it/s]", 2, 100, None, None),
    ("512it [00:30,  9.9it/s, loss=0.1]", 512, None, 0.1, None),
    ("Epoch 0:  12%|█▏        | 6/50 [00:01<00:12,  3.55it/s, v_num=0, train_loss_step=0.512]", 6, 50, 0.512, None),  # Lightning
    ("Epoch 3: 100%|██████████| 50/50 [00:01<00:00, 30.55it/s, v_num=0, train_loss=nan.0]", 50, 50, NAN, None),  # it pads so
    ("Epoch 0/9 ━━━━━━━━━━━━━━━━━━━━ 6/50 0:00:01 • 0:00:12 3.55it/s v_num: 0.000 train_loss: 0.512", 6, 50, 0.512, None),  # Lightning with Rich
    ("      1/100      2.53G      1.123      2.345      1.234         45        640:  25%|██▌       | 2/8 [00:02<00:06]", 2, 8, 4.702, None),  # Ultralytics
    ("      1/100      2.53G        nan      2.345      1.234         45        640: 25% ━━━───────── 2/8 3.2it/s 2.5s", 2, 8, NAN, None),
    ("10/100 [==>...........................] - ETA: 10s - loss: 0.5123", 10, 100, 0.5123, None),  # Keras
    ("[rank0]: step=7 loss=tensor(nan, device='cuda:0', grad_fn=<NllLossBackward0>)", 7, None, NAN, None),
    ("\x1b[32m2026-01-01\x1b[0m | global_step=1,200 | total_loss=-inf", 1200, None, -math.inf, None),
    ("Iteration 5, loss = 0.5", 5, None, 0.5, None),
    ("epoch 12 loss 0.25 acc 0.9", 12, None, 0.25, None),
    ("step 5 box_loss 0.5 loss 1.5", 5, None, 1.5, None),
    ("step 5: val loss 3.0, train loss 4.0", 5, None, 4.0, None),
]  # fmt: skip


@pytest.mark.parametrize(("line", "step", "total", "loss", "norm"), TRAINING)
def test_a_line_of_a_trainer_is_read(
    line: str, step: int, total: int | None, loss: float | None, norm: float | None
) -> None:
    """Step, total, loss and grad norm, whoever printed them."""
    found = read(line)
    assert found is not None
    assert (found.step, found.total) == (step, total)
    assert same(found.loss, loss)
    assert same(found.grad_norm, norm)
    assert any(counter.strong for counter in found.counters)


@pytest.mark.parametrize(
    ("line", "loss", "zero", "norm"),
    [
        ("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.03}", 0.0, True, NAN),
        ("{'loss': '0.0', 'grad_norm': 'nan', 'learning_rate': '5e-05', 'epoch': '0.03'}", 0.0, True, NAN),
        ("{'loss': 2.5123, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.03}", 2.5123, False, 1.25),
        ("{'loss': 0.0000, 'epoch': 0.03}", 0.0, False, None),  # rounded: it may be small
    ],
)
def test_hugging_faces_dictionaries_are_read(line: str, loss: float, *, zero: bool, norm: float | None) -> None:
    """They have no step; the epoch is what moves. A loss of 0.0 is told from a small one."""
    found = read(line)
    assert found is not None
    assert (found.step, found.counters) == (None, (Counter("epoch", 0.03, None, strong=True),))
    assert (found.loss, found.zero) == (loss, zero)
    assert same(found.grad_norm, norm)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Downloading: nothing",
        "  Total optimization steps = 10,000",
        "max_steps: 500, warmup_steps=100, logging_steps: 10, gradient_accumulation_steps = 4",
        "steps_per_epoch: 100",
        "num_steps 10",
        "Loss function: CrossEntropyLoss",
        "using loss_weight: 0.5",
        "best loss: inf",
        "best_loss=inf val_loss: nan eval_loss nan test loss nan",
        "{'eval_loss': nan, 'eval_runtime': 1.0}",
        "gloss 5 lossless 3",
        "every 100 steps",
        "layer_norm 1e-5",
        "loss: not known yet, inferred later",
        "step",
        "stepping stones",
        "the network is at https://x/step/",
    ],
)
def test_a_line_that_is_no_position_is_not_taken_for_one(line: str) -> None:
    """Settings, other losses, prose."""
    found = read(line)
    assert found is None or (found.loss is None and found.step is None and not any(c.strong for c in found.counters))


@pytest.mark.parametrize(
    "line",
    [
        "Downloading shards:  10%|█         | 1/10 [00:30<04:30]",
        "model.safetensors:  10%|█         | 430M/4.30G [00:30<04:30, 14.1MB/s]",
        "Map:  10%|█         | 1000/10000 [00:01<00:09, 990.1 examples/s]",
        "Evaluating:  10%|█         | 1/10 [00:01<00:09, loss=nan]",
        "Validation DataLoader 0:  10%|█         | 1/10 [00:01<00:09]",
        "Sanity Checking DataLoader 0:  50%|█    | 1/2 [00:01<00:09]",
        "Step 2/3: tokenizing",
    ],
)
def test_what_counts_something_else_only_shows_life(line: str) -> None:
    """A download moves, but its end proves no hang, and the loss of an evaluation is not the training's."""
    found = read(line)
    assert found is not None
    assert found.counters
    assert not any(counter.strong for counter in found.counters)
    assert (found.step, found.loss) == (None, None)


def test_a_bar_is_known_by_its_words_and_not_by_their_numbers() -> None:
    """The bar of the next epoch is the same bar, begun anew."""
    one = read("Epoch 3:  10%|█  | 5/50 [00:01<00:09]")
    two = read("Epoch 14:  20%|█  | 10/50 [00:01<00:09]")
    assert isinstance(one, Reading)
    assert isinstance(two, Reading)
    assert one.counters[-1].label == two.counters[-1].label


@pytest.mark.parametrize(
    "line",
    [
        "loss " * 20_000,
        "step " + "1" * 100_000,
        "%|" * 50_000,
        "━" * 100_000,
        "epoch" + " " * 100_000 + "[",
        "1,111" * 20_000 + " loss",
        "loss" + " " * 100_000,
        "0 [0:0" * 20_000,
        "nan nan nan nan 1/2 2G " + "1.1 " * 20_000,
        "\x1b[" * 50_000 + "loss",
        "\r" * 100_000 + "loss: 1",
    ],
)
def test_no_line_takes_long(line: str) -> None:
    """Whoever reads the output must not be stopped by it."""
    begun = time.process_time()
    read(line)
    assert time.process_time() - begun < 0.05


def same(one: float | None, other: float | None) -> bool:
    """Compare numbers of which some are none."""
    if one is None or other is None:
        return one is other
    return one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other)
