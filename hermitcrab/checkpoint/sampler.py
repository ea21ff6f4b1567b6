"""Batches in an order that is a pure function of seed and epoch, from any position at once."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Sized

import torch

from hermitcrab.checkpoint.seeded import Place
from hermitcrab.errors import UserError


class ResumableSampler:
    """A batch sampler that knows how far the trainer is, not how far the loader has read ahead.

    ::

        sampler = ResumableSampler(data, batch_size=8, seed=7)
        loader = DataLoader(data, batch_sampler=sampler, num_workers=2)
        batches = sampler.batches(loader)  # endless, epoch after epoch
        for step in range(ckpt.resume(), total):
            batch = next(batches)

    ``for batch in loader`` is exact too, when every ``Checkpointer.step`` tells its number of batches
    and none reaches over an epoch's end.
    With ``world`` > 1 a rank gets every ``world``-th sample; the position is kept in samples of all ranks.
    ``by_index`` says that a sample is a function of its index and epoch alone, so that workers change nothing;
    of a ``SeededData`` it is known.
    """

    def __init__(
        self,
        data: int | Sized,
        *,
        batch_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
        by_index: bool | None = None,
    ) -> None:
        self.length = data if isinstance(data, int) else len(data)
        self.by_index = bool(getattr(data, "by_index", False)) if by_index is None else by_index
        self.batch_size, self.seed, self.shuffle, self.drop_last = batch_size, seed, shuffle, drop_last
        self.rank, self.world = rank, world
        self.epoch = self.batch = 0  # the next batch to train on
        self.counts_itself = False  # whether batches() counts, or Checkpointer.step does
        self.reads_ahead = False  # whether the loader has asked for more than was trained on: it has workers
        self._asked = 0  # batches of this epoch that the loader has asked for
        self._begun = self._stale = False  # whether a loader walks here, and does so from another position
        self.on_first_index: Callable[[], Any] | None = None
        if len(self) < 1 or not 0 <= rank < world:
            raise UserError(f"{self.length} samples give no batch of {batch_size} for rank {rank} of {world}", code=2)

    def __len__(self) -> int:
        """Batches of one rank in one epoch."""
        stride = self.batch_size * self.world
        return self.length // stride if self.drop_last else -(-self.length // stride)

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of this epoch that are still to be trained on."""
        self._begun, self._stale = True, False
        return self._indices(self.epoch, self.batch)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the loader's batches for ever, and count each as it is taken."""
        self.counts_itself = True
        while True:
            for batch in loader:
                self.advance()
                yield batch

    def advance(self, batches: int = 1) -> None:
        """Count batches as trained on; past its last one begins the next epoch."""
        if self._stale:
            raise UserError("the loader was begun before resume() and is at the old position: begin it after", code=2)
        self.batch += batches
        self.reads_ahead |= self._asked > self.batch
        while self.batch >= len(self):
            self.epoch, self.batch = self.epoch + 1, self.batch - len(self)

    def placed(self) -> None:
        """Hold that the position is set now: a loader that was begun before is at another one."""
        self._stale = self._begun

    @property
    def samples(self) -> int:
        """Samples of this epoch that all ranks together have trained on."""
        return min(self.batch * self.batch_size * self.world, self.length)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and what it is a position in."""
        kept = {"seed": self.seed, "shuffle": self.shuffle, "length": self.length}
        return {"epoch": self.epoch, "samples": self.samples, **kept}

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Go to a position; returns why it is not the very same one. Other data is refused."""
        if state["length"] != self.length:
            raise UserError(
                f"the checkpoint was trained on {state['length']} samples, this data set has {self.length}: "
                "give the same data, or start in a new folder",
            )
        self.epoch, self.seed, self.shuffle = state["epoch"], state["seed"], state["shuffle"]
        self.placed()
        stride = self.batch_size * self.world
        self.batch = state["samples"] // stride
        rest = state["samples"] % stride
        return [f"{rest} samples of this epoch are trained on again: other batches than before"] if rest else []

    def order(self, epoch: int) -> Any:
        """Return the samples' order in an epoch, as a tensor."""
        if not self.shuffle:
            return torch.arange(self.length)
        generator = torch.Generator()
        # Apart from (seed + 1, epoch - 1): two runs with neighbouring seeds must not walk the same orders.
        generator.manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        return torch.randperm(self.length, generator=generator)

    def _indices(self, epoch: int, batch: int) -> Iterator[list[int]]:
        if self.on_first_index is not None:  # the loader has drawn its workers' seed by now
            self.on_first_index()
            self.on_first_index = None
        order, self._asked = self.order(epoch), batch
        stride = self.batch_size * self.world
        for start in range(batch * stride, len(self) * stride, stride):
            # Past the end it begins again, so that all ranks take as many steps, as DistributedSampler does.
            whole = order[start : start + stride]
            if self.world > 1 and len(whole) % self.world:
                whole = torch.cat([whole, order[: self.world - len(whole) % self.world]])
            self._asked += 1
            yield [Place(index, epoch) for index in whole[self.rank :: self.world].tolist()]
