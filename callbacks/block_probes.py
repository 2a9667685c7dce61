"""Callbacks that run a probe and publish the columns that it declares, for every block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.definitions.arguments import check_choice
from tfresidual.probes.attribution import TARGETS
from tfresidual.probes.drop_blocks import FILLS
from tfresidual.probes.lens import FINAL, OWN
from tfresidual.probes.predictions import checked_target
from tfresidual.routing.block_values import PERTURBATION_METRICS

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.definitions.types import Data, Frame, OnError

__all__ = [
    "Attribution",
    "BlockMetrics",
    "DropBlocks",
    "Lens",
    "Lipschitz",
    "Readout",
    "SignalPropagation",
]


class Attribution(ProbeCallback):
    """Runs `tfresidual.probes.attribution` during `fit`.

    Publishes `"stage1/block0/attribution"`, the part of the label's logit (or of `target`), for the
    last blocks of the network that have the identity as their shortcut.

    Example:

    >>> probe = Attribution(test.take(4))
    >>> history = net.fit(train, callbacks=[probe], verbose=0)

    Args:
        data: see `ProbeCallback`, as for `every` and `on_error`.
        target: which logit, or the difference of which two, see the probe.
        freeze_normalization: whether the statistics of normalizations in the head are held fixed.
    """

    runs = "attribution"
    takes = ("target", "freeze_normalization")

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
        self.freeze_normalization: bool = freeze_normalization


class BlockMetrics(ProbeCallback):
    """Runs `tfresidual.probes.block_metrics` during `fit`; arguments as in `ProbeCallback`.

    Publishes `"stage1/block0/cosine_loss"`, `".../l2_ratio"` and `".../gradient_norm"` for every
    block, and `".../readout_cosine_loss"` for the blocks of the last stage. A block that changes
    the shape of the state has the gradient norm alone. `Perturbation` publishes the other metrics.

    The gradient is that of the loss of `compile` of each image alone, without losses that layers
    add.

    Example:

    >>> logger = keras.callbacks.CSVLogger("log.csv")
    >>> history = net.fit(train, callbacks=[BlockMetrics(test.take(4)), logger], verbose=0)
    >>> "stage1/block0/cosine_loss" in history.history
    True

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, fig. 4, 13 and 14.
    """

    runs = "block_metrics"

    def keep(self, **frames: Frame) -> None:
        # The other metrics are the subject of `Perturbation`.
        frame = frames["block_metrics"].drop(columns=list(PERTURBATION_METRICS))
        super().keep(block_metrics=frame)


class DropBlocks(ProbeCallback):
    """Runs `tfresidual.probes.drop_blocks` during `fit`.

    Publishes `"stage1/block0/drop_error"`, `".../drop_cross_entropy"` and `".../drop_agreement"`
    (with the predictions of the whole network) for every block that keeps the shape of the state.

    Example:

    >>> probe = DropBlocks(test.take(4), every=10)
    >>> history = net.fit(train, epochs=10, callbacks=[probe], verbose=0)

    Args:
        data: see `ProbeCallback`, as for `every` and `on_error`.
        fill: what replaces the branch of a block, see the probe.
        keep_norm: whether what follows the addition in a block stays, see the probe.
        seed: int, with `fill="resample"`.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, fig. 3; Veit et al. 2016.
    """

    runs = "drop_blocks"
    takes = ("fill", "keep_norm", "seed")

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
        check_choice("fill", fill, FILLS)
        self.fill: Literal["zero", "mean", "resample"] = fill
        self.keep_norm: bool = keep_norm
        self.seed: int = seed


class Lens(ProbeCallback):
    """Runs `tfresidual.probes.lens` during `fit`.

    Publishes `"stage1/block0/lens_cross_entropy"`, `".../lens_rank"`, `".../lens_probability"` and
    `".../lens_kl"` for every block of the last stage whose state the head can take.

    Example:

    >>> probe = Lens(test.take(4))
    >>> history = net.fit(train, callbacks=[probe], verbose=0)

    Args:
        data: see `ProbeCallback`, as for `every` and `on_error`.
        normalize: whose statistics the normalizations in the head use, see the probe.
    """

    runs = "lens"
    takes = ("normalize",)

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


class Lipschitz(ProbeCallback):
    """Runs `tfresidual.probes.lipschitz` during `fit`, on networks built with `lipschitz`.

    Publishes `"stage1/block0/lipschitz_estimate"`, `".../lipschitz_residual"`,
    `".../lipschitz_certified"` and `".../lipschitz_divisor"` for every bounded block. Arguments are
    as in `ProbeCallback`; without a bounded block, training does not begin.

    Example:

    >>> net = networks.ResidualNetwork((8, 8, 1), 3, blocks=2, widths=(4,), lipschitz=0.95)
    >>> net.compile("sgd", "sparse_categorical_crossentropy")
    >>> history = net.fit(train, epochs=2, callbacks=[Lipschitz(every=2)], verbose=0)

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section 4.2
        and appendix E.1.
    """

    runs = "lipschitz"

    def __init__(self, *, every: int = 1, on_error: OnError = "warn") -> None:
        super().__init__(data=None, every=every, on_error=on_error)


class Readout(ProbeCallback):
    """Runs `tfresidual.probes.readout` during `fit`; arguments as in `ProbeCallback`.

    Publishes `"stage1/block0/readout_error"`, `".../readout_cross_entropy"` and
    `".../readout_entropy"` for every block after which its stage can be left.

    Example:

    >>> logger = keras.callbacks.CSVLogger("log.csv")
    >>> history = net.fit(train, callbacks=[Readout(test.take(4)), logger], verbose=0)

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, fig. 5.
    """

    runs = "readout"


class SignalPropagation(ProbeCallback):
    """Runs `tfresidual.probes.signal_propagation` during `fit`; arguments as in `ProbeCallback`.

    Publishes `"stage1/block0/state_norm"`, `".../state_l1"`, `".../state_gradient_norm"`,
    `".../gradient_ratio"`, `".../shortcut_share"`, `".../shortcut_norm"`, `".../shortcut_product"`
    and `".../sum_deviation"` for every block; the last one not for blocks that change the shape of
    the state.

    Example:

    >>> probe = SignalPropagation(test.take(4), every=5)
    >>> history = net.fit(train, epochs=5, callbacks=[probe], verbose=0)

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027, eq. 5 and 8; Jastrzebski et al. 2018,
        https://arxiv.org/abs/1710.04773, fig. 8 and 9.
    """

    runs = "signal_propagation"
