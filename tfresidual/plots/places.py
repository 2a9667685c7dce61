"""The horizontal axis of a figure: places of blocks, states, epochs or stages, and their names."""

import itertools

import pandas as pd

from tfresidual.plots import frames, style

# The block index of the state before the first block of a stage.
FIRST = -1
# The names of blocks that fit into an inch.
_NAMES_PER_INCH = 2.2
# A name longer than this is written diagonally.
_LONG = 6
# The look of a block without a value.
GAP = {"facecolor": "none", "edgecolor": "#cfcfcf", "hatch": "////", "linewidth": 0, "zorder": 0.5}


class Places:
    """The places on the horizontal axis.

    Attributes:
        places: the place of every row of the table.
        stages: a frame of `start` and `size` by stage, or `None` unless blocks are in a row.
        names: a dict of the names of places, or `None` if the places are numbers.
        gaps: the places of blocks that the frame has without a value.
    """

    def __init__(self, table, drawing, over):
        self.over, self.stages, self.names, self.gaps = over, None, None, []
        if over in ("block", "state", "epoch"):
            # The rows of a panel over something else have no value there.
            table = table.dropna(subset="block" if over == "state" else over)
        if over in ("block", "state"):
            self._set_blocks(table.astype({"stage": int, "block": int}), drawing)
        elif over == "stage":
            stages = keys_of(table, "stage")
            self.names = {place: _stage_text(table, key) for place, key in enumerate(stages)}
            self.places = table["stage"].map({key: place for place, key in enumerate(stages)})
        elif over == "epoch":
            self.places = table["epoch"] + 1
        elif over not in table:
            self.places = table.index.to_series()
        elif isinstance(table[over].dtype, pd.CategoricalDtype):
            categories = table[over].cat.categories
            self.names = {i: name.replace(" (", "\n(") for i, name in enumerate(categories)}
            self.places = table[over].cat.codes
        else:
            self.places = table[over]

    def _set_blocks(self, table, drawing):
        if self.over == "block":
            sizes = table.groupby("stage")["block"].max() + 1
            found = [(stage, block) for stage in sizes.index for block in range(sizes[stage])]
        else:
            columns = [line.column for panel in drawing.panels for line in panel.lines]
            states = table.dropna(subset=columns, how="all")[["stage", "block"]]
            found = sorted(set(states.itertuples(index=False, name=None)))
        order = pd.MultiIndex.from_tuples(found, names=["stage", "block"])
        places = pd.Series(range(len(order)), index=order)
        rows = pd.MultiIndex.from_frame(table[["stage", "block"]])
        self.places = pd.Series(places.reindex(rows).to_numpy(), index=table.index).dropna()
        self.stages = places.groupby(level="stage").agg(start="min", size="size")
        self.names = {
            place: "first" if block == FIRST else f"{stage}.{block}"
            for place, (stage, block) in enumerate(found)
        }
        if "name" in table:
            own = table.loc[self.places.index].dropna(subset="name")
            self.names |= dict(zip(self.places[own.index], own["name"], strict=True))
        if "part" in table:
            heads = self.places.index.intersection(table.index[table["part"] == "head"])
            self.names |= dict.fromkeys(self.places[heads], "head")
        if "is_empty" in table and self.over == "block":
            empty = table["is_empty"].astype(bool).groupby(self.places).all()
            self.gaps = list(empty.index[empty])

    def course(self, rows, line):
        """Returns heights, and the edges of their band, by place."""
        column, places = line.column, self.places[rows.index]
        if "seed" in rows:
            course = rows.groupby(places)[column].agg(["mean", "min", "max", "count"])
            course.columns = ["height", "low", "high", "count"]
            if (course["count"] < 2).all():
                course = course[["height"]]
        else:
            course = pd.DataFrame({"height": rows[column].to_numpy()}, index=places)
            if line.band:
                course["low"], course["high"] = course["height"], rows[line.band].to_numpy()
            elif f"{column}_se" in rows and self.stages is not None:
                errors = rows[f"{column}_se"].to_numpy()
                course["low"], course["high"] = course["height"] - errors, course["height"] + errors
        if line.mark == "sum":
            return course.cumsum()
        if self.over == "epoch":
            return course.dropna(subset="height")
        if line.mark == "bar":
            return course.sort_index()
        if self.stages is None:
            return course
        # A place between the stages keeps lines from crossing into the next one.
        borders = self.stages["start"].to_numpy()[1:] - 0.5
        return course.reindex(sorted([*range(int(self.stages["size"].sum())), *borders]))

    def finish(self, axes, has_names, is_only):
        """Sets limits and ticks, and marks stages and gaps."""
        if self.over == "epoch":
            style.epoch_axis(axes, self.places, bins=10 if is_only else 6)
        elif self.names is None and not (self.places % 1).any():
            style.whole_numbers(axes.xaxis, bins=8)
        elif self.names is not None:
            axes.set_xlim(-0.6, len(self.names) - 0.4)
        if self.stages is not None:
            mark_stages(axes, self.stages)
            for place in self.gaps:
                axes.axvspan(place - 0.5, place + 0.5, **GAP, gid="gap")
        if self.names is not None and has_names:
            self._name_places(axes)

    def _name_places(self, axes):
        step = 1
        if self.stages is not None:
            width = axes.figure.get_figwidth() / axes.get_subplotspec().get_gridspec().ncols
            step += int((len(self.names) - 1) / (_NAMES_PER_INCH * width))
        # Names at the end of a stage make room for that of the next one.
        starts = [0] if self.stages is None else [*self.stages["start"]]
        shown = {
            place: self.names[place]
            for start, end in itertools.pairwise([*starts, len(self.names) + step])
            for place in range(start, min(end, len(self.names)), step)
            if place == start or place <= end - 0.75 * step or self.names[place] == "head"
        }
        look = dict(style.PLAIN)
        if max(len(line) for name in shown.values() for line in name.splitlines()) > _LONG:
            look |= {"rotation": 35, "ha": "right"} if self.stages is not None else {}
        axes.set_xticks(list(shown), list(shown.values()), **look)
        if self.stages is None:
            axes.tick_params(axis="x", length=0)


