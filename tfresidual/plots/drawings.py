"""The drawing of every figure of a frame, by the name of its function."""

from typing import Any

from tfresidual.declarations import ZERO, Drawing, Level, Line, Panel


def _panel(label, *lines, **settings):
    """Returns a panel; a text among its lines is the column of a plain line."""
    lines = tuple(Line(line) if isinstance(line, str) else line for line in lines)
    return Panel(label, lines, **settings)


def _of_blocks(title, label, column, scale="wide", *levels, sparse=False):
    """Returns the drawing of one column of the blocks, over the epochs if there are several."""
    panel = _panel(label, column, scale=scale, levels=levels)
    return Drawing(title, (panel,), dash="split", epochs="panels", sparse=sparse)


_SIDE_BY_SIDE: dict[str, Any] = {"rows": (), "columns": ("panel",)}
_OF_STAGES: dict[str, Any] = {"colour": "stage", "dash": "split", **_SIDE_BY_SIDE}
_OF_RUNS: dict[str, Any] = {
    "over": "setting",
    "below": "coupling (initialization)",
    "colour": "hue",
    "dash": "dash",
    "means": "setting",
}
_INDICES = ("convergence", "recurrence", "divergence")
_DEVIATION = "mean deviation from the stage's mean\n(standardised)"
_UNPERTURBED: dict[str, Any] = {"column": "unperturbed_error", "dash": ":"}
_PARAMETERS = (
    ("raw_parameters", "effective_parameters", "log"),
    ("raw_parameters", "error", "share"),
    ("effective_parameters", "error", "share"),
)

