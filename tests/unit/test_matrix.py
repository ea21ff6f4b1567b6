"""The matrix: what is refused, with row and field, and which row a user's wish selects."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermitcrab.errors import UserError
from hermitcrab.matrix import MATRIX, load, numbers, select

OURS = load()
RAW: dict[str, Any] = yaml.load(MATRIX.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506
ROW = "cuda12.1-torch2.4.1-py311"

Change = Callable[[dict[str, Any], dict[str, Any]], None]


def planted(folder: Path, change: Change) -> Path:
    """A matrix file like ours with one fault; ``change`` gets the file and the 12.1 row."""
    data = copy.deepcopy(RAW)
    change(data, next(row for row in data["combos"] if row["id"] == ROW))
    path = folder / "matrix.yaml"
    path.write_text(json.dumps(data), encoding="utf-8")  # JSON is YAML, and quick to write
    return path


def refusal(path: Path) -> str:
    """The message with which a matrix is refused."""
    with pytest.raises(UserError) as caught:
        load(path)
    assert caught.value.code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def wish(cuda: str, torch: str = "") -> str:
    """The message with which a wish is refused."""
    with pytest.raises(UserError) as caught:
        select(OURS, cuda, torch)
    assert caught.value.code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def set_field(field: str, value: object) -> Change:
    """A fault in the 12.1 row."""

    def change(_: dict[str, Any], row: dict[str, Any]) -> None:
        row[field] = value

    return change


def set_base(field: str, value: str) -> Change:
    """A fault in the Debian 12 base."""

    def change(data: dict[str, Any], _: dict[str, Any]) -> None:
        data["bases"]["debian12"][field] = value

    return change


def set_tool(field: str, value: str) -> Change:
    """A fault in the tool pip."""

    def change(data: dict[str, Any], _: dict[str, Any]) -> None:
        data["tools"]["pip"][field] = value

    return change


def set_top(field: str, value: object) -> Change:
    """A fault in the top level."""

    def change(data: dict[str, Any], _: dict[str, Any]) -> None:
        data[field] = value

    return change


def test_committed_matrix_loads() -> None:
    """The committed matrix is valid and holds the eight rows, frozen and typed."""
    matrix = load()
    assert [combo.cuda for combo in matrix.combos] == (["11.7", "11.8", "12.1", "12.4", "12.6", "12.8", "13.0", "13.2"])
    combo = select(matrix, "12.1")
    assert (combo.id, combo.base.suite, combo.default, combo.disk_gb) == (
        ROW,
        "bookworm",
        True,
        5.1,
    )
    assert combo.arch == ("50", "60", "70", "75", "80", "86", "90")
    assert (matrix.epoch, matrix.tools["pip"].version) == (1767225600, "26.3")
    with pytest.raises(FrozenInstanceError):
        combo.torch = "2.5.1"  # type: ignore[misc]


def test_unchanged_copy_loads(tmp_path: Path) -> None:
    """The copy the faults are planted in is itself accepted, so each refusal is the fault's."""
    assert load(planted(tmp_path, lambda *_: None)) == OURS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cuda", "12"),
        ("cuda", "cu121"),
        ("cuda", "12.01"),
        ("torch", "2.4"),
        ("torch", "2.4.1+cu121"),
        ("torch", "~"),
        ("torchvision", ""),
        ("torchaudio", "2.4.x"),
        ("python", "3.1l"),
        ("python", ["3.11"]),
        ("base", "alpine3"),
        ("wheels", "cu118"),
        ("wheels", "conda"),
        ("driver", "R525"),
        ("arch", []),
        ("arch", "50"),
        ("arch", ["sm_50"]),
        ("arch", ["50", "50"]),
        ("ptx", ["compute_90"]),
        ("also", ["setuptools; python_version < '3'"]),
        ("disk_gb", "5,1"),
        ("gzip_gb", "0.0"),
        ("zstd_gb", "-2.4"),
        ("compiles", "yes"),
        ("default", "True"),
        ("status", "retired"),
        ("reason", " "),
        ("reason", "CVE-2025-32434\nand more"),
        ("reason", "CVE-2025-32434\x1b[2J"),
        ("reason", "CVE-2025-32434 <!-- /combos -->"),
        ("also", ["-r"]),
        ("id", "cuda12.1-torch2.4.1-py310"),
        ("id", "hermitcrab"),
        ("flavour", "devel"),
    ],
)
def test_faulty_field_is_refused(tmp_path: Path, field: str, value: object) -> None:
    """A faulty or unknown field of a row is named together with the row."""
    message = refusal(planted(tmp_path, set_field(field, value)))
    row = value if field == "id" else ROW
    assert f"combo {row}: {field}: " in message


