"""Claim: in the image a run survives its trainer's death, ends as if nothing had been, and only then stops the box.

The platform is AutoDL by its variable and its data disk; a stub stands where AutoDL's stop command is.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from typing import Any, Final

import pytest
from docker.models.containers import Container

from hermitcrab.matrix import Combo
from tests.image import boxes
from tests.image.conftest import Start

STEPS: Final = 400
DATA: Final = "/root/autodl-tmp"
DIGITS: Final = ("python", "-m", "hermitcrab.examples.digits", "--steps", str(STEPS), "--every-steps", "40")
OPTIONS: Final = ("--runs", f"{DATA}/runs", "--name", "digits", "--poweroff", "success", "--grace", "2s")
SYNC: Final = ("--sync", "/root/autodl-fs/results")
RUN: Final = f"{DATA}/runs/digits"
# Like the real one, it leaves nobody alive: tini ends with its child.
STOP_STUB: Final = "#!/bin/sh\necho stopped >>/root/autodl-tmp/stopped\nkill -KILL -1\n"


def test_killed_resumed_synced_and_stopped(create_once: Start, combo: Combo) -> None:
    """The final weights equal those of an uninterrupted run, bit for bit."""
    alone = boxes.finish(create_once(combo, [*DIGITS, "--ckpt-dir", f"{DATA}/alone"]), seconds=300)
    assert alone.status == 0, alone.err.decode()[-2000:]

    container = _rented(create_once, combo, ["crab", "train", *OPTIONS, *SYNC, "--", *DIGITS, "--pause", "0.02"])
    container.start()
    boxes.until("a checkpoint", lambda: _committed(container) >= 80, container, seconds=120)
    _run(container, "kill", "-KILL", str(_state(container)["child"]))
    container.wait(timeout=90)

    log, events = container.logs().decode(), _events(container)
    assert _weights(log) == _weights(alone.out.decode()), log[-3000:]
    kinds = [event["kind"] for event in events]
    assert [event["number"] for event in events if event["kind"] == "attempt"] == [1, 2], log[-3000:]
    assert [event["what"] for event in events if event["kind"] == "failure"] == ["crash"]
    assert kinds.index("ended") < kinds.index("sync") < kinds.index("countdown")
    assert _read(container, f"{DATA}/stopped") == "stopped\n"
    assert json.loads(_read(container, f"{RUN}/run.json"))["synced"] is True
    newest = f"digits/checkpoints/step_{STEPS - 1:08d}/manifest.json"
    assert _read(container, f"/root/autodl-fs/results/{newest}") == _read(container, f"{DATA}/runs/{newest}")


def test_a_failed_run_stays_up(create_once: Start, combo: Combo) -> None:
    """Its end is not the end of the box: somebody should look."""
    broken = ["crab", "train", *OPTIONS, "--", "python", "-c", "import no_such_module"]
    container = _rented(create_once, combo, broken)
    done = boxes.finish(container, seconds=120)
    assert done.status == 1
    assert [event["what"] for event in _events(container) if event["kind"] == "failure"] == ["usage"]
    with pytest.raises(Exception, match="Could not find the file"):
        _read(container, f"{DATA}/stopped")


def _rented(create: Start, combo: Combo, command: list[str]) -> Container:
    """A box that looks like AutoDL's, with the stub in place."""
    environment = {"AutoDLContainerUUID": "0123456789-abcdef01"}
    container = create(combo, command, environment=environment, volumes=[DATA, "/root/autodl-fs"], shm_size="256m")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("shutdown")
        entry.size, entry.mode = len(STOP_STUB), 0o755
        archive.addfile(entry, io.BytesIO(STOP_STUB.encode()))
    container.put_archive("/usr/bin", buffer.getvalue())
    return container


def _read(container: Container, path: str) -> str:
    """A file of a container, running or not."""
    chunks, _ = container.get_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        (member,) = archive.getmembers()
        file = archive.extractfile(member)
        assert file is not None
        return file.read().decode()


def _events(container: Container) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _read(container, f"{RUN}/events.jsonl").splitlines()]


def _state(container: Container) -> Any:
    return json.loads(_run(container, "cat", f"{RUN}/run.json") or "{}")


def _committed(container: Container) -> int:
    return int(_state(container).get("committed") or 0)


def _run(container: Container, *words: str) -> str:
    status, output = container.exec_run(list(words), stderr=False)
    return b"".join([output] if isinstance(output, bytes) else output).decode() if status == 0 else ""


def _weights(said: str) -> str:
    found = re.search(r"weights ([0-9a-f]{64})", said)
    assert found, said[-2000:]
    return found[1]
