"""Publishes how much worse the network is without one of its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.probes import drop_blocks
from tfresidual.probes.logs import block_logs, log_key

if TYPE_CHECKING:
    from tfresidual.routing import Chain

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
        every: int, the probe runs once every `every` epochs; the keys are NaN in the others.
        on_error: `"warn"` or `"raise"`, what happens if the probe fails later, see `ProbeCallback`.

    Raises:
        ValueError: if `every` is not a positive int or `data` cannot be used; when training
            begins, if the data does not fit the network.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, fig. 3; Veit et al. 2016.
    """

    counts_errors = True

    def probe(self, chain: Chain) -> dict[str, float]:
        frame = drop_blocks(chain, self.data)
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