@pytest.mark.parametrize("field", list(RAW["combos"][3]))
def test_missing_field_is_refused(tmp_path: Path, field: str) -> None:
    """No field of a row has a silent default."""
    message = refusal(planted(tmp_path, lambda _, row: row.pop(field) and None))
    assert f": {field}: is missing" in message
    assert (ROW if field != "id" else "combo 3") in message


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (set_base("digest", "sha256:7c7b"), "base debian12: digest: 'sha256:7c7b' is not"),
        (set_base("digest", "latest"), "base debian12: digest: 'latest' is not"),
        (set_base("reference", "debian"), "base debian12: reference: "),
        (set_base("distro", "alpine"), "base debian12: distro: "),
        (set_base("codename", "bookworm"), "base debian12: codename: is unknown"),
        (set_base("python", "3.12"), f"combo {RAW['combos'][0]['id']}: python: "),
        (set_tool("sha256", "A" * 64), "tool pip: sha256: "),
        (set_tool("file", "../pip.whl"), "tool pip: file: "),
        (set_tool("version", "latest"), "tool pip: version: "),
        (set_top("tools", {"uv": {}}), "tools: pip: is missing"),
        (set_top("epoch", "now"), "matrix: epoch: "),
        (set_top("platform", "linux/arm64"), "matrix: platform: "),
        (set_top("packages", ["tmux", "rm -rf /"]), "matrix: packages: 'rm -rf /' is not"),
        (set_top("packages", ["gcc-"]), "matrix: packages: 'gcc-' is not"),
        (set_top("packages", []), "matrix: packages: is empty"),
        (set_top("combos", {}), "matrix: combos: "),
        (set_top("combos", ["a row"]), "combo 1: "),
        (set_top("bases", []), "bases: "),
        (set_top("notes", "hello"), "matrix: notes: is unknown"),
    ],
)
def test_fault_outside_the_rows_is_refused(tmp_path: Path, change: Change, named: str) -> None:
    """Tools, bases and the top level are held to the same strictness."""
    assert named in refusal(planted(tmp_path, change))


def test_base_without_digest_is_refused(tmp_path: Path) -> None:
    """A base must be pinned."""
    path = planted(tmp_path, lambda data, _: data["bases"]["debian12"].pop("digest") and None)
    assert "base debian12: digest: is missing" in refusal(path)


def test_repeated_row_is_refused(tmp_path: Path) -> None:
    """Two rows cannot share an id."""
    path = planted(tmp_path, lambda data, row: data["combos"].append(row))
    assert f"combo {ROW}: id: is given twice" in refusal(path)


def test_no_default_is_refused(tmp_path: Path) -> None:
    """A CUDA without a default row would leave `--cuda` alone without a meaning."""
    message = refusal(planted(tmp_path, set_field("default", "false")))
    assert f"combo {ROW}: default: CUDA 12.1 has 0 default rows" in message


def test_two_defaults_are_refused(tmp_path: Path) -> None:
    """A CUDA with two default rows is as unclear."""
    other = {"id": "cuda12.1-torch2.3.1-py311", "torch": "2.3.1"}
    path = planted(tmp_path, lambda data, row: data["combos"].append({**row, **other}))
    assert "default: CUDA 12.1 has 2 default rows" in refusal(path)


@pytest.mark.parametrize("row", ["cuda12.4-torch2.6.0-py311", ROW])
def test_reason_goes_with_status(tmp_path: Path, row: str) -> None:
    """A legacy row says why, a current one has nothing to say."""

    def swap(data: dict[str, Any], _: dict[str, Any]) -> None:
        combo = next(combo for combo in data["combos"] if combo["id"] == row)
        combo["status"] = "legacy" if combo["status"] == "current" else "current"

    assert f"combo {row}: reason: " in refusal(planted(tmp_path, swap))


def test_old_torch_must_name_its_hole(tmp_path: Path) -> None:
    """No torch before 2.6 gets by without its CVE."""
    message = refusal(planted(tmp_path, set_field("reason", "old")))
    assert "reason: must name CVE-2025-32434" in message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    torch: 2.4.1\n", "    torch: 2.4.1\n    torch: 2.4.1\n"),
        ("epoch: ", 'epoch: "1767225600"\nepoch: '),
        ("  debian13:\n", "  debian12:\n"),
    ],
)
def test_repeated_key_is_refused(tmp_path: Path, old: str, new: str) -> None:
    """A key given twice is a fault, not a silent last-one-wins."""
    text = MATRIX.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path = tmp_path / "matrix.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    assert "is given twice" in refusal(path)


