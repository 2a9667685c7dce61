"""All figures of `tfresidual.plots`: that they draw, what they refuse, and the numbers they show.

Not covered: how a figure looks; that was judged by eye.
"""

import ast
import inspect
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from plots import make_frames as make
from plots.read_figures import by_label, draws, levels, panels
from plots.test_search import search_frame
from plots.test_trajectories import three
from refusals import refused

from tfresidual import plots

PACKAGE = pathlib.Path(__file__).parents[2] / "tfresidual"
LENS = ("cross_entropy", "entropy", "kl", "rank")


def made(function, *columns):
    """A maker of the arguments of a figure of one frame, and the columns that it needs."""
    return several({"frame": columns}, frame=function)


def of_states(*columns):
    def arguments(stages=1, blocks=3, splits=None, **_):
        return {"frame": make.state_frame(columns, stages, blocks, splits)}

    return arguments, {"frame": ("stage", "block", *columns)}


def several(columns, **functions):
    """The same for several frames by the name of the argument."""

    def arguments(**settings):
        frames = {}
        for name, function in functions.items():
            known = inspect.signature(function).parameters.keys()
            known -= {"epochs"} if len(functions) > 1 else set()
            known -= {"blocks"} if function is make.borderline_frame else set()
            frames[name] = function(**{k: v for k, v in settings.items() if k in known})
        return frames

    return arguments, columns


def of_networks(epochs=5, blocks=3, stages=3, splits=None, **_):
    norms = make.propagation_frame(blocks, stages, splits, network="ResNet-38")
    return {"histories": make.network_frame(epochs=epochs or 1), "propagation": norms}


PLACE = ("stage", "block")
REPEATED = ("stage", "repetition")
RUN = ("coupling", "initialization")
SEARCH = ("trial", "status", "stage", "blocks", "measured_blocks", "scaled_distance")
SEARCH = (*SEARCH, "mean_scaled_perturbation", "meets_rule")
POINTS = ("route", "input", "x1", "x2", "step", "z1", "z2")
# For each figure, a maker of its arguments, and the columns that it needs of each of them.
FIGURES = {
    **{
        name: made(make.block_frame, *PLACE, name)
        for name in (
            "cosine_loss",
            "readout_cosine_loss",
            "l2_ratio",
            "gradient_norm",
            "perturbation",
            "scaled_perturbation",
        )
    },
    "attribution": of_states("attribution"),
    "borderline": made(
        make.borderline_frame, "along", "block", "group", "images", *LENS[:2], "accuracy"
    ),
    "computational_distance": made(make.distance_frame, "stage", "distance", "scaled_distance"),
    "convergence_curves": several(
        {
            "readout": (*PLACE, "cross_entropy", "distance"),
            "repeat_last_block": (*REPEATED, "cross_entropy", "distance"),
        },
        readout=make.readout_frame,
        repeat_last_block=make.repeat_frame,
    ),
    "convergence_indices": made(
        make.index_frame,
        "stage",
        "basis",
        "convergence_index",
        "recurrence_index",
        "divergence_index",
    ),
    "depth_search": (lambda **_: {"frame": search_frame()}, {"frame": SEARCH}),
    "deviation_of_runs": made(make.run_frame, *RUN, "deviation"),
    "drop_blocks": made(make.drop_frame, *PLACE, "error", "unperturbed_error"),
    "error_against_indices": made(make.run_frame, *RUN, "error", "convergence", "divergence"),
    "error_of_runs": made(make.run_frame, *RUN, "error"),
    "first_order": made(
        make.first_order_frame,
        *PLACE,
        "loss_change",
        "first_order",
        "first_order_after",
        "rank_correlation",
        "rank_correlation_after",
    ),
    "fixed_point": made(
        make.fixed_point_frame,
        *REPEATED,
        "change",
        "contraction",
        "largest_contraction",
        "distance",
    ),
    "indices_of_runs": made(make.run_frame, *RUN, "convergence", "recurrence", "divergence"),
    "iterative_inference": made(
        make.inference_frame, *PLACE, "epoch", "cosine_loss", "l2_ratio", "readout_error"
    ),
    "lens": of_states(*LENS),
    "line_element": made(make.line_element_frame, *PLACE, "length", "layer_part", "spatial_part"),
    "lipschitz_bounds": made(make.lipschitz_frame, *PLACE, "estimate", "certified", "divisor"),
    "network_curves": (
        of_networks,
        {
            "histories": ("network", "epoch", "error", "gradient_ratio"),
            "propagation": ("network", *PLACE, "state_norm"),
        },
    ),
    "parameter_efficiency": made(
        make.run_frame, *RUN, "width", "raw_parameters", "effective_parameters", "error"
    ),
    "patching": of_states("effect"),
    "readout": made(make.readout_frame, *PLACE, "error"),
    "repetition_metrics": several(
        {
            "frame": (*REPEATED, "cosine_loss", "l2_ratio"),
            "block_metrics": (*PLACE, "cosine_loss", "l2_ratio"),
        },
        frame=make.repeat_frame,
        block_metrics=make.block_frame,
    ),
    "route_errors": several(
        {
            "readout": (*PLACE, "error"),
            "drop_blocks": (*PLACE, "error", "unperturbed_error"),
            "repeat_last_block": (*REPEATED, "error"),
        },
        readout=make.readout_frame,
        drop_blocks=make.drop_frame,
        repeat_last_block=make.repeat_frame,
    ),
    "shuffle_blocks": made(
        make.shuffle_frame, "stage", "kendall_tau", "error", "unperturbed_error"
    ),
    "signal_propagation": made(
        make.propagation_frame, *PLACE, "state_norm", "state_gradient_norm", "shortcut_share"
    ),
    "training_curves": (
        lambda epochs=5, **_: {"history": make.history_frame(epochs or 1)},
        {"history": ("epoch", "loss")},
    ),
    "trajectories": (
        lambda **_: three(),
        {name: POINTS for name in ("readout", "dropped", "repeated")},
    ),
    "weight_deviations": made(make.deviation_frame, *PLACE, "role", "parameters", "deviation"),
}
# Columns that say where a row belongs; all others hold numbers.
KEYS = {
    "stage",
    "block",
    "repetition",
    "epoch",
    "seed",
    "split",
    "route",
    "input",
    "step",
    "network",
}
KEYS |= {"role", "part", "along", "group", "basis", "swaps", "draw", "trial", "status", "found"}
KEYS |= {"coupling", "initialization", "width", "images", "scale", "blocks", "meets_rule", "chance"}
VARIANTS = {
    "one stage": {"stages": 1},
    "three stages": {"stages": 3, "splits": ("train", "test")},
    "one block": {"stages": 1, "blocks": 1},
    "many blocks": {"blocks": 18, "splits": ("held out",)},
    "epochs": {"epochs": 4, "splits": ("test", "train")},
    "one epoch": {"epochs": 1},
}


