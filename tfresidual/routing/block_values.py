"""Computes what every block does to the state, and how that relates to the loss gradient."""

from keras import ops

from tfresidual.metrics import change_of, cosine, norm, ratio
from tfresidual.routing.gradients import walk_with_gradients

PERTURBATION_METRICS = ("perturbation", "scaled_perturbation")
BLOCK_METRICS = (
    "cosine_loss",
    "readout_cosine_loss",
    "l2_ratio",
    "gradient_norm",
    "perturbation",
    "scaled_perturbation",
)


def block_values(chain, images, labels):
    """Returns all metrics of a batch, each `(images, blocks)`, as a dict by name."""
    walk = walk_with_gradients(chain, images, labels)
    values = [
        _block_values(block, *pair, gradient, readout_gradient)
        for block, pair, gradient, readout_gradient in zip(
            chain.blocks, walk.pairs, walk.gradients, walk.readout_gradients, strict=True
        )
    ]
    return {name: ops.stack([value[name] for value in values], axis=1) for name in BLOCK_METRICS}


def perturbation_values(chain, images, labels):
    """Returns both perturbation metrics of a batch, each `(images, blocks)`, as a dict by name."""
    del labels
    chain = chain.given(images)
    pairs, _ = chain.walk(chain.stem(images))
    values = [
        _perturbations(block, before, after)
        for block, (before, after) in zip(chain.blocks, pairs, strict=True)
    ]
    return {
        name: ops.stack([value[name] for value in values], axis=1) for name in PERTURBATION_METRICS
    }


def _block_values(block, before, after, gradient, readout_gradient):
    values = _perturbations(block, before, after)
    undefined = ops.full_like(values["perturbation"], float("nan"))
    values |= {
        "cosine_loss": undefined,
        "readout_cosine_loss": undefined,
        "l2_ratio": values["scaled_perturbation"],
        "gradient_norm": norm(gradient),
    }
    if block.keeps_shape:
        change = change_of(before, after)
        values["cosine_loss"] = cosine(change, gradient)
        if readout_gradient is not None:
            values["readout_cosine_loss"] = cosine(change, readout_gradient)
    return values


def _perturbations(block, before, after):
    """Returns both metrics of one block per image, by name; NaN for a block without an F."""
    size_before = norm(before)
    if not block.keeps_shape:
        return dict.fromkeys(PERTURBATION_METRICS, ops.full_like(size_before, float("nan")))
    size = norm(change_of(before, after))
    return {"perturbation": size, "scaled_perturbation": ratio(size, size_before)}
