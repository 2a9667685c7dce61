"""Publishes the bounds on the Lipschitz constants of the blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.probes import lipschitz
from tfresidual.probes.lipschitz import METRICS, bounded_blocks
from tfresidual.probes.logs import block_logs, log_key

if TYPE_CHECKING:
    from tfresidual.routing import Chain
    from tfresidual.types import OnError

PREFIX = "lipschitz_"


class Lipschitz(ProbeCallback):
    """Runs `tfresidual.probes.lipschitz` during `fit`, on networks built with `lipschitz`.

    Publishes `"stage1/block0/lipschitz_estimate"`, `".../lipschitz_residual"`,
    `".../lipschitz_certified"` and `".../lipschitz_divisor"` for every bounded block.

    Example:

    >>> net = networks.ResidualNetwork((8, 8, 1), 3, blocks=2, widths=(4,), lipschitz=0.95)
    >>> net.compile("sgd", "sparse_categorical_crossentropy")
    >>> history = net.fit(train, epochs=2, callbacks=[Lipschitz(every=2)], verbose=0)

    Args:
        every: int, the probe runs once every `every` epochs; the keys are NaN in the others.
        on_error: `"warn"` or `"raise"`, what happens if the probe fails later, see `ProbeCallback`.

    Raises:
        ValueError: if `every` is not a positive int; when training begins, if no block of the
            network is bounded.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section
        4.2 and appendix E.1.
    """

    reads_data = False

    def __init__(self, *, every: int = 1, on_error: OnError = "warn") -> None:
        super().__init__(data=None, every=every, on_error=on_error)

    def check(self, chain: Chain) -> None:
        super().check(chain)
        bounded_blocks(chain)

    def probe(self, chain: Chain) -> dict[str, float]:
        frame = lipschitz(chain)
        self.keep(lipschitz=frame)
        return block_logs(frame, METRICS, PREFIX)

    def keys(self, chain: Chain) -> list[str]:
        return [
            log_key(PREFIX + name, block.stage, block.index)
            for block in bounded_blocks(chain)
            for name in METRICS
        ]