def test_public_names():
    assert sorted({*FIGURES, "images"}) == plots.__all__
    assert all(callable(getattr(plots, name)) for name in plots.__all__)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", FIGURES)
def test_draws(name, variant):
    arguments = FIGURES[name][0](**VARIANTS[variant])
    before = {key: frame.copy() for key, frame in arguments.items()}
    figure = getattr(plots, name)(**arguments)
    assert isinstance(figure, Figure)
    assert 0 < len(figure.get_suptitle()) <= 35
    figure.draw_without_rendering()
    for key, frame in arguments.items():
        pd.testing.assert_frame_equal(frame, before[key])


@pytest.mark.parametrize("name", FIGURES)
def test_missing_and_infinite_values_are_gaps(name):
    arguments = FIGURES[name][0]()
    for key, columns in FIGURES[name][1].items():
        frame = arguments[key].astype({c: float for c in columns if c not in KEYS})
        for number, column in enumerate(c for c in columns if c not in KEYS):
            place = len(frame) // 2 + number % 2
            frame.loc[frame.index[place], column] = (np.nan, np.inf)[number % 2]
        arguments[key] = frame
    figure = getattr(plots, name)(**arguments)
    figure.draw_without_rendering()
    for axes in panels(figure):
        assert np.isfinite([*axes.get_xlim(), *axes.get_ylim()]).all()


