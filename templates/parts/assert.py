"""The image proves itself at the end of its build, and writes down what it holds. Reads: WANTED, EPOCH."""

import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sysconfig

import torch


def found() -> dict:
    """What is really installed, in the words of the row."""
    major, minor = platform.python_version_tuple()[:2]
    flags = torch._C._cuda_getArchFlags().split()  # get_arch_list() is empty where no GPU is
    return {
        "torch": torch.__version__.split("+")[0],
        "torchvision": importlib.metadata.version("torchvision").split("+")[0],
        "torchaudio": importlib.metadata.version("torchaudio").split("+")[0],
        "cuda": torch.version.cuda,
        "python": f"{major}.{minor}",
        "arch": [flag[3:] for flag in flags if flag.startswith("sm_")],
        "ptx": [flag[8:] for flag in flags if flag.startswith("compute_")],
    }


def compute(compiles: bool) -> None:
    """A product with a known value, and the same once more through the compiler."""
    a = torch.arange(16, dtype=torch.float32).reshape(4, 4)

    def trace(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.T).diagonal().sum()

    assert trace(a).item() == 1240.0, f"matmul gave {trace(a).item()}, not 1240"
    if compiles:
        import torch._inductor.config as inductor

        # Plain code: trying out vector units would double the time.
        inductor.cpp.simdlen = 1
        if hasattr(inductor.cpp, "vec_isa_ok"):
            inductor.cpp.vec_isa_ok = False
        inductor.compile_threads = 1
        assert torch.compile(trace)(a).item() == 1240.0, "torch.compile gave another value"
    import torchaudio  # noqa: F401  # both load C++ operators that must fit this torch
    import torchvision

    boxes, scores = (
        torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.1]]),
        torch.tensor([0.5, 0.9]),
    )
    assert torchvision.ops.nms(boxes, scores, 0.5).tolist() == [1], "torchvision's operators do not work"


def packages() -> list:
    """Every wheel and system package with its version and the bytes it takes."""
    rows = []
    # Only the venv's own and hermitcrab: whoever imports setuptools, as the compiler does, finds its vendored ones too.
    own = [sysconfig.get_path("purelib"), os.environ["PYTHONPATH"]]
    for dist in importlib.metadata.distributions(path=own):
        paths = [pathlib.Path(str(file.locate())) for file in dist.files or []]
        size = sum(path.stat().st_size for path in paths if path.is_file())
        rows.append({"name": dist.metadata["Name"], "version": dist.version, "kind": "wheel", "bytes": size})
    # The files that are there: dpkg's own figure counts those it was told to leave out.
    query = ["dpkg-query", "-W", "-f", "${Package} ${Version}\n${db-fsys:Files}"]
    for line in subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines():
        if line.startswith(" "):
            path = pathlib.Path(line[1:])
            rows[-1]["bytes"] += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
        else:
            name, version = line.split()
            rows.append({"name": name, "version": version, "kind": "system", "bytes": 0})
    return sorted(rows, key=lambda row: (row["kind"], row["name"]))


def main() -> None:
    """Fail the build unless what is found equals the row; then write the manifest."""
    wanted = json.loads(WANTED)  # noqa: F821  # the template puts it in front of this file
    row = {key: wanted[key] for key in found()}
    assert found() == row, f"the image holds {found()}, the row says {row}"
    compute(wanted["compiles"])
    manifest = {**wanted, "packages": packages()}
    path = pathlib.Path("/proof/etc/hermitcrab/manifest.json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    for made in (path, *path.parents):
        os.utime(made, (EPOCH, EPOCH))  # noqa: F821


main()
