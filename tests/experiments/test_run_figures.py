"""Figures of many trained networks.

Not covered: how they look; that was judged by eye, with four widths and four variations.
"""

import itertools

import numpy as np
import pandas as pd
import pytest
import run_figures
from plots.read_figures import legend_texts, lines_with, metric_lines, named

SETTINGS = (
    (0.0, "non-recurrent"),
    (0.0, "recurrent"),
    (0.5, "recurrent"),
    (0.9, "recurrent"),
    (1.0, "recurrent"),
)
NAMES = ["0 (non-rec.)", "0 (rec.)", "0.5 (rec.)", "0.9 (rec.)", "1 (rec.)"]
TICKS = [name.replace(" (", "\n(") for name in NAMES]
INDICES = ("convergence", "recurrence", "divergence")
WIDTHS = {f"{width} channels": width for width in (8, 16, 32, 64)}
COUNTS = ("raw_parameters", "effective_parameters")


def run_frame(widths=(8, 16, 32, 64), settings=SETTINGS, seeds=3, seed=0, **varied):
    """A frame of runs: coupling raises convergence and error, width lowers the error.

    `varied` are settings other than the plain ones: `lipschitz`, `anchor`, `kernel`, `gamma`,
    `first_block`, or any further column.
    """
    rows = itertools.product(widths, settings, range(seeds))
    frame = pd.DataFrame(
        [(width, *setting, number) for width, setting, number in rows],
        columns=["width", "coupling", "initialization", "seed"],
    )
    noise = np.random.default_rng(seed).normal(size=(4, len(frame)))
    bounded = "lipschitz" in varied
    coupling, width = frame["coupling"], frame["width"]
    share = (1 - coupling) * np.where(frame["initialization"] == "recurrent", 0.95, 1.0)
    error = 0.05 + 0.3 / width + 0.05 * coupling**2 + 0.02 * bounded + 0.003 * noise[0]
    free = 0.9 - 0.5 * coupling - 0.001 * width + 0.03 * noise[3]
    plain = {"lipschitz": np.nan, "anchor": "previous", "kernel": "uniform", "gamma": 1.0}
    return frame.assign(
        **plain | {"first_block": 0} | varied,
        error=error,
        train_error=error / 4,
        convergence=0.6 + 0.2 * coupling + 0.001 * width + 0.02 * noise[1],
        recurrence=0.99 + 0.01 * noise[2],
        divergence=0.01 if bounded else free,
        raw_parameters=7500.0 * width**2,
        effective_parameters=7500.0 * width**2 * (1 / 16 + 15 / 16 * share),
        deviation=0.8 * share,
    )


def varied_frame(**settings):
    """Runs of the plain networks and of four variations of their training."""
    variations = (
        {},
        {"gamma": 0.1},
        {"kernel": "triangular"},
        {"first_block": 5},
        {"gamma": 0.1, "first_block": 5},
    )
    frames = [run_frame(seed=place, **settings, **v) for place, v in enumerate(variations)]
    return pd.concat(frames, ignore_index=True)


def means(frame, column, by=("coupling", "initialization")):
    """The mean of a column in each setting, in the order of the figure."""
    groups = frame.groupby(list(by))[column].mean()
    order = SETTINGS if by[0] == "coupling" else [*groups.index]
    return [groups[setting] for setting in order if setting in groups]


def dots_of(axes):
    dots = [line.get_xydata() for line in lines_with(axes, "run")]
    return sorted(map(tuple, np.concatenate(dots)))


