"""Case C33: a requirements file is compared with the combo whose image will hold it."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import pytest

from hermitcrab.build.lint import Finding
from hermitcrab.build.requirements import lint_requirements


@dataclass(frozen=True, kw_only=True)
class Combo:
    """As much of a combo as the lint looks at."""

    id: str = "cuda11.8-torch2.1.2-py310"
    cuda: str = "11.8"
    torch: str = "2.1.2"
    torchvision: str = "0.16.2"
    torchaudio: str = "2.1.2"
    python: str = "3.10"
    wheels: str = "cu118"


CU118 = Combo()
PYPI = Combo(
    id="cuda12.1-torch2.4.1-py311",
    cuda="12.1",
    torch="2.4.1",
    torchvision="0.19.1",
    torchaudio="2.4.1",
    python="3.11",
    wheels="pypi",
)

# C33.txt with a neutral index.
C33 = """\
--extra-index-url https://index.example/whl/cu118
torch==2.1.2+cu118
torchvision==0.16.2+cu118
xformers
numpy
flash-attn==2.5.8
-e git+https://host.example/example/lib.git@v1.2#egg=lib
transformers>=4.40 ; python_version >= "3.9"
opencv-python
pytorch==2.0.1"""


def ids(text: str, combo: Combo = CU118) -> list[tuple[int, str]]:
    """Where which rule spoke."""
    return [(finding.line, finding.id) for finding in lint_requirements(text, combo)]


def faults(text: str, combo: Combo = CU118) -> list[Finding]:
    """The findings that are no notes."""
    return [finding for finding in lint_requirements(text, combo) if not finding.is_note]


def test_c33_beside_its_own_combo() -> None:
    """Equal torch lines are accepted, `pytorch` is the wrong name, the tied ones get a note."""
    assert ids(C33) == [(4, "note-tied-to-torch"), (6, "note-tied-to-torch"), (10, "wrong-name")]
    (fault,) = faults(C33)
    assert "the package is torch" in fault.message and "torch==2.1.2" in fault.remedy


def test_c33_beside_another_combo() -> None:
    """The index and each torch line are reported with both values."""
    found = faults(C33, PYPI)
    assert [(x.line, x.id) for x in found] == [
        (1, "index-other-build"),
        (2, "other-build"),
        (3, "other-build"),
        (10, "wrong-name"),
    ]
    assert "cu118" in found[0].message and "cu121" in found[0].message
    assert "torch==2.1.2+cu118" in found[1].message and "torch==2.4.1+cu121" in found[1].message


@pytest.mark.parametrize(
    "line",
    [
        "torch",
        "Torch == 2.1.2",
        "torch===2.1.2",
        "torch==2.1.2+cu118  # the right one",
        "torch==2.1.*",
        "torch>=2,<3",
        "torch~=2.1",
        "torch[opt-einsum]==2.1.2",
        "torchaudio==2.1.2+cu118 --hash=sha256:" + "ab" * 32,
        "torch==2.1.2 \\\n    --hash=sha256:" + "ab" * 32 + " \\\n    --hash=sha256:" + "cd" * 32,
        'torch==1.13.1 ; python_version < "3.9"',
        'torch==1.13.1 ; sys_platform == "darwin"',
        "torch @ https://index.example/whl/cu118/torch-2.1.2%2Bcu118-cp310-cp310-linux_x86_64.whl",
        "numpy",
        "numpy<2",
        "torchmetrics",
        "-r other.txt",
        "-c constraints.txt",
        "--no-binary :all:",
        "-e .",
        "./lib",
        "lib @ git+https://host.example/lib.git@main",
        "git+ssh://git@host.example/lib.git",
        "https://host.example/lib-1.0.tar.gz",
        "wheels/lib-1.0-py3-none-any.whl",
        "--extra-index-url=https://index.example/whl/cu118",
        "-i https://index.example/simple",
        "# torch==1.0",
        "",
    ],
)
def test_lines_that_fit(line: str) -> None:
    """What equals the combo, or has nothing to do with torch, is accepted."""
    assert ids(line) == []


@pytest.mark.parametrize(
    ("line", "rule", "words"),
    [
        ("torch==2.1.2+cu121", "other-build", "torch==2.1.2+cu121 is asked for"),
        ("torch==2.1.2+cpu", "other-build", "torch==2.1.2+cu118"),
        ("torch==2.1.1", "other-version", "has torch==2.1.2+cu118"),
        ("torch==2.1.1+cu118", "other-version", "torch==2.1.1+cu118"),
        ("torch>=2.2", "other-version", "torch>=2.2"),
        ("torchvision==0.17.0", "other-version", "torchvision==0.16.2+cu118"),
        ("torchaudio<2", "other-version", "torchaudio<2"),
        ('torch==2.0.1 ; python_version >= "3.9"', "other-version", "2.0.1"),
        (
            "https://index.example/torch-2.1.2%2Bcu121-cp310-cp310-linux_x86_64.whl",
            "other-build",
            "cu121",
        ),
        ("torch @ git+https://u:hunter2@host.example/torch", "other-version", "git+https"),
        ("--index-url https://index.example/whl/cpu", "index-other-build", "cpu builds"),
        ("-f https://index.example/whl/cu121_full/", "index-other-build", "cu121 builds"),
        ("pytorch", "wrong-name", "torch"),
        ("not a requirement", "unreadable", "not a requirement"),
    ],
)
def test_lines_that_do_not_fit(line: str, rule: str, words: str) -> None:
    """A difference names what is asked for and what the combo has."""
    (found,) = lint_requirements(f"numpy\n{line}\n", CU118)
    assert (found.line, found.id) == (2, rule)
    assert words in found.message and "hunter2" not in found.message


def test_right_tag_where_the_wheel_has_none() -> None:
    """PyPI's wheel carries no tag, so pip would not take it for 2.4.1+cu121: a note, no fault."""
    assert ids("torch==2.4.1", PYPI) == []
    assert ids("torch==2.4.1+cu121", PYPI) == [(1, "note-local-tag")]


@pytest.mark.parametrize("name", ["xformers==0.0.23", "vllm", "triton", "nvidia-cudnn-cu12==9.1"])
def test_packages_tied_to_torch_are_noted(name: str) -> None:
    """They are no faults: the constraints keep torch where it is."""
    (found,) = lint_requirements(name, CU118)
    assert found.is_note and found.id == "note-tied-to-torch"


def test_continued_lines_count_from_their_start() -> None:
    """A finding stands at the first line of what pip joins; CRLF and a missing end are fine."""
    assert ids("numpy\r\ntorch==1.0 \\\r\n  --hash=sha256:00\r\npytorch \\") == [
        (2, "other-version"),
        (4, "wrong-name"),
    ]


def test_garbage_neither_crashes_nor_stalls() -> None:
    """Random bytes, nested markers and endless versions give findings at worst."""
    rng = random.Random(33)
    texts = [rng.randbytes(2_000).decode("latin-1") for _ in range(200)]
    texts += [
        "torch==" + "9" * 10_000,
        "torch==" + "9" * 3_000,
        "torch ; " + "(" * 3_000,
        "torch ; extra == 'x' and python_version > 'x'",
        "torch==1+" + "a." * 1_500,
        "torch===" + "!" * 100,
        "-f " + "cu" * 50_000,
        " " * 100_000 + "#",
        "a --" * 50_000,
        "torch-1-" * 20_000,
        "\\\n" * 50_000,
    ]
    start = time.monotonic()
    for text in texts:
        assert all(finding.line > 0 for finding in lint_requirements(text, CU118))
    assert time.monotonic() - start < 10
