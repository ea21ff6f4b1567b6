"""The installed torch: a CUDA build, the combo's, one that this driver runs and that has code for this card."""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from hermitcrab.box.check.findings import FAIL, PASS, SKIP, WARN, Finding
from hermitcrab.box.check.messages import cuda_name, explain, one_line

# The oldest driver for any minor version of a major CUDA: minor-version compatibility, not the banner's CUDA.
FLOORS = {11: "450.80.02", 12: "525.60.13", 13: "580"}
# Code for sm_XY runs on a later minor of the same major; but Jetson parts run only their own.
EXCLUDED = {50: (53,), 52: (53,), 60: (62,), 61: (62,), 70: (72,), 80: (87,), 86: (87,), 100: (101,)}
ONLY = {53: (53,), 62: (62,), 72: (72,), 87: (87,), 101: (101, 110)}
CUDA_13_FIRST, BLACKWELL = 75, 100  # the oldest card of CUDA 13; the first that needs CUDA 12.8
MANIFEST = "hermitcrab.json"  # in an environment that the bootstrap made: what it was made of
REINSTALL = "Install the pinned build again (hermitcrab image or bootstrap), and keep the pin: pip install -c."


class Torch(NamedTuple):
    """What the installed torch says of itself."""

    version: str
    cuda: str | None
    archs: tuple[str, ...]  # sm_86, compute_90 …
    python: str
    packages: Mapping[str, str]
    devices: int = 0  # that torch can use
    warned: str = ""
    error: str = ""  # of the first use of CUDA


def findings(
    torch: Torch, *, manifest: Mapping[str, Any] | None, driver: str, knows: int | None, sms: Sequence[int | None]
) -> Iterator[Finding]:
    """Give the findings on the build; those about the card only where there is one."""
    yield build(torch, has_gpu=bool(sms))
    yield combo(torch, manifest)
    yield packages(torch, manifest)
    if torch.cuda and sms:
        yield fits(torch.cuda, driver, knows, sms)
        yield usable(torch)
        yield covered(torch, knows, sms)


def build(torch: Torch, *, has_gpu: bool) -> Finding:
    """Say whether it is a CUDA build at all."""
    if torch.cuda:
        return Finding("torch.build", PASS, f"torch {torch.version}, built for CUDA {torch.cuda}")
    text = f"torch {torch.version} is a build without CUDA"
    return Finding("torch.build", FAIL if has_gpu else WARN, text, *explain("Torch not compiled with CUDA enabled"))


def combo(torch: Torch, manifest: Mapping[str, Any] | None) -> Finding:
    """Compare torch, CUDA and Python with the image's combo."""
    if manifest is None:
        return Finding("torch.combo", SKIP, "no manifest of an image: nothing to compare with")
    found = {"torch": torch.version.split("+")[0], "cuda": torch.cuda or "none", "python": torch.python}
    other = [
        f"{key} {is_} instead of {manifest[key]}" for key, is_ in found.items() if manifest.get(key) not in {None, is_}
    ]
    if other:
        cause = "Something was installed over the combo, or `crab` runs in another Python."
        return Finding("torch.combo", FAIL, f"not {manifest.get('combo')}: {', '.join(other)}", cause, REINSTALL)
    return Finding("torch.combo", PASS, f"equals the combo {manifest.get('combo')}")


def packages(torch: Torch, manifest: Mapping[str, Any] | None) -> Finding:
    """Compare the wheels with the lock that the image was built from; more of them is no fault."""
    if manifest is None:
        return Finding("torch.packages", SKIP, "no manifest of an image: nothing to compare with")
    locked = {row["name"]: row["version"] for row in manifest.get("packages", ()) if row.get("kind") == "wheel"}
    other = [
        f"{name} {torch.packages.get(_plain(name), 'missing')} instead of {version}"
        for name, version in sorted(locked.items())
        if torch.packages.get(_plain(name)) != version
    ]
    if not other:
        return Finding("torch.packages", PASS, f"all {len(locked)} locked packages are in their locked version")
    text = f"{len(other)} packages are not as locked: {', '.join(other[:5])}{' …' * (len(other) > 5)}"
    return Finding("torch.packages", WARN, text, "A later `pip install` changed them.", REINSTALL)


