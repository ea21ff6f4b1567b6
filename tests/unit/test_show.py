"""What is printed: complete where no terminal is, and the verdict decides the exit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hermitcrab import matrix as matrices
from hermitcrab.build import engine as engines
from hermitcrab.build import show
from hermitcrab.build import size as sizes
from hermitcrab.build.engine import Engine
from hermitcrab.build.size import Layer, Package
from hermitcrab.errors import UserError
from hermitcrab.matrix import Combo

MATRIX = matrices.load()
COMBO = replace(matrices.select(MATRIX, "12.1"), disk_gb=5.1, gzip_gb=2.9, zstd_gb=2.4)
LAYERS = [
    Layer(made_by="COPY /layers/torch/ / # buildkit", disk=2_000_000_000, gzip=1_000_000_000, zstd=900_000_000),
    Layer(made_by="COPY / / # buildkit", disk=400_000_000),
    Layer(made_by="COPY /box/ / # buildkit", disk=60_000),
    Layer(made_by="RUN [/bold]", disk=0),
]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine with one image of known layers and packages."""
    packages = [Package(name=f"p{n}", version="1", kind="wheel", bytes=(30 - n) * 1_000_000) for n in range(25)]
    monkeypatch.setattr(sizes, "layers", lambda *_: LAYERS)
    monkeypatch.setattr(sizes, "packages", lambda *_: packages)
    monkeypatch.setattr(sizes, "measure", lambda *_: print("measured"))
    made = SimpleNamespace(image=lambda _: SimpleNamespace(id="sha256:11"), host="unix:///own", embedded=False)
    return cast("Engine", made)


def no_combo() -> Combo:
    """A Dockerfile needs none."""
    raise AssertionError


def test_the_matrix_shows_every_combo(capsys: pytest.CaptureFixture[str]) -> None:
    """Whole lines, however narrow the terminal that is none."""
    show.matrix(MATRIX)

    out = capsys.readouterr().out
    assert len(out.splitlines()) == len(MATRIX.combos) + 1
    for combo in MATRIX.combos:
        (line,) = (line for line in out.splitlines() if line.startswith(combo.id))
        assert f" {combo.driver} " in line and combo.status in line and " ".join(combo.arch) in line
        assert ("(default)" in line) == combo.default


def test_a_build_ends_with_layers_verdict_and_what_to_do(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes where known, image ID, tag, and how to run, save and push."""
    show.result(engine, COMBO)

    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines()[1:4]] == [
        ["torch", "2000.0", "1000.0", "900.0"],
        ["system", "400.0"],
        ["box", "0.1"],
    ]
    assert "budget  disk: 2.40 GB, within 5.1 GB" in out
    assert "gzip:" not in out
    assert f"image   sha256:11\ntag     hermitcrab:{COMBO.id}\n" in out
    assert f"docker run --rm -it --gpus all hermitcrab:{COMBO.id} bash\n" in out
    assert "./invoke save --cuda 12.1" in out and "./invoke push --cuda 12.1 --to " in out


def test_the_embedded_engine_s_commands_find_it(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """Its socket and its network, in the very line to copy."""
    engine.__dict__["embedded"] = True

    show.result(engine, COMBO)

    (run,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("run "))
    assert "unix:///own" in run and "--network host" in run


def test_over_budget_is_a_failure(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """Shown like any other size, and then an error that says where budgets stand."""
    with pytest.raises(UserError, match=r"is over its budget \(disk\) - .*images/matrix.yaml"):
        show.result(engine, replace(COMBO, disk_gb=2.39))
    assert "disk: 2.40 GB, OVER 2.39 GB" in capsys.readouterr().out


@pytest.mark.parametrize("compressed", [False, True])
def test_size_shows_the_twenty_largest(compressed: bool, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured only when asked for, since that takes minutes."""
    show.size(engine, COMBO, compressed=compressed)

    out = capsys.readouterr().out
    assert "p0 " in out and "p19 " in out and "p20 " not in out
    assert ("measured" in out) == compressed


@pytest.mark.parametrize(
    ("made_by", "name"),
    [
        ("COPY /layers/cudnn/ / # buildkit", "cudnn"),
        ("COPY / / # buildkit", "system"),
        ("COPY /box/ / # buildkit", "box"),
        ("COPY /proof/ / # buildkit", "proof"),
        (
            "RUN /bin/sh -c something long that nobody wants to read to its end",
            "RUN /bin/sh -c something long that nobod",
        ),
        ("", ""),
    ],
)
def test_a_layer_is_named_by_what_it_holds(made_by: str, name: str) -> None:
    """In the words of the template."""
    assert show._what(made_by) == name


def test_the_engine_in_use_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without starting one."""
    asked: list[bool] = []

    def find(*, start: bool) -> Engine:
        asked.append(start)
        return Engine(host="unix:///own", embedded=True)

    monkeypatch.setattr(engines, "find", find)

    show.engine()
    assert capsys.readouterr().out == "engine: embedded, at unix:///own\n"
    assert asked == [False]


def test_lint_prints_findings_and_fails_on_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with line, rule and remedy; advice alone is no failure."""
    path = tmp_path / "Dockerfile"
    path.write_text("FROM debian:bookworm-slim\nRUN apt-get update && apt-get install -y git\n")

    with pytest.raises(UserError, match=r"Dockerfile: \d+ to mend$"):
        show.lint(path, no_combo)
    assert f"{path}:2: " in capsys.readouterr().out

    path.write_text("FROM scratch\n")
    show.lint(path, no_combo)
    assert capsys.readouterr().out == f"{path}: nothing to mend in this Dockerfile\n"


@pytest.mark.parametrize(
    ("name", "text", "combos"),
    [
        ("requirements/Dockerfile", "# nothing\n", 0),
        ("requirements/image", "# x\nARG A\nfrom scratch\n", 0),
        ("requirements.txt", "numpy\n", 1),
        ("reqs", "torch\n", 1),
    ],
)
def test_lint_knows_a_dockerfile_by_name_or_content(name: str, text: str, combos: int, tmp_path: Path) -> None:
    """Whatever its folder is called; a combo is chosen only where one is needed."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    chosen: list[Combo] = []

    def choose() -> Combo:
        chosen.append(COMBO)
        return COMBO

    show.lint(path, choose)
    assert len(chosen) == combos


def test_a_file_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is quoted from it is plain text on one line."""
    path = tmp_path / "Dockerfile"
    path.write_text("FROM x\x1b[2J\x9b31m\x07y\n", encoding="utf-8")

    with pytest.raises(UserError, match="1 to mend"):
        show.lint(path, no_combo)
    assert [line.isprintable() for line in capsys.readouterr().out.splitlines()] == [True]


def test_lint_reads_requirements_beside_a_combo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What would fight with the image's torch."""
    path = tmp_path / "requirements.txt"
    path.write_text("numpy\ntorch==1.0.0\n")

    with pytest.raises(UserError, match="1 to mend"):
        show.lint(path, lambda: COMBO)
    assert f"{path}:2: " in capsys.readouterr().out


def test_lint_of_no_file_is_wrong_input(tmp_path: Path) -> None:
    """Exit 2."""
    with pytest.raises(UserError, match=r"cannot read .*: No such file") as caught:
        show.lint(tmp_path / "lost", no_combo)
    assert caught.value.code == 2
