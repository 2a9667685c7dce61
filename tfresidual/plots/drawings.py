"""The drawing of every figure of a frame, by the name of its function."""

from tfresidual.declarations import ZERO, Drawing, Level, Line, Panel


def _of_blocks(title, label, column, scale="wide", levels=(), sparse=False):
    """Returns the drawing of one column of the blocks, over the epochs if there are several."""
    panel = Panel(label, (Line(column),), scale, levels)
    return Drawing(title, (panel,), dash="split", epochs="panels", sparse=sparse)


_RUNS = {"over": "setting", "below": "coupling (initialization)", "keys": ()}
_INDICES = ("convergence", "recurrence", "divergence")
_DEVIATION = "mean deviation from the stage's mean\n(standardised)"

DRAWINGS = {
    "cosine_loss": _of_blocks(
        "Cosine loss",
        "cosine of block output F(h)\nand loss gradient ∂L/∂h",
        "cosine_loss",
        "linear",
        (ZERO,),
    ),
    "readout_cosine_loss": _of_blocks(
        "Cosine loss, read-out form",
        "cosine of block output F(h) and\ngradient of the read-out loss",
        "readout_cosine_loss",
        "linear",
        (ZERO,),
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
        levels=(Level(argument="epsilon", name="ε = {:g}", dash="--"),),
    ),
    "readout": _of_blocks(
        "Early read-out", "accuracy with the stage\nended after the block", "1 - error", "share"
    ),
    "drop_blocks": _of_blocks(
        "Dropped block",
        "accuracy without the block",
        "1 - error",
        "share",
        (Level(column="1 - unperturbed_error", name="no block dropped", dash=":"),),
    ),
    "first_order": Drawing(
        "First-order share",
        (
            Panel(
                "mean change of the loss",
                (
                    Line("loss_change", "with and without the block"),
                    Line("first_order", "predicted at its input", "--"),
                    Line("first_order_after", "predicted at its output", ":"),
                ),
                "signed",
                (ZERO,),
                height=3,
            ),
            Panel(
                "rank correlation\nover the images",
                (
                    Line("rank_correlation", dash="--"),
                    Line("rank_correlation_after", dash=":"),
                ),
                levels=(ZERO,),
                height=2,
            ),
        ),
    ),
    "line_element": Drawing(
        "Line element",
        (
            Panel("length of the step", (Line("length"),), "wide"),
            Panel(
                "parts of its square",
                (
                    Line("layer_part", "across the layers, ‖F(h)‖²"),
                    Line("spatial_part", "at the last state, ‖J F(h)‖²", "--"),
                ),
                "wide",
            ),
        ),
    ),
    "signal_propagation": Drawing(
        "Signal propagation",
        (
            Panel("norm of the state after\nthe block", (Line("state_norm"),), "log"),
            Panel("norm of the loss gradient\nthere", (Line("state_gradient_norm"),), "log"),
            Panel("share of the gradient\nthrough shortcuts", (Line("shortcut_share"),), "signed"),
        ),
        dash="split",
        epochs="colours",
    ),
    "lipschitz_bounds": Drawing(
        "Lipschitz bounds",
        (
            Panel(
                "bound of the branch's\nLipschitz constant",
                (
                    Line("estimate", "estimate", band="certified"),
                    Line("certified", "certified", ":"),
                ),
                "wide",
                (Level(argument="mu", name="μ = {:g}", dash="--"),),
                height=3,
            ),
            Panel("divisor of the branch", (Line("divisor"),), "wide", (Level(1.0),), height=2),
        ),
        gap="has no bound",
    ),
    "weight_deviations": Drawing(
        "Weight deviations",
        (Panel(_DEVIATION, (Line("deviation"),), from_zero=True),),
        keys=("stage", "block", "role"),
        colour="layer",
        dash="variable",
    ),
    "lens": Drawing(
        "Lens",
        (
            Panel(
                "nats",
                (Line("cross_entropy", "cross-entropy"), Line("entropy", "entropy", "--")),
                "wide",
                height=3,
            ),
            Panel("KL to final, nats", (Line("kl"),), "wide", height=2),
            Panel("rank of the label", (Line("rank"),), "wide", height=2),
        ),
        "state",
        "after block",
    ),
    "attribution": Drawing(
        "Attribution",
        (
            Panel("part of the logit", (Line("attribution", mark="bar"),), levels=(ZERO,)),
            Panel("sum of the parts so far", (Line("attribution", mark="sum"),), levels=(ZERO,)),
        ),
        "state",
        "part",
    ),
    "patching": Drawing(
        "Patching",
        (
            Panel(
                "effect on the logit\n(1: as in the other run)",
                (Line("effect"),),
                levels=(ZERO, Level(1.0, dash="--")),
            ),
        ),
        "state",
        "after block",
    ),
    "patching of positions": Drawing(
        "Patching",
        (
            Panel(
                "position",
                (Line("effect", "effect on the logit (1: as in the other run)", mark="map"),),
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
            Panel("cosine loss", (Line("cosine_loss"),), levels=(ZERO,)),
            Panel("l2 ratio ‖F(h)‖ / ‖h‖", (Line("l2_ratio"),), "wide"),
            Panel("intermediate accuracy", (Line("1 - readout_error"),), "share"),
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
            Panel("change of the state per repetition", (Line("change"),), "log"),
            Panel("distance to the last state", (Line("distance"),), "log"),
            Panel(
                "contraction: change over\nthe previous change",
                (Line("contraction", band="largest_contraction"),),
                levels=(Level(argument="mu", name="μ = {:g} per repetition", dash=":"),),
                from_zero=True,
            ),
        ),
        "repetition",
        "extra applications of the last block",
        keys=("stage", "repetition"),
        colour="stage",
        dash="split",
        rows=(),
        columns=("panel",),
    ),
    "convergence_curves": Drawing(
        "Stages, and their last blocks",
        (
            Panel("cross-entropy", (Line("cross_entropy"),), "wide"),
            Panel("distance to final state", (Line("distance"),), "wide"),
        ),
        "applied",
        "number of blocks applied",
        colour="stage",
        dash="split",
        rows=(),
        columns=("panel",),
    ),
    "repetition_metrics": Drawing(
        "Repeated last block",
        (
            Panel(
                "cosine of step F(h)\nand loss gradient ∂L/∂h",
                (Line("cosine_loss"),),
                levels=(ZERO,),
            ),
            Panel("size of step over state\n‖F(h)‖ / ‖h‖", (Line("l2_ratio"),), "wide"),
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
            Panel(
                "error",
                (Line("error"),),
                "share",
                (
                    Level(column="unperturbed_error", name="unperturbed", dash=":"),
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
            Panel(
                "error",
                (Line("error", mark="dots"),),
                "share",
                (Level(column="unperturbed_error", name="order kept", dash=":"),),
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
            Panel("accuracy", (Line("accuracy"),), "share"),
            Panel("cross-entropy", (Line("cross_entropy"),), "wide"),
            Panel("entropy", (Line("entropy"),), "wide"),
        ),
        "place",
        keys=("block", "group"),
        colour="group",
        dash="split",
        rows=(),
        columns=("panel",),
    ),
    "computational_distance": Drawing(
        "Computational distance",
        (
            Panel(
                "sum of ‖F(h)‖ over the blocks", (Line("distance", mark="bar"),), title="absolute"
            ),
            Panel(
                "sum of ‖F(h)‖ / ‖h‖ over the blocks",
                (Line("scaled_distance", mark="bar"),),
                title="scaled",
            ),
        ),
        "stage",
        "",
        keys=("stage",),
        rows=(),
        columns=("panel",),
    ),
    "convergence_indices": Drawing(
        "Convergence indices",
        tuple(
            Panel("index", (Line(f"{index}_index", mark="dots"),), title=f"{index} index")
            for index in _INDICES
        ),
        "place",
        "",
        keys=("stage", "basis"),
        colour="stage",
        dash="basis",
        rows=(),
        columns=("panel",),
    ),
    "training_curves": Drawing(
        "Training",
        (),
        "epoch",
        "epoch",
        dash="split",
        rows=(),
        columns=("panel",),
        wrap=2,
    ),
    "network_curves": Drawing(
        "Networks compared",
        (),
        "epoch",
        "epoch",
        colour="network",
        dash="split",
        rows=(),
        columns=("panel",),
        share_x=False,
    ),
    "indices_of_runs": Drawing(
        "Convergence indices of the runs",
        tuple(
            Panel("index", (Line(index, mark="means"),), title=f"{index} index")
            for index in _INDICES
        ),
        **_RUNS,
        colour="hue",
        dash="dash",
        means="setting",
        rows=("level",),
        columns=("panel",),
        share_y=True,
    ),
    "error_of_runs": Drawing(
        "Errors of the runs",
        (
            Panel("error", (Line("error", mark="means"),), "share", title="held-out images"),
            Panel("error", (Line("train_error", mark="means"),), "share", title="training images"),
        ),
        **_RUNS,
        colour="hue",
        dash="dash",
        means="setting",
        rows=(),
        columns=("level", "panel"),
        wrap=3,
    ),
    "deviation_of_runs": Drawing(
        "Deviation of the weights",
        (Panel(_DEVIATION, (Line("deviation", mark="means"),), from_zero=True),),
        **_RUNS,
        colour="hue",
        dash="dash",
        means="setting",
    ),
    "error_against_indices": Drawing(
        "Errors and indices",
        tuple(
            Panel(
                "error",
                (Line("error", mark="means", across=index),),
                "share",
                below=f"{index} index",
            )
            for index in _INDICES
        ),
        "index",
        keys=(),
        colour="hue",
        marker="setting",
        means="setting",
        rows=(),
        columns=("panel",),
        share_x=False,
        share_y=True,
    ),
    "parameter_efficiency": Drawing(
        "Parameter efficiency",
        tuple(
            Panel(
                up.replace("_", " "),
                (Line(up, mark="means", across=across),),
                scale,
                below=across.replace("_", " "),
            )
            for across, up, scale in (
                ("raw_parameters", "effective_parameters", "log"),
                ("raw_parameters", "error", "share"),
                ("effective_parameters", "error", "share"),
            )
        ),
        "parameters",
        keys=(),
        colour="setting",
        dash="dash",
        means="hue",
        rows=(),
        columns=("panel",),
        share_x=False,
    ),
}
