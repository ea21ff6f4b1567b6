"""Disks: what is mounted where, and free space that is true or unknown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from hermitcrab.box import disks

CASES = Path(__file__).parents[1] / "cases"
GIB = 1 << 30
ROOT_LINE = "1 0 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/a:/b,upperdir=/c"


def plant(root: Path, *lines: str) -> Path:
    """Give a fake root these mounts."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/mountinfo").write_text("".join(f"{line}\n" for line in lines))
    return root


def statvfs(root: Path, figures: Mapping[str, tuple[float, float]]) -> disks.StatVfs:
    """Stand in for os.statvfs: total and available GiB by path; any other path is an error."""

    def answer(path: str) -> os.statvfs_result:
        try:
            total, free = figures["/" + os.path.relpath(path, root).lstrip(".")]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", path) from None
        blocks, left = (round(figure * GIB / 4096) for figure in (total, free))
        # Of what is free, root alone may take a part: that is not available.
        return os.statvfs_result((1 << 20, 4096, blocks, left + 999, left, 0, 0, 0, 0, 255))

    return answer


def never(path: str) -> os.statvfs_result:
    """Stand in for a file system whose server is gone."""
    raise AssertionError(f"{path} was asked")


def df(text: str) -> dict[str, tuple[float, float]]:
    """Read the sizes of `df -h`, in GiB."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return {row[5]: (float(row[1].rstrip("G")), float(row[3].rstrip("G"))) for row in rows}


@pytest.mark.parametrize("device", ["/dev/md0", "/dev/md127"])
def test_autodl_has_a_full_system_disk_and_a_data_disk(tmp_path: Path, device: str) -> None:
    """C35: the two disks are told apart, whatever the device is called."""
    plant(tmp_path, ROOT_LINE, f"2 1 9:0 /data/x /root/autodl-tmp rw,relatime - xfs {device} rw,attr2,prjquota")
    figures = statvfs(tmp_path, df((CASES / "C35.txt").read_text()))
    system = disks.system_disk(tmp_path, statvfs=figures)
    data = disks.data_disk(("/root/autodl-tmp",), tmp_path, statvfs=figures)
    assert data is not None
    assert [disks.size(number) for number in (system.total, system.free)] == ["30.0 GiB", "5.3 GiB"]
    assert [disks.size(number) for number in (data.total, data.free)] == ["50.0 GiB", "41.0 GiB"]
    assert (system.note, data.device, data.note) == ("container layer", device, "")


def test_a_plain_folder_is_no_data_disk(tmp_path: Path) -> None:
    """A folder of a data disk's name lies on the system disk."""
    plant(tmp_path, ROOT_LINE)
    (tmp_path / "root/autodl-tmp").mkdir(parents=True)
    assert disks.data_disk(("/root/autodl-tmp",), tmp_path) is None


@pytest.mark.parametrize(
    "line",
    [
        "2 1 0:50 /data /data rw - overlay overlay rw",
        "2 1 0:60 / /data rw - tmpfs tmpfs rw",
        "2 1 8:1 / /data ro,relatime - ext4 /dev/sdb1 ro",
        "2 1 8:1 / /data/deeper rw - ext4 /dev/sdb1 rw",
    ],
    ids=["same device", "memory", "read-only", "elsewhere"],
)
def test_what_is_no_data_disk(tmp_path: Path, line: str) -> None:
    """Neither the system disk again, nor memory, nor what cannot be written, nor another folder."""
    assert disks.data_disk(("/data",), plant(tmp_path, ROOT_LINE, line), statvfs=never) is None


def test_the_system_disk_again_is_no_second_one(tmp_path: Path) -> None:
    """A folder of the same disk, bound to another place, is no data disk."""
    plant(tmp_path, "1 0 8:1 / / rw - ext4 /dev/sda1 rw", "2 1 8:1 /srv /data rw - ext4 /dev/sda1 rw")
    assert disks.data_disk(("/data",), tmp_path, statvfs=never) is None


