"""Platforms: what names one and how surely, what never does, and what each one's row must say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hermitcrab import cli
from hermitcrab.box import platform
from hermitcrab.box.disks import Disk, read_mounts
from hermitcrab.box.limits import read_limits
from hermitcrab.box.platforms import ROWS, Row
from hermitcrab.box.signs import CLUES, STEPS

ROOT = Path(__file__).parents[2]
PLAIN = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
LAYERS = "1 0 0:50 / / rw - overlay overlay rw\n"
TURBO = {"etc/network_turbo": "export http_proxy=x\n"}
ALIBABA = {"sys/class/dmi/id/sys_vendor": "Alibaba Cloud\n", "sys/class/dmi/id/product_name": "ECS\n"}
VAST = {"CONTAINER_API_KEY": "k", "VAST_CONTAINERLABEL": "C.123"}
AUTODL_HOST = {"proc/sys/kernel/hostname": "autodl-container-ade2498877-806d79aa\n"}


class Case(NamedTuple):
    """A machine, and what it must be taken for."""

    id: str
    expect: str
    confidence: str
    environ: Mapping[str, str] = {}
    pid1: Mapping[str, str] = {}
    files: Mapping[str, str] = {}
    folders: tuple[str, ...] = ()
    mounts: str = PLAIN


def make(case: Case, root: Path) -> Path:
    """Build the machine under a root of its own."""
    entries = "".join(f"{name}={value}\0" for name, value in case.pid1.items())
    for name, text in {"proc/1/environ": entries, "proc/self/mountinfo": case.mounts, **case.files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in case.folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
    return root


def recognise(case: Case, root: Path) -> platform.Platform:
    """Detect a case's machine."""
    return platform.detect(make(case, root), case.environ)


# The thirteen machines that the order of the steps was made for.
TESTED = [
    Case("a", "runpod", "high", environ={"RUNPOD_POD_ID": "p1"}),
    Case("b", "slurm", "high", environ={"SLURM_JOB_ID": "7", "RUNPOD_POD_ID": "p1"}),
    Case("c", "runpod", "high", files={"etc/rp_environment": 'export A="1"\nexport RUNPOD_POD_ID="p1"\n'}),
    Case("d", "autodl", "high", pid1={"PATH": "/bin", "AutoDLContainerUUID": "u"}),
    Case("e", "autodl", "high", files=AUTODL_HOST),
    Case("f", "unknown", "none", files=TURBO, folders=("root/autodl-tmp",)),
    Case("g", "autodl", "medium", files=TURBO, mounts=PLAIN + "2 1 9:0 / /root/autodl-tmp rw - xfs /dev/md0 rw\n"),
    Case("h", "gpushare", "high", folders=("hy-tmp", "hy-public")),
    Case("i", "vast", "medium", files={".launch": "", "root/onstart.sh": ""}),
    Case("j", "aliyun", "high", files=ALIBABA),
    Case("k", "unknown", "none", files={"sys/class/dmi/id/sys_vendor": "Dell Inc.\n"}),
    Case("l", "matpool", "medium", folders=("public/script", "root/miniconda3/envs/myconda")),
    Case("m", "vast", "high", pid1=VAST, files=ALIBABA),
]
FURTHER = [
    Case(
        "Vast by both places", "vast", "high", environ={"CONTAINER_API_KEY": "k"}, pid1={"VAST_CONTAINERLABEL": "C.1"}
    ),
    Case("Vast's base image", "vast", "medium", files={".launch": ""}, folders=("etc/vast_boot.d",)),
    Case("AutoDL's help file", "autodl", "high", files={"init/others/help": "export AutoDLRegion=x\n"}),
    Case(
        "a disk of AutoDL's name", "autodl", "low", mounts=PLAIN + "2 1 9:0 / /root/autodl-tmp rw - xfs /dev/md0 rw\n"
    ),
    Case("AutoDL's own variable", "autodl", "high", environ={"AutoDLContainerUUID": "u"}),
    Case("GpuShare's disk alone", "gpushare", "medium", folders=("hy-tmp",)),
    Case("GpuShare's host name", "gpushare", "medium", files={"proc/sys/kernel/hostname": "I28557c0e12011017f0\n"}),
    Case("Tencent", "tencent", "high", files={"sys/class/dmi/id/sys_vendor": "Tencent Cloud\n"}),
    Case("Huawei", "huawei", "medium", files={"sys/class/dmi/id/sys_vendor": "Huawei Cloud\n"}),
    Case("AWS", "aws", "high", files={"sys/class/dmi/id/product_name": "Amazon EC2\n"}),
    Case("Lambda", "lambda", "medium", folders=("lambda/nfs",)),
    Case("Apptainer", "apptainer", "high", folders=(".singularity.d",)),
    Case("Apptainer's variable", "apptainer", "high", environ={"APPTAINER_CONTAINER": "/home/me/box.sif"}),
    Case("a site's variable", "apptainer", "medium", environ={"APPTAINER_BIND": "/scratch"}),
    Case("Slurm and Apptainer", "slurm", "high", environ={"SLURM_JOB_ID": "7"}, folders=(".singularity.d",)),
    Case("WSL", "wsl", "high", files={"proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"}),
]
# Things that look alike.
UNKNOWN = [
    Case("nothing", "unknown", "none", mounts=""),
    Case("Slurm only in PID 1", "unknown", "none", pid1={"SLURM_JOB_ID": "7"}),
    Case("an empty variable", "unknown", "none", environ={"RUNPOD_POD_ID": ""}, pid1={"AutoDLContainerUUID": ""}),
    Case("one of Vast's two", "unknown", "none", environ={"VAST_CONTAINERLABEL": "C.1"}),
    Case("a variable's name in a value", "unknown", "none", pid1={"NOTE": "RUNPOD_POD_ID=1"}),
    Case("not exported", "unknown", "none", files={"etc/rp_environment": '# export RUNPOD_POD_ID="p"\n'}),
    Case(
        "a longer host name", "unknown", "none", files={"proc/sys/kernel/hostname": "my-autodl-container-a-12345678\n"}
    ),
    Case("a host name of words", "unknown", "none", files={"proc/sys/kernel/hostname": "autodl-container-mine\n"}),
    Case("turbo alone: LanYun", "unknown", "none", files=TURBO),
    Case("launch file alone", "unknown", "none", files={".launch": ""}),
    Case("a file for a folder", "unknown", "none", files={"hy-tmp": "", "hy-public": ""}),
    Case("Azure's kernel", "unknown", "none", files={"proc/sys/kernel/osrelease": "5.15.0-1034-azure\n"}),
    Case("the public folder alone", "unknown", "none", folders=("public/script",)),
]


