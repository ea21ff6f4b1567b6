"""Claim: driver and card decide together what a box is given: a driver that is none, asked by the real script."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.box import machine
from tests.box.bootstrapping import Ready, Served, run
from tests.box.conftest import Start
from tests.box.test_check import STUBS
from tests.unit.test_bootstrap_pick import CARDS, DRIVERS, pairs

# The libraries where platforms mount them, the program that platforms have, and a processor other than this one's.
BUILD: Final = (
    "cd /stubs; gcc -shared -fPIC -o libcuda.so.1 cuda.c; gcc -shared -fPIC -o libnvidia-ml.so.1 nvml.c;"
    " mkdir -p /usr/local/nvidia/lib64; mv *.so.1 /usr/local/nvidia/lib64/;"
    " gcc -shared -fPIC -o /stubs/uname.so uname.c; chmod 755 /usr/local/bin/nvidia-smi"
)
SMI: Final = '#!/bin/sh\necho "$STUB_SMI, 16000, 0, [N/A], $STUB_DRIVER"\n'
UNAME: Final = """
#define _GNU_SOURCE
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>
int uname(struct utsname *name) {
  long done = syscall(SYS_uname, name);
  strcpy(name->machine, "aarch64");
  return (int)done;
}
"""
ASK: Final = """
import concurrent.futures, json, os, subprocess
def ask(environ):
    words = ["bash", "/bootstrap.sh", "--mirror", "none", "--dry-run"]
    settings = {"env": {**os.environ, **environ}, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    done = subprocess.run(words, **settings, stderr=subprocess.STDOUT, universal_newlines=True)
    return f"{done.stdout}status {done.returncode}"
with open("/machines.json") as file, concurrent.futures.ThreadPoolExecutor(2) as pool:
    machines = json.load(file)
    print(json.dumps(dict(zip(machines, pool.map(ask, machines.values())))))
"""


def stubbed(driver: str, card: str) -> dict[str, str]:
    """What tells the stubs, by their environment, which machine it is."""
    name, sm, processor = CARDS[card]
    told = {"STUB_DEVICES": f"{name}:{sm}:16000", "STUB_CARDS": f"{name}:16000:0:-:-:0:0", "STUB_SMI": name}
    other = {"LD_PRELOAD": "/stubs/uname.so"} if processor == "aarch64" else {}
    return {"STUB_DRIVER": DRIVERS[driver], **told, **other}


@pytest.fixture(scope="module")
def plans(start: Start, ready: Ready, served: Served) -> Any:
    """What the script says on each machine: its plan or its refusal, and its status."""
    box = ready(start)
    machines = {f"{driver}-{card}": stubbed(driver, card) for driver in DRIVERS for card in CARDS}
    sources = {f"/stubs/{path.name}": path.read_text() for path in STUBS.iterdir()}
    asked: dict[str, str | bytes] = {
        "/machines.json": json.dumps(machines),
        "/ask.py": ASK,
        "/bootstrap.sh": served.scripts["small"],
    }
    machine.put(box.container, {**sources, **asked, "/stubs/uname.c": UNAME, "/usr/local/bin/nvidia-smi": SMI})
    box.shell(BUILD)
    return json.loads(run(box, "python3 /ask.py")[1])


@pairs
def test_driver_and_card_decide_together(driver: str, card: str, cuda: str, plans: Any) -> None:
    """The row that both can use and why, or status 4 before anything is fetched, with what would work."""
    said = plans[f"{driver}-{card}"]
    if cuda:
        assert f"driver    {DRIVERS[driver]}\ncards     {CARDS[card].name}\n" in said
        assert f"torch     cuda{cuda}-torch" in said
        assert f"the newest for {CARDS[card].name} and driver {DRIVERS[driver]}" in said
        assert said.endswith("nothing was changed\nstatus 0")
    else:
        assert "no combo runs on this machine" in said
        assert said.endswith("status 4")
