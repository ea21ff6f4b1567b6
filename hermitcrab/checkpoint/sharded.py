"""State that is spread over the ranks (FSDP, DTensor): each rank writes its own part into one checkpoint.

`torch.distributed.checkpoint` writes the parts, so that another number of ranks can load them. Around it is the
same envelope: a folder that appears by rename, with a manifest that sums every file, once all ranks agree.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import shutil
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, TypeVar

import torch

from hermitcrab.checkpoint import commit, ranks, tee
from hermitcrab.checkpoint.store import Manifest
from hermitcrab.checkpoint.tee import Sum, Write
from hermitcrab.errors import UserError

FOLDER = "sharded"  # within a checkpoint
T = TypeVar("T")


def is_sharded(parts: Mapping[str, Any]) -> bool:
    """Say whether some model's tensors are spread over the ranks; the answer is the same on all of them."""
    models = [part for part in parts.values() if isinstance(part, torch.nn.Module)]
    spread = any(hasattr(tensor, "placements") for model in models for tensor in model.parameters())
    wrapped = any(type(module).__name__ == "FullyShardedDataParallel" for model in models for module in model.modules())
    found = ranks.any_of([spread or wrapped])[0]
    if found:
        _library()
    return found


def split(parts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide into what is spread (models, and the optimizers of their tensors) and the rest, the same on all ranks."""
    spread = {name: part for name, part in parts.items() if isinstance(part, (torch.nn.Module, torch.optim.Optimizer))}
    return spread, {name: part for name, part in parts.items() if name not in spread}


def state_of(spread: Mapping[str, Any]) -> dict[str, Any]:
    """Return the live state of such parts, by names that do not depend on the number of ranks."""
    _, helper = _library()
    state = {}
    for name, part in spread.items():
        if isinstance(part, torch.nn.Module):
            state[name] = helper.get_model_state_dict(part)
        else:
            state[name] = helper.get_optimizer_state_dict(_model_of(part, spread), part)
    return state


def is_in(path: Path) -> bool:
    """Say whether a checkpoint has such parts."""
    return (path / FOLDER).is_dir()


def load(spread: Mapping[str, Any], path: Path) -> None:
    """Load the parts of a checkpoint, however they are spread now."""
    library, helper = _library()
    state = state_of(spread)
    with _told():
        library.load(state, checkpoint_id=str(path / FOLDER))
    for name, part in spread.items():
        if isinstance(part, torch.nn.Module):
            helper.set_model_state_dict(part, state[name])
        else:
            helper.set_optimizer_state_dict(_model_of(part, spread), part, optim_state_dict=state[name])


def write(
    folder: Path, step: int, manifest: Manifest, files: Mapping[str, Write], state: Mapping[str, Any]
) -> Callable[[bool], Path]:
    """Write a checkpoint on all ranks, rank 0 the ``files``; an error on one is one on all.

    Returns what ends it: publishes it, or removes it when it was a rehearsal.
    """
    temporary: Path = ranks.from_first(lambda: commit.begin(folder, step))

    def finish(rehearsal: bool) -> Path:
        def work() -> Path:
            if rehearsal:
                shutil.rmtree(temporary)
                return temporary
            return commit.publish(folder, step, manifest, temporary)

        return ranks.from_first(work)

    try:
        _together(lambda: _write_own(state, temporary / FOLDER))
        everyone = ranks.gather(_together(lambda: _sums(temporary)))
        sums = {name: told for its in everyone for name, told in its.items()}

        def rest() -> None:
            mine = {name: tee.write(temporary / name, work) for name, work in files.items()}
            commit.seal(temporary, step, manifest, {**sums, **mine})

        ranks.from_first(rest)
    except BaseException:
        if ranks.rank() == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    return finish


def _write_own(state: Mapping[str, Any], folder: Path) -> None:
    with _told():
        _library()[0].save(dict(state), checkpoint_id=str(folder))


def _sums(temporary: Path) -> dict[str, Sum]:
    """Sum the files of this rank, and of the first one also what belongs to all."""
    rank = ranks.rank()
    paths = [path for path in sorted((temporary / FOLDER).iterdir()) if _owner(path.name) == rank]
    return {path.relative_to(temporary).as_posix(): commit.sum_of(path) for path in paths}


def _owner(name: str) -> int:
    """The rank that a file's name tells, as ``__1_0.distcp``; the index of all is the first one's."""
    number = name.lstrip("_").split("_")[0]
    return int(number) if name.startswith("__") and number.isdigit() else 0


def _model_of(optimizer: Any, spread: Mapping[str, Any]) -> Any:
    mine = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    for part in spread.values():
        if isinstance(part, torch.nn.Module) and mine <= {id(tensor) for tensor in part.parameters()}:
            return part
    raise UserError("an optimizer's tensors are not all of one model given to Checkpointer(…, model=…)", code=2)


def _together(work: Callable[[], T]) -> T:
    """Do it on every rank; an OSError on one is one on all, so that all go on training together."""
    result, error = None, None
    try:
        result = work()
    except OSError as failure:
        error = (failure.errno or errno.EIO, failure.strerror or str(failure))
    for told in ranks.gather(error):
        if told is not None:
            raise OSError(*told)
    return result  # type: ignore[return-value]


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn the library's own error, which is no Exception, into what was the matter on the first rank that failed."""
    failed = importlib.import_module("torch.distributed.checkpoint.api").CheckpointException
    try:
        yield
    except failed as error:
        first = next(iter(error.failures.values()))[0]
        if isinstance(first, OSError):
            raise OSError(first.errno or errno.EIO, first.strerror or str(first)) from error
        raise UserError(f"torch.distributed.checkpoint: {type(first).__name__}: {first}") from error


def _library() -> tuple[Any, Any]:
    try:
        checkpoint = importlib.import_module("torch.distributed.checkpoint")
        helper = importlib.import_module("torch.distributed.checkpoint.state_dict")
        if hasattr(checkpoint, "save") and hasattr(helper, "get_optimizer_state_dict"):
            return checkpoint, helper
    except ImportError:
        pass
    raise UserError(f"sharded state needs a newer torch than {torch.__version__}: its torch.distributed.checkpoint")
