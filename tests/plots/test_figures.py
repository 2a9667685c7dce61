"""All figures of `tfresidual.plots`: that they draw, and the numbers they show.

Not covered: how a figure looks; that was judged by eye.
"""

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

from tfresidual import plots

PACKAGE = pathlib.Path(__file__).parents[2] / "tfresidual"
# The columns of each panel of the figures over the blocks, or states, of all stages in a row.
IN_A_ROW = {
    "cosine_loss": [["cosine_loss"]],
    "readout_cosine_loss": [["readout_cosine_loss"]],
    "l2_ratio": [["l2_ratio"]],
    "gradient_norm": [["gradient_norm"]],
    "perturbation": [["perturbation"]],
    "scaled_perturbation": [["scaled_perturbation"]],
    "readout": [["error"]],
    "drop_blocks": [["error"]],
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
    "linear_probe": [["accuracy", "untrained", "control", "head"]],
}


def made(**functions):
    """A maker of the arguments of a figure, each by a function of the settings that it takes."""

    def arguments(**settings):
        found = {}
        for name, function in functions.items():
            known = inspect.signature(function).parameters.keys()
            known -= {"epochs"} if len(functions) > 1 else set()
            known -= {"blocks"} if function is make.borderline_frame else set()
            found[name] = function(**{k: v for k, v in settings.items() if k in known})
        return found

    return arguments


def of_states(*columns):
    def states(stages=1, blocks=3, splits=None):
        return make.state_frame(columns, stages, blocks, splits)

    return made(frame=states)


def of_networks(epochs=5, **_):
    return {"histories": make.network_frame(epochs=epochs or 1)}


FIGURES = {
    **{name: made(frame=make.block_frame) for name in list(IN_A_ROW)[:6]},
    "attribution": of_states("attribution"),
    "block_importance": made(frame=make.importance_frame),
    "borderline": made(frame=make.borderline_frame),
    "computational_distance": made(frame=make.distance_frame),
    "convergence_curves": made(readout=make.readout_frame, repeat_last_block=make.repeat_frame),
    "convergence_indices": made(frame=make.index_frame),
    "depth_search": lambda **_: {"frame": search_frame()},
    "drop_blocks": made(frame=make.drop_frame),
    "drop_heads": made(frame=make.head_frame),
    "early_exit": made(frame=make.exit_frame),
    "first_order": made(frame=make.first_order_frame),
    "fixed_point": made(frame=make.fixed_point_frame),
    "iterative_inference": made(frame=make.inference_frame),
    "lens": of_states("cross_entropy", "entropy", "kl", "rank"),
    "line_element": made(frame=make.line_element_frame),
    "linear_probe": made(frame=make.linear_probe_frame),
    "lipschitz_bounds": made(frame=make.lipschitz_frame),
    "network_curves": of_networks,
    "patching": of_states("effect"),
    "pruning": made(frame=make.plan_frame),
    "readout": made(frame=make.readout_frame),
    "repetition_metrics": made(frame=make.repeat_frame, block_metrics=make.block_frame),
    "route_errors": made(
        readout=make.readout_frame,
        drop_blocks=make.drop_frame,
        repeat_last_block=make.repeat_frame,
    ),
    "shuffle_blocks": made(frame=make.shuffle_frame),
    "round_blocks": made(frame=make.rounding_frame),
    "signal_propagation": made(frame=make.propagation_frame),
    "similarity": made(frame=make.similarity_frame),
    "training_curves": lambda epochs=5, **_: {"history": make.history_frame(epochs or 1)},
    "weight_deviations": made(frame=make.deviation_frame),
}
# Columns that say where a row belongs; all others hold numbers.
KEYS = {"stage", "block", "repetition", "epoch", "seed", "split", "network", "role", "part"}
KEYS |= {"along", "group", "basis", "swaps", "draw", "trial", "status", "found", "images"}
KEYS |= {"other_stage", "other_block", "bits", "head"}
KEYS |= {"scale", "blocks", "by", "blocks_left", "meets_rule", "chance"}
VARIANTS = {
    "one stage": {"stages": 1},
    "three stages": {"stages": 3, "splits": ("train", "test")},
    "one block": {"stages": 1, "blocks": 1},
    "many blocks": {"blocks": 18, "splits": ("held out",)},
    "epochs": {"epochs": 4, "splits": ("test", "train")},
    "one epoch": {"epochs": 1},
}