def test_unquoted_versions_stay_strings(tmp_path: Path) -> None:
    """YAML's 12.10 is not 12.1: a bare number is read as it is written."""
    text = MATRIX.read_text(encoding="utf-8").replace('cuda: "12.1"', "cuda: 12.10")
    path = tmp_path / "matrix.yaml"
    path.write_text(text, encoding="utf-8")
    assert "must be cuda12.10-torch2.4.1-py311" in refusal(path)


@pytest.mark.parametrize("text", ["", "a: [", "- a", "? [a]\n: b", "\x00", "&a [*a]"])
def test_broken_file_is_one_line(tmp_path: Path, text: str) -> None:
    """Whatever the file holds, the user gets one line and no traceback."""
    path = tmp_path / "matrix.yaml"
    path.write_text(text, encoding="utf-8")
    assert "matrix" in refusal(path)


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    """A matrix that is not there is named."""
    assert "cannot read matrix.yaml" in refusal(tmp_path / "matrix.yaml")


@pytest.mark.parametrize(("torch"), ["", "2", "2.4", "2.4.1"])
def test_select_takes_whole_components(torch: str) -> None:
    """CUDA alone takes the default; a torch may leave out trailing components."""
    assert select(OURS, "12.1", torch).id == ROW


def test_select_prefers_the_default_then_the_newest(tmp_path: Path) -> None:
    """Among rows that fit, the default wins; without it the newest, 2.10 above 2.9."""

    def add(data: dict[str, Any], row: dict[str, Any]) -> None:
        for torch in ("2.9.1", "2.10.0"):
            other = {"id": f"cuda12.1-torch{torch}-py311", "torch": torch, "default": "false"}
            data["combos"].append({**row, **other})

    matrix = load(planted(tmp_path, add))
    assert select(matrix, "12.1", "2").id == ROW
    assert select(matrix, "12.1", "2.10").torch == "2.10.0"
    with pytest.raises(UserError, match=r"torch 2\.1 is in cuda11\.8-torch2\.1\.0-py310"):
        select(matrix, "12.1", "2.1")


@pytest.mark.parametrize(
    ("cuda", "torch", "named"),
    [
        ("", "", ["11.7", "11.8", "12.1", "13.2"]),
        ("12.3", "", ["cuda12.1-torch2.4.1-py311 and cuda12.4-torch2.6.0-py311", "11.8"]),
        ("12.10", "", ["cuda12.8-torch2.10.0-py311 and cuda13.0-torch2.14.1-py311"]),
        ("10.2", "", ["nearest: cuda11.7-torch2.0.1-py311;"]),
        ("14.0", "", ["nearest: cuda13.2-torch2.15.0-py311;"]),
        ("12.1", "2.8", ["2.4.1", "cuda12.6-torch2.7.1-py311 and cuda12.8-torch2.10.0-py311"]),
        ("12.1", "2.7", ["has torch 2.4.1", "torch 2.7 is in cuda12.6-torch2.7.1-py311"]),
        ("12.8", "2.1", ["has torch 2.10.0", "torch 2.1 is in cuda11.8-torch2.1.0-py310"]),
        ("12.1", "3.0.0", ["nearest: cuda13.2-torch2.15.0-py311"]),
    ],
)
def test_impossible_wish_names_the_nearest(cuda: str, torch: str, named: list[str]) -> None:
    """Never a silent fallback: the message names what exists and what lies nearest."""
    message = wish(cuda, torch)
    assert all(part in message for part in named), message


@pytest.mark.parametrize(
    "cuda",
    [
        *("12", "cuda12.1", "cu121", "121", "12.1; rm", "12.1\n", " 12.1", "12.1.1", "None"),
        *("-12.1", "12.01", "\uff11\uff12.\uff11", "$(id)", "12.", ".1", f"{'1' * 5000}.1"),
    ],
)
def test_malformed_cuda_is_refused(cuda: str) -> None:
    """What is not a version is said to be none, with the ones there are."""
    message = wish(cuda)
    assert "is not a version such as 12.1" in message
    assert "12.4" in message


@pytest.mark.parametrize("torch", ["v2.4", "2.4.1+cu121", "2.4.1.0", "2.", "latest", "2.4;"])
def test_malformed_torch_is_refused(torch: str) -> None:
    """The same for torch."""
    assert "is not a version such as 2.4" in wish("12.1", torch)


def test_numbers_compare_as_integers() -> None:
    """2.10 follows 2.9, in drivers too."""
    assert numbers("2.10.0") > numbers("2.9.1")
    assert numbers("580") > numbers("525.60.13")
