"""Residual network as a functional Keras model that knows its stem, stages and head."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import math
from typing import TYPE_CHECKING, Any

import keras
from rich.console import Console
from rich.table import Table

from tfresidual.layers import BatchNormalization, PointwiseConvolution, ResidualUnit, ScalarBias
from tfresidual.layers.divisor import fixed_norms
from tfresidual.layers.residual_unit import PARAMETERS, PREACTIVATION_LAYOUTS
from tfresidual.machine.backends import BACKEND
from tfresidual.machine.first_step import TracedOnce
from tfresidual.networks.specification import FIELDS, POOLINGS, Specification, serialized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal

    from tfresidual.definitions.types import (
        Anchor,
        BatchNorm,
        DataFormat,
        DType,
        Initializer,
        Layout,
        MultiplierName,
        Normalization,
        Shape,
        ShortcutName,
        StrPath,
        Transition,
    )
    from tfresidual.layers import LayerScale, Shortcut

# The fields of the specification that a `keras.Model` does not have under these names.
ATTRIBUTES = tuple(field for field in FIELDS if field not in ("input_shape", "dtype"))

if TYPE_CHECKING:

    class _Specified(Specification, TracedOnce, keras.Model):
        """A network has the fields of its specification as attributes."""

        def __init__(self, inputs: Any, outputs: Any, name: str) -> None: ...

else:

    class _Specified(TracedOnce, keras.Model):
        pass


@keras.saving.register_keras_serializable(package="tfresidual")
class ResidualNetwork(_Specified):
    """Stem, stages of residual units, and a classifier, as one functional Keras model.

    The stem is a 3x3 convolution. Every stage except the first starts by halving height and width.
    The head is batch normalization and ReLU, average pooling and a dense layer, which computes in
    float32 under every dtype policy. Layouts whose units do not begin with an activation have batch
    normalization and ReLU after the stem instead of in the head.

    Copy a network with shared blocks by `copy.deepcopy` or `from_config(get_config())`.
    `keras.models.clone_model` copies layer by layer, so that one shared block becomes several.

    Example:

    >>> net = ResidualNetwork(input_shape=(32, 32, 3), classes=10, blocks=3)
    >>> net(keras.ops.ones((2, 32, 32, 3))).shape
    TensorShape([2, 10])

    Args:
        input_shape: (height, width, channels) of one image, or (channels, height, width) with
            `data_format="channels_first"`. Height and width must be divisible by
            `2 ** (stages - 1)` or `None`.
        classes: int, number of outputs.
        blocks: int or ints, number of residual units per stage.
        widths: ints, channels of each stage.
        stem_width: int, channels of the stem; by default those of the first stage, or a quarter of
            them with bottlenecks.
        layout: layout of the units, see `tfresidual.layers.ResidualUnit`, also for the next two.
        bottleneck: bool, whether the units are bottlenecks.
        shortcut: shortcut of the units, by name or as a `tfresidual.layers.Shortcut`.
        transition: how every stage after the first begins. `"projection"`: its first unit has
            stride 2 and a 1x1 stride-2 convolution as shortcut. `"convolution"`: a 1x1 stride-2
            convolution before the units. `"average_pooling"`, `"max_pooling"`: 2x2 pooling before
            the units. `"downsampling_block"`: an additional residual unit of stride 2, whose
            shortcut keeps every second row and column and appends channels of zeros.
        pooling: `"global"`, or an int, the size of an average pooling whose output is flattened.
        classifier_activation: activation of the last layer: `"softmax"`, `"sigmoid"` (several
            labels per image) or `None` (logits).
        gamma_initializer: initializer of the scale of the units' batch normalizations; by default
            0.1 if blocks are shared and `batch_norm` is `"unshared"`, and 1 otherwise.
        share_from: int, block index from which on all blocks of a stage are one shared block that
            is applied repeatedly, or `None` if every block has its own weights. A block that
            changes the shape of the state always has its own weights.
        batch_norm: which parts of batch normalization every application of a shared block has of
            its own: `"shared"`: none; `"unshared_statistics"`: the statistics; `"unshared_scale"`:
            scale and offset; `"unshared"`: both.
        recurrent_initialization: bool, whether all blocks of a stage that keep the shape of the
            state start with equal weights.
        lipschitz: float over 0, the largest Lipschitz constant of the branch of every block that
            keeps the shape of the state, or `None` for no bound.
        anchor: what a block that keeps the shape of the state adds its branch to: `"previous"`, the
            input of the block, or `"input"`, the input of the first of these blocks in the stage.
            The latter with `lipschitz` under 1 is the properly convergent network.
        normalization: `"batch"`; `None` for a network without normalization; or `"fixup"`, see
            `tfresidual.layers.ResidualUnit`. The classifier's kernel is then initially 0. The paper
            trains the scalars of Fixup with a tenth of the learning rate.
        multiplier: learned factors at the end of every branch: `"layer_scale"`, `"rezero"`, a
            `tfresidual.layers.LayerScale` or `None`. `"rezero"` with `normalization=None` is
            SkipInit. Not with `lipschitz` or `"fixup"`.
        stochastic_depth: float in [0, 1), probability with which the branch of the last block is
            dropped for an image in training. Block l of L, counted through all stages from 1, is
            dropped with probability `l / L * stochastic_depth`; blocks of transitions never are.
        data_format: `"channels_last"`, `"channels_first"` or `None` for Keras' own setting.
        dtype: dtype policy of all layers, by default Keras' own setting.
        name: name of the model.

    Raises:
        ValueError: if an argument is invalid, or the strides do not fit `input_shape`.

    Reference:
        He et al. 2016, https://arxiv.org/abs/1603.05027. Sharing and unshared batch
        normalization: Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, section 4.5.
        Recurrent initialization, Lipschitz bound and anchor: "Iterative convergent computation is
        not a useful inductive bias for ResNets", section 4. Stochastic depth: Huang et al. 2016,
        https://arxiv.org/abs/1603.09382, eq. 4, where the survival probability is one minus this.
        Fixup: Zhang et al. 2019, https://arxiv.org/abs/1901.09321.
    """

    def __init__(
        self,
        input_shape: Shape,
        classes: int,
        *,
        blocks: int | Iterable[int] = 3,
        widths: Iterable[int] = (16, 32, 64),
        stem_width: int | None = None,
        layout: Layout = "full_preactivation",
        bottleneck: bool = False,
        shortcut: ShortcutName | Shortcut | dict[str, Any] = "identity",
        transition: Transition = "projection",
        pooling: Literal["global"] | int = "global",
        classifier_activation: str | Callable[..., Any] | None = "softmax",
        gamma_initializer: Initializer | None = None,
        share_from: int | None = None,
        batch_norm: BatchNorm = "shared",
        recurrent_initialization: bool = False,
        lipschitz: float | None = None,
        anchor: Anchor = "previous",
        normalization: Normalization = "batch",
        multiplier: MultiplierName | LayerScale | dict[str, Any] | None = None,
        stochastic_depth: float = 0.0,
        data_format: DataFormat | None = None,
        dtype: DType | None = None,
        name: str = "residual_network",
    ) -> None:
        # Nothing but the arguments is a local variable yet.
        given = locals()
        specification = Specification.of(given)
        inputs, outputs = _graph(specification)
        super().__init__(inputs, outputs, name=name)
        self.dtype_policy = specification.dtype
        for field in ATTRIBUTES:
            setattr(self, field, getattr(specification, field))
        if self.recurrent_initialization:
            self._begin_equal()

    def _begin_equal(self):
        """Copies to all blocks of a stage the weights of its first block that keeps the shape."""
        for _, units in self.sections()[1]:
            first, *others = [unit for unit in units if unit.resizing is None] or [None]
            for unit in others:
                for role, variable in unit.weights_by_role().items():
                    # A copy, since JAX reuses the memory of each variable for its next value.
                    variable.assign(keras.ops.copy(first.weights_by_role()[role]))
                unit.converge(training=True)

    def converge(self) -> None:
        """Computes and stores the norms that bound the branches if the weights changed.

        The first inference call does the same. Methods that save or export the network call this
        first, so that the file contains the norms. It does not affect further training.
        """
        for _, units in self.sections()[1]:
            for unit in units:
                unit.converge()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        super().compile(*args, **kwargs)
        optimizer = self.optimizer
        while optimizer is not None:
            # That of a coupling, which may be inside a loss scale.
            if hasattr(optimizer, "check_variables"):
                optimizer.check_variables(self.trainable_variables)
            optimizer = getattr(optimizer, "inner_optimizer", None)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        if type(self).compile is not ResidualNetwork.compile:
            super().compile_from_config(config)
            return
        # As in Keras, which refuses to call a `compile` that is not its own.
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.converge()
        super().save(*args, **kwargs)

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        self.converge()
        super().save_weights(*args, **kwargs)

    def export(self, filepath: StrPath, format: str = "tf_saved_model", **kwargs: Any) -> None:
        self.converge()
        is_fixed = format != "tf_saved_model"
        with fixed_norms() if is_fixed else contextlib.nullcontext():
            super().export(filepath, format, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with self._norms_outside_the_graph():
            return super().predict(*args, **kwargs)

    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        with self._norms_outside_the_graph():
            return super().predict_on_batch(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with self._norms_outside_the_graph():
            return super().evaluate(*args, **kwargs)

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        with self._norms_outside_the_graph():
            return super().test_on_batch(*args, **kwargs)

    @contextlib.contextmanager
    def _norms_outside_the_graph(self):
        """On JAX, computes the norms before a graph is compiled, and leaves them as they are.

        JAX would compile the search anew for every convolution of the graph, which takes many times
        longer than the rest of it.
        """
        if BACKEND != "jax" or self.lipschitz is None:
            yield
            return
        self.converge()
        with fixed_norms():
            yield

    def learned_variables(self) -> tuple[keras.Variable, ...]:
        """Returns all learned variables, trainable or frozen, as a tuple."""
        return tuple(weight for weight in self.weights if weight.name in PARAMETERS)

    def sections(
        self,
    ) -> tuple[
        list[keras.layers.Layer],
        list[tuple[keras.layers.Layer | None, list[ResidualUnit]]],
        list[keras.layers.Layer],
    ]:
        """Returns the layers of stem, stages and head, in the order of the data flow.

        Returns:
            A tuple `(stem, stages, head)`: `stem` and `head` are lists of layers, `stages` a list
            of `(transition, units)`, where `transition` is a layer or `None` and `units` a list
            of `tfresidual.layers.ResidualUnit`.
        """
        stem = [layer for layer in self.layers if layer.name.split("_")[0] == "stem"]
        head = [layer for layer in self.layers if layer.name.split("_")[0] == "head"]
        names = {layer.name for layer in self.layers}
        stages = []
        for stage, depth in enumerate(self.blocks, start=1):
            transition = f"stage{stage}_transition"
            units = [self.get_layer(f"stage{stage}_block{index}") for index in range(depth)]
            stages.append((self.get_layer(transition) if transition in names else None, units))
        return stem, stages, [*head, self.get_layer("classifier")]

    def summary(self, print_fn: Callable[[str], object] | None = None, **kwargs: Any) -> None:
        """Prints the network stage by stage.

        `keras.Model.summary(network)` prints the list of layers that Keras prints.

        Args:
            print_fn: function that takes the text, `print` by default.
            **kwargs: other arguments of `keras.Model.summary`, which change nothing.
        """
        inspect.signature(keras.Model.summary).bind(self, print_fn=print_fn, **kwargs)
        size = "x".join(str(size) for size in self.input_shape[1:])
        title = f"{sum(self.blocks)} blocks in {len(self.blocks)} stages, images {size}"
        table = Table(title=f"{self.name}: {title}", title_justify="left")
        for column in ("", "layers"):
            table.add_column(column, justify="left")
        for column in ("output", "parameters"):
            table.add_column(column, justify="right")
        stem, stages, head = self.sections()
        table.add_row("stem", _chained(stem), *_shape_and_count(stem))
        for stage, (transition, units) in enumerate(stages, start=1):
            table.add_section()
            if transition is not None:
                kind = type(transition).__name__
                table.add_row(f"to stage {stage}", kind, *_shape_and_count([transition]))
            for (first, *others), run in _runs_of_equal_units(units):
                which = f"blocks {first} to {others[-1]}" if others else f"block {first}"
                table.add_row(f"stage {stage}, {which}", _described(run), *_shape_and_count(run))
        table.add_section()
        table.add_row("head", _chained(head), *_shape_and_count(head))
        trainable = sum(keras.ops.size(v) for v in self.trainable_variables)
        table.caption = f"{self.count_params():,} parameters, {int(trainable):,} of them trainable"
        text = io.StringIO()
        Console(file=text, width=100, markup=False, emoji=False).print(table)
        (print_fn or print)(text.getvalue().rstrip())

    def get_config(self) -> dict[str, Any]:
        attributes = {field: getattr(self, field) for field in ATTRIBUTES}
        fields = {"input_shape": self.input_shape[1:], **attributes, "dtype": self.dtype_policy}
        return {"name": self.name, "trainable": self.trainable, **serialized(fields)}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> ResidualNetwork:
        config = dict(config)
        trainable = config.pop("trainable", True)
        network = cls(**config)
        network.trainable = trainable
        return network


def _graph(spec):
    """Returns the symbolic inputs and outputs of a network."""
    common = {"data_format": spec.data_format, "dtype": spec.dtype}
    axis = -1 if spec.data_format == "channels_last" else 1
    is_fixup = spec.normalization == "fixup"

    def activated(state, prefix):
        if spec.normalization == "batch":
            name = f"{prefix}_normalization"
            state = BatchNormalization(axis=axis, dtype=spec.dtype, name=name)(state)
        elif is_fixup:
            state = ScalarBias(dtype=spec.dtype, name=f"{prefix}_relu_bias")(state)
        return keras.layers.ReLU(dtype=spec.dtype, name=f"{prefix}_relu")(state)

    def unit(width, name, **kwargs):
        return ResidualUnit(
            width,
            layout=spec.layout,
            bottleneck=spec.bottleneck,
            shortcut=spec.shortcut,
            gamma_initializer=spec.gamma_initializer,
            normalization=spec.normalization,
            multiplier=spec.multiplier,
            blocks=branches,
            name=name,
            **common,
            **kwargs,
        )

    def between(width, name):
        """Returns the layer before the units of a stage, or `None`."""
        if spec.transition == "convolution":
            return PointwiseConvolution(
                width, strides=2, kernel_initializer="he_normal", name=name, **common
            )
        if spec.transition == "downsampling_block":
            return unit(width, name, strides=2, resize="zero_padding")
        pooling = POOLINGS.get(spec.transition)
        return pooling and pooling(2, name=name, **common)

    depth, counted = sum(spec.blocks), 0
    branches = depth + (len(spec.blocks) - 1) * (spec.transition == "downsampling_block")
    inputs = keras.Input(spec.input_shape, name="images")
    state = keras.layers.Conv2D(
        spec.stem_width, 3, padding="same", kernel_initializer="he_normal", name="stem", **common
    )(inputs)
    if spec.layout not in PREACTIVATION_LAYOUTS:
        state = activated(state, "stem")
    for stage, (blocks, width) in enumerate(zip(spec.blocks, spec.widths, strict=True), start=1):
        transition = between(width, f"stage{stage}_transition") if stage > 1 else None
        state = state if transition is None else transition(state)
        shared, entry = None, state
        for index in range(blocks):
            halves = stage > 1 and index == 0 and spec.transition == "projection"
            counted += 1
            # Huang et al. 2016, eq. 4.
            options = {"stochastic_depth": counted / depth * spec.stochastic_depth}
            place = f"stage{stage}_block{index}"
            if halves or state.shape[axis] != width:
                state = entry = unit(width, place, strides=2 if halves else 1, **options)(state)
                continue
            options |= {"lipschitz": spec.lipschitz, "batch_norm": spec.batch_norm}
            block = unit(width, place, shares=shared, **options)
            state = block(state) if spec.anchor == "previous" else block(state, entry)
            if shared is None and spec.share_from is not None and index >= spec.share_from:
                shared = block
    if spec.layout in PREACTIVATION_LAYOUTS:
        state = activated(state, "head")
    if spec.pooling == "global":
        state = keras.layers.GlobalAveragePooling2D(name="head_pooling", **common)(state)
    else:
        state = keras.layers.AveragePooling2D(spec.pooling, name="head_pooling", **common)(state)
        state = keras.layers.Flatten(name="head_flatten", **common)(state)
    if is_fixup:
        state = ScalarBias(dtype=spec.dtype, name="head_bias")(state)
    outputs = keras.layers.Dense(
        spec.classes,
        activation=spec.classifier_activation,
        kernel_initializer="zeros" if is_fixup else "he_normal",
        dtype="float32",
        name="classifier",
    )(state)
    return inputs, outputs


def _chained(layers):
    return ", ".join(type(layer).__name__ for layer in layers)


def _shape_and_count(layers):
    shape = layers[-1].output.shape[1:]
    # Blocks may share weights.
    weights = {id(weight): weight for layer in layers for weight in layer.weights}
    count = sum(math.prod(weight.shape) for weight in weights.values())
    return "x".join(map(str, shape)), f"{count:,}"


def _described(units):
    """Returns what the summary says of a run of equal units."""
    first, last = units[0], units[-1]
    count = f"{len(units)} x " if len(units) > 1 else ""
    parts = [f"{count}{first.layout}{' bottleneck' if first.bottleneck else ''}"]
    if first.resizing is not None:
        parts.append(f"{first.resizing.name} shortcut")
    if last.shares is not None:
        parts.append("one shared")
    if first.normalization != "batch":
        parts.append("Fixup" if first.normalization == "fixup" else "no normalization")
    if first.multiplier is not None and first.normalization != "fixup":
        parts.append(type(first.multiplier).__name__)
    if last.stochastic_depth:
        rates = dict.fromkeys(f"{unit.stochastic_depth:.2g}" for unit in (first, last))
        parts.append(f"dropped at {' to '.join(rates)}")
    if first.lipschitz:
        parts.append(f"Lipschitz {first.lipschitz:g}")
    return ", ".join(parts)


def _runs_of_equal_units(units):
    """Returns the runs of neighbouring units of the same kind, with their indices.

    A unit that changes the shape is a run by itself; units that are one shared block form a run.
    """
    leaders = [unit.shares for unit in units]

    def kind(pair):
        index, unit = pair
        shared = unit.shares or (unit if unit in leaders else None)
        return None if unit.resizing is None else index, shared and shared.name

    return [list(zip(*run, strict=True)) for _, run in itertools.groupby(enumerate(units), kind)]
