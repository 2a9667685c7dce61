"""What the stopping rule measures of a network before it is trained."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tfresidual import probes, sources
from tfresidual.definitions.averages import STANDARD_ERRORS, standard_error
from tfresidual.probes.perturbation import ALL_STAGES
from tfresidual.routing.data import batches_of
from tfresidual.surgery.statistics import restored, update_statistics

if TYPE_CHECKING:
    import keras

    from tfresidual.definitions.types import Array, Frame, Images
    from tfresidual.routing.chain import Chain

MEAN = "mean_scaled_perturbation"
# What a stage measures as built, what it measures after training with moving statistics of the same
# images, and the standard error of that change.
AS_BUILT, SETTLED, CHANGE_ERROR = (
    f"{MEAN}_{name}" for name in ("as_built", "settled", "change_error")
)


def distances_as_built(network: keras.Model, data: Images, *, chain: Chain | None = None) -> Frame:
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
        _set_statistics(network, data, chain)
        return probes.computational_distance(chain, data)


def _set_statistics(network, data, chain):
    """Sets the moving statistics of a network to the means over some images."""
    update_statistics(network, (x for x, *_ in batches_of(data, chain, with_labels=False)))


def values_of(network: keras.Model) -> list[Array]:
    """Returns the values of all weights of a network, a list of arrays."""
    # A weight on several devices is read on the first.
    return [np.array(weight.numpy()) for weight in network.weights]


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
        _set_statistics(network, data, chain)
        settled, of_trained = _means_by_stage(chain, data)
        for weight, value in zip(network.weights, built, strict=True):
            weight.assign(value)
        _set_statistics(network, data, chain)
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


def is_moved(before: float, after: float, error: float) -> bool:
    """Returns whether a mean differs from what it was, by more than `STANDARD_ERRORS`."""
    return abs(after - before) > STANDARD_ERRORS * error