@pytest.mark.parametrize("case", [*TESTED, *FURTHER, *UNKNOWN], ids=lambda case: str(case.id))
def test_machine(case: Case, tmp_path: Path) -> None:
    """Each machine is what it is, with the confidence that its signs deserve."""
    found = recognise(case, tmp_path)
    assert (found.id, found.confidence) == (case.expect, case.confidence)
    assert found.row is ROWS[case.expect]
    assert bool(found.evidence) or found.id == "unknown"


def test_every_step_is_needed(tmp_path: Path) -> None:
    """No case passes by the grace of another: each step of the table decides at least one machine."""
    signs = set()
    for number, case in enumerate([*TESTED, *FURTHER]):
        found = recognise(case, tmp_path / str(number))
        view = platform.View(tmp_path / str(number), case.environ, case.pid1, read_mounts(tmp_path / str(number)))
        signs.add(next((step for step in STEPS if all(platform.LOOKS[r.look](view, r) for r in step.rules)), None))
        assert found.id == case.expect
    assert set(STEPS) <= signs


def test_evidence_names_signs_and_never_values(tmp_path: Path) -> None:
    """A platform's variables hold keys."""
    environ = {"CONTAINER_API_KEY": "s3cret", "VAST_CONTAINERLABEL": "C.99"}
    found = recognise(Case("", "vast", "high", environ=environ), tmp_path)
    assert found.evidence == ("CONTAINER_API_KEY is set", "VAST_CONTAINERLABEL is set")
    found = recognise(Case("", "autodl", "high", pid1={"AutoDLContainerUUID": "s3cret"}), tmp_path / "other")
    assert found.evidence == ("AutoDLContainerUUID is set for PID 1",)


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    """Only root may read PID 1's environment; for others the other signs count."""
    (tmp_path / "proc/1/environ").mkdir(parents=True)
    (tmp_path / "etc/rp_environment").mkdir(parents=True)
    assert platform.detect(tmp_path, {}).id == "unknown"
    assert platform.detect(tmp_path, {"RUNPOD_POD_ID": "p"}).id == "runpod"


def test_an_unknown_machine_names_its_clues(tmp_path: Path) -> None:
    """What was seen and was not enough is said, per platform."""
    found = recognise(TESTED[5], tmp_path)
    assert found.evidence == (
        "not enough for LanYun: /etc/network_turbo exists",
        "not enough for AutoDL: /etc/network_turbo exists",
        "not enough for AutoDL: /root/autodl-tmp exists",
    )