DRAWINGS = {
    "cosine_loss": _of_blocks(
        "Cosine loss",
        "cosine of block output F(h)\nand loss gradient ∂L/∂h",
        "cosine_loss",
        "linear",
        ZERO,
    ),
    "readout_cosine_loss": _of_blocks(
        "Cosine loss, read-out form",
        "cosine of block output F(h) and\ngradient of the read-out loss",
        "readout_cosine_loss",
        "linear",
        ZERO,
        sparse=True,
    ),
    "l2_ratio": _of_blocks("l2 ratio", "size of block output over input\n‖F(h)‖ / ‖h‖", "l2_ratio"),
    "gradient_norm": _of_blocks(
        "Gradient norm", "size of loss gradient at the\nblock input ‖∂L/∂h‖", "gradient_norm"
    ),
    "perturbation": _of_blocks(
        "Perturbation", "distance the block moves\nthe state ‖F(h)‖", "perturbation"
    ),
    "scaled_perturbation": _of_blocks(
        "Scaled perturbation",
        "distance moved over size of state\n‖F(h)‖ / ‖h‖",
        "scaled_perturbation",
        "wide",
        Level(argument="epsilon", name="ε = {:g}", dash="--"),
    ),
    "readout": _of_blocks(
        "Early read-out", "accuracy with the stage\nended after the block", "1 - error", "share"
    ),
    "drop_blocks": _of_blocks(
        "Dropped block",
        "accuracy without the block",
        "1 - error",
        "share",
        Level(column="1 - unperturbed_error", name="no block dropped", dash=":"),
    ),
    "first_order": Drawing(
        "First-order share",
        (
            _panel(
                "mean change of the loss",
                Line("loss_change", "with and without the block"),
                Line("first_order", "predicted at its input", "--"),
                Line("first_order_after", "predicted at its output", ":"),
                scale="signed",
                levels=(ZERO,),
                height=3,
            ),
            _panel(
                "rank correlation\nover the images",
                Line("rank_correlation", dash="--"),
                Line("rank_correlation_after", dash=":"),
                levels=(ZERO,),
                height=2,
            ),
        ),
    ),
    "line_element": Drawing(
        "Line element",
        (
            _panel("length of the step", "length", scale="wide"),
            _panel(
                "parts of its square",
                Line("layer_part", "across the layers, ‖F(h)‖²"),
                Line("spatial_part", "at the last state, ‖J F(h)‖²", "--"),
                scale="wide",
            ),
        ),
    ),
    "signal_propagation": Drawing(
        "Signal propagation",
        (
            _panel("norm of the state after\nthe block", "state_norm", scale="log"),
            _panel("norm of the loss gradient\nthere", "state_gradient_norm", scale="log"),
            _panel("share of the gradient\nthrough shortcuts", "shortcut_share", scale="signed"),
        ),
        dash="split",
        epochs="colours",
    ),
    "lipschitz_bounds": Drawing(
        "Lipschitz bounds",
        (
            _panel(
                "bound of the branch's\nLipschitz constant",
                Line("estimate", "estimate", band="certified"),
                Line("certified", "certified", ":"),
                scale="wide",
                levels=(Level(argument="mu", name="μ = {:g}", dash="--"),),
                height=3,
            ),
            _panel(
                "divisor of the branch", "divisor", scale="wide", levels=(Level(1.0),), height=2
            ),
        ),
        gap="has no bound",
    ),
    "weight_deviations": Drawing(
        "Weight deviations",
        (_panel(_DEVIATION, "deviation", from_zero=True),),
        keys=("stage", "block", "role"),
        colour="layer",
        dash="variable",
    ),
    "lens": Drawing(
        "Lens",
        (
            _panel(
                "nats",
                Line("cross_entropy", "cross-entropy"),
                Line("entropy", "entropy", "--"),
                scale="wide",
                height=3,
            ),
            _panel("KL to final, nats", "kl", scale="wide", height=2),
            _panel("rank of the label", "rank", scale="wide", height=2),
        ),
        "state",
        "after block",
    ),
    "attribution": Drawing(
        "Attribution",
        (
            _panel("part of the logit", Line("attribution", mark="bar"), levels=(ZERO,)),
            _panel("sum of the parts so far", Line("attribution", mark="sum"), levels=(ZERO,)),
        ),
        "state",
        "part",
    ),
    "patching": Drawing(
        "Patching",
        (
            _panel(
                "effect on the logit\n(1: as in the other run)",
                "effect",
                levels=(ZERO, Level(1.0, dash="--")),
            ),
        ),
        "state",
        "after block",
    ),
    "patching of positions": Drawing(
        "Patching",
        (
            _panel(
                "position",
                Line("effect", "effect on the logit (1: as in the other run)", mark="map"),
            ),
        ),
        "state",
        "after block",
        keys=("stage", "block", "position"),
        rows=("split",),
    ),
    "iterative_inference": Drawing(
        "Iterative inference",
        (
            _panel("cosine loss", "cosine_loss", levels=(ZERO,)),
            _panel("l2 ratio ‖F(h)‖ / ‖h‖", "l2_ratio", scale="wide"),
            _panel("intermediate accuracy", "1 - readout_error", scale="share"),
        ),
        "epoch",
        "epoch",
        keys=("stage", "block", "epoch"),
        colour="block",
        rows=("split", "stage"),
        columns=("panel",),
    ),
    "fixed_point": Drawing(
        "The last block applied again",
        (
            _panel("change of the state per repetition", "change", scale="log"),
            _panel("distance to the last state", "distance", scale="log"),
            _panel(
                "contraction: change over\nthe previous change",
                Line("contraction", band="largest_contraction"),
                levels=(Level(argument="mu", name="μ = {:g} per repetition", dash=":"),),
                from_zero=True,
            ),
        ),
        "repetition",
        "extra applications of the last block",
        keys=("stage", "repetition"),
        **_OF_STAGES,
    ),
    "convergence_curves": Drawing(
        "Stages, and their last blocks",
        (
            _panel("cross-entropy", "cross_entropy", scale="wide"),
            _panel("distance to final state", "distance", scale="wide"),
        ),
        "applied",
        "number of blocks applied",
        **_OF_STAGES,
    ),
    "repetition_metrics": Drawing(
        "Repeated last block",
        (
            _panel("cosine of step F(h)\nand loss gradient ∂L/∂h", "cosine_loss", levels=(ZERO,)),
            _panel("size of step over state\n‖F(h)‖ / ‖h‖", "l2_ratio", scale="wide"),
        ),
        "repetition",
        "repetition of the last block (0: as trained)",
        keys=("stage", "repetition"),
        dash="split",
        columns=("stage",),
        wrap=0,
    ),
    "route_errors": Drawing(
        "Errors on changed routes",
        tuple(
            _panel(
                "error",
                "error",
                scale="share",
                levels=(
                    Level(name="unperturbed", **_UNPERTURBED),
                    Level(argument="chance", name="chance", dash="--"),
                ),
                title=title,
                below=below,
                from_zero=True,
            )
            for title, below in (
                ("convergence", "number of evaluated blocks"),
                ("recurrence", "dropped block"),
                ("divergence", "repetitions of the last block"),
            )
        ),
        "place",
        colour="stage",
        rows=("split",),
        columns=("panel",),
        share_x="col",
        share_y=True,
    ),
    "shuffle_blocks": Drawing(
        "Shuffled blocks",
        (
            _panel(
                "error",
                Line("error", mark="dots"),
                scale="share",
                levels=(Level(name="order kept", **_UNPERTURBED),),
                from_zero=True,
            ),
        ),
        "kendall_tau",
        "Kendall's τ of the order and the trained one (1: order kept)",
        rows=(),
        columns=("stage",),
    ),
    "borderline": Drawing(
        "Borderline images",
        (
            _panel("accuracy", "accuracy", scale="share"),
            _panel("cross-entropy", "cross_entropy", scale="wide"),
            _panel("entropy", "entropy", scale="wide"),
        ),
        "place",
        colour="group",
        dash="split",
        **_SIDE_BY_SIDE,
    ),
    "computational_distance": Drawing(
        "Computational distance",
        tuple(
            _panel(f"sum of {what} over the blocks", Line(column, mark="bar"), title=title)
            for what, column, title in (
                ("‖F(h)‖", "distance", "absolute"),
                ("‖F(h)‖ / ‖h‖", "scaled_distance", "scaled"),
            )
        ),
        "stage",
        "",
        **_SIDE_BY_SIDE,
    ),
    "convergence_indices": Drawing(
        "Convergence indices",
        tuple(
            _panel("index", Line(f"{index}_index", mark="dots"), title=f"{index} index")
            for index in _INDICES
        ),
        "place",
        "",
        colour="stage",
        dash="basis",
        **_SIDE_BY_SIDE,
    ),
    "training_curves": Drawing(
        "Training", (), "epoch", "epoch", dash="split", **_SIDE_BY_SIDE, wrap=2
    ),
    "network_curves": Drawing(
        "Networks compared",
        (),
        "epoch",
        "epoch",
        colour="network",
        dash="split",
        **_SIDE_BY_SIDE,
        share_x="col",
    ),
    "indices_of_runs": Drawing(
        "Convergence indices of the runs",
        tuple(
            _panel("index", Line(index, mark="means"), title=f"{index} index") for index in _INDICES
        ),
        **_OF_RUNS,
        rows=("level",),
        columns=("panel",),
        share_y=True,
    ),
    "error_of_runs": Drawing(
        "Errors of the runs",
        tuple(
            _panel("error", Line(column, mark="means"), scale="share", title=f"{images} images")
            for column, images in (("error", "held-out"), ("train_error", "training"))
        ),
        **_OF_RUNS,
        rows=(),
        columns=("level", "panel"),
    ),
    "deviation_of_runs": Drawing(
        "Deviation of the weights",
        (_panel(_DEVIATION, Line("deviation", mark="means"), from_zero=True),),
        **_OF_RUNS,
    ),
    "error_against_indices": Drawing(
        "Errors and indices",
        tuple(
            _panel(
                "error",
                Line("error", mark="means", across=index),
                scale="share",
                below=f"{index} index",
            )
            for index in _INDICES
        ),
        "index",
        colour="hue",
        marker="setting",
        means="setting",
        **_SIDE_BY_SIDE,
        share_x="col",
        share_y=True,
    ),
    "parameter_efficiency": Drawing(
        "Parameter efficiency",
        tuple(
            _panel(
                up.replace("_", " "),
                Line(up, mark="means", across=across),
                scale=scale,
                below=across.replace("_", " "),
            )
            for across, up, scale in _PARAMETERS
        ),
        "parameters",
        colour="setting",
        dash="dash",
        means="hue",
        **_SIDE_BY_SIDE,
        share_x="col",
    ),
}
