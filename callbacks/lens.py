"""Publishes what the head predicts from the state after every block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.arguments import check_choice
from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.probes import lens
from tfresidual.probes.lens import FINAL, OWN
from tfresidual.probes.logs import block_logs, log_key

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.routing import Chain
    from tfresidual.types import Data, OnError

PUBLISHED = ("cross_entropy", "rank", "probability", "kl")


class Lens(ProbeCallback):
    """Runs `tfresidual.probes.lens` during `fit`.

    Publishes `"stage1/block0/lens_cross_entropy"`, `".../lens_rank"`, `".../lens_probability"` and
    `".../lens_kl"` for every block of the last stage whose state the head can take.

    Example:

    >>> probe = Lens(test.take(4))
    >>> history = net.fit(train, callbacks=[probe], verbose=0)

    Args:
        data: the data to probe: a `tf.data.Dataset` of batches `(images, labels)`, a pair of
            arrays, or a dict of these by split name; every key then starts with the split name.
        normalize: whose statistics the normalizations in the head use, see the probe.
        every: int, the probe runs once every `every` epochs; the keys are NaN in the others.
        on_error: `"warn"` or `"raise"`, what happens if the probe fails later, see `ProbeCallback`.

    Raises:
        ValueError: if `every` is not a positive int, or `normalize` or `data` cannot be used; when
            training begins, if the data does not fit the network.
    """

    counts_errors = True

    def __init__(
        self,
        data: Data,
        *,
        normalize: Literal["own", "final"] = "own",
        every: int = 1,
        on_error: OnError = "warn",
    ) -> None:
        super().__init__(data, every=every, on_error=on_error)
        check_choice("normalize", normalize, (OWN, FINAL))
        self.normalize: Literal["own", "final"] = normalize

    def probe(self, chain: Chain) -> dict[str, float]:
        frame = lens(chain, self.data, normalize=self.normalize)
        self.keep(lens=frame)
        logs = block_logs(frame, PUBLISHED, "lens_")
        return {key: logs[key] for key in self.keys(chain)}

    def keys(self, chain: Chain) -> list[str]:
        last = chain.stages[-1]
        return [
            log_key(f"lens_{name}", last.index, block, split)
            for split in self.splits()
            for block in last.exits
            for name in PUBLISHED
        ]