def test_public_names():
    assert sorted({*FIGURES, "draw", "images", "lens_map"}) == plots.__all__
    assert all(callable(getattr(plots, name)) for name in plots.__all__)


@pytest.mark.sampled(72)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", FIGURES)
def test_draws(name, variant):
    arguments = FIGURES[name](**VARIANTS[variant])
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
    arguments = FIGURES[name]()
    for key, frame in arguments.items():
        columns = [column for column in frame if column not in KEYS]
        frame = arguments[key] = frame.astype(dict.fromkeys(columns, float))
        for number, column in enumerate(columns):
            place = len(frame) // 2 + number % 2
            frame.loc[frame.index[place], column] = (np.nan, np.inf)[number % 2]
    figure = getattr(plots, name)(**arguments)
    figure.draw_without_rendering()
    for axes in panels(figure):
        assert np.isfinite([*axes.get_xlim(), *axes.get_ylim()]).all()


@pytest.mark.sampled(20)
@pytest.mark.parametrize("blocks", [1, 5, 18])
@pytest.mark.parametrize("name", IN_A_ROW)
def test_values_stand_at_their_blocks(name, blocks):
    settings = {"blocks": blocks, "stages": 3, "splits": ("test", "train"), "gap": blocks > 1}
    frame = FIGURES[name](**settings)["frame"]
    figure = getattr(plots, name)(frame.sample(frac=1.0, random_state=3))
    if name == "readout_cosine_loss":
        frame = frame[frame["stage"] == 3]
    order = sorted(set(frame[["stage", "block"]].itertuples(index=False, name=None)))
    for axes, columns in zip(figure.axes, IN_A_ROW[name], strict=True):
        expected = {}
        for split in ("train", "test") if "split" in frame else ("",):
            rows = frame[frame["split"] == split] if split else frame
            for column in columns:
                values = rows[column]
                places = [order.index(place) for place in zip(rows.stage, rows.block, strict=True)]
                found = dict(zip(places, values, strict=True))
                found = {place: height for place, height in found.items() if np.isfinite(height)}
                if found:
                    expected[", ".join(filter(None, (split, column)))] = found
        assert by_label(axes) == expected
        assert list(by_label(axes)) == sorted(
            by_label(axes), key=lambda label: label.startswith("test") and len(columns) == 1
        )


OVER_EPOCHS = [name for name in IN_A_ROW if len(IN_A_ROW[name]) == 1]
OVER_EPOCHS = [name for name in OVER_EPOCHS if name not in ("patching", "linear_probe")]


@pytest.mark.parametrize("name", OVER_EPOCHS)
def test_a_panel_per_stage_and_split_over_the_epochs(name):
    arguments = FIGURES[name](blocks=5, stages=3, splits=("test", "train"), epochs=4)
    figure = getattr(plots, name)(**arguments)
    frame = arguments["frame"]
    stages = (3,) if name == "readout_cosine_loss" else (1, 2, 3)
    cells = [(split, stage) for split in ("train", "test") for stage in stages]
    ((column,),) = IN_A_ROW[name]
    for axes, (split, stage) in zip(panels(figure), cells, strict=True):
        assert axes.get_title() == f"stage {stage}, {split}"
        rows = frame[(frame["split"] == split) & (frame["stage"] == stage)]
        expected = {
            f"block {block}, {column}": dict(zip(line["epoch"] + 1, line[column], strict=True))
            for block, line in rows.dropna(subset=column).groupby("block")
        }
        assert by_label(axes) == expected
        if name == "drop_blocks":
            first = rows.groupby("epoch")["unperturbed_error"].first()
            assert list(levels(axes, "unperturbed_error")) == [first.iloc[0]]
    assert "epoch" in (figure.get_supxlabel(), panels(figure)[-1].get_xlabel())


NAMES = ("$x$", "_hidden")


def with_strange_names(name):
    if name == "network_curves":
        return {"histories": make.network_frame(NAMES, 3)}
    arguments = FIGURES[name](splits=NAMES)
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


def test_pyplot_is_never_loaded():
    # The parent package may load Keras, which loads pyplot itself; a bare stand-in does not.
    program = textwrap.dedent(
        f"""
        import io, sys, types
        parent = types.ModuleType("tfresidual")
        parent.__path__ = [{str(PACKAGE)!r}]
        sys.modules["tfresidual"] = parent
        from tfresidual.definitions import probes
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
