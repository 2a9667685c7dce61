"""Publishes how the state and the gradient change from block to block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.probes import signal_propagation
from tfresidual.probes.logs import block_logs, log_key
from tfresidual.probes.signal_propagation import METRICS

if TYPE_CHECKING:
    from tfresidual.routing import Chain


class SignalPropagation(ProbeCallback):
    """Runs `tfresidual.probes.signal_propagation` during `fit`.

    Publishes `"stage1/block0/state_norm"`, `".../state_l1"`, `".../state_gradient_norm"`,
    `".../gradient_ratio"`, `".../shortcut_share"`, `".../shortcut_norm"`,
    `".../shortcut_product"` and `".../sum_deviation"` for every block; the last one not for
    blocks that change the shape of the state.

    Example:

    >>> probe = SignalPropagation(test.take(4), every=5)
    >>> history = net.fit(train, epochs=5, callbacks=[probe], verbose=0)

    Args:
        data: the data to probe: a `tf.data.Dataset` of batches `(images, labels)`, a pair of
            arrays, or a dict of these by split name; every key then starts with the split name.
        every: int, the probe runs once every `every` epochs; the keys are NaN in the others.
        on_error: `"warn"` or `"raise"`, what happens if the probe fails later, see `ProbeCallback`.

    Raises:
        ValueError: if `every` is not a positive int or `data` cannot be used; when training
            begins, if the data does not fit the network.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, eq. 5 and 8; Jastrzebski et al. 2018,
        https://arxiv.org/abs/1710.04773, fig. 8 and 9.
    """

    reads_labels = True

    def probe(self, chain: Chain) -> dict[str, float]:
        frame = signal_propagation(chain, self.data)
        self.keep(signal_propagation=frame)
        logs = block_logs(frame, METRICS)
        return {key: logs[key] for key in self.keys(chain)}

    def keys(self, chain: Chain) -> list[str]:
        return [
            log_key(name, block.stage, block.index, split)
            for split in self.splits()
            for block in chain.blocks
            for name in METRICS
            if block.keeps_shape or name != "sum_deviation"
        ]
