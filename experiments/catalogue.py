"""The catalogue of figures and tables: what each needs, measures, draws and decides.

A figure or table of a paper is an `Entry`: a function that draws frames, with the networks it needs
and the measurements it is drawn from. A published statement is a `Statement`: a function from the
same frames to `judging.Case`s, one per seed or network, from which its class follows. Both are
added with a decorator, in the file of their paper.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import keras
import pandas as pd
from judging import NOT_RUN, Case, Judged, class_of, has_value
from run_figures import NothingError

import tfresidual
from tfresidual import datasets
from tfresidual.datasets.description import sizes_of
from tfresidual.jobs import training
from tfresidual.jobs.building import build, compile_for
from tfresidual.jobs.data import prepare
from tfresidual.jobs.settings import DEPTHS, WIDTHS, Settings, describe, stages_of
from tfresidual.machine.files import replacing
from tfresidual.surgery.statistics import UPDATES, update_statistics
from tfresidual.training.checkpoints import TrainingFolder

# The files of the papers, by short name.
PAPERS = {
    "II": "iterative_inference",
    "IC": "iterative_convergence",
    "PI": "perturbation_from_identity",
    "IM": "identity_mappings",
}
# Sizes of trained networks whose frames are kept in the repository, best trained first, with that
# of the same networks as they are built.
CONTROLS = {"trained": "untrained", "small": "untrained-small"}
KEPT = (*CONTROLS, *CONTROLS.values())
FRAMES = Path(__file__).parent / "frames"
# Digits of their numbers: more than any figure or verdict shows.
DIGITS = 5


def small_batches(recipe):
    """Returns settings of the size `small`: batches of 16, so that few images make enough steps.

    The learning rate is that of the recipe, which is for batches of 128, scaled by the batch.
    """
    return {"batch_size": 16, "learning_rate": recipe.learning_rate * 16 / 128}


# Settings of the size `trained`: our recipe for few epochs, in the papers' batches.
WELL = {"data": "cifar10", "recipe": "one_cycle", "batch_size": 128}


@dataclasses.dataclass(frozen=True)
class Network:
    """A network to be trained, once for all entries that need it.

    Attributes:
        name: name of its folder, unique within a paper and a size.
        settings: settings of its training.
        labels: columns that tell its rows from those of other networks in a figure.
        is_last: whether its last epoch is measured, and not the best one, with the statistics of
            batch normalization of training images: for trainings of few steps, after which moving
            averages are still those of other weights. Its validation errors say nothing then.
        callbacks: function from dicts of training and validation images to callbacks whose numbers
            are logged in every epoch, or `None`.
    """

    name: str
    settings: Settings
    labels: Mapping[str, Any]
    callbacks: Callable[[Mapping[str, Any]], Iterable[keras.callbacks.Callback]] | None = None
    is_last: bool = False

    def train(self, folder, console=None):
        """Trains it, or resumes its training, and returns a `Trained`."""
        training.train(folder, self.settings, console, self.callbacks)
        return Trained(self, folder)

    def untrained(self):
        """Returns the same network, to be measured before its training."""
        return Untrained(self.name, self.settings, self.labels)

    def operations(self):
        """Returns about how many multiplications its training takes."""
        settings = self.settings
        height, width, _ = describe(settings).input_shape
        channels = settings.width or WIDTHS.get(settings.network, 16)
        depth = settings.depth or DEPTHS.get(settings.network)
        # Blocks that take as much as those of the first stage; most stages halve rows and columns
        # and double the channels, which keeps a block as it is.
        blocks = {
            "resnet": lambda: (depth - 2) / 2,
            # A bottleneck has 17 products of channels, where two 3x3 convolutions have 18.
            "resnet164": lambda: 54,
            "resnet1001": lambda: 333,
            "single_representation": lambda: 10,
            "average_pooling_resnet": lambda: 10 * (1 + 1 / 4 + 1 / 16),
            "wide_resnet": lambda: 14,
        }.get(settings.network, lambda: depth * stages_of(settings))()
        images, held_out, _ = sizes_of(
            settings.data, settings.train_size, settings.validation, settings.test_size
        )
        # Forward, and twice that backward.
        of_image = blocks * 18 * channels**2 * height * width
        return of_image * (3 * images + held_out) * settings.epochs


class Untrained(Network):
    """A network that is measured before any training, with statistics of batch norm from images."""

    def train(self, folder, console=None):
        return Trained(self, folder)

    def operations(self):
        return 0


@dataclasses.dataclass(frozen=True)
class Entry:
    """A figure or table of a paper.

    Attributes:
        id: such as `"II-2"`, `"IM-T1"`.
        asks: the question it answers, and sentences that explain its figure or table.
        networks: function from a size to the `Network`s it needs; none at sizes at which it does
            not exist.
        measures: functions from a `Trained` to a frame; their names are those of the frames.
        draw: function from a dict of frames to a figure, a table, or a dict of these by name.
        also: ids of other figures of the paper that it draws as well.
    """

    id: str
    asks: str
    networks: Callable[[str], list[Network]]
    measures: tuple[Callable[[Trained], pd.DataFrame], ...]
    draw: Callable[[dict[str, pd.DataFrame]], Any]
    also: tuple[str, ...] = ()

    @property
    def paper(self):
        """The short name of the paper."""
        return self.id.partition("-")[0]

    @property
    def names(self):
        """The names by which it can be asked for: its figures, its statements and its paper."""
        decided = (one.id for one in STATEMENTS.values() if one.entry == self.id)
        return {self.id, *self.also, *decided, self.paper}

    def measures_at(self, size):
        """Returns what is measured on its networks: without a training, nothing of its epochs."""
        is_control = size in CONTROLS.values()
        return [one for one in self.measures if not (is_control and of_training(one))]

    def select(self, frames, size, about=None):
        """Returns the rows of its networks in the frames of its paper, with their labels.

        Args:
            frames: dict of the frames of the paper.
            size: name of a size.
            about: function from the networks to those whose rows are returned, or `None` for all.

        Raises:
            MissingError: if a network has no rows in a frame, or there are none at this size.
        """
        found = self.networks(size)
        networks = {one.name: one for one in (found if about is None else about(found))}
        if not networks:
            raise MissingError(f"no networks at size {size}")
        parts = {}
        for measure in self.measures_at(size):
            frame = frames.get(measure.__name__, pd.DataFrame({"name": []}))
            missing = sorted(set(networks) - set(frame["name"]))
            if missing:
                some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
                raise MissingError(f"no `{measure.__name__}` of {len(missing)} networks ({some})")
            # In the order of the networks, which is that of the figures.
            labels = pd.DataFrame([{"name": name, **n.labels} for name, n in networks.items()])
            parts[measure.__name__] = labels.merge(frame, on="name")
        return parts

    def pictures(self, frames, size):
        """Returns the figures and tables that it draws, by the name of their files."""
        try:
            drawn = self.draw(self.select(frames, size))
        except NothingError as error:
            raise MissingError(f"nothing can be drawn: {error}") from error
        drawn = drawn if isinstance(drawn, dict) else {"": drawn}
        return {f"{self.id}{name and '-' + name}": found for name, found in drawn.items()}


class MissingError(Exception):
    """Networks were not trained, or not measured, have no values, or do not exist at a size."""


@dataclasses.dataclass(frozen=True)
class Statement:
    """A published statement: one claim.

    Attributes:
        id: as in the paper's figure, such as `"II-2a"`.
        entry: id of the entry whose frames decide it.
        place: where the paper says it.
        says: the claim, in about twelve words.
        paper_says: the paper's own number, as text; empty if it prints none.
        effect: what the effect of its cases is, with its unit, and for which it holds.
        cases: function from the frames of the entry to `Case`s.
        about: function from the networks of the entry to those that decide it, the only ones whose
            rows `cases` is given; `None` if all do.
        gate: function from the frames to what the networks must have learnt or be and have not, and
            what would meet it, as text; empty if they can decide it. `None` if any network can.
        is_learnt: whether it says what training does, so that networks before their training are
            its control; not if it is about errors, epochs, or networks as they are built.
        as_built: whether it is about networks before their training: the frames of the controls
            decide it.
        note: what differs from the paper's setting, or should be known of the criterion.
        cannot: why there are no networks at some sizes, or `None`.
    """

    id: str
    entry: str
    place: str
    says: str
    paper_says: str
    effect: str
    cases: Callable[[dict[str, pd.DataFrame]], Iterable[Case]]
    about: Callable[[list[Network]], list[Network]] | None = None
    gate: Callable[[dict[str, pd.DataFrame]], str] | None = None
    is_learnt: bool = True
    as_built: bool = False
    note: str = ""
    cannot: str | None = None

    @property
    def paper(self):
        """The short name of the paper."""
        return self.id.partition("-")[0]

    def networks(self, size):
        """Returns the networks that decide it."""
        found = ENTRIES[self.entry].networks(size)
        return found if self.about is None else self.about(found)

    def rows(self, frames, size):
        """Returns the rows that decide it; raises the error of `Entry.select`."""
        return ENTRIES[self.entry].select(frames, size, self.about)

    def judged(self, frames, size, untrained=None):
        """Judges it by the frames of its paper.

        Args:
            frames: the frames at a size.
            size: the size.
            untrained: the frames of the same networks before their training.

        Returns:
            A `judging.Judged`.
        """
        decides = size
        if self.as_built and size in CONTROLS:
            frames, decides = untrained or {}, CONTROLS[size]
        try:
            rows = self.rows(frames, decides)
        except MissingError as error:
            return Judged(NOT_RUN, size, why=self.cannot or str(error))
        found = tuple(self.cases(rows))
        asked, before = "" if self.gate is None else self.gate(rows), ()
        why = f"needs {asked}" if asked else ""
        if self.is_learnt:
            try:
                before = tuple(self.cases(self.rows(untrained or {}, CONTROLS.get(size, size))))
            except MissingError:
                why = why or "the same networks before their training were not measured"
        valued = [case for case in found if has_value(case)]
        if not valued:
            why = why or "no network has a value"
        elif any(case.holds is None and not case.effect.known for case in valued):
            why = why or "the noise of these networks was not measured"
        return Judged(class_of(found, before, why), size, found, before, why)


ENTRIES: dict[str, Entry] = {}
STATEMENTS: dict[str, Statement] = {}


def entry(id, asks, networks, measures, also=()):
    """Decorator: adds an entry, whose drawing the function is."""

    def add(draw):
        if id in ENTRIES:
            raise ValueError(f"Argument `id` must be new. Received: id={id!r}")
        ENTRIES[id] = Entry(id, asks, with_controls(networks), tuple(measures), draw, tuple(also))
        return draw

    return add


def with_controls(networks):
    """Returns a function from sizes to networks that has the controls of `CONTROLS`, too."""

    @functools.wraps(networks)
    def of(size):
        trained = {control: size for size, control in CONTROLS.items()}.get(size)
        return networks(size) if trained is None else [one.untrained() for one in networks(trained)]

    return of


def statement(id, entry, place, says, effect, paper_says="", **more):
    """Decorator: adds a `Statement`, whose cases the function returns."""

    def add(cases):
        if id in STATEMENTS or entry not in ENTRIES:
            raise ValueError(
                "Argument `id` must be new and `entry` the id of an entry. Received: "
                f"id={id!r}, entry={entry!r}"
            )
        STATEMENTS[id] = Statement(id, entry, place, says, paper_says, effect, cases, **more)
        return cases

    return add


def those(**labels):
    """Returns a function from networks to those whose labels have one of some values.

    Args:
        **labels: the values, by the name of the label.
    """

    def chosen(networks):
        return [
            one
            for one in networks
            if all(one.labels[label] in values for label, values in labels.items())
        ]

    return chosen


def over_seeds(seeds):
    """Decorator: a function `(size, seed) -> networks` returns those of all seeds of a size.

    Args:
        seeds: dict from a size to its number of seeds; 0 for a size that is not there.
    """

    def repeat(function):
        @functools.wraps(function)
        def networks(size):
            count = seeds.get(size, 0)
            return [network for seed in range(count) for network in function(size, seed)]

        return networks

    return repeat


def entries_of(paper):
    """Returns the entries of a paper."""
    return [one for one in ENTRIES.values() if one.paper == paper]


def cases_by(frame, keys, function):
    """Returns the cases of a function of rows, one per value of columns.

    The function returns what a `Case` has beside its name.
    """
    found = []
    for key, rows in frame.groupby([*keys], sort=False):
        named = dict(zip(keys, key, strict=True))
        names = (f"seed {value}" if of == "seed" else str(value) for of, value in named.items())
        found.append(Case(", ".join(names), *function(rows)))
    return found


def cases_of(table, function):
    """Returns the cases of a function `(row of a table) -> (effect, holds)`."""
    found = []
    for key, row in table.iterrows():
        key = key if isinstance(key, tuple) else (key,)
        name = ", ".join(f"{k} {v}" for k, v in zip(table.index.names, key, strict=True))
        found.append(Case(name, *function(row)))
    return found


def table_by(frame, index, columns, values):
    """Returns a table of the means of a column, with rows of NaN where there is no number."""
    return frame.groupby([*index, *columns])[values].mean().unstack([*columns])


def errors_of(rows, column):
    """Returns the standard errors of a column, NaN if they were not measured."""
    name = f"{column}_se"
    return (rows[name] if name in rows else rows[column] * math.nan).to_numpy(float)


def gates(*asked):
    """Returns a gate that names the first of several that is not met."""
    return lambda frames: next(filter(None, (one(frames) for one in asked)), "")


def errs_under(limit):
    """Returns a gate of networks whose test error is under a limit."""

    def gate(frames):
        most = frames["summary"]["error"].max()
        is_met = most < limit
        return "" if is_met else f"a test error under {100 * limit:.3g} %; it is {100 * most:.1f} %"

    return gate


def fits_under(limit):
    """Returns a gate of networks whose loss on training images is under a limit, in nats."""

    def gate(frames):
        most = frames["summary"]["train_loss"].max()
        return "" if most < limit else f"a training loss under {limit:g} nats; it is {most:.3g}"

    return gate


def has_seeds(least):
    """Returns a gate of networks of several seeds."""

    def gate(frames):
        found = frames["summary"]["seed"].nunique()
        return "" if found >= least else f"{least} seeds or more; there {verb(found)}"

    return gate


def verb(number):
    """Returns how many there are, in words."""
    return f"is {number}" if number == 1 else f"are {number}"


class Trained:
    """A trained network, from which measures take what they need.

    Args:
        network: the `Network`.
        folder: its folder.
    """

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder, self.settings = network, folder, network.settings
        self._kept: dict[str, Any] = {}

    def once(self, name, measure):
        """Returns what a function measures, which several measures share under a name."""
        if name not in self._kept:
            self._kept[name] = measure()
        return self._kept[name]

    @functools.cached_property
    def log(self):
        """The log of the training, with one row per epoch."""
        return pd.read_csv(self.folder / "log.csv")

    @functools.cached_property
    def chain(self):
        """The chain of the network of the best or the last epoch, or of the one not trained.

        It computes in float32, whatever dtype the network was trained with.
        """
        if isinstance(self.network, Untrained):
            return tfresidual.chain(self.settled())
        path = self.folder / "model.keras"
        if self.network.is_last:
            _, path = TrainingFolder(self.folder, "").newest()
        model = keras.saving.load_model(path)
        if model.dtype_policy.compute_dtype != "float32":
            weights = model.get_weights()
            model = self.untrained()
            model.set_weights(weights)
            compile_for(model, self.settings, 1)
        if self.network.is_last:
            self._settle(model)
        return tfresidual.chain(model)

    def untrained(self):
        """Returns the network before its training, built anew."""
        keras.utils.set_random_seed(self.settings.seed)
        return build(dataclasses.replace(self.settings, dtype="float32"))

    def settled(self):
        """Returns the network before its training, with statistics of training images."""
        network = self.untrained()
        self._settle(network)
        compile_for(network, self.settings, 1)
        return network

    def _settle(self, network):
        batches = self._data["train"].take(UPDATES)
        update_statistics(network, (images for images, _ in batches))

    @functools.cached_property
    def metric(self):
        """The name of the metric that is logged: `"accuracy"` or `"exact_match"`."""
        return "exact_match" if "exact_match" in self.log else "accuracy"

    @functools.cached_property
    def _data(self):
        train, validation, test = prepare(self.settings)
        return {"train": datasets.plain(train), "validation": validation, "test": test}

    def images(self, counts):
        """Returns a dict by split of the images, whole batches of them.

        Args:
            counts: dict from a split to the least number of images, `None` for all.
        """
        return {
            split: self._data[split].take(
                -1 if count is None else training.batches_of(count, self.settings)
            )
            for split, count in counts.items()
        }


def measured(trained: Trained, measure) -> None:
    """Measures a trained network, unless its folder holds the frame already."""
    folder, name = trained.folder / "frames", measure.__name__
    if is_measured(folder, measure):
        return
    frame = measure(trained)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / f"{name}.csv") as written:
        frame.to_csv(written, index=False, float_format=f"%.{DIGITS}g")
    images = images_in(folder) | {name: counts_of(measure)}
    with replacing(folder / IMAGES) as written:
        written.write_text(json.dumps(images))


# In the folder of a network's frames: on how many images of each split each was measured.
IMAGES = "images.json"


def of_training(measure):
    """Returns whether a measure reads the log of the training."""
    return getattr(measure, "of_training", False)


def counts_of(measure):
    """Returns about how many images of each split a measure takes, `None` if it takes none."""
    return getattr(measure, "images", None)


def images_in(folder):
    """Returns on how many images the frames in a folder were measured, a dict by name."""
    path = folder / IMAGES
    return json.loads(path.read_text()) if path.exists() else {}


def is_measured(folder, measure):
    """Returns whether a folder holds a frame, measured on as many images as it would be today."""
    has_frame = (folder / f"{measure.__name__}.csv").exists()
    return has_frame and is_on_as_many(images_in(folder), measure)


def is_on_as_many(images, measure):
    """Returns whether a frame was measured on as many images as it would be today.

    Args:
        images: on how many images the frames of a network were measured, a dict by name.
        measure: the function that measures the frame.
    """
    name = measure.__name__
    return name in images and images[name] == counts_of(measure)


def with_dtype(network: Network, dtype: str | None) -> Network:
    """Returns a network that is trained with a dtype policy, `None` for that of its settings."""
    if dtype is None or not isinstance(network.settings, Settings):
        return network
    return dataclasses.replace(network, settings=dataclasses.replace(network.settings, dtype=dtype))


def on_disk(network: Network, data_dir: str | None) -> Network:
    """Returns a network whose images are read from a folder."""
    if not isinstance(network.settings, Settings):
        return network
    return dataclasses.replace(
        network, settings=dataclasses.replace(network.settings, data_dir=data_dir)
    )


def kept_frames(size, paper, out):
    """Returns the folder of the frames of all networks of a paper."""
    if size not in KEPT:
        return Path(out) / size / "frames" / paper
    return (FRAMES if size == "small" else FRAMES / size) / paper


def read_frames(size, paper, out="."):
    """Returns the frames of all networks of a paper, a dict by name."""
    folder = kept_frames(size, paper, out)
    return {path.stem: pd.read_csv(path) for path in sorted(folder.glob("*.csv"))}


def kept_settings(frames):
    """Returns the settings, as texts, of the networks whose frames are kept, by name.

    Args:
        frames: the frames of a paper, as `read_frames` returns them.
    """
    if "settings" not in frames:
        return {}
    return dict(frames["settings"].set_index("name")["settings"])


def kept_images(frames):
    """Returns on how many images the frames of networks were measured, dicts by name.

    Args:
        frames: the frames of a paper, as `read_frames` returns them.
    """
    if "settings" not in frames:
        return {}
    return frames["settings"].set_index("name")["images"].map(json.loads).to_dict()


def collect(out, size, networks):
    """Puts the frames of single networks together; rows of networks that are not here stay.

    The settings of the networks, and on how many images they were measured, are a frame, too:
    `kept_settings` and `kept_images` read it.
    """
    found = {}
    for paper, name in networks:
        folder = Path(out) / size / paper / name / "frames"
        for path in sorted(folder.glob("*.csv")):
            found.setdefault((paper, path.stem), []).append(pd.read_csv(path).assign(name=name))
        if (folder / "settings.txt").exists():
            text = (folder / "settings.txt").read_text()
            images = json.dumps(images_in(folder))
            row = pd.DataFrame([{"name": name, "settings": text, "images": images}])
            found.setdefault((paper, "settings"), []).append(row)
    for (paper, name), parts in found.items():
        path = kept_frames(size, paper, out) / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        new = pd.concat(parts, ignore_index=True)
        if path.exists():
            old = pd.read_csv(path)
            elsewhere = {key[1] for key in networks if key[0] == paper} - set(new["name"])
            kept = old[old["name"].isin(elsewhere)]
            new = new if kept.empty else pd.concat([kept, new], ignore_index=True)
        new = new.sort_values("name", kind="stable")[["name", *new.columns.drop("name")]]
        with replacing(path) as written:
            new.to_csv(written, index=False, float_format=f"%.{DIGITS}g")
