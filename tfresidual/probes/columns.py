"""What the columns of frames hold.

A column that is not named here holds numbers, NaN where there is nothing to measure.
"""

from __future__ import annotations

from tfresidual.machine.tables import NUMBER, TEXT, Kind, between, whole
from tfresidual.probes.convergence_indices import MEAN
from tfresidual.probes.perturbation import ALL_STAGES

_COSINE, _SHARE = between(-1, 1), between(0, 1)
_KINDS = {
    **dict.fromkeys(
        ("split", "basis", "along", "group", "part", "role", "reading", "chance_from"), TEXT
    ),
    "stage": whole(1, ALL_STAGES, MEAN),
    "block": whole(-1),
    "epoch": whole(-1),
    **dict.fromkeys(("repetition", "swaps", "draw", "position", "images", "blocks"), whole(0)),
    **dict.fromkeys(("cosine_loss", "readout_cosine_loss", "rank_correlation"), _COSINE),
    **dict.fromkeys(
        ("error", "accuracy", "agreement", "chance", "unperturbed_error", "readout_error"), _SHARE
    ),
}
# The columns that tell the rows of a frame apart.
KEYS = (
    *("split", "epoch", "basis", "along", "group", "stage", "block", "position", "part", "role"),
    *("repetition", "scale", "swaps", "draw"),
)
# The columns that a frame has in any version of the package.
_BLOCKS, _REPETITIONS = ("stage", "block"), ("stage", "repetition")
REQUIRED = {
    "attribution": (*_BLOCKS, "part", "attribution"),
    "block_metrics": (*_BLOCKS, "cosine_loss", "l2_ratio", "gradient_norm", "perturbation"),
    "block_metrics_by_epoch": ("epoch", *_BLOCKS),
    "borderline": ("along", *_BLOCKS, "group", "images", "accuracy"),
    "computational_distance": ("stage", "blocks", "distance"),
    "convergence_indices": ("basis", "stage", "convergence_index", "error", "chance"),
    "drop_blocks": (*_BLOCKS, "error"),
    "effective_parameters": ("raw", "effective"),
    "first_order": (*_BLOCKS, "first_order", "loss_change"),
    "fixed_point": (*_REPETITIONS, "change"),
    "lens": (*_BLOCKS, "cross_entropy"),
    "line_element": (*_BLOCKS, "length"),
    "lipschitz": (*_BLOCKS, "estimate"),
    "patching": (*_BLOCKS, "effect"),
    "readout": (*_BLOCKS, "error"),
    "repeat_last_block": (*_REPETITIONS, "error", "distance"),
    "repetition_metrics": (*_REPETITIONS, "distance", "cosine_loss"),
    "repetition_metrics_scaled": (*_REPETITIONS, "distance", "cosine_loss"),
    "shuffle_blocks": ("stage", "swaps", "draw", "error"),
    "signal_propagation": (*_BLOCKS, "state_norm"),
    "trained_blocks": (*_BLOCKS, "cosine_loss"),
    "weight_deviations": (*_BLOCKS, "role", "deviation"),
}


def kind_of(column: str) -> Kind:
    """Returns what a column of a frame holds."""
    return _KINDS.get(column, NUMBER)