def fits(cuda: str, driver: str, knows: int | None, sms: Sequence[int | None] = ()) -> Finding:
    """Apply NVIDIA's rule: a driver that runs one minor version of a major CUDA runs them all."""
    major = int(cuda.split(".", maxsplit=1)[0])
    floor = FLOORS.get(major)
    if floor is None or not (driver or knows):
        text = f"whether the driver runs CUDA {cuda} is unknown"
        cause = "The driver's version is unknown." if floor else "This CUDA is newer than this check."
        return Finding("torch.driver", WARN, text, cause, "Rely on the kernels below.")
    enough = _version(driver) >= _version(floor) if driver else False
    if enough or (not driver and knows is not None and knows // 1000 >= major):
        said = f"driver {driver}" if driver else f"a driver that knows CUDA {cuda_name(knows or 0)}"
        return Finding("torch.driver", PASS, f"{said} runs CUDA {cuda} (needed: {floor})")
    text = f"driver {driver or f'for CUDA {cuda_name(knows or 0)}'} is too old for CUDA {cuda}: {floor} is needed"
    if knows is not None and knows // 1000 >= major:
        cause = "A libcuda of cuda-compat bridges the gap, which works on data-center cards only."
        return Finding("torch.driver", WARN, text, cause, "Rely on the kernels below.")
    cause = "A driver runs the CUDA versions up to its own major version."
    return Finding("torch.driver", FAIL, text, cause, f"{nearest(driver, knows, sms)} {NEVER}")


NEVER = "A renter cannot change the driver: never install one in a container."


def nearest(driver: str, knows: int | None, sms: Sequence[int | None]) -> str:
    """Name the newest CUDA that the driver and the cards can use together."""
    majors = [major for major, floor in FLOORS.items() if driver and _version(driver) >= _version(floor)]
    most = max(majors, default=0) if driver else (knows or 0) // 1000
    known = [sm for sm in sms if sm is not None]
    if any(sm < CUDA_13_FIRST for sm in known):
        most = min(most, 12)
    if most < min(FLOORS) or (most < 12 and any(sm >= BLACKWELL for sm in known)):
        return "Take another machine: no build of torch runs on this driver and card."
    least = " (12.8 or later)" if most == 12 and any(sm >= BLACKWELL for sm in known) else ""
    minor = 8 if most == 11 else "x"  # the last of CUDA 11
    return f"Take a build for CUDA {most}.{minor}{least}."


def usable(torch: Torch) -> Finding:
    """Say whether torch can use CUDA, and if not, what its message means."""
    said = torch.error or torch.warned
    if torch.devices and not said:
        return Finding("torch.cuda", PASS, f"torch sees {torch.devices} GPU{'s' * (torch.devices > 1)}")
    said = said or "torch.cuda.is_available() is False, and torch does not say why"
    return Finding("torch.cuda", WARN if torch.devices and not torch.error else FAIL, one_line(said), *explain(said))


def covered(torch: Torch, knows: int | None, sms: Sequence[int | None]) -> Finding:
    """Say whether the build has code for every card."""
    by_ptx = []
    for sm in sms:
        if sm is None:
            return Finding(
                "torch.arch", WARN, "a card's compute capability is unknown", "", "Rely on the kernels below."
            )
        way = covers(torch.archs, sm)
        if not torch.archs or (way == "ptx" and not _translates(torch.cuda or "0", knows)) or not way:
            return _uncovered(torch, sm, way)
        by_ptx += [sm] if way == "ptx" else []
    text = f"the build has code for {', '.join(f'sm_{sm}' for sm in sorted({sm for sm in sms if sm}))}"
    if by_ptx:
        cause = "No binary code for the card: the driver compiles PTX at the first start, which takes minutes."
        return Finding(
            "torch.arch", WARN, f"{text} as PTX only", cause, "A build with code for the card starts faster."
        )
    return Finding("torch.arch", PASS, text)


def covers(archs: Sequence[str], sm: int) -> str:
    """Say how a build's code runs on a card: "cubin", "ptx" or not at all ("")."""
    for kind, number, suffix in (_arch(arch) for arch in archs):
        if kind == "sm" and _runs(number, suffix, sm):
            return "cubin"
    ptx = [number for kind, number, suffix in (_arch(arch) for arch in archs) if kind == "compute" and not suffix]
    return "ptx" if any(number <= sm for number in ptx) else ""


def _runs(code: int, suffix: str, sm: int) -> bool:
    if suffix == "a":  # for one architecture alone
        return code == sm
    same_major = code // 10 == sm // 10 and code <= sm
    return sm in ONLY[code] if code in ONLY else same_major and sm not in EXCLUDED.get(code, ())


def _arch(text: str) -> tuple[str, int, str]:
    found = re.fullmatch(r"(sm|compute)_(\d+)([a-z]?)", text.strip())
    return (found[1], int(found[2]), found[3]) if found else ("", 0, "")


def _translates(cuda: str, knows: int | None) -> bool:
    """PTX needs a driver that knows the CUDA it came from: here the minor version counts."""
    return knows is not None and (knows // 1000, knows % 1000 // 10) >= _version(cuda)


def _uncovered(torch: Torch, sm: int, way: str) -> Finding:
    if not torch.archs:
        return Finding(
            "torch.arch", WARN, "the architectures of the build are unknown", "", "Rely on the kernels below."
        )
    text = f"the build has no code for sm_{sm}, only {' '.join(torch.archs)}"
    if way == "ptx":
        text = f"the build has only PTX for sm_{sm}, of a newer CUDA ({torch.cuda}) than the driver knows"
    newer = "torch 2.7 or later built for CUDA 12.8 or later" if sm >= BLACKWELL else ""
    older = "a torch built for CUDA 12.6 or older" if sm < CUDA_13_FIRST else "a newer build"
    return Finding(
        "torch.arch", FAIL, text, explain("no kernel image is available for execution")[0], f"Take {newer or older}."
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
