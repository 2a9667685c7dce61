"""What the stopping rule measures of a network before it is trained."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfresidual import probes, sources
from tfresidual.definitions.chance import STANDARD_ERRORS
from tfresidual.probes.perturbation import ALL_STAGES
from tfresidual.routing.batches import batches_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    import keras

    from tfresidual.definitions.types import Array, Frame, Images
    from tfresidual.routing.chain import Chain

MEAN = "mean_scaled_perturbation"
# What a stage measures as built, what it measures after training with moving statistics of the same
# images, and the standard error of that change.
AS_BUILT, SETTLED, CHANGE_ERROR = (
    f"{MEAN}_{name}" for name in ("as_built", "settled", "change_error")
)
# The moving statistics of a normalization, by their names.
STATISTICS = ("moving_mean", "moving_variance")
# The share of the statistics of a batch in moving statistics that are followed over one batch: so
# small that all applications of a layer count alike.
STEP = 1e-3


def distances_as_built(network: keras.Model, data: Images, chain: Chain | None = None) -> Frame:
    """Measures the computational distances of a network with the weights that it has.

    Moving statistics are set to those of the images for this, since those of a network as built are
    not those of any images. The network is left as it was.

    Args:
        network: a built `keras.Model`, usually one that is not trained.
        data: images, see `tfresidual.definitions.types.Images`.
        chain: its `tfresidual.routing.Chain`; by default `tfresidual.chain(network)`.

    Returns:
        The frame of `tfresidual.probes.computational_distance`.

    Raises:
        ValueError: if the network or the data cannot be measured.
    """
    chain = sources.chain(network) if chain is None else chain
    with restored(network.variables):
        set_statistics(network, data, chain)
        return probes.computational_distance(chain, data)


def set_statistics(network: keras.Model, data: Images, chain: Chain | None = None) -> None:
    """Sets the moving statistics of a network to the means over the batches of some images.

    A layer that is applied several times has the mean over its applications. Layers without an
    attribute `momentum` keep what the pass leaves. Nothing else changes, nor do the seeds.
    """
    if not any(weight.name in STATISTICS for weight in network.weights):
        return
    layers = [
        layer
        for layer in network._flatten_layers()
        # That of several applications keeps them in layers of its own.
        if hasattr(layer, "momentum")
        and all(getattr(layer, name, None) is not None for name in STATISTICS)
    ]
    # A layer may share the statistics of another one.
    owners = {id(layer.moving_mean): layer for layer in layers}.values()
    followed = [getattr(layer, name) for layer in owners for name in STATISTICS]
    others = [v for v in network.non_trainable_variables if v.name not in STATISTICS]
    momenta = [layer.momentum for layer in layers]
    before = [_value(variable) for variable in followed]
    sums: list[Any] = [0.0 for _ in followed]
    shares = [0.0 for _ in followed]
    total = 0

    def after_pass(images, start):
        """Returns the statistics after a batch, if they were `start` before."""
        for variable in followed:
            variable.assign(np.full(variable.shape, start))
        with restored(others):
            network(images, training=True)
        return [_value(variable).astype(np.float64) for variable in followed]

    try:
        for layer in layers:
            layer.momentum = 1 - STEP
        for images, *_ in batches_of(data, chain, with_labels=False)[0]:
            found = after_pass(images, 0)
            if not total:
                # What is left of a start shows how often the layer was applied. Variances may be
                # so large that nothing of it can be seen.
                again = after_pass(images, 1)
                left = [np.median(again[i] - found[i]) for i in range(0, len(followed), 2)]
                shares = [_share_of_batch(part) for part in left for _ in STATISTICS]
            size = len(tf.nest.flatten(images)[0])
            total += size
            sums = [summed + size * part for summed, part in zip(sums, found, strict=True)]
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for place, share in enumerate(shares):
            followed[place].assign(sums[place] / total / share if share else before[place])


def _share_of_batch(left):
    """Returns the share of a batch in statistics of which a share `left` is from before it."""
    applications = np.round(np.log(np.clip(left, STEP, 1)) / math.log1p(-STEP))
    return -math.expm1(applications * math.log1p(-STEP)) if applications > 0 else 0.0


@contextlib.contextmanager
def restored(variables: Iterable[keras.Variable]) -> Iterator[None]:
    """Leaves variables as they were before the block."""
    before = [(variable, _value(variable)) for variable in variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def values_of(network: keras.Model) -> list[Array]:
    """Returns the values of all weights of a network, a list of arrays."""
    return [_value(weight) for weight in network.weights]


def _value(variable):
    # A variable on several devices is read on the first.
    return np.array(variable.numpy())


def compared_with_built(
    network: keras.Model, chain: Chain, built: list[Array], data: Images
) -> dict[int, dict[str, float]]:
    """Compares the mean scaled perturbations of a trained network with those of the same as built.

    Both have the moving statistics of the images: those that a short training leaves are still on
    their way, which would be taken for a change by the training.

    Args:
        network: the trained network, which is left as it is.
        chain: its chain.
        built: the values of its weights before training, see `values_of`.
        data: the images, which can be read several times.

    Returns:
        A dict by stage of dicts of `AS_BUILT` and `SETTLED`, the means as built and trained, and
        `CHANGE_ERROR`, the standard error over the images of the change; without stages that have
        no such finite numbers.
    """
    with restored(network.variables):
        set_statistics(network, data, chain)
        settled, of_trained = _means_by_stage(chain, data)
        for weight, value in zip(network.weights, built, strict=True):
            weight.assign(value)
        set_statistics(network, data, chain)
        as_built, of_built = _means_by_stage(chain, data)
    found = {}
    for stage, mean in as_built.items():
        changes = (of_trained[stage] - of_built[stage]).dropna()
        numbers = {AS_BUILT: mean, SETTLED: settled[stage], CHANGE_ERROR: standard_error(changes)}
        if all(map(math.isfinite, numbers.values())):
            found[stage] = numbers
    return found


def _means_by_stage(chain, data):
    """Returns dicts by stage of mean scaled perturbations: over all images, and of single ones."""
    frame = probes.computational_distance(chain, data)
    frame = frame[frame["stage"] != ALL_STAGES]
    means = dict(zip(frame["stage"].map(int), frame[MEAN].map(float), strict=True))
    return means, _means_of_images(chain, data)


def _means_of_images(chain, data):
    """Returns the mean over the blocks of a stage for every image, a dict of series by stage."""
    frame = probes.perturbation(chain, data, per_image=True)
    # Blocks that change the shape are NaN, and left out.
    means = frame.groupby(["stage", "image"])["scaled_perturbation"].mean()
    return {stage: part.droplevel("stage") for stage, part in means.groupby("stage")}


def standard_error(values):
    """Returns the standard error of a mean of several values."""
    count = len(values)
    return float(np.std(values, ddof=1) / math.sqrt(count)) if count > 1 else math.nan


def is_moved(before: float, after: float, error: float) -> bool:
    """Returns whether a mean differs from what it was, by more than `STANDARD_ERRORS`."""
    return abs(after - before) > STANDARD_ERRORS * error