def test_the_host_does_not_name_the_landlord(tmp_path: Path) -> None:
    """In a container the DMI is the host's, so the platform is below high: no power action will follow."""
    found = recognise(Case("", "aliyun", "medium", files=ALIBABA, mounts=LAYERS), tmp_path)
    assert (found.id, found.confidence, found.kind) == ("aliyun", "medium", "container")
    assert "not who rents out" in found.evidence[-1]
    found = recognise(Case("", "vast", "high", pid1=VAST, files=ALIBABA, mounts=LAYERS), tmp_path / "other")
    assert (found.id, found.confidence) == ("vast", "high")


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (Case("layers", "", "", mounts=LAYERS), "container"),
        (Case("docker", "", "", files={".dockerenv": ""}), "container"),
        (Case("podman", "", "", files={"run/.containerenv": ""}), "container"),
        (Case("nspawn", "", "", pid1={"container": "systemd-nspawn"}), "container"),
        (Case("AutoDL", "", "", files=AUTODL_HOST), "container"),
        (Case("Aliyun", "", "", files=ALIBABA), "vm"),
        (Case("Vast's VM", "", "", pid1=VAST, folders=("run/systemd/system",)), "vm"),
        (Case("hypervisor", "", "", files={"proc/cpuinfo": "flags\t\t: fpu hypervisor sse\n"}), "vm"),
        (Case("workstation", "", "", files={"proc/cpuinfo": "flags\t\t: fpu sse\n"}), "unknown"),
        (Case("Slurm", "", "", environ={"SLURM_JOB_ID": "7"}), "slurm"),
        (Case("Slurm in a container", "", "", environ={"SLURM_JOB_ID": "7"}, mounts=LAYERS), "slurm"),
        (FURTHER[14], "apptainer"),
        (FURTHER[15], "wsl"),
        (FURTHER[15]._replace(mounts=LAYERS), "container"),
    ],
    ids=lambda value: value.id if isinstance(value, Case) else None,
)
def test_kind(case: Case, kind: str, tmp_path: Path) -> None:
    """The kind is the machine's own, not only what its platform usually rents out."""
    assert recognise(case, tmp_path).kind == kind


def test_the_data_disk_is_the_platforms(tmp_path: Path) -> None:
    """AutoDL's data disk is found by its mount; without a mount there is none."""
    mount = "2 1 9:0 / /root/autodl-tmp rw - xfs /dev/md127 rw,prjquota\n"
    case = Case("", "autodl", "high", files=AUTODL_HOST, folders=("root/autodl-tmp",), mounts=LAYERS + mount)
    found = recognise(case, tmp_path)
    assert found.data is not None
    assert (found.data.path, found.data.device, found.system.path) == ("/root/autodl-tmp", "/dev/md127", "/")
    assert recognise(case._replace(mounts=LAYERS), tmp_path).data is None


def test_a_network_volume_has_no_known_size(tmp_path: Path) -> None:
    """RunPod's network volume of two petabytes is found, and its figures are unknown."""
    mounts = LAYERS + "2 1 0:77 /x /workspace rw - fuse mfs#example:9421 rw\n"
    case = Case("", "runpod", "high", environ={"RUNPOD_POD_ID": "p"}, folders=("workspace",), mounts=mounts)
    found = recognise(case, tmp_path)
    assert found.data is not None
    assert (found.data.total, found.data.free) == (None, None)
    assert "network" in found.data.note


@pytest.mark.parametrize(
    ("files", "memory", "expect"),
    [
        (AUTODL_HOST, 2147483648, True),
        (AUTODL_HOST, 3 << 30, True),
        (AUTODL_HOST, (3 << 30) + 1, False),
        (ALIBABA, 2147483648, False),
    ],
    ids=["seen", "edge", "above", "another platform"],
)
def test_no_gpu_mode(files: Mapping[str, str], memory: int, expect: bool, tmp_path: Path) -> None:
    """A small memory limit on AutoDL, recognised for sure, is its mode without a GPU."""
    cgroup = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{memory}\n"}
    mounts = PLAIN + "3 1 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    found = recognise(Case("", "", "", files={**files, **cgroup}, mounts=mounts), tmp_path)
    limits = read_limits(tmp_path)
    assert limits.memory == memory
    assert platform.no_gpu_mode(found, limits) is expect
    assert ("without a GPU" in "\n".join(platform.lines(found, limits))) is expect


