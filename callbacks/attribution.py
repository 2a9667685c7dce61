"""Publishes what every block adds to the logit of the label."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.probes import attribution
from tfresidual.probes.attribution import first_with_part
from tfresidual.probes.logs import block_logs, log_key

if TYPE_CHECKING:
    from tfresidual.routing import Chain


class Attribution(ProbeCallback):
    """Runs `tfresidual.probes.attribution` during `fit`.

    Publishes `"stage1/block0/attribution"`, the part of the label's logit, for every block that has
    one of its own: those of the end of the network that have the identity as their shortcut. The
    parts of the first state and of the head are not published.

    Example:

    >>> probe = Attribution(test.take(4))
    >>> history = net.fit(train, callbacks=[probe], verbose=0)

    Args:
        data: the data to probe: a `tf.data.Dataset` of batches `(images, labels)`, a pair of
            arrays, or a dict of these by split name; every key then starts with the split name.
        every: int, the probe runs once every `every` epochs; the keys are NaN in the others.
        on_error: `"warn"` or `"raise"`, what happens if the probe fails later, see `ProbeCallback`.

    Raises:
        ValueError: if `every` is not a positive int or `data` cannot be used; when training
            begins, if the data does not fit the network.
    """

    counts_errors = True

    def probe(self, chain: Chain) -> dict[str, float]:
        frame = attribution(chain, self.data)
        self.keep(attribution=frame)
        logs = block_logs(frame, ["attribution"])
        return {key: logs[key] for key in self.keys(chain)}

    def keys(self, chain: Chain) -> list[str]:
        return [
            log_key("attribution", block.stage, block.index, split)
            for split in self.splits()
            for block in chain.blocks[first_with_part(chain) :]
        ]