@pytest.mark.parametrize("name", FIGURES)
def test_refusals_name_the_argument(name):
    make_arguments, needed = FIGURES[name]
    draw = getattr(plots, name)
    for key, columns in needed.items():
        arguments = make_arguments()
        frame = arguments[key]

        def wrong(value, key=key, arguments=arguments):
            with refused(key) as caught:
                draw(**arguments | {key: value})
            return str(caught.value)

        assert "pandas.DataFrame" in wrong([1, 2])
        assert f"shape (0, {frame.shape[1]})" in wrong(frame.iloc[:0])
        if name not in ("training_curves", "shuffle_blocks"):
            assert "one row per" in wrong(pd.concat([frame, frame]))
        for column in columns:
            assert f"missing: `{column}`" in wrong(frame.drop(columns=column))
        numbers = [column for column in columns if column not in KEYS]
        if name != "depth_search":
            assert "finite number" in wrong(frame.assign(**dict.fromkeys(numbers, np.nan)))
        assert "['high']" in wrong(frame.assign(**{numbers[0]: "high"}))
        for column in {"block", "stage", "repetition", "step"} & {*columns}:
            if name not in ("computational_distance", "convergence_indices"):
                assert "whole numbers" in wrong(frame.assign(**{column: 0.5}))


@pytest.mark.parametrize(
    ("name", "argument", "values"),
    [
        ("training_curves", "metrics", ["accuracy", 3]),
        ("iterative_inference", "stages", [3, "1", [4], []]),
        ("error_of_runs", "errors", ["error", None, (), ("loss",), ("error", "error")]),
        ("error_against_indices", "indices", ["convergence", 1, (), ("error",)]),
        ("indices_of_runs", "hue", [3, ["width"]]),
        ("borderline", "along", [["blocks"], None, "epochs"]),
        ("network_curves", "metrics", ["error", (), ("error", "error")]),
        ("route_errors", "chance", [0, -0.1, 1.5, np.nan, {"train": 2}]),
        ("scaled_perturbation", "epsilon", [0, -1, np.nan, True, "1"]),
        ("fixed_point", "mu", [0, -1, np.nan, True, "1"]),
        ("lipschitz_bounds", "mu", [0, -1, np.nan, True, "1"]),
        ("depth_search", "epsilon", [0, -0.1, np.nan, np.inf, "0.1", None, True]),
    ],
)
def test_wrong_arguments_are_refused(name, argument, values):
    for value in values:
        with refused(argument):
            getattr(plots, name)(**FIGURES[name][0](), **{argument: value})


# The columns of each panel of figures over the blocks or states of all stages in a row.
IN_A_ROW = {
    "cosine_loss": [["cosine_loss"]],
    "readout_cosine_loss": [["readout_cosine_loss"]],
    "l2_ratio": [["l2_ratio"]],
    "gradient_norm": [["gradient_norm"]],
    "perturbation": [["perturbation"]],
    "scaled_perturbation": [["scaled_perturbation"]],
    "readout": [["1 - error"]],
    "drop_blocks": [["1 - error"]],
    "first_order": [
        ["loss_change", "first_order", "first_order_after"],
        ["rank_correlation", "rank_correlation_after"],
    ],
    "line_element": [["length"], ["layer_part", "spatial_part"]],
    "signal_propagation": [["state_norm"], ["state_gradient_norm"], ["shortcut_share"]],
    "lipschitz_bounds": [["estimate", "certified"], ["divisor"]],
    "lens": [["cross_entropy", "entropy"], ["kl"], ["rank"]],
    "patching": [["effect"]],
}


@pytest.mark.parametrize("blocks", [1, 5, 18])
@pytest.mark.parametrize("name", IN_A_ROW)
def test_values_stand_at_their_blocks(name, blocks):
    settings = {"blocks": blocks, "stages": 3, "splits": ("test", "train"), "gap": blocks > 1}
    frame = FIGURES[name][0](**settings)["frame"]
    figure = getattr(plots, name)(frame.sample(frac=1.0, random_state=3))
    if name == "readout_cosine_loss":
        frame = frame[frame["stage"] == 3]
    order = sorted(set(frame[["stage", "block"]].itertuples(index=False, name=None)))
    for axes, columns in zip(figure.axes, IN_A_ROW[name], strict=True):
        expected = {}
        for split in ("train", "test") if "split" in frame else ("",):
            rows = frame[frame["split"] == split] if split else frame
            for column in columns:
                values = rows[column.removeprefix("1 - ")]
                values = 1 - values if column.startswith("1 - ") else values
                places = [order.index(place) for place in zip(rows.stage, rows.block, strict=True)]
                found = dict(zip(places, values, strict=True))
                found = {place: height for place, height in found.items() if np.isfinite(height)}
                if found:
                    expected[", ".join(filter(None, (split, column)))] = found
        assert by_label(axes) == expected
        assert list(by_label(axes)) == sorted(
            by_label(axes), key=lambda label: label.startswith("test") and len(columns) == 1
        )


