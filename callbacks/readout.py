"""Publishes what the network predicts when a stage is left early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.probes import readout
from tfresidual.probes.logs import block_logs, log_key

if TYPE_CHECKING:
    from tfresidual.routing import Chain

PUBLISHED = ("error", "cross_entropy", "entropy")


class Readout(ProbeCallback):
    """Runs `tfresidual.probes.readout` during `fit`.

    Publishes `"stage1/block0/readout_error"`, `".../readout_cross_entropy"` and
    `".../readout_entropy"` for every block after which its stage can be left.

    Example:

    >>> logger = keras.callbacks.CSVLogger("log.csv")
    >>> history = net.fit(train, callbacks=[Readout(test.take(4)), logger], verbose=0)

    Args:
        data: the data to probe: a `tf.data.Dataset` of batches `(images, labels)`, a pair of
            arrays, or a dict of these by split name; every key then starts with the split name.
        every: int, the probe runs once every `every` epochs; the keys are NaN in the others.
        on_error: `"warn"` or `"raise"`, what happens if the probe fails later, see `ProbeCallback`.

    Raises:
        ValueError: if `every` is not a positive int or `data` cannot be used; when training
            begins, if the data does not fit the network.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, fig. 5.
    """

    counts_errors = True

    def probe(self, chain: Chain) -> dict[str, float]:
        frame = readout(chain, self.data)
        self.keep(readout=frame)
        logs = block_logs(frame, PUBLISHED, "readout_")
        return {key: logs[key] for key in self.keys(chain)}

    def keys(self, chain: Chain) -> list[str]:
        return [
            log_key(f"readout_{name}", stage.index, block, split)
            for split in self.splits()
            for stage in chain.stages
            for block in stage.exits
            for name in PUBLISHED
        ]
