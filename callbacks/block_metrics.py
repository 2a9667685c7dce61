"""Publishes how the output of every block relates to the gradient of the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.probes import block_metrics
from tfresidual.probes.block_metrics import metrics_of
from tfresidual.probes.logs import block_logs, log_key
from tfresidual.routing.block_values import PERTURBATION_METRICS

if TYPE_CHECKING:
    from tfresidual.routing import Chain

PUBLISHED = ("cosine_loss", "readout_cosine_loss", "l2_ratio", "gradient_norm")


class BlockMetrics(ProbeCallback):
    """Runs `tfresidual.probes.block_metrics` during `fit`.

    Publishes `"stage1/block0/cosine_loss"`, `".../l2_ratio"` and `".../gradient_norm"` for every
    block, and `".../readout_cosine_loss"` for the blocks of the last stage. For a block that
    changes the shape of the state, only the gradient norm is defined and published.
    `Perturbation` publishes the other metrics of that probe.

    The gradient is that of the loss of `compile` of each image alone. Losses that layers add
    (activity regularizers, `add_loss`) are not part of it, unlike in `StepMetrics`.

    Example:

    >>> logger = keras.callbacks.CSVLogger("log.csv")
    >>> history = net.fit(train, callbacks=[BlockMetrics(test.take(4)), logger], verbose=0)
    >>> "stage1/block0/cosine_loss" in history.history
    True

    Args:
        data: the data to probe: a `tf.data.Dataset` of batches `(images, labels)`, a pair of
            arrays, or a dict of these by split name; every key then starts with the split name.
        every: int, the probe runs once every `every` epochs; the keys are NaN in the others.
        on_error: `"warn"` or `"raise"`, what happens if the probe fails later, see `ProbeCallback`.

    Raises:
        ValueError: if `every` is not a positive int or `data` cannot be used; when training
            begins, if the data does not fit the network.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, fig. 4, 13 and 14.
    """

    reads_labels = True

    def probe(self, chain: Chain) -> dict[str, float]:
        frame = block_metrics(chain, self.data)
        # Those metrics are the subject of `Perturbation`.
        self.keep(block_metrics=frame.drop(columns=list(PERTURBATION_METRICS)))
        logs = block_logs(frame, PUBLISHED)
        return {key: logs[key] for key in self.keys(chain)}

    def keys(self, chain: Chain) -> list[str]:
        return [
            log_key(name, block.stage, block.index, split)
            for split in self.splits()
            for block in chain.blocks
            for name in metrics_of(chain, block)
            if name in PUBLISHED
        ]
