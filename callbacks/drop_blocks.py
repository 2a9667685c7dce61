"""Publishes how much worse the network is without one of its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.probes import drop_blocks
from tfresidual.probes.drop_blocks import check_fill
from tfresidual.probes.logs import block_logs, log_key

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.routing import Chain
    from tfresidual.types import Data, OnError

PUBLISHED = ("error", "cross_entropy", "agreement")


class DropBlocks(ProbeCallback):
    """Runs `tfresidual.probes.drop_blocks` during `fit`.

    Publishes `"stage1/block0/drop_error"`, `".../drop_cross_entropy"` and `".../drop_agreement"`
    (agreement with the predictions of the whole network) for every block that keeps the shape of
    the state.

    Example:

    >>> probe = DropBlocks(test.take(4), every=10)
    >>> history = net.fit(train, epochs=10, callbacks=[probe], verbose=0)

    Args:
        data: the data to probe: a `tf.data.Dataset` of batches `(images, labels)`, a pair of
            arrays, or a dict of these by split name; every key then starts with the split name.
        fill: what takes the place of what a block adds, see the probe.
        keep_norm: whether what follows the addition in a block stays, see there.
        seed: int, with `fill="resample"`.
        every: int, the probe runs once every `every` epochs; the keys are NaN in the others.
        on_error: `"warn"` or `"raise"`, what happens if the probe fails later, see `ProbeCallback`.

    Raises:
        ValueError: if `every` is not a positive int, or another argument cannot be used; when
            training begins, if the data does not fit the network.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, fig. 3; Veit et al. 2016.
    """

    counts_errors = True

    def __init__(
        self,
        data: Data,
        *,
        fill: Literal["zero", "mean", "resample"] = "zero",
        keep_norm: bool = False,
        seed: int = 0,
        every: int = 1,
        on_error: OnError = "warn",
    ) -> None:
        super().__init__(data, every=every, on_error=on_error)
        check_fill(fill, keep_norm, seed)
        self.fill: Literal["zero", "mean", "resample"] = fill
        self.keep_norm: bool = keep_norm
        self.seed: int = seed

    def probe(self, chain: Chain) -> dict[str, float]:
        frame = drop_blocks(
            chain, self.data, fill=self.fill, keep_norm=self.keep_norm, seed=self.seed
        )
        self.keep(drop_blocks=frame)
        logs = block_logs(frame, PUBLISHED, "drop_")
        return {key: logs[key] for key in self.keys(chain)}

    def keys(self, chain: Chain) -> list[str]:
        return [
            log_key(f"drop_{name}", block.stage, block.index, split)
            for split in self.splits()
            for block in chain.blocks
            if block.keeps_shape
            for name in PUBLISHED
        ]
