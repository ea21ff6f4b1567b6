"""Which combo for which driver and card: the table of the house against every pair people rent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from hermitcrab import matrix as matrices
from hermitcrab.box.bootstrap import pick, pins
from hermitcrab.box.bootstrap.pick import Machine
from hermitcrab.box.bootstrap.pins import Row
from hermitcrab.build import bootstrap
from hermitcrab.errors import UserError
from tests.unit.test_check_stubs import GCC, compile_stubs

ROOT: Final = Path(__file__).parents[2]
MATRIX: Final = matrices.load()
ROWS: Final = pins.read(bootstrap.pinned(MATRIX)).rows


class Card(NamedTuple):
    """A card as libcuda names it."""

    name: str
    sm: int
    processor: str = "x86_64"


CARDS: Final = {
    "T4": Card("Tesla T4", 75),
    "V100": Card("Tesla V100-SXM2-32GB", 70),
    "3090": Card("NVIDIA GeForce RTX 3090", 86),
    "4090": Card("NVIDIA GeForce RTX 4090", 89),
    "A100": Card("NVIDIA A100-SXM4-80GB", 80),
    "H800": Card("NVIDIA H800", 90),
    "5090": Card("NVIDIA GeForce RTX 5090", 120),
    "GH200": Card("NVIDIA GH200 480GB", 90, "aarch64"),
}
DRIVERS: Final = {
    "470": "470.199.02",
    "535": "535.104.05",
    "550": "550.54.15",
    "570": "570.86.15",
    "580": "580.65.06",
}
# The CUDA of the row for each card, under Python 3.11; "" where nothing runs.
TABLE: Final = {
    #        T4      V100    3090    4090    A100    H800    5090    GH200
    "470": ("11.7", "11.7", "11.7", "11.7", "11.7", "", "", ""),
    "535": ("12.8", "12.8", "12.8", "12.8", "12.8", "12.8", "", ""),
    "550": ("12.8", "12.8", "12.8", "12.8", "12.8", "12.8", "", ""),
    "570": ("12.8", "12.8", "12.8", "12.8", "12.8", "12.8", "12.8", ""),
    "580": ("13.2", "12.8", "13.2", "13.2", "13.2", "13.2", "13.2", ""),
}
PAIRS: Final = [(driver, card, cuda) for driver, row in TABLE.items() for card, cuda in zip(CARDS, row, strict=True)]
pairs = pytest.mark.parametrize(("driver", "card", "cuda"), PAIRS)


def machine(driver: str, card: str, *pythons: str) -> Machine:
    """A machine with one card."""
    found = CARDS[card]
    return Machine(DRIVERS.get(driver, driver), (found.sm,), (found.name,), found.processor, pythons or ("3.11",))


def chosen(box: Machine, **asked: str) -> Row:
    """The row that is chosen."""
    return pick.choose(box, ROWS, **asked).row


@pairs
def test_driver_and_card_decide_together(driver: str, card: str, cuda: str) -> None:
    """The newest row that both can use, or a refusal with status 4 that says what would work."""
    if cuda:
        assert chosen(machine(driver, card)).cuda == cuda
        return
    with pytest.raises(UserError, match=r"no combo runs on this machine: .*; take ") as refused:
        chosen(machine(driver, card))
    assert refused.value.code == pick.NOTHING_FITS


def test_every_choice_runs() -> None:
    """Whatever is offered meets the row's driver, has code for the card, and is no row without a lock."""
    for driver, card, cuda in PAIRS:
        if cuda:
            row = chosen(machine(driver, card))
            assert row.locks
            assert pins.numbers(row.driver) <= pins.numbers(DRIVERS[driver])
            assert any(sm // 10 == CARDS[card].sm // 10 and sm <= CARDS[card].sm for sm in row.arch)


def test_too_old_for_all_names_what_is_needed() -> None:
    """C01's way: the driver found, the one needed, and no word of installing one."""
    with pytest.raises(
        UserError, match=r"it needs driver 450\.80\.02, and this is 418\.87\.00.*cannot change"
    ) as refused:
        chosen(machine("418.87.00", "T4"))
    assert "CUDA" not in str(refused.value).partition(";")[0]


def test_the_card_of_c01() -> None:
    """Driver 470 with a T4: asking for CUDA 12 stops with the driver, the minimum and what fits instead."""
    with pytest.raises(UserError) as refused:
        chosen(machine("470", "T4"), cuda="12.1")
    said = str(refused.value)
    assert "it needs driver 525.60.13, and this is 470.199.02" in said
    assert "what works here: --cuda 11.7 --torch 2.0.1" in said


@pytest.mark.parametrize(
    ("box", "asked", "said"),
    [
        (machine("550", "5090"), {"cuda": "12.8"}, "no driver below 570 knows a card of sm_120"),
        (machine("580", "5090"), {"cuda": "12.1"}, "it has no code for sm_120"),
        (machine("580", "V100"), {"torch": "2.15"}, "it has no code for sm_70"),
        (machine("580", "T4", "3.7"), {"cuda": "12.1"}, "here is 3.7"),
        (machine("580", "T4"), {"cuda": "11.8"}, "on no index that the bootstrap may ask"),
        (machine("580", "GH200"), {"cuda": "13.0"}, "its wheels are for x86_64, and this machine is aarch64"),
    ],
)
def test_an_impossible_wish_is_refused_with_its_reason(box: Machine, asked: dict[str, str], said: str) -> None:
    """Status 4: the row exists, and cannot run here."""
    with pytest.raises(UserError, match=said) as refused:
        chosen(box, **asked)
    assert refused.value.code == pick.NOTHING_FITS


@pytest.mark.parametrize("asked", [{"cuda": "12.9"}, {"cuda": "12.1", "torch": "2.10"}, {"torch": "x"}, {"cuda": "1"}])
def test_a_row_that_does_not_exist_is_wrong_use(asked: dict[str, str]) -> None:
    """Status 2, with the rows there are; 2.1 is not 2.10, and 12 is not 12.1 by accident."""
    with pytest.raises(UserError, match="there are CUDA") as refused:
        chosen(machine("580", "T4"), **asked)
    assert refused.value.code == 2


def test_asking_decides() -> None:
    """--cuda and --torch, with the rest left out or not."""
    assert chosen(machine("580", "4090"), cuda="12.1").torch == "2.4.1"
    assert chosen(machine("580", "4090"), torch="2.4").cuda == "12.1"
    assert chosen(machine("580", "4090"), cuda="12.1", torch="2.4.1").cuda == "12.1"


def test_without_a_card_what_runs_on_most() -> None:
    """No-GPU mode: with no driver to look at, with one, and with an old one."""
    assert chosen(Machine("", (), pythons=("3.11",))).cuda == "12.8"
    assert chosen(Machine("580.65.06", (), pythons=("3.11",))).cuda == "12.8"
    assert chosen(Machine("470.199.02", (), pythons=("3.11",))).cuda == "11.7"


def test_all_cards_count() -> None:
    """A V100 beside a 4090: what both can use; beside a 5090: nothing has code for both but one row."""
    mixed = Machine("580.65.06", (70, 89), ("V100", "4090"), pythons=("3.11",))
    assert chosen(mixed).cuda == "12.8"
    assert chosen(mixed._replace(cards=(70, 120))).cuda == "12.8"
    with pytest.raises(UserError, match="no code"):
        chosen(mixed._replace(cards=(60, 120)))


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_a_name_tells_the_capability(card: Card) -> None:
    """For a driver whose libraries do not answer, nvidia-smi's name decides."""
    assert pick.capability(card.name) == card.sm


def test_an_unknown_name_decides_nothing() -> None:
    """The driver does, and the check at the end tells."""
    assert pick.capability("NVIDIA Quantum 1") is None
    assert chosen(Machine("580.65.06", (None,), ("NVIDIA Quantum 1",), pythons=("3.11",))).cuda == "13.2"


LOOK: Final = "import json; from hermitcrab.box.bootstrap import plan; print(json.dumps(plan.look()._asdict()))"


def look(**environ: str) -> Machine:
    """What a process of its own finds out of the machine."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    lists = {key: tuple(found[key]) for key in ("cards", "names", "pythons")}
    return Machine(**{**found, **lists})


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libcuda and an NVML that tell of the machine in the environment."""
    if GCC is None:
        pytest.skip("needs gcc to compile the stub libraries")
    return compile_stubs(tmp_path_factory.mktemp("stubs"))


@pairs
def test_a_driver_that_is_really_asked(driver: str, card: str, cuda: str, stubs: Path) -> None:
    """Libcuda and NVML are loaded and steer the choice."""
    found = CARDS[card]
    machine = look(
        LD_LIBRARY_PATH=str(stubs),
        STUB_DRIVER=DRIVERS[driver],
        STUB_DEVICES=f"{found.name}:{found.sm}:16000",
        STUB_CARDS=f"{found.name}:16000:0:-:-:0:0",
    )._replace(processor=found.processor, pythons=("3.11",))
    assert (machine.driver, machine.cards, machine.names) == (DRIVERS[driver], (found.sm,), (found.name,))
    if cuda:
        assert chosen(machine).cuda == cuda
    else:
        with pytest.raises(UserError):
            chosen(machine)


@pytest.mark.parametrize("card", ["T4", "5090"])
def test_nvidia_smi_alone(card: str, tmp_path: Path) -> None:
    """Where no library answers, the program's names and driver do; C02's new banner among them."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho '{CARDS[card].name}, 16000, 0, [N/A], 580.65.06'\n")
    smi.chmod(0o755)
    machine = look(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (machine.driver, machine.cards) == ("580.65.06", (CARDS[card].sm,))


@pytest.mark.parametrize("case", ["C01", "C02", "C05", "C08"])
def test_the_banners_of_the_cases(case: str, tmp_path: Path) -> None:
    """The table that nvidia-smi prints is enough to choose by; no device is no card."""
    text = (ROOT / f"tests/cases/{case}.txt").read_text()
    (tmp_path / "banner").write_text(text)
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\n[ $# = 0 ] && cat "{tmp_path}/banner" || echo "unknown option" >&2\n')
    smi.chmod(0o755)
    wanted = {
        "C01": ("470.199.02", (75,), "11.7"),
        "C02": ("610.43.02", (120,), "13.2"),
        "C05": ("", (), "12.8"),
        "C08": ("580.126.09", (80,), "13.2"),
    }
    machine = look(PATH=f"{tmp_path}:{os.environ['PATH']}")._replace(pythons=("3.11",))
    assert (machine.driver, machine.cards, chosen(machine).cuda) == wanted[case]
