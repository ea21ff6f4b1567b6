"""The text of nvidia-smi: both banners are read, and what is no number is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermitcrab.box.check import banner, messages

CASES = Path(__file__).parents[1] / "cases"
MIB = 2**20


def case(name: str) -> str:
    """Read a case byte for byte."""
    return (CASES / f"{name}.txt").read_text()


def test_an_old_banner_is_read() -> None:
    """C01: driver and CUDA of the old spelling, and the card's name and memory."""
    smi = banner.read_table(case("C01"))

    assert (smi.driver, smi.cuda) == ("470.199.02", 11040)
    assert [(card.name, card.memory, card.used, card.mig) for card in smi.cards] == [("Tesla T4", 15109 * MIB, 0, None)]


def test_a_banner_without_its_closing_bar_is_read() -> None:
    """C01: the line may be cut."""
    line = next(line for line in case("C01").splitlines() if "CUDA Version" in line)

    smi = banner.read_table(line.rstrip(" |"))
    assert (smi.driver, smi.cuda) == ("470.199.02", 11040)


def test_the_number_in_a_warning_is_a_cuda_version() -> None:
    """C01b: 11040 is CUDA 11.4, and the message is known."""
    meaning = messages.recognise(case("C01b"))

    assert meaning is not None
    assert meaning.name == "driver-too-old"
    assert "CUDA 11.4," in meaning.cause


def test_the_renamed_banner_is_read() -> None:
    """C02: "KMD Version" and "CUDA UMD Version"."""
    smi = banner.read_table(case("C02"))

    assert (smi.driver, smi.cuda) == ("610.43.02", 13030)
    assert [(card.name, card.memory) for card in smi.cards] == [("NVIDIA GeForce RTX 5090", 32607 * MIB)]


def test_a_sentence_instead_of_a_version_is_passed_over() -> None:
    """C02: in -q the line of the UMD counts."""
    text = "Driver Version : 610.43.02\nCUDA Version : 12.9 is deprecated, see below\nCUDA UMD Version : 13.3\n"

    assert banner.read_table(text).cuda == 13030
    assert banner.read_table("CUDA Version : see CUDA UMD Version\nCUDA UMD Version : 13.3").cuda == 13030
    assert banner.read_table("CUDA Version : this field is deprecated").cuda is None


def test_slices_are_read_with_their_own_memory() -> None:
    """C08: two slices of 20 and 10 GB, not one card of 40."""
    smi = banner.read_table(case("C08"))

    [card] = smi.cards
    assert (smi.driver, card.name, card.mig) == ("580.126.09", "NVIDIA A100-SXM4-40GB", True)
    assert [piece.memory for piece in card.slices] == [20096 * MIB, 9984 * MIB]


def test_mig_without_slices_has_none() -> None:
    """C08: the table of slices says so in words."""
    text, _, _ = case("C08").partition("| MIG devices:")
    text += "| MIG devices:                       |\n|  No MIG devices found                |\n"

    [card] = banner.read_table(text).cards
    assert card.mig is True
    assert card.slices == ()


@pytest.mark.parametrize("name", ["C05", "C05b"])
def test_a_text_without_a_card_is_no_card(name: str) -> None:
    """C05: the first line is never taken for a name."""
    smi = banner.read_table(case(name))

    assert (smi.driver, smi.cuda, smi.cards) == ("", None, ())
    assert smi.said == case(name).strip()
    assert banner.read_query(case(name)).cards == ()


def test_a_missing_program_is_told_from_a_silent_one() -> None:
    """C05: two of the verdicts."""
    assert banner.read_table(None) == banner.Smi(said=f"{'nvidia-smi'}: command not found")
    assert banner.read_table("No devices were found").ran


@pytest.mark.parametrize("word", ["N/A", "ERR!", "Not Found", "[N/A]", "[Insufficient Permissions]", ""])
def test_what_is_no_number_is_unknown(word: str) -> None:
    """C08: neither zero nor an exception."""
    smi = banner.read_table(case("C01").replace("11.4 ", word).replace("0MiB / 15109MiB", f"{word} / {word}"))
    queried = banner.read_query(f"NVIDIA GB10, {word}, {word}, {word}, 580.95.05")

    assert smi.cuda is None
    assert [(card.name, card.memory, card.used) for card in smi.cards] == [("Tesla T4", None, None)]
    assert [(card.name, card.memory, card.used, card.mig) for card in queried.cards] == [
        ("NVIDIA GB10", None, None, None)
    ]


def test_a_card_in_trouble_is_still_a_card() -> None:
    """Names that are cut short or in error are unknown, and the next row is its own."""
    row = "|   0  Tesla T4            Off  | 00000000:00:05.0 Off |                    0 |\n"
    below = "| N/A   70C    P0    31W /  70W |      0MiB / 15109MiB |      7%      Default |\n"
    cut = row.replace("Tesla T4            ", "NVIDIA GeForce ...  ") + below
    lost = (
        row.replace("Tesla T4", "ERR!    ").replace("0  ERR!", "1  ERR!") + "| ERR!  ERR! ERR!  ERR! / ERR! |  N/A |\n"
    )

    found = banner.read_table(cut + lost + row.replace("|   0", "|   2") + below).cards
    assert [(card.name, card.memory) for card in found] == [
        ("", 15109 * MIB),
        ("", None),
        ("Tesla T4", 15109 * MIB),
    ]


def test_the_query_is_read() -> None:
    """A line has the fields that were asked for."""
    text = "NVIDIA A100-SXM4-40GB, 40960, 249, Enabled, 580.126.09\nTesla T4, 15360, 0, [N/A], 580.126.09\n"

    smi = banner.read_query(text)
    assert smi.driver == "580.126.09"
    assert [(card.name, card.mig) for card in smi.cards] == [("NVIDIA A100-SXM4-40GB", True), ("Tesla T4", None)]


def test_the_table_is_not_asked_when_the_query_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is the text of last resort."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"""#!/bin/sh
echo "call $*" >>{tmp_path}/calls
[ -n "$1" ] && [ -f {tmp_path}/query ] && exec cat {tmp_path}/query
[ -n "$1" ] && echo "Field is not a valid field to query." && exit 2
exec cat {CASES}/C01.txt
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert [card.name for card in banner.ask().cards] == ["Tesla T4"]
    assert (tmp_path / "calls").read_text().count("call") == 2
    (tmp_path / "query").write_text("NVIDIA H20, 97871, 0, Disabled, 550.54.15\n")
    assert [card.name for card in banner.ask().cards] == ["NVIDIA H20"]
    assert (tmp_path / "calls").read_text().count("call") == 3
