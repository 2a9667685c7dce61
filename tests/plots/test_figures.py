"""All figures of `tfresidual.plots`: that they draw, what they refuse, and the numbers they show.

Not covered: how a figure looks; that was judged by eye.
"""

import inspect
import pathlib
import re
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
PLACE, REPEATED = ("stage", "block"), ("stage", "repetition")
RUN = ("coupling", "initialization")
# The columns of each panel of the figures over the blocks, or states, of all stages in a row.
IN_A_ROW = {
    "cosine_loss": [["cosine_loss"]],
    "readout_cosine_loss": [["readout_cosine_loss"]],
    "l2_ratio": [["l2_ratio"]],
    "gradient_norm": [["gradient_norm"]],
    "perturbation": [["perturbation"]],
    "scaled_perturbation": [["scaled_perturbation"]],
    "readout": [["1 - error"]],
    "drop_blocks": [["1 - error"]],
    "block_importance": [
        *(["error_rise"], ["cross_entropy_rise"], ["predicted_rise"]),
        *(["influence"], ["angular_distance"], ["l2_ratio"]),
    ],
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


def several(columns, **functions):
    """A maker of the arguments of a figure, and the columns that it needs of each of them."""

    def arguments(**settings):
        frames = {}
        for name, function in functions.items():
            known = inspect.signature(function).parameters.keys()
            known -= {"epochs"} if len(functions) > 1 else set()
            known -= {"blocks"} if function is make.borderline_frame else set()
            frames[name] = function(**{k: v for k, v in settings.items() if k in known})
        return frames

    return arguments, columns


def made(function, *columns):
    return several({"frame": columns}, frame=function)


def of_states(*columns):
    def states(stages=1, blocks=3, splits=None):
        return make.state_frame(columns, stages, blocks, splits)

    return made(states, *PLACE, *columns)


def in_a_row(name, function, *more):
    columns = [column.removeprefix("1 - ") for panel in IN_A_ROW[name] for column in panel]
    return made(function, *PLACE, *columns, *more)


def of_networks(epochs=5, blocks=3, stages=3, splits=None, **_):
    norms = make.propagation_frame(blocks, stages, splits, network="ResNet-38")
    return {"histories": make.network_frame(epochs=epochs or 1), "propagation": norms}


SEARCH = ("trial", "status", "stage", "blocks", "measured_blocks", "scaled_distance")
SEARCH = (*SEARCH, "mean_scaled_perturbation", "meets_rule")
INDICES = ("convergence_index", "recurrence_index", "divergence_index")
BORDERLINE = ("along", "block", "group", "images", "cross_entropy", "entropy", "accuracy")
POINTS = ("route", "input", "x1", "x2", "step", "z1", "z2")
FIGURES = {
    **{name: in_a_row(name, make.block_frame) for name in list(IN_A_ROW)[:6]},
    "attribution": of_states("attribution"),
    "block_importance": in_a_row("block_importance", make.importance_frame),
    "borderline": made(make.borderline_frame, *BORDERLINE),
    "computational_distance": made(make.distance_frame, "stage", "distance", "scaled_distance"),
    "convergence_curves": several(
        {
            "readout": (*PLACE, "cross_entropy", "distance"),
            "repeat_last_block": (*REPEATED, "cross_entropy", "distance"),
        },
        readout=make.readout_frame,
        repeat_last_block=make.repeat_frame,
    ),
    "convergence_indices": made(make.index_frame, "stage", "basis", *INDICES),
    "depth_search": (lambda **_: {"frame": search_frame()}, {"frame": SEARCH}),
    "deviation_of_runs": made(make.run_frame, *RUN, "deviation"),
    "drop_blocks": in_a_row("drop_blocks", make.drop_frame, "unperturbed_error"),
    "error_against_indices": made(make.run_frame, *RUN, "error", "convergence", "divergence"),
    "error_of_runs": made(make.run_frame, *RUN, "error"),
    "first_order": in_a_row("first_order", make.first_order_frame),
    "fixed_point": made(
        make.fixed_point_frame,
        *REPEATED,
        *("change", "contraction", "largest_contraction", "distance"),
    ),
    "indices_of_runs": made(make.run_frame, *RUN, "convergence", "recurrence", "divergence"),
    "iterative_inference": made(
        make.inference_frame, *PLACE, "epoch", "cosine_loss", "l2_ratio", "readout_error"
    ),
    "lens": of_states("cross_entropy", "entropy", "kl", "rank"),
    "line_element": in_a_row("line_element", make.line_element_frame),
    "lipschitz_bounds": in_a_row("lipschitz_bounds", make.lipschitz_frame),
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
    "pruning": made(make.plan_frame, "by", "blocks_left", "error", "cross_entropy"),
    "readout": in_a_row("readout", make.readout_frame),
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
    "signal_propagation": in_a_row("signal_propagation", make.propagation_frame),
    "training_curves": (
        lambda epochs=5, **_: {"history": make.history_frame(epochs or 1)},
        {"history": ("epoch", "loss")},
    ),
    "trajectories": (
        lambda **_: three(2),
        dict.fromkeys(("readout", "dropped", "repeated"), POINTS),
    ),
    "weight_deviations": made(make.deviation_frame, *PLACE, "role", "parameters", "deviation"),
}
# Columns that say where a row belongs; all others hold numbers.
KEYS = {*PLACE, *REPEATED, *RUN, "epoch", "seed", "split", "route", "input", "step", "network"}
KEYS |= {"role", "part", "along", "group", "basis", "swaps", "draw", "trial", "status", "found"}
KEYS |= {"width", "images", "scale", "blocks", "by", "blocks_left", "meets_rule", "chance"}
VARIANTS = {
    "one stage": {"stages": 1},
    "three stages": {"stages": 3, "splits": ("train", "test")},
    "one block": {"stages": 1, "blocks": 1},
    "many blocks": {"blocks": 18, "splits": ("held out",)},
    "epochs": {"epochs": 4, "splits": ("test", "train")},
    "one epoch": {"epochs": 1},
}


def test_public_names():
    assert sorted({*FIGURES, "images", "lens_map"}) == plots.__all__
    assert all(callable(getattr(plots, name)) for name in plots.__all__)


@pytest.mark.sampled(72)
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


@pytest.mark.sampled(12)
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
        ("trajectories", "solutions", [[[1, 1]], [1, 1], [[1, 1], [np.nan, 1]], "solutions"]),
    ],
)
def test_wrong_arguments_are_refused(name, argument, values):
    for value in values:
        with refused(argument):
            getattr(plots, name)(**FIGURES[name][0](), **{argument: value})