OVER_EPOCHS = [name for name in IN_A_ROW if len(IN_A_ROW[name]) == 1 and name != "patching"]


@pytest.mark.parametrize("name", OVER_EPOCHS)
def test_a_panel_per_stage_and_split_over_the_epochs(name):
    arguments = FIGURES[name][0](blocks=5, stages=3, splits=("test", "train"), epochs=4)
    figure = getattr(plots, name)(**arguments)
    frame = arguments["frame"]
    stages = (3,) if name == "readout_cosine_loss" else (1, 2, 3)
    cells = [(split, stage) for split in ("train", "test") for stage in stages]
    ((column,),) = IN_A_ROW[name]
    for axes, (split, stage) in zip(panels(figure), cells, strict=True):
        assert axes.get_title() == f"stage {stage}, {split}"
        rows = frame[(frame["split"] == split) & (frame["stage"] == stage)]
        values = rows[column.removeprefix("1 - ")]
        rows = rows.assign(value=1 - values if column.startswith("1 - ") else values)
        expected = {
            f"block {block}, {column}": dict(zip(line["epoch"] + 1, line["value"], strict=True))
            for block, line in rows.dropna(subset="value").groupby("block")
        }
        assert by_label(axes) == expected
        if name == "drop_blocks":
            first = rows.groupby("epoch")["unperturbed_error"].first()
            assert list(levels(axes, "1 - unperturbed_error")) == [1 - first.iloc[0]]
    assert "epoch" in (figure.get_supxlabel(), panels(figure)[-1].get_xlabel())


NAMES = ("$x$", "_hidden")


def with_strange_names(name):
    if name == "network_curves":
        return {"histories": make.network_frame(NAMES, 3)}
    arguments = FIGURES[name][0](splits=NAMES)
    return arguments if all("split" in frame for frame in arguments.values()) else None


@pytest.mark.parametrize("name", [name for name in FIGURES if with_strange_names(name)])
def test_names_are_shown_as_they_are(name):
    """No mathematics, and none left out."""
    figure = getattr(plots, name)(**with_strange_names(name))
    draws(figure)
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    for shown in NAMES:
        assert any(shown in text.get_text() for text in texts)
    assert not any(text.get_parse_math() for text in texts if "$x" in text.get_text())


@pytest.mark.parametrize("folder", ["plots", "report"])
def test_no_import_of_tensorflow_keras_or_pyplot(folder):
    files = sorted((PACKAGE / folder).glob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                assert name.split(".")[0] not in ("tensorflow", "keras", "keras_tuner"), file
                assert "pyplot" not in name, file


def test_pyplot_is_never_loaded():
    # The parent package may load Keras, which loads pyplot itself; a bare stand-in does not.
    program = textwrap.dedent(
        f"""
        import io, sys, types
        parent = types.ModuleType("tfresidual")
        parent.__path__ = [{str(PACKAGE)!r}]
        sys.modules["tfresidual"] = parent
        from tfresidual import declarations
        assert not {{"matplotlib", "numpy", "pandas"}} & set(sys.modules)
        sys.path.insert(0, {str(pathlib.Path(__file__).parents[1])!r})
        import matplotlib
        before = matplotlib.rcParams.copy()
        from plots.make_frames import block_frame, history_frame, repeat_frame
        from tfresidual import plots
        for figure in (
            plots.cosine_loss(block_frame(3, epochs=2)),
            plots.training_curves(history_frame(3)),
            plots.repetition_metrics(repeat_frame(3)),
        ):
            for kind, begin in (("png", b"\\x89PNG"), ("svg", b"<?xml")):
                file = io.BytesIO()
                figure.savefig(file, format=kind)
                assert file.getvalue().startswith(begin)
            assert figure._repr_png_().startswith(b"\\x89PNG")
        assert matplotlib.rcParams.copy() == before
        loaded = {{"matplotlib.pyplot", "tensorflow", "keras"}} & set(sys.modules)
        assert not loaded, loaded
        """
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