def test_a_hidden_disk_is_none(tmp_path: Path) -> None:
    """What a later mount lies over cannot be reached."""
    plant(tmp_path, ROOT_LINE, "2 1 8:1 / /data rw - ext4 /dev/sdb1 rw", "3 2 0:9 / /data rw - tmpfs tmpfs rw")
    assert disks.data_disk(("/data",), tmp_path, statvfs=never) is None


def test_local_fuse_is_believed(tmp_path: Path) -> None:
    """The root of a rootless container is a fuse file system and no network."""
    plant(tmp_path, "1 0 0:50 / / rw - fuse.fuse-overlayfs fuse-overlayfs rw,user_id=0")
    assert disks.system_disk(tmp_path, statvfs=statvfs(tmp_path, {"/": (30, 5)})).free == 5 * GIB


def test_the_first_place_of_the_table_wins(tmp_path: Path) -> None:
    """The order is that of the table, not that of the mounts; a star is one folder."""
    plant(
        tmp_path,
        ROOT_LINE,
        "2 1 8:1 / /lambda/nfs/a/b rw - ext4 /dev/sdb1 rw",
        "3 1 8:2 / /lambda/nfs/mine rw - ext4 /dev/sdb2 rw",
        "4 1 8:3 / /data rw - ext4 /dev/sdb3 rw",
    )
    found = disks.data_disk(("/lambda/nfs/*", "/data"), tmp_path)
    assert found is not None
    assert found.path == "/lambda/nfs/mine"


@pytest.mark.parametrize("kind", ["nfs4", "fuse", "fuse.juicefs", "ceph", "lustre", "cifs"])
def test_a_network_disk_is_found_and_never_asked(tmp_path: Path, kind: str) -> None:
    """Its size is the cluster's, and a dead one would hang: free space is unknown, and why is said."""
    plant(tmp_path, ROOT_LINE, f"2 1 0:77 / /workspace rw,relatime - {kind} mfs#net.example:9421 rw")
    found = disks.data_disk(("/workspace",), tmp_path, statvfs=never)
    note = f"network file system ({kind}): a quota decides"
    assert found == disks.Disk("/workspace", None, None, "mfs#net.example:9421", note)


@pytest.mark.parametrize("option", ["usrquota", "grpquota", "uquota", "quota", "usrjquota=aquota.user"])
def test_a_disk_with_user_quotas_is_unknown(tmp_path: Path, option: str) -> None:
    """What statvfs tells is not what this user may write."""
    plant(tmp_path, ROOT_LINE, f"2 1 8:1 / /data rw - xfs /dev/sdb1 rw,{option}")
    found = disks.disk_at("/data/sets", tmp_path, statvfs=never)
    assert (found.total, found.free) == (None, None)
    assert "quota" in found.note


@pytest.mark.parametrize("option", ["prjquota", "pquota", "noquota", "usrjquota="])
def test_project_quotas_and_none_are_believed(tmp_path: Path, option: str) -> None:
    """A project quota is what statvfs tells; no quota hides nothing."""
    plant(tmp_path, ROOT_LINE, f"2 1 8:1 / /data rw - xfs /dev/sdb1 rw,{option}")
    found = disks.disk_at("/data", tmp_path, statvfs=statvfs(tmp_path, {"/data": (50, 41)}))
    assert (found.total, found.free) == (50 * GIB, 41 * GIB)


@pytest.mark.parametrize(
    ("gibibytes", "note"),
    [(2 << 20, "reports 2.0 PiB, which is not believed"), (0, "reports no size")],
    ids=["2 petabytes", "nothing"],
)
def test_a_size_that_cannot_be_is_unknown(tmp_path: Path, gibibytes: int, note: str) -> None:
    """Two petabytes or nothing, of whatever type, is no disk of one machine."""
    plant(tmp_path, ROOT_LINE, "2 1 0:80 / /data rw - virtiofs share rw")
    found = disks.disk_at("/data", tmp_path, statvfs=statvfs(tmp_path, {"/data": (gibibytes, gibibytes)}))
    assert found == disks.Disk("/data", None, None, "share", note)


