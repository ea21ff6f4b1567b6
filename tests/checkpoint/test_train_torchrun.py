"""Claims: `crab train -- torchrun …` loses nothing and leaves nobody, though torchrun hides statuses and sessions."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from torch.distributed.run import get_args_parser

from hermitcrab.checkpoint import store
from tests.train.training import Folder, alive, finished

TORCHRUN: Final = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
# Two ranks that train together; a file tells one of them how to die at a step, once.
RANK: Final = """
import os, signal, sys, time
import torch
from torch import nn
from hermitcrab import Checkpointer

rank, total = int(os.environ["RANK"]), int(sys.argv[1])
torch.distributed.init_process_group("gloo")
torch.manual_seed(3)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ckpt = Checkpointer(model=model, optimizer=optimizer, every_steps=2)
start = ckpt.resume()
print("rank", rank, "from", start, flush=True)
for step in range(start, total):
    loss = (model(torch.ones(2, 4)) - step % 7).pow(2).mean()  # never exactly 0, which is taken for NaN
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ckpt.step(step, loss=loss.detach())
    if os.path.exists("die") and rank == 1 and step == 5:
        code = int(open("die").read())
        os.unlink("die")
        ckpt.wait()
        os.kill(os.getpid(), -code) if code < 0 else os._exit(code)
    time.sleep(0.05)
ckpt.close()
print("rank", rank, "at the end", flush=True)
torch.distributed.barrier()
os._exit(0)
"""


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Folder]:
    """A user's folder with that program in it."""
    found = Folder(tmp_path)
    found.script(RANK)
    yield found
    found.close()


def running(users: Folder) -> None:
    """Wait until both ranks train and the supervisor knows."""
    users.wait(lambda: users.log().count(" from ") >= 2, "the ranks")
    users.wait(lambda: users.state().get("committed") is not None or _committed(users), "a checkpoint")


def _committed(users: Folder) -> bool:
    return users.run.status.exists() and json.loads(users.run.status.read_text()).get("committed") is not None


def newest(users: Folder) -> int:
    """The step of the newest checkpoint, which is whole."""
    found = store.found(users.run.checkpoints)[0]
    store.verify(found.path)
    return found.step


def can_be_told() -> bool:
    """Say whether this torchrun lets anybody choose the signals that end it."""
    said = get_args_parser().format_help()
    return "--signals-to-handle" in said or "--signals_to_handle" in said


def test_a_lost_connection_is_survived(users: Folder) -> None:
    """It ends torchrun even under nohup; here it does not take it, or, where it must (torch 2.4), goes on anew."""
    process = users.start(*TORCHRUN, "train.py", "60")
    running(users)
    for pid in alive(users.run.folder):
        os.kill(pid, signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    status, output = finished(process, 120)
    assert status == 0, output
    assert len(users.events("attempt")) == (1 if can_be_told() else 2) and newest(users) == 59


def test_a_stop_saves_and_leaves_nobody(users: Folder) -> None:
    """The step that was done last is on disk, by one SIGTERM; workers have sessions of their own."""
    process = users.start(*TORCHRUN, "train.py", "5000")
    running(users)
    process.send_signal(signal.SIGTERM)
    _, output = finished(process, 120)
    state = users.state()
    assert state["verdict"] == "stopped", output
    assert newest(users) == state["step"] and alive(users.run.folder) == []


def test_a_killed_rank_is_a_crash_and_goes_on(users: Folder) -> None:
    """The launcher says 1; the rank's own end is in its report."""
    (users.path / "die").write_text("-9")
    process = users.start(*TORCHRUN, "train.py", "12")
    status, output = finished(process, 180)
    assert status == 0, output
    failure = users.events("failure")[0]
    assert failure["what"] == "crash" and "SIGKILL" in failure["reason"]
    assert len(users.events("attempt")) == 2 and output.count(" from 0") == 2
    assert newest(users) == 11 and alive(users.run.folder) == []


def test_a_ranks_own_status_is_read(users: Folder) -> None:
    """75 asks to be started elsewhere, and torchrun makes 1 of it."""
    (users.path / "die").write_text("75")
    process = users.start(*TORCHRUN, "train.py", "12")
    _, output = finished(process, 120)
    assert users.state()["verdict"] == "preempted", output


def test_a_killed_agent_leaves_no_workers(users: Folder) -> None:
    """They have sessions of their own, live on and hold the GPU; not here."""
    process = users.start(*TORCHRUN, "train.py", "40")
    running(users)
    workers = set(alive(users.run.folder)) - {users.state()["child"]}
    assert len(workers) >= 2
    os.kill(users.state()["child"], signal.SIGKILL)
    users.wait(lambda: len(users.events("attempt")) == 2, "another attempt")
    assert not workers & set(alive(users.run.folder))
    status, output = finished(process, 120)
    assert status == 0, output
    assert newest(users) == 39