class TestOverSettings:
    @pytest.mark.parametrize(
        ("name", "columns"),
        [
            ("indices_of_runs", INDICES),
            ("error_of_runs", ("error",)),
            ("deviation_of_runs", ("deviation",)),
        ],
    )
    def test_a_dot_per_run_and_lines_of_means(self, name, columns):
        frame = run_frame(seeds=2)
        frame.loc[(frame["width"] == 8) & (frame["coupling"] == 1), columns[0]] = np.nan
        figure = getattr(run_figures, name)(frame.sample(frac=1.0, random_state=1))
        for axes, column in zip(figure.axes, columns, strict=True):
            lines = metric_lines(axes)
            for line, (label, width) in zip(lines, WIDTHS.items(), strict=True):
                rows = frame[(frame["width"] == width)].dropna(subset=column)
                assert line.get_label() == f"{label}, {column}"
                assert list(line.get_ydata()) == pytest.approx(means(rows, column))
                assert np.round(line.get_xdata()).tolist() == [0, 1, 2, 3, 4][: len(rows) // 2]
            heights = sorted(y for _, y in dots_of(axes))
            assert heights == sorted(frame[column].dropna())
            places = np.array([line.get_xdata()[:4] for line in lines])
            assert (np.diff(places, axis=0) > 0.05).all()
            assert list(named(axes).values()) == TICKS
            assert axes.get_xlabel() == "coupling (initialization)"
        assert legend_texts(figure) == list(WIDTHS)

    def test_a_row_of_panels_per_variation(self):
        frame = varied_frame(widths=(16, 32), seeds=2)
        frame.loc[frame["kernel"] == "triangular", "recurrence"] = np.inf
        figure = run_figures.indices_of_runs(frame, panels="variation")
        grid = np.reshape(figure.axes, (5, 3))
        assert [axes.get_ylabel().replace("\n", " ") for axes in grid[:, 0]] == [
            "standard",
            "gamma = 0.1",
            "triangular kernel",
            "coupled from block 5",
            "gamma = 0.1, coupled from block 5",
        ]
        assert [axes.get_title() for axes in grid[0]] == [f"{index} index" for index in INDICES]
        assert {axes.get_title() for axes in grid[1:].ravel()} == {""}
        rows = frame[(frame["kernel"] == "triangular") & (frame["width"] == 32)]
        line = metric_lines(grid[2, 2])[1]
        assert list(line.get_ydata()) == pytest.approx(means(rows, "divergence"))
        assert [text.get_text() for text in grid[2, 1].texts] == ["no values"]
        assert len({axes.get_ylim() for axes in grid.ravel()}) == 1

    def test_training_and_held_out_images_and_a_variation(self):
        frame = pd.concat([run_frame(gamma=0.1, seed=1), run_frame()])
        figure = run_figures.error_of_runs(frame, dash="gamma", errors=("train_error", "error"))
        assert [axes.get_title() for axes in figure.axes] == ["training images", "held-out images"]
        assert legend_texts(figure) == [*WIDTHS, "gamma = 1", "gamma = 0.1"]
        lines = {line.get_label(): line for line in metric_lines(figure.axes[0])}
        plain, small = (lines[f"16 channels, gamma = {g}, train_error"] for g in (1, 0.1))
        assert plain.get_color() == small.get_color()
        assert (plain.get_linestyle(), small.get_linestyle()) == ("-", "--")
        assert (plain.get_markerfacecolor(), small.get_markerfacecolor()) == (
            plain.get_color(),
            "white",
        )
        rows = frame[(frame["gamma"] == 0.1) & (frame["width"] == 16)]
        assert list(small.get_ydata()) == pytest.approx(means(rows, "train_error"))


class TestScatters:
    def test_the_error_against_indices(self):
        frame = run_frame()
        frame.loc[frame["coupling"] == 0.9, "convergence"] = np.nan
        figure = run_figures.error_against_indices(frame, indices=INDICES)
        assert [axes.get_xlabel() for axes in figure.axes] == [f"{name} index" for name in INDICES]
        assert [axes.get_ylabel() for axes in figure.axes] == ["error", "", ""]
        for axes, index in zip(figure.axes, INDICES, strict=True):
            known = frame.dropna(subset=index)
            for line, width in zip(metric_lines(axes), WIDTHS.values(), strict=True):
                rows = known[known["width"] == width]
                assert list(line.get_xdata()) == pytest.approx(means(rows, index))
                assert list(line.get_ydata()) == pytest.approx(means(rows, "error"))
            assert dots_of(axes) == sorted(map(tuple, known[[index, "error"]].to_numpy()))
        markers = [line.get_marker() for line in lines_with(axes, "mean")]
        assert markers == markers[:5] * 4
        assert len(set(markers)) == 5
        assert legend_texts(figure) == [*WIDTHS, *NAMES]

    def test_parameter_efficiency(self):
        frame = run_frame()
        figure = run_figures.parameter_efficiency(frame.sample(frac=1.0, random_state=1))
        pairs = [COUNTS, (COUNTS[0], "error"), (COUNTS[1], "error")]
        for axes, (across, up) in zip(figure.axes, pairs, strict=True):
            lines = metric_lines(axes)
            assert [line.get_label() for line in lines] == [f"{name}, {up}" for name in NAMES]
            for line, (coupling, initialization) in zip(lines, SETTINGS, strict=True):
                rows = frame[frame["coupling"] == coupling]
                rows = rows[rows["initialization"] == initialization]
                assert list(line.get_xdata()) == pytest.approx(means(rows, across, ["width"]))
                assert list(line.get_ydata()) == pytest.approx(means(rows, up, ["width"]))
            assert dots_of(axes) == sorted(map(tuple, frame[[across, up]].to_numpy()))
            assert axes.get_xscale() == "log"
        assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear", "linear"]
        assert figure.axes[1].get_ylim() == figure.axes[2].get_ylim()
        (line,) = lines_with(figure.axes[0], "equality")
        assert list(line.get_xdata()) == list(line.get_ydata())
        assert line.get_xdata()[0] < frame[list(COUNTS)].min(axis=None)
        assert line.get_xdata()[1] > frame[list(COUNTS)].max(axis=None)
        assert legend_texts(figure) == [*NAMES, "effective = raw"]
        varied = run_figures.parameter_efficiency(varied_frame(widths=(16, 32)), dash="variation")
        assert legend_texts(varied)[5:7] == ["standard", "gamma = 0.1"]