def stage_name(stage):
    """Returns the name of a stage, which may be a number, or text as "mean"."""
    return f"stage {stage}" if str(stage).isdigit() else stage


def _stage_text(table, stage):
    """Returns the name of a stage, with its number of blocks if the table has it."""
    name = stage_name(stage)
    counts = table.loc[table["stage"] == stage, "blocks"].dropna() if "blocks" in table else []
    if len(counts) == 0:
        return name
    count = counts.iloc[0]
    return f"{name}\n{count:g} block{'' if count == 1 else 's'}"


def mark_stages(axes, stages):
    """Shades every second stage, draws the boundaries and labels the stages above the axes."""
    if len(stages) < 2:
        return
    for place, (stage, start, size) in enumerate(stages[["start", "size"]].itertuples()):
        left, right = start - 0.5, start + size - 0.5
        if place:
            axes.axvline(left, color=style.FAINT_INK, linewidth=0.8, linestyle=":", gid="boundary")
        if place % 2:
            axes.axvspan(left, right, color=style.BAND, linewidth=0, zorder=0)
        name = f"stage {stage}" if len(stages) <= 6 else str(stage)
        style.text_above(axes, (left + right) / 2, name)


def keys_of(table, column):
    """Returns the distinct values of a column in the order in which they are drawn."""
    if column not in table:
        return [""]
    values = table[column]
    if isinstance(values.dtype, pd.CategoricalDtype):
        return list(values.cat.categories)
    if column == "split":
        return frames.order_splits(values)
    if pd.api.types.is_numeric_dtype(values):
        return sorted(values.unique().tolist())
    found = list(dict.fromkeys(values))
    if column == "stage":
        found.sort(key=lambda stage: (stage == "all", stage != "mean", len(stage), stage))
    return found