def test_a_read_only_disk_has_nothing_free(tmp_path: Path) -> None:
    """Free blocks that nobody may write are not free."""
    plant(tmp_path, "1 0 0:50 / / ro,relatime - overlay overlay rw")
    found = disks.system_disk(tmp_path, statvfs=statvfs(tmp_path, {"/": (30, 5)}))
    assert (found.total, found.free, found.note) == (30 * GIB, 0, "read-only")


def test_an_error_is_unknown(tmp_path: Path) -> None:
    """A disk that cannot be asked has a note, not a traceback."""
    found = disks.disk_at("/gone", plant(tmp_path, ROOT_LINE), statvfs=statvfs(tmp_path, {}))
    assert found == disks.Disk("/gone", None, None, "overlay", "cannot be read: No such file or directory")


def test_escapes_and_odd_lines_of_mountinfo(tmp_path: Path) -> None:
    """Blanks, tabs, line breaks and backslashes come escaped; lines that make no sense are left out."""
    plant(
        tmp_path,
        r"2 1 8:1 / /mnt/my\040disk\011\012\134040 rw,nosuid shared:7 master:1 - ext4 /dev/my\040disk rw,errors=x",
        "no mount at all",
        "3 1 8:2 / /short rw",
        "",
        "4 1 0:9 / /none rw - tmpfs tmpfs",
    )
    first, last = disks.read_mounts(tmp_path)
    assert (first.path, first.device) == ("/mnt/my disk\t\n\\040", "/dev/my disk")
    assert first.options == ("rw", "nosuid")
    assert first.super_options == ("rw", "errors=x")
    assert last.path == "/none"


def test_bytes_that_are_no_utf_8_survive(tmp_path: Path) -> None:
    """A mount point of any bytes leads to the folder of those bytes."""
    plant(tmp_path)
    (tmp_path / "proc/self/mountinfo").write_bytes(b"2 1 8:1 / /mnt/\xff rw - ext4 /dev/sdb rw\n")
    (mount,) = disks.read_mounts(tmp_path)
    assert os.fsencode(mount.path) == b"/mnt/\xff"


def test_the_deepest_and_last_mount_counts(tmp_path: Path) -> None:
    """A mount over another hides it; a name that only begins alike is another place."""
    plant(
        tmp_path,
        ROOT_LINE,
        "2 1 8:1 / /data rw - ext4 /dev/old rw",
        "3 1 8:2 / /data rw - ext4 /dev/new rw",
        "4 1 8:3 / /data/sub rw - ext4 /dev/sub rw",
    )
    mounts = disks.read_mounts(tmp_path)
    found = [disks.find_mount(path, mounts) for path in ("/data", "/data/x", "/data/sub/x", "/database")]
    assert [mount.device for mount in found if mount] == ["/dev/new", "/dev/new", "/dev/sub", "overlay"]


def test_no_mountinfo_is_no_failure(tmp_path: Path) -> None:
    """Without /proc the disk is measured all the same."""
    found = disks.system_disk(tmp_path)
    assert found.total is not None
    assert found.device == ""


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "unknown"), (0, "0 B"), (1023, "1023 B"), (64 << 20, "64.0 MiB"), (5 << 60, "5120.0 PiB")],
)
def test_sizes_read_like_df(number: int | None, text: str) -> None:
    """Unknown is a size, too."""
    assert disks.size(number) == text


def test_this_machine_agrees_with_statvfs() -> None:
    """On the real root the parser finds a mount for / whose type is no blank."""
    mount = disks.find_mount("/", disks.read_mounts())
    assert mount is not None
    assert re.fullmatch(r"[\w.]+", mount.type)
