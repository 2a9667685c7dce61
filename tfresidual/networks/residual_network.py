"""Residual network as a functional Keras model that knows its stem, stages and head."""

from __future__ import annotations

import contextlib
import io
import math
import types
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from rich.console import Console
from rich.table import Table

from tfresidual.arguments import (
    check_bool,
    check_choice,
    check_int,
    check_ints,
    check_number,
    is_int,
)
from tfresidual.layers import BatchNormalization, PointwiseConvolution, ResidualUnit, ScalarBias
from tfresidual.layers.divisor import fixed_norms
from tfresidual.layers.layer_scale import get_multiplier
from tfresidual.layers.residual_unit import (
    BATCH_NORMS,
    BOTTLENECK_REDUCTION,
    NORMALIZATIONS,
    PARAMETERS,
    PREACTIVATION_LAYOUTS,
)
from tfresidual.layers.shortcuts import get_shortcut
from tfresidual.machine.backends import BACKEND
from tfresidual.machine.first_step import TracedOnce
from tfresidual.machine.memory import check_fits
from tfresidual.settings import ANCHORS, TRANSITIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal

    from tfresidual.layers import LayerScale, Shortcut
    from tfresidual.types import (
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

POOLINGS = {
    "average_pooling": keras.layers.AveragePooling2D,
    "max_pooling": keras.layers.MaxPooling2D,
}
# Initial value of all scales with unshared batch normalization (Jastrzebski et al. 2018, 4.5).
UNSHARED_GAMMA = 0.1


@keras.saving.register_keras_serializable(package="tfresidual")
class ResidualNetwork(TracedOnce, keras.Model):
    """Stem, stages of residual units, and a classifier, as one functional Keras model.

    To copy a network with shared blocks, use `copy.deepcopy` or
    `ResidualNetwork.from_config(network.get_config())`. Do not use `keras.models.clone_model`: it
    copies layer by layer, so that one shared block becomes several.

    The stem is a 3x3 convolution. Every stage except the first starts by halving height and width.
    The head is batch normalization and ReLU, average pooling and a dense layer, which computes in
    float32 under every dtype policy. Layouts whose units do not begin with an activation have batch
    normalization and ReLU after the stem instead of in the head.

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
        layout: layout of the units, see `tfresidual.layers.ResidualUnit`.
        bottleneck: bool, whether the units are bottlenecks.
        shortcut: shortcut of the units, by name or as a `tfresidual.layers.Shortcut`.
        transition: how every stage after the first begins. `"projection"`: its first unit has
            stride 2 and a 1x1 stride-2 convolution as shortcut. `"convolution"`: a 1x1 stride-2
            convolution before the units. `"average_pooling"`, `"max_pooling"`: 2x2 average or
            maximum pooling before the units. `"downsampling_block"`: an additional residual unit of
            stride 2 before the others, whose shortcut keeps every second row and column and appends
            channels of zeros.
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
            keeps the shape of the state, see `tfresidual.layers.ResidualUnit`; `None` for no
            bound.
        anchor: what a block that keeps the shape of the state adds its branch to: `"previous"`, the
            input of the block, or `"input"`, the input of the first of these blocks in the stage.
            The latter with `lipschitz` under 1 is the properly convergent network.
        normalization: `"batch"`; `None` for a network without normalization; or `"fixup"`, which
            takes its place: `ScalarBias`es, a factor at the end of every branch, and initial values
            that depend on the number of blocks, see `tfresidual.layers.ResidualUnit`. The
            classifier's kernel is then initially 0. The paper trains these scalars with a tenth of
            the learning rate.
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
        given = types.SimpleNamespace(
            input_shape=input_shape,
            classes=classes,
            blocks=blocks,
            widths=widths,
            stem_width=stem_width,
            layout=layout,
            bottleneck=bottleneck,
            shortcut=shortcut,
            transition=transition,
            pooling=pooling,
            classifier_activation=classifier_activation,
            gamma_initializer=gamma_initializer,
            share_from=share_from,
            batch_norm=batch_norm,
            recurrent_initialization=recurrent_initialization,
            lipschitz=lipschitz,
            anchor=anchor,
            normalization=normalization,
            multiplier=multiplier,
            stochastic_depth=stochastic_depth,
            data_format=data_format,
            dtype=dtype,
        )
        checked = _checked(given)
        inputs, outputs = _graph(checked)
        super().__init__(inputs, outputs, name=name)
        self.dtype_policy = checked.dtype

        self.classes: int = checked.classes
        self.blocks: tuple[int, ...] = checked.blocks
        self.widths: tuple[int, ...] = checked.widths
        self.stem_width: int = checked.stem_width
        self.layout: Layout = checked.layout
        self.bottleneck: bool = checked.bottleneck
        self.shortcut: ShortcutName | Shortcut | dict[str, Any] = checked.shortcut
        self.transition: Transition = checked.transition
        self.pooling: Literal["global"] | int = checked.pooling
        self.classifier_activation: str | Callable[..., Any] | None = checked.classifier_activation
        self.gamma_initializer: Initializer = checked.gamma_initializer
        self.share_from: int | None = checked.share_from
        self.batch_norm: BatchNorm = checked.batch_norm
        self.recurrent_initialization: bool = checked.recurrent_initialization
        self.lipschitz: float | None = checked.lipschitz
        self.anchor: Anchor = checked.anchor
        self.normalization: Normalization = checked.normalization
        self.multiplier: MultiplierName | LayerScale | dict[str, Any] | None = checked.multiplier
        self.stochastic_depth: float = checked.stochastic_depth
        self.data_format: DataFormat = checked.data_format
        if checked.recurrent_initialization:
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
        """Prints the network stage by stage, or like Keras if other arguments are given.

        Args:
            print_fn: function that takes the text, `print` by default.
            **kwargs: other arguments of `keras.Model.summary`; with any of them, the layer list of
                Keras is printed.
        """
        if kwargs:
            super().summary(print_fn=print_fn, **kwargs)
            return
        table = Table(title=f"{self.name}: {self._title()}", title_justify="left")
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
            for first, last, run in _runs_of_equal_units(units):
                which = f"block {first}" if first == last else f"blocks {first} to {last}"
                change = run[0].resizing
                what = f"{len(run)} x " if len(run) > 1 else ""
                what += f"{run[0].layout}{' bottleneck' if run[0].bottleneck else ''}"
                what += f", {change.name} shortcut" if change else ""
                what += ", one shared" if run[-1].shares else ""
                what += _options_of(run)
                what += f", Lipschitz {run[0].lipschitz:g}" if run[0].lipschitz else ""
                table.add_row(f"stage {stage}, {which}", what, *_shape_and_count(run))
        table.add_section()
        table.add_row("head", _chained(head), *_shape_and_count(head))
        trainable = sum(keras.ops.size(v) for v in self.trainable_variables)
        table.caption = f"{self.count_params():,} parameters, {int(trainable):,} of them trainable"
        text = io.StringIO()
        Console(file=text, width=100, markup=False, emoji=False).print(table)
        (print_fn or print)(text.getvalue().rstrip())

    def _title(self):
        size = "x".join(str(size) for size in self.input_shape[1:])
        return f"{sum(self.blocks)} blocks in {len(self.blocks)} stages, images {size}"

    def get_config(self) -> dict[str, Any]:
        shortcut = self.shortcut
        if not isinstance(shortcut, str):
            shortcut = keras.saving.serialize_keras_object(get_shortcut(shortcut))
        multiplier = self.multiplier
        if multiplier is not None and not isinstance(multiplier, str):
            multiplier = keras.saving.serialize_keras_object(get_multiplier(multiplier, -1))
        return {
            "name": self.name,
            "trainable": self.trainable,
            "input_shape": self.input_shape[1:],
            "classes": self.classes,
            "blocks": self.blocks,
            "widths": self.widths,
            "stem_width": self.stem_width,
            "layout": self.layout,
            "bottleneck": self.bottleneck,
            "shortcut": shortcut,
            "transition": self.transition,
            "pooling": self.pooling,
            "classifier_activation": self.classifier_activation,
            "gamma_initializer": keras.initializers.serialize(
                keras.initializers.get(self.gamma_initializer)
            ),
            "share_from": self.share_from,
            "batch_norm": self.batch_norm,
            "recurrent_initialization": self.recurrent_initialization,
            "lipschitz": self.lipschitz,
            "anchor": self.anchor,
            "normalization": self.normalization,
            "multiplier": multiplier,
            "stochastic_depth": self.stochastic_depth,
            "data_format": self.data_format,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> ResidualNetwork:
        config = dict(config)
        trainable = config.pop("trainable", True)
        network = cls(**config)
        network.trainable = trainable
        return network


def _checked(given):
    """Returns the arguments of a `ResidualNetwork` with all defaults filled in.

    Args:
        given: the arguments as attributes; they are changed in place.

    Raises:
        ValueError: if an argument is invalid.
    """
    given.widths = check_ints("widths", given.widths, at_least=1)
    if not np.iterable(given.blocks):
        given.blocks = [check_int("blocks", given.blocks, at_least=1)] * len(given.widths)
    given.blocks = check_ints("blocks", given.blocks, at_least=1)
    if len(given.blocks) != len(given.widths):
        raise ValueError(
            "Arguments `blocks` and `widths` must name the same number of stages. "
            f"Received: blocks={given.blocks}, widths={given.widths}"
        )
    check_choice("transition", given.transition, TRANSITIONS)
    check_choice("batch_norm", given.batch_norm, BATCH_NORMS)
    check_choice("anchor", given.anchor, ANCHORS)
    given.lipschitz = check_number("lipschitz", given.lipschitz, over=0, or_none=True)
    given.share_from = check_int("share_from", given.share_from, at_least=0, or_none=True)
    if given.share_from is None and given.batch_norm != "shared":
        raise ValueError(
            "Argument `batch_norm` must be given together with `share_from`: it says what "
            "each application of a shared block has of its own. Received: "
            f"batch_norm={given.batch_norm!r}, share_from=None"
        )
    if given.normalization is not None:
        check_choice("normalization", given.normalization, NORMALIZATIONS)
    if given.normalization != "batch" and given.batch_norm != "shared":
        raise ValueError(
            'Argument `normalization` must be "batch" if `batch_norm` says what blocks do not '
            f"share of it. Received: normalization={given.normalization!r}, "
            f"batch_norm={given.batch_norm!r}"
        )
    given.stochastic_depth = check_number(
        "stochastic_depth", given.stochastic_depth, at_least=0, below=1
    )
    given.bottleneck = check_bool("bottleneck", given.bottleneck)
    given.recurrent_initialization = check_bool(
        "recurrent_initialization", given.recurrent_initialization
    )
    if given.gamma_initializer is None:
        is_shared = given.share_from is not None and given.share_from < max(given.blocks) - 1
        is_small = is_shared and given.batch_norm == "unshared"
        given.gamma_initializer = (
            keras.initializers.Constant(UNSHARED_GAMMA) if is_small else "ones"
        )
    given.classes = check_int("classes", given.classes, at_least=1)
    given.data_format = given.data_format or keras.config.image_data_format()
    if given.pooling != "global":
        given.pooling = _checked_pooling(given.pooling)
    given.input_shape = _checked_input_shape(
        given.input_shape, len(given.widths), given.pooling, given.data_format
    )
    given.stem_width = check_int("stem_width", given.stem_width, at_least=1, or_none=True)
    if given.stem_width is None:
        given.stem_width = given.widths[0] // (4 if given.bottleneck else 1)
    if given.share_from is not None and given.share_from >= max(given.blocks):
        raise ValueError(
            "Argument `share_from` must be one of the blocks of a stage, counted from 0. "
            f"Received: share_from={given.share_from}, blocks={given.blocks}"
        )
    channels = given.input_shape[-1 if given.data_format == "channels_last" else 0]
    _check_size(
        channels,
        given.classes,
        given.blocks,
        given.widths,
        given.stem_width,
        given.bottleneck,
        given.share_from,
    )
    given.dtype = keras.dtype_policies.get(given.dtype or keras.config.dtype_policy())
    return given


def _graph(checked):
    """Returns the symbolic inputs and outputs of a network.

    Args:
        checked: the arguments of the network, see `_checked`.
    """
    data_format, policy = checked.data_format, checked.dtype
    common = {"data_format": data_format, "dtype": policy}
    axis = -1 if data_format == "channels_last" else 1

    def activated(state, prefix):
        if checked.normalization == "batch":
            name = f"{prefix}_normalization"
            state = BatchNormalization(axis=axis, dtype=policy, name=name)(state)
        elif checked.normalization == "fixup":
            state = ScalarBias(dtype=policy, name=f"{prefix}_relu_bias")(state)
        return keras.layers.ReLU(dtype=policy, name=f"{prefix}_relu")(state)

    def unit(width, name, **kwargs):
        return ResidualUnit(
            width,
            layout=checked.layout,
            bottleneck=checked.bottleneck,
            shortcut=checked.shortcut,
            gamma_initializer=checked.gamma_initializer,
            normalization=checked.normalization,
            multiplier=checked.multiplier,
            blocks=branches,
            name=name,
            **common,
            **kwargs,
        )

    depth = sum(checked.blocks)
    transitions = (len(checked.blocks) - 1) * (checked.transition == "downsampling_block")
    branches, counted = depth + transitions, 0
    inputs = keras.Input(checked.input_shape, name="images")
    state = keras.layers.Conv2D(
        checked.stem_width, 3, padding="same", kernel_initializer="he_normal", name="stem", **common
    )(inputs)
    if checked.layout not in PREACTIVATION_LAYOUTS:
        state = activated(state, "stem")
    stages = zip(checked.blocks, checked.widths, strict=True)
    for stage, (blocks, width) in enumerate(stages, start=1):
        prefix = f"stage{stage}"
        if stage > 1 and checked.transition == "convolution":
            state = PointwiseConvolution(
                width,
                strides=2,
                kernel_initializer="he_normal",
                name=f"{prefix}_transition",
                **common,
            )(state)
        elif stage > 1 and checked.transition in POOLINGS:
            pooling = POOLINGS[checked.transition]
            state = pooling(2, name=f"{prefix}_transition", **common)(state)
        elif stage > 1 and checked.transition == "downsampling_block":
            state = unit(width, f"{prefix}_transition", strides=2, resize="zero_padding")(state)
        shared, entry = None, state
        for index in range(blocks):
            halves = stage > 1 and index == 0 and checked.transition == "projection"
            place = f"{prefix}_block{index}"
            counted += 1
            # Huang et al. 2016, eq. 4.
            rate = counted / depth * checked.stochastic_depth
            if halves or state.shape[axis] != width:
                strides = 2 if halves else 1
                state = entry = unit(width, place, strides=strides, stochastic_depth=rate)(state)
                continue
            block = unit(
                width,
                place,
                stochastic_depth=rate,
                lipschitz=checked.lipschitz,
                shares=shared,
                batch_norm=checked.batch_norm,
            )
            state = block(state) if checked.anchor == "previous" else block(state, entry)
            if shared is None and checked.share_from is not None and index >= checked.share_from:
                shared = block
    if checked.layout in PREACTIVATION_LAYOUTS:
        state = activated(state, "head")
    if checked.pooling == "global":
        state = keras.layers.GlobalAveragePooling2D(name="head_pooling", **common)(state)
    else:
        state = keras.layers.AveragePooling2D(checked.pooling, name="head_pooling", **common)(state)
        state = keras.layers.Flatten(name="head_flatten", data_format=data_format, dtype=policy)(
            state
        )
    is_fixup = checked.normalization == "fixup"
    if is_fixup:
        state = ScalarBias(dtype=policy, name="head_bias")(state)
    outputs = keras.layers.Dense(
        checked.classes,
        activation=checked.classifier_activation,
        kernel_initializer="zeros" if is_fixup else "he_normal",
        dtype="float32",
        name="classifier",
    )(state)
    return inputs, outputs


def _checked_pooling(pooling):
    if not is_int(pooling) or pooling < 1:
        raise ValueError(
            'Argument `pooling` must be "global" or an int, 1 or more. '
            f"Received: pooling={pooling!r}"
        )
    return int(pooling)


def _check_size(channels, classes, blocks, widths, stem_width, bottleneck, share_from):
    """Raises a `TooLargeError` if the weights of a network do not fit into the machine's memory."""
    weights = 9 * channels * stem_width
    entering = stem_width
    for depth, width in zip(blocks, widths, strict=True):
        # The input of the first block has the channels of the previous stage.
        weights += _weights_of_unit(entering, width, bottleneck)
        own = depth if share_from is None else min(depth, share_from + 1)
        weights += (own - 1) * _weights_of_unit(width, width, bottleneck)
        entering = width
    check_fits(
        # Variables are float32 under every policy.
        4 * (weights + entering * classes),
        "Arguments `blocks` and `widths` must describe a network that fits into the memory of "
        "this machine: its weights",
        f"blocks={blocks}, widths={widths}",
    )


def _weights_of_unit(entering, width, bottleneck):
    """Returns the number of weights in the convolutions of a residual unit's branch."""
    if not bottleneck:
        return 9 * entering * width + 9 * width**2
    inner = width // BOTTLENECK_REDUCTION
    return entering * inner + 9 * inner**2 + inner * width


def _checked_input_shape(input_shape, stages, pooling, data_format):
    shape = tuple(input_shape) if isinstance(input_shape, (list, tuple)) else input_shape
    is_shape = isinstance(shape, tuple) and len(shape) == 3
    if not is_shape or not all(size is None or is_int(size) for size in shape):
        raise ValueError(
            "Argument `input_shape` must be the height, width and channels of one image. "
            f"Received: input_shape={input_shape!r}"
        )
    shape = tuple(size if size is None else int(size) for size in shape)
    first = 0 if data_format == "channels_last" else 1
    sizes = shape[first : first + 2]
    strides = 2 ** (stages - 1)
    if any(size is not None and (size < 1 or size % strides) for size in sizes):
        raise ValueError(
            f"Argument `input_shape` must have a height and width divisible by {strides}: "
            f"{stages} stages halve them {stages - 1} times. Received: input_shape={shape}"
        )
    if pooling == "global":
        return shape
    if any(size is None or size // strides % pooling for size in sizes):
        raise ValueError(
            "Argument `pooling` must divide the height and width of the last stage, which are "
            f"those of `input_shape` divided by {strides}. "
            f"Received: pooling={pooling}, input_shape={shape}"
        )
    return shape


def _chained(layers):
    return ", ".join(type(layer).__name__ for layer in layers)


def _shape_and_count(layers):
    shape = layers[-1].output.shape[1:]
    # Blocks may share weights.
    weights = {id(weight): weight for layer in layers for weight in layer.weights}
    count = sum(math.prod(weight.shape) for weight in weights.values())
    return "x".join(map(str, shape)), f"{count:,}"


def _options_of(units):
    """Returns what the summary says of the branches of equal units beside their layout."""
    first, last = units[0], units[-1]
    options = []
    if first.normalization != "batch":
        options.append("Fixup" if first.normalization == "fixup" else "no normalization")
    if first.multiplier is not None and first.normalization != "fixup":
        options.append(type(first.multiplier).__name__)
    if last.stochastic_depth:
        rates = dict.fromkeys(f"{unit.stochastic_depth:.2g}" for unit in (first, last))
        options.append(f"dropped at {' to '.join(rates)}")
    return "".join(f", {option}" for option in options)


def _runs_of_equal_units(units):
    """Returns the runs of neighbouring units of the same kind, as (first, last, units).

    A unit that changes the shape is a run by itself; units that are one shared block form a run.
    """
    leaders = [unit.shares for unit in units]
    runs = []
    for index, unit in enumerate(units):
        shared = unit.shares or (unit if unit in leaders else None)
        kind = (unit.resizing is None, shared and shared.name)
        if runs and unit.resizing is None and runs[-1][0] == kind:
            kind, first, _, run = runs.pop()
            runs.append((kind, first, index, [*run, unit]))
        else:
            runs.append((kind, index, index, [unit]))
    return [run for _, *run in runs]