def test_no_gpu_mode_needs_certainty(tmp_path: Path) -> None:
    """Neither a doubtful AutoDL nor an unknown limit is that mode."""
    sure = recognise(TESTED[4], tmp_path)
    limits = read_limits(tmp_path)
    assert limits.memory is None
    assert not platform.no_gpu_mode(sure, limits)
    assert platform.no_gpu_mode(sure, limits._replace(memory=1 << 30))
    assert not platform.no_gpu_mode(sure._replace(confidence="medium"), limits._replace(memory=1 << 30))


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: str(row.id))
def test_row(row: Row) -> None:
    """Every row says how to stop, what stays billed, what an image holds and how to save, in two languages."""
    assert row.kind in {"container", "vm", "slurm", "wsl", "apptainer", "unknown"}
    assert row.stop_path
    assert row.saves
    assert row.name_zh
    assert len(row.save_steps_en) == len(row.save_steps_zh) > 0
    assert not any(step.isascii() for step in row.save_steps_zh)
    assert row.stop_path.isprintable()


def test_the_table_is_whole() -> None:
    """All platforms have a row, and every step and clue names one and looks by a known way."""
    expected = "autodl matpool gpushare vast runpod lambda aliyun aliyun-pai-dsw tencent huawei aws slurm apptainer"
    assert {*expected.split(), "wsl", "lanyun", "unknown"} == set(ROWS)
    for step in (*STEPS, *CLUES):
        assert step.platform in ROWS
        assert step.confidence in {"high", "medium", "low", "none"}
        assert step.rules
        assert all(rule.look in platform.LOOKS for rule in step.rules)
    assert STEPS[0].platform == "slurm"


def test_no_line_for_what_does_not_apply(tmp_path: Path) -> None:
    """A Slurm job has no release clock; a doubtful platform's stop path says so."""
    limits = read_limits(tmp_path)
    text = "\n".join(platform.lines(recognise(TESTED[1], tmp_path), limits))
    assert "release clock" not in text
    assert "make sure first" not in text
    doubtful = "\n".join(platform.lines(recognise(TESTED[6], tmp_path / "g"), limits))
    assert "[confidence medium: make sure first]" in doubtful


def test_lines_stay_lines(tmp_path: Path) -> None:
    """A mount named with a line break, or in no encoding, breaks neither the table nor the terminal."""
    found = recognise(TESTED[0], tmp_path)
    found = found._replace(data=Disk("/mnt/a\nb\x1b[31m\udcff", 1 << 30, None, "/dev/x", ""))
    (line,) = [line for line in platform.lines(found, read_limits(tmp_path)) if line.startswith("data disk")]
    assert line == "data disk      /mnt/a?b?[31m?  unknown free of 1.0 GiB (/dev/x)"


def test_the_whole_report(tmp_path: Path) -> None:
    """One fact a line, aligned."""
    found = recognise(TESTED[3], tmp_path)._replace(system=Disk("/", 30 << 30, 5 << 30, "overlay", "container layer"))
    assert list(platform.lines(found, read_limits(tmp_path))) == [
        "platform       AutoDL 算力云",
        "confidence     high",
        "evidence       AutoDLContainerUUID is set for PID 1",
        "kind           container",
        "system disk    /  5.0 GiB free of 30.0 GiB (overlay, container layer)",
        "data disk      none found",
        "cpu            unknown of unknown (unknown)",
        "memory         unknown of unknown (limit unknown)",
        "shared memory  not mounted",
        "stop path      /usr/bin/shutdown (full path, no arguments; not on subscription boxes, 包年包月)",
        "still billed   the paid part of the data disk; file storage over 20 GB",
        "release clock  15 days after power-off the box is released and its data gone",
        "image holds    the system disk only; not /root/autodl-tmp, /root/autodl-fs, /root/autodl-pub",
        "image limit    30 GB",
    ]


def test_the_command_prints_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    """`crab platform` answers on any machine with status 0, and --json is one object of the same facts."""
    assert cli.main(["platform"]) == 0
    assert capsys.readouterr().out.startswith("platform       ")
    assert cli.main(["platform", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["platform"] in ROWS
    assert set(found["system_disk"]) == {"path", "total", "free", "device", "note"}
    assert {"cpus", "memory", "shm", "stop_path", "billed_after_stop", "release_clock"} <= set(found)


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt option is refused, not ignored."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["platform", "--jason"])
    assert caught.value.code == 2
    assert "--jason" in capsys.readouterr().err


def test_it_starts_fast() -> None:
    """The best of five starts takes less than 0.15 s beyond Python itself."""

    def best(*code: str) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, *code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=60)
            times.append(time.perf_counter() - start)
        return min(times)

    assert best("-m", "hermitcrab.cli", "platform") - best("-c", "pass") < 0.15
