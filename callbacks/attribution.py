"""Publishes what every block adds to the logit of the label."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.arguments import check_bool
from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.probes import attribution
from tfresidual.probes.attribution import TARGETS, first_with_part
from tfresidual.probes.logs import block_logs, log_key
from tfresidual.probes.predictions import checked_target

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.routing import Chain
    from tfresidual.types import Data, OnError


class Attribution(ProbeCallback):
    """Runs `tfresidual.probes.attribution` during `fit`.

    Publishes `"stage1/block0/attribution"`, the part of the label's logit (or of `target`), for
    every block that has one of its own: those of the end of the network that have the identity as
    their shortcut. The parts of the first state and of the head are not published.

    Example:

    >>> probe = Attribution(test.take(4))
    >>> history = net.fit(train, callbacks=[probe], verbose=0)

    Args:
        data: the data to probe: a `tf.data.Dataset` of batches `(images, labels)`, a pair of
            arrays, or a dict of these by split name; every key then starts with the split name.
        target: which logit, or the difference of which two, see the probe.
        freeze_normalization: whether the statistics of normalizations in the head are held fixed.
        every: int, the probe runs once every `every` epochs; the keys are NaN in the others.
        on_error: `"warn"` or `"raise"`, what happens if the probe fails later, see `ProbeCallback`.

    Raises:
        ValueError: if `every` is not a positive int, or another argument cannot be used; when
            training begins, if the data does not fit the network.
    """

    counts_errors = True

    def __init__(
        self,
        data: Data,
        *,
        target: int
        | Literal["label", "margin"]
        | tuple[int | Literal["label"], int | Literal["label"]] = "label",
        freeze_normalization: bool = False,
        every: int = 1,
        on_error: OnError = "warn",
    ) -> None:
        super().__init__(data, every=every, on_error=on_error)
        self.target = checked_target(target, TARGETS)
        check_bool("freeze_normalization", freeze_normalization)
        self.freeze_normalization: bool = freeze_normalization

    def probe(self, chain: Chain) -> dict[str, float]:
        frame = attribution(
            chain,
            self.data,
            target=self.target,
            freeze_normalization=self.freeze_normalization,
        )
        self.keep(attribution=frame)
        logs = block_logs(frame, ["attribution"])
        return {key: logs[key] for key in self.keys(chain)}

    def keys(self, chain: Chain) -> list[str]:
        return [
            log_key("attribution", block.stage, block.index, split)
            for split in self.splits()
            for block in chain.blocks[first_with_part(chain) :]
        ]
