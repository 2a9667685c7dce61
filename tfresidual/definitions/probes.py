"""What the probes measure and how it is shown, in the order of reports.

Driver, command line, studies, reports, callbacks and the tables of docs/concepts/metrics.md take
what they need from here. Neither TensorFlow nor matplotlib is loaded for it.
"""

from tfresidual.definitions.declarations import (
    BOUNDS,
    IMAGES,
    LINES,
    ROUTES,
    TRAINING,
    UNROLLED,
    UNROLLED_SCALE,
    ZERO,
    Column,
    Drawing,
    Figure,
    Level,
    Line,
    Panel,
    Probe,
    Study,
    over_blocks,
)

PROBES: dict[str, Probe] = {}


def _declare(name, **declared):
    PROBES[name] = Probe(name, **declared)


_declare(
    "block_metrics",
    frames={
        "block_metrics": (
            "stage",
            "block",
            "cosine_loss",
            "l2_ratio",
            "gradient_norm",
            "perturbation",
        ),
        "computational_distance": ("stage", "blocks", "distance"),
    },
    columns={
        "cosine_loss_below_zero": Column(
            "share of the images whose `cosine_loss` is below 0",
            at_least=0,
            at_most=1,
            low="for most images, the block raises the loss, to first order",
            high="for most images, it lowers it",
        ),
        "cosine_loss": Column(
            "cosine of `F` and `g`",
            at_least=-1,
            at_most=1,
            low="below 0, the block steps down the loss",
            high="near 0, its effect shows only after later blocks; above 0, it steps up",
            paper="II 4.1, fig. 4",
        ),
        "readout_cosine_loss": Column(
            "cosine of `F` and the gradient of the head applied directly to `h`; last stage only",
            at_least=-1,
            at_most=1,
            low="the block improves what could be read out already",
            high="as above",
            paper="II fig. 13",
        ),
        "l2_ratio": Column(
            "norm of `F` over norm of `h`",
            at_least=0,
            low="the block adjusts the state; to first order the cosine tells the change of the "
            "loss",
            high="near or above 1, the block replaces the state, and the cosine tells little",
            paper="II fig. 2",
        ),
        "gradient_norm": Column(
            "norm of `g`",
            at_least=0,
            low="falls by orders of magnitude along the network: vanishing",
            high="exploding",
            paper="II fig. 8",
        ),
        "perturbation": Column(
            "norm of `F`", at_least=0, low="a small step", high="a large step", paper="PI fig. 2"
        ),
        "scaled_perturbation": Column(
            "`l2_ratio` by another name",
            at_least=0,
            low="close to the identity",
            high="far from it",
            paper="PI fig. 5",
        ),
        "distance": Column(
            "sum of the perturbations of the blocks of a stage, 0 if none keeps the shape; of "
            "routes, see below",
            at_least=0,
            low="an image moves little on its way through the stage",
            high="it moves far",
            paper="PI fig. 3",
            of="computational_distance",
        ),
        "scaled_distance": Column(
            "sum of the scaled perturbations of a stage",
            at_least=0,
            low="as `distance`, each step relative to where it starts",
            paper="PI fig. 6",
            of="computational_distance",
        ),
        "mean_perturbation": Column(
            "`distance` over the number of blocks",
            at_least=0,
            low="a block moves an image little",
            high="it moves it far",
            paper="PI fig. 4",
            of="computational_distance",
        ),
        "mean_scaled_perturbation": Column(
            "`scaled_distance` over the number of blocks",
            at_least=0,
            low="the stopping rule asks for `epsilon` or less",
            high="more blocks are asked for",
            paper="PI fig. 7",
            of="computational_distance",
        ),
        "depth_asked_for": Column(
            "`scaled_distance` over `epsilon` (0.1 by default), rounded up: blocks that keep the "
            "shape; `depth` in the logs of `Perturbation`",
            at_least=0,
            high="how many blocks the rule asks for, *if* the distance stays as it is in a deeper "
            "network",
            paper="PI 2.3",
            of="DepthSearch.trace",
        ),
    },
    published={
        "cosine_loss": "keeping",
        "readout_cosine_loss": "last keeping",
        "l2_ratio": "keeping",
        "gradient_norm": "all",
    },
    figures=(
        Figure(
            name="cosine_loss",
            decision="At 0 with a small step: a candidate to take out; `drop_blocks` says what "
            "that costs.",
            column="cosine_loss",
            title="Do blocks move down the loss gradient?",
            question="The cosine between what a block adds to the state and the gradient of the "
            "loss there, averaged over images.",
            reading="Below zero, what a block adds points to where the loss falls, to first order "
            "and in the mean over the images: single images may have the other sign, and the mean "
            "loss need not fall, which 'Does the gradient predict what a block does?' shows. The "
            "band is one standard error to either side. Near zero, the step is perpendicular to "
            "the gradient. Columns whose names end in _se are standard errors over the images. "
            "Blocks that change the shape of the state do not add to their input and are left out.",
            source="Jastrzebski et al. 2018, figure 4",
            frames=("block_metrics",),
            has_table=True,
            finding="cosine_loss",
            drawing=over_blocks(
                "Cosine loss",
                "cosine of block output F(h)\nand loss gradient ∂L/∂h",
                "cosine_loss",
                levels=(ZERO,),
            ),
        ),
        Figure(
            name="l2_ratio",
            shown_by="scaled_perturbation",
            column="l2_ratio",
            title="How much does a block change?",
            question="The norm of what a block adds, divided by the norm of its input.",
            reading="A block with a ratio near or above 1 replaces much of the state; one with a "
            "small ratio adjusts it. The smaller the ratio, the better the cosine above predicts "
            "how the loss changes.",
            source="Jastrzebski et al. 2018, figure 2",
            frames=("block_metrics",),
            drawing=over_blocks(
                "l2 ratio",
                "size of block output over input\n‖F(h)‖ / ‖h‖",
                "l2_ratio",
                scale="wide",
            ),
        ),
        Figure(
            name="gradient_norm",
            decision="Orders of magnitude between the first and the last block: change shortcut, "
            "normalization or first weights before you train longer.",
            column="gradient_norm",
            title="How large is the gradient?",
            question="The norm of the loss gradient of an image at the state before each block.",
            reading="A norm that grows or shrinks by orders of magnitude along the network "
            "indicates exploding or vanishing gradients.",
            frames=("block_metrics",),
            drawing=over_blocks(
                "Gradient norm",
                "size of loss gradient at the\nblock input ‖∂L/∂h‖",
                "gradient_norm",
                scale="wide",
            ),
        ),
        Figure(
            name="perturbation",
            column="perturbation",
            title="Perturbation",
            question="The norm of what each block adds to the state.",
            reading="The heights are an image's steps on its way through the network; the steps "
            "of a stage add up to the distance it travels there.",
            source="Hauser 2019, figure 2",
            frames=("block_metrics",),
            drawing=over_blocks(
                "Perturbation",
                "distance the block moves\nthe state ‖F(h)‖",
                "perturbation",
                scale="wide",
            ),
        ),
        Figure(
            name="scaled_perturbation",
            decision="Under epsilon in every stage: by the stopping rule of the depth search, "
            "more blocks would add little.",
            column="scaled_perturbation",
            title="Scaled perturbation",
            question="The norm of what each block adds, divided by the norm of the state: the "
            "step relative to where it starts.",
            reading="The dashed line is the mean that the stopping rule allows for a stage. The "
            "closer a block is to 0, the closer it is to the identity.",
            source="Hauser 2019, figure 5",
            frames=("block_metrics",),
            drawing=over_blocks(
                "Scaled perturbation",
                "distance moved over size of state\n‖F(h)‖ / ‖h‖",
                "scaled_perturbation",
                scale="wide",
                levels=(Level(argument="epsilon", name="ε = {:g}", dash="--"),),
            ),
        ),
        Figure(
            name="computational_distance",
            decision="The scaled distance, divided by epsilon, estimates how many blocks a stage "
            "needs.",
            column="distance",
            title="Distance through each stage",
            question="The steps of all blocks of a stage added up, absolute and scaled; in the "
            "table of a report, also the number of blocks at which the mean scaled step would "
            "fall to epsilon.",
            reading="A stage without a block that keeps the shape has nothing to add up: 0. A "
            "stage with fewer blocks than the depth asked for takes larger steps than the "
            "stopping rule allows; the rule assumes that the distance stays the same in a deeper "
            "network.",
            source="Hauser 2019, figures 3 and 6, section 2.3",
            has_table=True,
            drawing=Drawing(
                "Computational distance",
                (
                    Panel(
                        "sum of ‖F(h)‖ over the blocks",
                        (Line("distance", mark="bar"),),
                        title="absolute",
                    ),
                    Panel(
                        "sum of ‖F(h)‖ / ‖h‖ over the blocks",
                        (Line("scaled_distance", mark="bar"),),
                        title="scaled",
                    ),
                ),
                "stage",
                "",
                keys=(),
                texts=("stage",),
                rows=(),
                columns=("panel",),
            ),
        ),
        Figure(
            name="cosine_loss_by_epoch",
            group=TRAINING,
            column="cosine_loss",
            title="The cosine over training",
            question="The cosine between block output and loss gradient on validation images, "
            "epoch by epoch.",
            reading=LINES,
            source="Jastrzebski et al. 2018, figure 13, with the gradient through the network",
            frames=("block_metrics_by_epoch",),
            draw="cosine_loss",
        ),
        Figure(
            name="readout_cosine_loss_by_epoch",
            group=TRAINING,
            column="readout_cosine_loss",
            title="The cosine of the read-out",
            question="The same in the last stage, with the gradient of the classifier applied "
            "straight to the block's input.",
            reading=LINES,
            source="Jastrzebski et al. 2018, figure 13",
            frames=("block_metrics_by_epoch",),
            draw="readout_cosine_loss",
            drawing=over_blocks(
                "Cosine loss, read-out form",
                "cosine of block output F(h) and\ngradient of the read-out loss",
                "readout_cosine_loss",
                levels=(ZERO,),
                sparse=True,
            ),
        ),
        Figure(
            name="l2_ratio_by_epoch",
            group=TRAINING,
            column="l2_ratio",
            title="The size of the steps over training",
            question="The norm of what a block adds over the norm of its input, epoch by epoch.",
            reading=LINES,
            source="Jastrzebski et al. 2018, figure 14",
            frames=("block_metrics_by_epoch",),
            draw="l2_ratio",
        ),
    ),
    studies=(Study(),),
)
_declare(
    "first_order",
    frames={"first_order": ("stage", "block", "first_order", "loss_change")},
    takes=("memory_limit",),
    needs=("classes",),
    columns={
        "first_order": Column(
            "scalar product of `F` and `g`",
            low="below 0 and equal to `loss_change`: the block acts like a gradient step",
            high="far from `loss_change`: the Taylor view does not hold for the block",
            paper="II 4.1",
        ),
        "loss_change": Column(
            "loss of the network minus its loss without the block",
            low="the block lowers the loss",
            high="the block raises it",
        ),
        "first_order_readout": Column(
            "scalar product of `F` and the gradient of the loss of the head applied to `h`",
            low="below 0 and equal to `readout_change`: the block acts like a gradient step",
            high="far from `readout_change`: the Taylor view does not hold for the block",
            paper="II eq. 2 to 4",
        ),
        "readout_change": Column(
            "loss of the head applied after the block minus that of the head applied before it",
            low="the block lowers the loss of the read-out",
            high="the block raises it",
            paper="II eq. 2",
        ),
        "rank_correlation": Column(
            "correlation of the ranks of the product and the change over the images",
            at_least=-1,
            at_most=1,
            high="near 1: the product tells which images gain more",
        ),
    },
    figures=(
        Figure(
            name="first_order",
            decision="Where both agree, one backward pass says what each block is worth; where "
            "they do not, only dropping it does.",
            column="loss_change",
            title="Does the gradient predict what a block does?",
            question="The loss of the network minus its loss without the block, and the scalar "
            "product of what the block adds with the gradient of the loss, at its input and at "
            "its output.",
            reading="Below zero, the block lowers the loss. Where the lines lie on one another, "
            "the block acts like a step along the gradient; a rank correlation of 1 means that "
            "the product tells which images gain more. Both are expected of blocks that change "
            "the state little.",
            source="Jastrzebski et al. 2018, equations 2 to 4",
            finding="first_order",
            drawing=Drawing(
                "First-order terms",
                (
                    Panel(
                        "mean change of the loss",
                        (
                            Line("loss_change", "with and without the block"),
                            Line("first_order", "predicted at its input", "--"),
                            Line("first_order_after", "predicted at its output", ":"),
                        ),
                        scale="signed",
                        levels=(ZERO,),
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
        ),
    ),
    studies=(Study(splits=("test",), images={"test": 512}),),
)
_declare(
    "signal_propagation",
    frames={"signal_propagation": ("stage", "block", "state_norm")},
    columns={
        "state_norm": Column(
            "norm of the state after the block",
            at_least=0,
            low="falls by orders of magnitude along the network: vanishing",
            high="exploding",
            paper="IM eq. 4",
        ),
        "shortcut_share": Column(
            "share of the gradient that comes from the end of the stage through the shortcuts "
            "alone",
            low="near 0: the branches carry it",
            high="near 1: the branches add nothing along the gradient",
            paper="IM eq. 8",
        ),
    },
    published={
        "state_norm": "all",
        "state_l1": "all",
        "state_gradient_norm": "all",
        "gradient_ratio": "all",
        "shortcut_share": "all",
        "shortcut_norm": "all",
        "shortcut_product": "all",
        "sum_deviation": "keeping",
    },
    figures=(
        Figure(
            name="signal_propagation",
            decision="Growth by orders of magnitude before training: scale, bound or normalize "
            "the branches.",
            column="state_norm",
            title="Do states and gradients grow?",
            question="The norms of the state and of the loss gradient after every block, and the "
            "share of the gradient that arrives from the end of the stage through the shortcuts "
            "alone.",
            reading="Norms that change by orders of magnitude along the network indicate "
            "exploding or vanishing states and gradients. A share of 1 means that the branches "
            "add nothing along the gradient.",
            source="He et al. 2016, equations 5 and 8",
            drawing=Drawing(
                "Signal propagation",
                (
                    Panel("norm of the state after\nthe block", (Line("state_norm"),), scale="log"),
                    Panel(
                        "norm of the loss gradient\nthere",
                        (Line("state_gradient_norm"),),
                        scale="log",
                    ),
                    Panel(
                        "share of the gradient\nthrough shortcuts",
                        (Line("shortcut_share"),),
                        scale="signed",
                    ),
                ),
                dash="split",
                epochs="colours",
            ),
        ),
    ),
    studies=(Study(splits=("test",)),),
)
_declare(
    "readout",
    frames={"readout": ("stage", "block", "error")},
    takes=("memory_limit",),
    needs=("classes",),
    columns={
        "error": Column(
            "share of the images that are classified wrongly: of several labels, those whose n "
            "highest outputs are not their n labels",
            at_least=0,
            at_most=1,
            paper="IC fig. 2a",
        ),
        "agreement": Column(
            "share of the images with the prediction of the whole network", at_least=0, at_most=1
        ),
    },
    published={"error": "exits", "cross_entropy": "exits", "entropy": "exits"},
    prefix="readout_",
    figures=(
        Figure(
            name="readout",
            group=ROUTES,
            shown_by="route_errors",
            column="error",
            title="Reading out early",
            question="The error of the network when a stage is left after each of its blocks and "
            "the next stage, or the classifier, follows immediately.",
            reading="A stage whose line falls in small steps comes closer to its result with "
            "every block; one whose line stays high until the last block builds something that "
            "can be read out only then.",
            source="Jastrzebski et al. 2018, figure 5, at the end of training",
            drawing=over_blocks(
                "Early read-out",
                "error with the stage\nleft after the block",
                "error",
                scale="share",
            ),
        ),
        Figure(
            name="readout_by_epoch",
            group=TRAINING,
            column="error",
            title="Reading out over training",
            question="The error on validation images when a stage is left after each of its "
            "blocks, epoch by epoch.",
            reading=(
                f"{LINES} If the lines are one above the other in this order, each further "
                "block comes closer to the answer."
            ),
            source="Jastrzebski et al. 2018, figure 5, and the same for the earlier stages",
            frames=("block_metrics_by_epoch",),
            draw="readout",
            renamed={"readout_error": "error"},
        ),
    ),
    measured_by="convergence_indices",
)
_declare(
    "lens",
    frames={"lens": ("stage", "block", "cross_entropy")},
    needs=("classes",),
    columns={
        "kl": Column(
            "divergence of the final prediction from that of the head after the block",
            at_least=0,
            low="0 where the prediction is made",
        ),
        "rank": Column(
            "rank of the label in the prediction of the head after the block",
            at_least=1,
            low="1: the label has the highest output",
        ),
    },
    published={
        "cross_entropy": "last exits",
        "rank": "last exits",
        "probability": "last exits",
        "kl": "last exits",
    },
    prefix="lens_",
    figures=(
        Figure(
            name="lens",
            decision="The answer stands from some block on: the blocks after it are candidates to "
            "take out.",
            group=IMAGES,
            column="cross_entropy",
            title="What does the head predict after every block?",
            question="The head applied directly to the states that have the shape of the last "
            "one: the cross-entropy and the entropy of its prediction, its divergence to the "
            "final prediction, and the rank of the label.",
            reading="Where the divergence reaches 0, the prediction is made. A rank of 1 means "
            "that the label has the highest output; of several labels it is the mean rank, with "
            "three of them 2 at best.",
            source="Jastrzebski et al. 2018, section 4.2, for the last stage",
            drawing=Drawing(
                "Lens",
                (
                    Panel(
                        "nats",
                        (Line("cross_entropy", "cross-entropy"), Line("entropy", "entropy", "--")),
                        scale="wide",
                        height=3,
                    ),
                    Panel("KL to final, nats", (Line("kl"),), scale="wide", height=2),
                    Panel("mean rank of the label", (Line("rank"),), scale="wide", height=2),
                ),
                "state",
                "after block",
            ),
        ),
    ),
    studies=(Study(splits=("test",)),),
)
_declare(
    "attribution",
    frames={"attribution": ("stage", "block", "part", "attribution")},
    needs=("classes",),
    columns={
        "attribution": Column(
            "what the block adds to the logit of the label",
            low="below 0, it lowers the logit",
            high="above 0, it raises it",
        )
    },
    published={"attribution": "blocks_with_part"},
    figures=(
        Figure(
            name="attribution",
            decision="The blocks that make this logit: where to look with `patching`.",
            group=IMAGES,
            column="attribution",
            title="Which blocks make the logit of the label?",
            question="The scalar product of what each block adds with the gradient of the label's "
            "logit at the last state, for the blocks that reach it through identity shortcuts.",
            reading="Above zero, a part raises the logit. The first part is that of all blocks "
            "before those shown. The last one, of the head, is what is left, so that the parts "
            "add up to the logit by definition: biases, and how far the head is from being "
            "linear. It is nearly the whole logit if the head begins with layer or RMS "
            "normalization, whose divisor changes with the state.",
            drawing=Drawing(
                "Attribution",
                (
                    Panel("part of the logit", (Line("attribution", mark="bar"),), levels=(ZERO,)),
                    Panel(
                        "sum of the parts so far",
                        (Line("attribution", mark="sum"),),
                        levels=(ZERO,),
                    ),
                ),
                "state",
                "part",
            ),
        ),
    ),
)
_declare(
    "drop_blocks",
    frames={"drop_blocks": ("stage", "block", "error")},
    takes=("memory_limit",),
    needs=("classes",),
    columns={
        "error_rise": Column(
            "error without the block minus that of the network",
            at_least=-1,
            at_most=1,
            low="within two standard errors (`error_rise_se`) of 0: nothing shows that the block "
            "is needed",
            high="the block is needed",
        ),
        "cross_entropy_rise": Column(
            "cross-entropy without the block minus that of the network, in nats",
            low="the network is as sure of the labels without the block",
            high="the block is needed",
        ),
    },
    published={"error": "keeping", "cross_entropy": "keeping", "agreement": "keeping"},
    prefix="drop_",
    figures=(
        Figure(
            name="drop_blocks",
            group=ROUTES,
            shown_by="route_errors",
            column="error",
            title="Which blocks are needed?",
            question="The error of the network without each of its blocks.",
            reading="The closer a point is to the dotted line of the whole network, the less the "
            "block is needed. Blocks that change the shape of the state cannot be dropped.",
            source="Jastrzebski et al. 2018, figures 3 and 12",
            drawing=over_blocks(
                "Dropped block",
                "error without the block",
                "error",
                scale="share",
                levels=(Level(column="unperturbed_error", name="no block dropped", dash=":"),),
            ),
        ),
        Figure(
            name="drop_blocks_by_epoch",
            group=TRAINING,
            column="error",
            title="Dropped blocks over training",
            question="The error without one block, epoch by epoch.",
            reading=(
                f"{LINES} The dotted line is the whole network. The further a line is above "
                "it, the more the block is needed."
            ),
            source="Jastrzebski et al. 2018, figure 3",
            draw="drop_blocks",
        ),
    ),
    measured_by="convergence_indices",
)
_declare(
    "convergence_indices",
    frames={
        "convergence_indices": ("basis", "stage", "convergence_index", "error", "chance"),
        "readout": ("stage", "block", "error"),
        "drop_blocks": ("stage", "block", "error"),
        "repeat_last_block": ("stage", "repetition", "error", "distance"),
    },
    needs=("classes",),
    columns={
        "convergence_index": Column(
            "how early a read-out has the final error",
            high="1: the first block already gives the final error",
            paper="IC 3.3",
        ),
        "recurrence_index": Column(
            "how much it matters which block is dropped",
            high="1: it does not matter which; over 1: the last is missed more than the others",
            paper="IC 3.3",
        ),
        "divergence_index": Column(
            "how much repeating the last block harms",
            low="0: no harm",
            high="1: chance at once",
            paper="IC 3.3",
        ),
        "chance": Column("error of guessing", at_least=0, at_most=1, paper="IC 3.3"),
    },
    figures=(
        Figure(
            name="route_errors",
            decision="Flat when left early or dropped: blocks can go (`tfresidual prune`). Flat "
            "when repeated: try one shared block.",
            group=ROUTES,
            column="error",
            title="Left early, dropped, repeated",
            question="The error when a stage is left early, when one of its blocks is dropped, "
            "and when its last block is repeated.",
            reading="An iterative method would come closer to the answer with every block, would "
            "hardly depend on which block is dropped, and would stay where it is when its last "
            "step is repeated.",
            source="Iterative convergent computation is not a useful inductive bias for ResNets, "
            "figure 2a",
            frames=("readout", "drop_blocks", "repeat_last_block", "convergence_indices"),
            drawing=Drawing(
                "Errors on changed routes",
                (
                    Panel(
                        "error",
                        (Line("error"),),
                        scale="share",
                        levels=(
                            Level(column="unperturbed_error", name="unperturbed", dash=":"),
                            Level(argument="chance", name="chance", dash="--"),
                        ),
                        from_zero=True,
                    ),
                ),
                "place",
                colour="stage",
                rows=("split",),
                columns=("panel",),
                share_x="col",
                share_y=True,
            ),
        ),
        Figure(
            name="convergence_indices",
            decision="Recurrence near 1: no block of the stage is decisive alone. Divergence near "
            "0: its last block can be repeated.",
            group=ROUTES,
            column="convergence_index",
            title="Convergence, recurrence, divergence",
            question="The three curves above, each as one number per stage: on the labels, and on "
            "agreement with the predictions of the whole network.",
            reading="Convergence is 1 when the first block already gives the final error; "
            "recurrence is 1 when it does not matter which block is dropped, and over 1 when the "
            "last block of the stage is missed more than the others; divergence is 0 when "
            "repetition does no harm and 1 when it leads to chance at once.",
            source="Iterative convergent computation is not a useful inductive bias for ResNets, "
            "figures 2b and 6a",
            has_table=True,
            finding="indices",
            drawing=Drawing(
                "Convergence indices",
                (
                    Panel(
                        "index",
                        (Line("convergence_index", mark="dots"),),
                        title="convergence index",
                        from_zero=True,
                    ),
                    Panel(
                        "index",
                        (Line("recurrence_index", mark="dots"),),
                        title="recurrence index",
                        from_zero=True,
                    ),
                    Panel(
                        "index",
                        (Line("divergence_index", mark="dots"),),
                        title="divergence index",
                        from_zero=True,
                    ),
                ),
                "stage",
                "stage",
                dash="basis",
                keys=(),
                texts=("stage", "basis"),
                rows=(),
                columns=("panel",),
            ),
        ),
        Figure(
            name="convergence_curves",
            group=ROUTES,
            column="cross_entropy",
            title="On the way to the last state, and past it",
            question="The cross-entropy, and the distance between the state that leaves a stage "
            "and the one that leaves it in the whole network, over the number of blocks applied "
            "and the repetitions of the last block.",
            reading="By definition, the distance is 0 at the trained number of blocks. If it then "
            "rises as fast as it fell, the state moves past its final value; if it stays near 0, "
            "the state has converged.",
            source="Iterative convergent computation is not a useful inductive bias for ResNets, "
            "figures 6b and 6c",
            frames=("readout", "repeat_last_block"),
            drawing=Drawing(
                "Stages, and their last blocks",
                (
                    Panel("cross-entropy", (Line("cross_entropy"),), scale="wide"),
                    Panel("distance to final state", (Line("distance"),), scale="wide"),
                ),
                "applied",
                "number of blocks applied",
                colour="stage",
                dash="split",
                rows=(),
                columns=("panel",),
            ),
        ),
    ),
    # A hundred routes.
    studies=(Study(images={"train": 768}),),
)
_declare(
    "block_importance",
    frames={"block_importance": ("stage", "block", "influence", "l2_ratio")},
    takes=("memory_limit",),
    needs=("classes",),
    columns={
        "influence": Column(
            "1 - cosine of the states before and after the block",
            at_least=0,
            at_most=2,
            low="the block hardly turns the state",
            high="it does",
            paper="Men et al. 2024",
        ),
        "angular_distance": Column(
            "angle between the states before a run of blocks and after it, over pi",
            at_least=0,
            at_most=1,
            low="the run hardly turns the state",
            high="it does",
            paper="Gromov et al. 2024, eq. 3",
        ),
        "predicted_rise": Column(
            "minus the scalar product of `F` and `g`: the rise of the loss without the block that "
            "the gradient predicts",
            low="below 0, the gradient says that the block raises the loss",
            high="it says that the block is needed",
            paper="II 4.1",
        ),
    },
    figures=(
        Figure(
            name="block_importance",
            decision="The block that is lowest by a criterion is the first that "
            "`surgery.plan(by=...)` takes out. It then measures again, since blocks that cost "
            "nothing one by one may cost much together.",
            column="influence",
            title="Which blocks could go?",
            question="How much the network needs each of its blocks, by several criteria.",
            reading="Where criteria agree that a block is low, it is a candidate; what it costs "
            "to take it out is the rise of error and cross-entropy. Blocks that change the shape "
            "of the state cannot be taken out.",
            source="Men et al. 2024; Gromov et al. 2024",
            drawing=Drawing(
                "Importance of the blocks",
                (
                    Panel("error without it,\nrise", (Line("error_rise"),), levels=(ZERO,)),
                    Panel(
                        "cross-entropy\nwithout it, rise",
                        (Line("cross_entropy_rise"),),
                        scale="signed",
                        levels=(ZERO,),
                    ),
                    Panel(
                        "rise that the\ngradient predicts",
                        (Line("predicted_rise"),),
                        scale="signed",
                        levels=(ZERO,),
                    ),
                    Panel("1 - cosine\nof states", (Line("influence"),), scale="wide"),
                    Panel("angle over pi", (Line("angular_distance"),), scale="wide"),
                    Panel("‖F(h)‖ / ‖h‖", (Line("l2_ratio"),), scale="wide"),
                ),
            ),
        ),
    ),
    by_default=False,
)
_declare(
    "round_blocks",
    frames={"round_blocks": ("stage", "block", "bits", "bytes_saved", "error", "kl")},
    takes=("seed", "memory_limit"),
    needs=("classes", "kernels"),
    columns={
        "kl": Column(
            "divergence of the prediction with the block rounded from that of the network",
            at_least=0,
            low="0: the block can do with so few bits",
            high="it needs more",
            of="round_blocks",
        ),
        "noise_kl": Column(
            "the same with random noise as large as what rounding adds",
            at_least=0,
            low="below `kl`: it is not only the size of the error that harms",
            high="as `kl`: rounding is like noise",
            of="round_blocks",
        ),
        "bytes_saved": Column(
            "bytes of the kernels of the block less those of the rounded ones and their scales",
            low="0: its kernels are those of other blocks, too",
            high="where few bits do little harm, the place to begin",
            of="round_blocks",
        ),
    },
    figures=(
        Figure(
            name="round_blocks",
            group=ROUTES,
            column="kl",
            title="Which blocks can do with fewer bits?",
            question="How far the predictions move, and how much the error rises, if the weights "
            "of one block are rounded to few bits.",
            reading="A colour per number of bits. The dashed lines with open markers are the "
            "control, random noise as large as what rounding adds: where the solid line is above "
            "it, rounding does more harm than its size explains. The band is one standard error "
            "to either side.",
            decision="A rise of the error within its band: round this block to so few bits, "
            "beginning where `bytes_saved` is largest. The blocks that stand out keep theirs.",
            source="Nagel et al. 2021, https://arxiv.org/abs/2106.08295",
            drawing=Drawing(
                "Rounded block, by bits per weight",
                (
                    Panel(
                        "KL to the network, nats",
                        (Line("kl", "rounded"), Line("noise_kl", "random noise", "--")),
                        scale="wide",
                    ),
                    Panel(
                        "rise of the error",
                        (
                            Line("error_rise", "rounded"),
                            Line("noise_error_rise", "random noise", "--"),
                        ),
                        scale="share",
                        levels=(ZERO,),
                    ),
                ),
                keys=("stage", "block", "bits"),
                colour="bits",
                columns=("split",),
                gap="has no kernel",
            ),
        ),
    ),
    by_default=False,
)
_declare(
    "drop_heads",
    frames={"drop_heads": ("stage", "block", "head", "error")},
    takes=("memory_limit",),
    needs=("classes", "heads"),
    columns={
        "cross_entropy_rise": Column(
            "cross-entropy without the head minus that of the network, in nats",
            low="near 0: the network is as sure of the labels without the head; below it, more "
            "sure",
            high="the head is needed",
        ),
        "error_rise": Column(
            "error without the head minus that of the network",
            at_least=-1,
            at_most=1,
            low="within two standard errors (`error_rise_se`) of 0: nothing shows that the head is "
            "needed",
            high="the head is needed",
        ),
    },
    figures=(
        Figure(
            name="drop_heads",
            group=ROUTES,
            column="cross_entropy_rise",
            title="Which heads are needed?",
            question="The cross-entropy of the network without one of its attention heads, minus "
            "that of the network, for every head.",
            reading="A column is a block with attention, a row a head, counted from the top. Dark "
            "blue heads are missed most; white ones are not missed, each by itself; without a red "
            "one, the network is surer of the labels.",
            decision='A few dark heads: `patching(heads="each")` says what they carry. Most are '
            "white: the attention layers can be trained with fewer heads. A white column: "
            "`drop_blocks` says whether the whole block can go.",
            source="Michel et al. 2019, https://arxiv.org/abs/1905.10650, figure 1",
            drawing=Drawing(
                "Dropped head",
                (
                    Panel(
                        "head",
                        (
                            Line(
                                "cross_entropy_rise",
                                "rise of the cross-entropy, nats",
                                mark="map",
                                over="head",
                            ),
                        ),
                    ),
                ),
                "state",
                "block",
                keys=("stage", "block", "head"),
                rows=("split",),
            ),
        ),
    ),
    by_default=False,
)
_declare(
    "borderline",
    frames={"borderline": ("along", "stage", "block", "group", "images", "accuracy")},
    takes=("times", "scale", "memory_limit"),
    needs=("classes",),
    columns={
        "accuracy": Column(
            "share of the images of a group that are classified correctly",
            at_least=0,
            at_most=1,
            paper="II fig. 6",
        )
    },
    figures=(
        Figure(
            name="borderline",
            decision="A rise over the last blocks: a shorter network loses images near the "
            "decision boundary first.",
            group=IMAGES,
            column="accuracy",
            title="Which images do the last blocks help?",
            question="Accuracy, cross-entropy and entropy after the last blocks, for images that "
            "are near the decision boundary at the first of them, for images that are classified "
            "correctly there, and for all images.",
            reading="The first point determines the groups, so the accuracy of the correct images "
            "is 1 there and can only fall. Check whether that of the borderline images rises.",
            source="Jastrzebski et al. 2018, figure 6",
            rows={"along": "blocks"},
            drawing=Drawing(
                "Borderline images",
                (
                    Panel("accuracy", (Line("accuracy"),), scale="share"),
                    Panel("cross-entropy", (Line("cross_entropy"),), scale="wide"),
                    Panel("entropy", (Line("entropy"),), scale="wide"),
                ),
                "place",
                colour="group",
                dash="split",
                rows=(),
                columns=("panel",),
            ),
        ),
        Figure(
            name="borderline_repeated",
            group=IMAGES,
            column="accuracy",
            title="Which images does repeating the last block help?",
            question="The same over extra applications of the last block, whose branch is "
            "multiplied by the number in the title of the figure, if there is one.",
            reading="The first point is the trained network, which determines the groups.",
            source="Jastrzebski et al. 2018, figure 7",
            frames=("borderline",),
            draw="borderline",
            options={"along": "repetitions"},
            rows={"along": "repetitions"},
        ),
    ),
    studies=(Study(changes={"times": UNROLLED, "scale": UNROLLED_SCALE}),),
)
_declare(
    "repeat_last_block",
    frames={
        "repetition_metrics": ("stage", "repetition", "distance", "cosine_loss"),
        "trained_blocks": ("stage", "block", "cosine_loss"),
    },
    needs=("classes", "repetition"),
    figures=(
        Figure(
            name="repetition_metrics",
            decision="Above 0 after the first repetition: another pass through the block does not "
            "help.",
            group=ROUTES,
            column="l2_ratio",
            title="Does a repeated block keep refining?",
            question="Cosine loss and l2 ratio of each block, and of the last application when "
            "the last block of a stage is applied again and again.",
            reading="As long as the cosine is below zero, one more application points to where "
            "the loss falls, to first order and in the mean over the images. The vertical line "
            "marks the last block as trained.",
            source="Jastrzebski et al. 2018, figure 20, left",
            frames=("repetition_metrics", "trained_blocks"),
            finding="repetition_metrics",
            drawing=Drawing(
                "Repeated last block",
                (
                    Panel(
                        "cosine of step F(h)\nand loss gradient ∂L/∂h",
                        (Line("cosine_loss"),),
                        levels=(ZERO,),
                    ),
                    Panel(
                        "size of step over state\n‖F(h)‖ / ‖h‖", (Line("l2_ratio"),), scale="wide"
                    ),
                ),
                "repetition",
                "repetition of the last block (0: as trained)",
                keys=("stage", "repetition"),
                dash="split",
                columns=("stage",),
                wrap=0,
            ),
        ),
        Figure(
            name="repetition_metrics_scaled",
            group=ROUTES,
            column="l2_ratio",
            title="And with a scaled branch?",
            question="The same with the branch of the extra applications multiplied by the number "
            "in the title of the figure.",
            reading="Below 1, the extra steps are smaller. Compare with the figure above: after "
            "how many repetitions is the cosine no longer below zero?",
            source="Jastrzebski et al. 2018, figure 20, right",
            frames=("repetition_metrics_scaled", "trained_blocks"),
            draw="repetition_metrics",
            finding="scaled_repetition_metrics",
        ),
    ),
    studies=(
        Study(splits=("test",), images={"test": 128}, changes={"times": UNROLLED}),
        Study(
            splits=("test",),
            images={"test": 128},
            changes={"times": UNROLLED, "scale": UNROLLED_SCALE},
            renamed={"repetition_metrics": "repetition_metrics_scaled"},
        ),
    ),
)
_declare(
    "shuffle_blocks",
    frames={"shuffle_blocks": ("stage", "swaps", "draw", "error")},
    takes=("seed", "memory_limit"),
    needs=("classes", "movable"),
    figures=(
        Figure(
            name="shuffle_blocks",
            decision="Flat: the order hardly matters; try shared blocks.",
            group=ROUTES,
            column="error",
            title="Does the order matter?",
            question="The error when blocks of a stage change places, over how much of their "
            "order is preserved.",
            reading="If the error hardly rises, the order of the blocks matters little. A stage "
            "with two blocks that can change places has one other order, and so one dot.",
            source="Veit et al. 2016, on reordering",
            drawing=Drawing(
                "Shuffled blocks",
                (
                    Panel(
                        "error",
                        (Line("error", mark="dots"),),
                        scale="share",
                        levels=(Level(column="unperturbed_error", name="order kept", dash=":"),),
                        from_zero=True,
                    ),
                ),
                "kendall_tau",
                "Kendall's τ of the order and the trained one (1: order kept)",
                rows=(),
                columns=("stage",),
            ),
        ),
    ),
    studies=(Study(splits=("test",)),),
)
_declare(
    "lipschitz",
    frames={"lipschitz": ("stage", "block", "estimate")},
    reads="",
    needs=("bounds",),
    columns={
        "estimate": Column(
            "product of the spectral norms of the branch by power iteration, from below",
            at_least=0,
            low="no conclusion, see `certified`",
            high="no conclusion",
            paper="IC 4.2",
        ),
        "certified": Column(
            "bound on the product of the spectral norms of the branch from above",
            at_least=0,
            low="under `divisor`: the branch, which is divided by it, contracts for certain",
            high="no conclusion",
            paper="IC 4.2",
        ),
        "divisor": Column(
            "what the branch is divided by",
            at_least=0,
            low="1: the bound has no effect",
            high="the bound takes effect",
            paper="IC 4.2",
        ),
    },
    published={
        "estimate": "bounded_blocks",
        "residual": "bounded_blocks",
        "certified": "bounded_blocks",
        "divisor": "bounded_blocks",
    },
    prefix="lipschitz_",
    figures=(
        Figure(
            name="lipschitz_bounds",
            decision="Where the upper bound is under the divisor, the branch contracts. "
            "Repetition then converges if what it adds is added to the input of the stage "
            "(`anchor='input'`); `fixed_point` shows how fast.",
            group=BOUNDS,
            column="certified",
            title="What bounds the blocks?",
            question="Lower and upper bounds on the Lipschitz constant of every branch before it "
            "is divided, and the divisor.",
            reading="Where the divisor is above 1, the bound takes effect.",
            source="Iterative convergent computation is not a useful inductive bias for ResNets, "
            "section 4.2",
            frames=("lipschitz",),
            has_table=True,
            drawing=Drawing(
                "Lipschitz bounds",
                (
                    Panel(
                        "bound of the branch's\nLipschitz constant",
                        (
                            Line("estimate", "estimate", band="certified"),
                            Line("certified", "certified", ":"),
                        ),
                        scale="wide",
                        levels=(Level(argument="mu", name="μ = {:g}", dash="--"),),
                        height=3,
                    ),
                    Panel(
                        "divisor of the branch",
                        (Line("divisor"),),
                        scale="wide",
                        levels=(Level(1.0),),
                        height=2,
                    ),
                ),
                gap="has no bound",
            ),
        ),
    ),
    studies=(Study(),),
)
_declare(
    "fixed_point",
    frames={"fixed_point": ("stage", "repetition", "change")},
    takes=("times",),
    reads="images",
    needs=("repetition",),
    columns={
        "change": Column(
            "how far one more application of the last block moves the state",
            at_least=0,
            low="near rounding: a fixed point",
            high="the state keeps moving",
            paper="IC 4.2",
        )
    },
    figures=(
        Figure(
            name="fixed_point",
            decision="Near rounding: the stage has a fixed point, and more repetitions change "
            "nothing.",
            group=ROUTES,
            column="change",
            title="Is there a fixed point?",
            question="How far the state moves with every further application of a stage's last "
            "block.",
            reading="A contraction approaches a fixed point, with a straight falling line on the "
            "logarithmic axis. If the change levels off far above rounding, the state keeps "
            "moving.",
            source="Iterative convergent computation is not a useful inductive bias for ResNets, "
            "section 4.2",
            drawing=Drawing(
                "The last block applied again",
                (
                    Panel("change of the state per repetition", (Line("change"),), scale="log"),
                    Panel("distance to the last state", (Line("distance"),), scale="log"),
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
        ),
    ),
    studies=(Study(splits=("test",), changes={"times": UNROLLED}, needs=("bounds",)),),
)
_declare(
    "effective_parameters",
    frames={
        "effective_parameters": ("raw", "effective"),
        "weight_deviations": ("stage", "block", "role", "deviation"),
    },
    reads="",
    columns={
        "deviation": Column(
            "deviation of a block's weights from the mean block of its stage, in standard "
            "deviations of the stage's weights",
            at_least=0,
            low="0: equal blocks",
            high="about 0.8: blocks that have nothing in common",
            paper="IC app. C",
            of="weight_deviations",
        )
    },
    figures=(
        Figure(
            name="weight_deviations",
            decision="Near 0: the blocks of the stage are nearly one; share them.",
            group=BOUNDS,
            column="deviation",
            title="How different are the blocks?",
            question="The mean deviation of each block's weights from the mean block of its "
            "stage, in standard deviations of the stage's weights. Blocks that are not coupled do "
            "not count.",
            reading="0 for blocks with equal weights, about 0.8 for many blocks with weights "
            "drawn independently from a normal distribution. Two blocks of a stage are equally "
            "far from their mean, whatever they are.",
            source="Iterative convergent computation is not a useful inductive bias for ResNets, "
            "appendix C",
            drawing=Drawing(
                "Weight deviations",
                (
                    Panel(
                        "mean deviation from the stage's mean\n(standardised)",
                        (Line("deviation"),),
                        from_zero=True,
                    ),
                ),
                keys=("stage", "block", "role"),
                colour="layer",
                dash="variable",
            ),
        ),
    ),
    studies=(Study(),),
)
_declare(
    "line_element",
    module="geometry",
    frames={"line_element": ("stage", "block", "length"), "path_lengths": ()},
    columns={
        "length": Column(
            "length of what the block adds, by the line element",
            at_least=0,
            low="a short step",
            high="a long step",
            paper="PI eq. 3, 4 and 12",
        )
    },
    figures=(
        Figure(
            name="line_element",
            group=BOUNDS,
            column="length",
            title="How long is the path by the line element?",
            question="The length of what each block adds to the state, across the layers and by "
            "the metric of the last state, and the two squares of which the square of that length "
            "is the sum.",
            reading="The lengths of a stage add up to its path length. Where the second part is "
            "the larger one, the rest of the network lengthens the step.",
            source="Hauser 2019, equations 3, 4 and 12",
            drawing=Drawing(
                "Line element",
                (
                    Panel("length of the step", (Line("length"),), scale="wide"),
                    Panel(
                        "parts of its square",
                        (
                            Line("layer_part", "across the layers, ‖F(h)‖²"),
                            Line("spatial_part", "at the last state, ‖J F(h)‖²", "--"),
                        ),
                        scale="wide",
                    ),
                ),
            ),
        ),
    ),
    by_default=False,
)
_declare(
    "patching",
    frames={"patching": ("stage", "block", "effect")},
    needs=("classes",),
    columns={
        "effect": Column(
            "change of a logit when the state after the block, or what it adds, is that of "
            "another input, as a share of the difference between both runs",
            low="0: no effect",
            high="1: the logit of the other input",
        )
    },
    figures=(
        Figure(
            name="patching",
            decision="Near 1 at a place: it carries what differs between the two inputs.",
            group=IMAGES,
            column="effect",
            title="Where do the runs on two images differ?",
            question="What a block adds is replaced by what it adds for another image, the next "
            "one of the batch with another label; the change of the label's logit, as a share of "
            "the difference between the runs on both images.",
            reading="At 0, it makes no difference for which image the block adds; at 1, the logit "
            "is that of the other image. The effects of the blocks need not add up to 1.",
            drawing=Drawing(
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
        ),
    ),
    by_default=False,
)
_declare(
    "linear_probe",
    frames={"linear_probe": ("split", "stage", "block", "accuracy")},
    needs=("classes",),
    takes=("seed",),
    columns={
        "accuracy": Column(
            "share of images that a linear classifier of the state's channel means gets right",
            at_least=0,
            at_most=1,
            low="near `control`: nothing of the labels can be read linearly",
            high="over `untrained`: the training has made the labels linear",
            of="linear_probe",
        ),
        "selectivity": Column(
            "`accuracy` minus that of a classifier fitted to permuted labels",
            at_least=-1,
            at_most=1,
            low="near 0: the state does not tell the labels",
            high="the classifier reads the state, not how common the classes are",
            of="linear_probe",
        ),
    },
    figures=(
        Figure(
            name="linear_probe",
            decision="Level from some block on: a head there, trained for it, would do; what comes "
            "after is for the own head. Not above the untrained network: the blocks so far have "
            "learnt nothing that a linear classifier sees.",
            group=IMAGES,
            column="accuracy",
            title="What can be read from the states?",
            question="The accuracy of a linear classifier fitted to the state after every block, "
            "averaged over positions, on images that it was not fitted to.",
            reading="Beside it the same for the network with new initial weights, a classifier "
            "fitted to permuted labels, and the network's own head when the stage is left there. "
            "The band is one standard error to either side.",
            source="Alain and Bengio 2016, figure 1",
            has_table=True,
            drawing=Drawing(
                "Linear probe",
                (
                    Panel(
                        "accuracy",
                        (
                            Line("accuracy", "linear classifier"),
                            Line("untrained", "untrained network", ":"),
                            Line("control", "permuted labels", "--"),
                            Line("head", "own head", "-."),
                        ),
                        scale="share",
                    ),
                ),
                gap="has no value",
            ),
        ),
    ),
    by_default=False,
    fits=True,
)
_declare(
    "similarity",
    frames={"similarity": ("stage", "block", "other_stage", "other_block", "cka")},
    reads="images",
    takes=("seed",),
    columns={
        "cka": Column(
            "similarity of the states after two blocks: debiased linear CKA",
            at_most=1,
            low="0: the states have nothing in common",
            high="1: the same state, turned and scaled",
            of="similarity",
        ),
    },
    figures=(
        Figure(
            name="similarity",
            decision="Squares of blocks near 1, with lower values between them: the blocks of a "
            "square hardly change the state; `drop_blocks` says what taking them out costs.",
            group=IMAGES,
            column="cka",
            title="Which blocks see the same?",
            question="How similar the states after all pairs of blocks are, by debiased centred "
            "kernel alignment, in the network and between two untrained ones.",
            reading="1 for states that differ by a rotation and a factor alone, 0 for states that "
            "have nothing in common. What two independent networks with initial weights have in "
            "common, they have from the images.",
            source="Nguyen, Raghu and Kornblith 2021, figure 1",
        ),
    ),
    by_default=False,
)