@pytest.mark.parametrize(
    ("name", "complained", "changed"),
    [
        # Other rows, as a query, or other values in columns.
        (
            "route_errors",
            "readout drop_blocks repeat_last_block",
            {"drop_blocks": "split > 'test'"},
        ),
        ("convergence_curves", "repeat_last_block", {"readout": "stage < 3"}),
        ("repetition_metrics", "frame", {"block_metrics": "stage < 3"}),
        ("repetition_metrics", "block_metrics frame", {"block_metrics": "split == 'test'"}),
        ("convergence_indices", "frame", {"frame": {"basis": "truth"}}),
        ("borderline", "frame", {"frame": {"group": "hard"}}),
        ("borderline", "frame", {"frame": {"images": 0}}),
        ("borderline", "frame", {"frame": {"images": 0.5}}),
        ("borderline", "frame", {"frame": {"entropy_before": 1.0}}),
        ("borderline", "frame", {"frame": "along == 'repetitions'"}),
        ("training_curves", "history", {"metrics": ["top_5"]}),
        ("training_curves", "history", {"history": {"val_loss": np.nan}}),
        ("trajectories", "dropped", {"dropped": "network != 'ResNet'"}),
        ("trajectories", "repeated", {"repeated": "input == 0"}),
        ("indices_of_runs", "frame", {"frame": {"coupling": lambda runs: 2 * runs["coupling"]}}),
        ("indices_of_runs", "frame", {"frame": {"coupling": lambda runs: runs["coupling"] - 0.1}}),
        ("indices_of_runs", "frame", {"frame": {"initialization": "zeros"}}),
        ("indices_of_runs", "frame", {"hue": "depth"}),
        ("error_against_indices", "frame", {"frame": {"convergence": np.nan}}),
        ("parameter_efficiency", "frame", {"frame": {"effective_parameters": np.nan}}),
        ("parameter_efficiency", "frame", {"frame": {"raw_parameters": 0}}),
        ("shuffle_blocks", "frame", {"frame": {"unperturbed_error": np.nan}}),
        ("drop_blocks", "frame", {"frame": {"unperturbed_error": np.nan}}),
        ("depth_search", "frame", {"frame": {"found": [False] * 8 + [True] * 4}}),
        ("depth_search", "frame", {"frame": {"status": "paused"}}),
        ("depth_search", "frame", {"frame": {"status": np.nan}}),
        ("depth_search", "frame", {"frame": {"status": pd.array([pd.NA] * 12, "string")}}),
        ("depth_search", "frame", {"frame": {"meets_rule": "maybe"}}),
        ("depth_search", "frame", {"frame": {"blocks": 2.5}}),
    ],
)
def test_wrong_frames_are_refused(name, complained, changed):
    arguments = FIGURES[name][0](splits=("test", "train"))
    for key, change in changed.items():
        if isinstance(change, dict):
            arguments[key] = arguments[key].assign(**change)
        else:
            arguments[key] = arguments[key].query(change) if key in arguments else change
    with refused(*complained.split()):
        getattr(plots, name)(**arguments)


@pytest.mark.sampled(20)
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


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", [name for name in FIGURES if with_strange_names(name)])
def test_names_are_shown_as_they_are(name):
    """No mathematics, and none left out."""
    figure = getattr(plots, name)(**with_strange_names(name))
    draws(figure)
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    for shown in NAMES:
        assert any(shown in text.get_text() for text in texts)
    assert not any(text.get_parse_math() for text in texts if "$x" in text.get_text())


def test_no_import_of_tensorflow_keras_or_pyplot():
    for folder in ("plots", "report"):
        texts = [file.read_text("utf-8") for file in (PACKAGE / folder).glob("*.py")]
        found = re.findall(r"^\s*(?:from|import) ([\w.]+)", "\n".join(texts), re.M)
        assert "numpy" in found
        assert not {name.split(".")[0] for name in found} & {"tensorflow", "keras", "keras_tuner"}
        assert "pyplot" not in " ".join(found)


def test_pyplot_is_never_loaded():
    # The parent package may load Keras, which loads pyplot itself; a bare stand-in does not.
    program = textwrap.dedent(
        f"""
        import io, sys, types
        parent = types.ModuleType("tfresidual")
        parent.__path__ = [{str(PACKAGE)!r}]
        sys.modules["tfresidual"] = parent
        from tfresidual.definitions import declarations
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
