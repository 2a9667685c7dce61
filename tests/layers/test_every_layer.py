"""What all layers have in common: configurations, files and dtypes; bad arguments; SavedModels."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.layer_test import run_layer_test
from refusals import refused

from tfresidual import layers
from tfresidual.layers import Bounded, ResidualUnit, SpectralNormalization

NIGHTLY, SYSTEM = pytest.mark.nightly, pytest.mark.system
keras_layers = keras.layers
IMAGES = (4, 8, 8, 4)


def conv(filters=4, **kwargs):
    return keras_layers.Conv2D(filters, 3, **{"padding": "same"} | kwargs)


# Layers that take the dtype of layers within them.
def of_layer():
    return {"layer": conv(activation="relu"), "bound": 0.5}


def of_branch():
    return {"branch": [layers.BatchNormalization(), keras_layers.ReLU(), conv(2)], "bound": 0.5}


def of_block():
    return {"block": ResidualUnit(4), "times": 3}


def unit(shape, out, weights, seeds=0, marks=(), **kwargs):
    kwargs = {"filters": 8} | kwargs
    return pytest.param(ResidualUnit, kwargs, shape, out, weights, seeds, marks=marks)


def units():
    """Every layout, shortcut and change of the shape, and everything else in a branch."""
    same, half = (4, 7, 7, 8), (4, 4, 4, 8)
    narrow = (4, 7, 7, 4)
    zeros = {"strides": 2, "resize": "zero_padding"}
    return [
        unit(same, same, (12, 6), layout="original", bottleneck=True, gamma_initializer="ones"),
        unit(
            *(same, same, (8, 4), 1, NIGHTLY), layout="relu_only_preactivation", shortcut="dropout"
        ),
        unit(
            *(narrow, half, (14, 6), 0), layout="relu_before_addition", shortcut="conv1x1",
            bottleneck=True, **zeros,
        ),
        unit(narrow, same, (10, 4), 0, NIGHTLY, layout="bn_after_addition", shortcut="scaled"),
        unit(narrow, half, (12, 4), layout="relu_before_addition", strides=2,
             shortcut="shortcut_only_gate"),
        unit(narrow, half, (12, 4), 0, NIGHTLY, shortcut="exclusive_gate", strides=2),
        unit(same, same, (4, 0), normalization=None),
        unit(same, same, (5, 0), normalization=None, multiplier="layer_scale"),
        # Two kernels, four biases and a factor; after the addition another bias.
        unit(same, same, (7, 0), normalization="fixup", blocks=9),
        unit(same, same, (10, 0), normalization="fixup", layout="original", bottleneck=True),
        unit(same, half, (11, 4), multiplier="layer_scale", layout="original", strides=2),
        unit(same, same, (8, 4), 1, stochastic_depth=0.25),
        # With bounds: vectors of each kind, and the weights that one kind belongs to.
        unit((4, 4, 3, 8), (4, 4, 3, 8), (8, 9), 0, SYSTEM, lipschitz=0.5),
        unit((4, 4, 3, 8), (4, 4, 3, 8), (8, 9), 0, NIGHTLY, lipschitz=0.5,
             layout="bn_after_addition"),
    ]  # fmt: skip


def shortcut(layer_class, weights, seeds=0, **kwargs):
    shape = (2, 4, 5, 3)
    return layer_class, kwargs, [shape, shape], shape, (weights, 0), seeds


def kept(layer_class, shape, weights, seeds=0, marks=(), **kwargs):
    return pytest.param(layer_class, kwargs, shape, shape, weights, seeds, marks=marks)


CASES = [
    *units(),
    shortcut(layers.IdentityShortcut, 0),
    shortcut(layers.ScaledShortcut, 0, scale=0.25, branch_scale=0.75),
    shortcut(layers.ExclusiveGateShortcut, 2, bias=-2.0),
    shortcut(layers.ShortcutOnlyGateShortcut, 2, bias=-2.0, data_format="channels_last"),
    shortcut(layers.ConvolutionShortcut, 2, data_format="channels_last"),
    shortcut(layers.DropoutShortcut, 0, 1, rate=0.25, seed=3),
    shortcut(layers.DropoutShortcut, 0, 1, rate=0.25, seed=3, rescale=True),
    kept(layers.BatchNormalization, IMAGES, (2, 2), marks=pytest.mark.compiled),
    kept(
        *(layers.BatchNormalization, IMAGES, (1, 2), 0, NIGHTLY),
        momentum=0.9, epsilon=0.01, center=False,
    ),
    kept(layers.BatchNormalization, (4, 3), (1, 2), scale=False, gamma_initializer="zeros"),
    kept(layers.BatchNormalization, IMAGES, (2, 2), 0, NIGHTLY, axis=1),
    kept(
        *(layers.UnsharedBatchNormalization, IMAGES, (2, 2), 0, pytest.mark.compiled),
        applications=1,
    ),
    kept(
        *(layers.UnsharedBatchNormalization, (4, 3), (2, 2)),
        applications=1, share=("gamma",), gamma_initializer=0.1, momentum=0.9,
    ),
    kept(layers.LayerScale, IMAGES, (1, 0), initial=0.1),
    kept(layers.LayerScale, IMAGES, (1, 0), initial=0.1, axis=1),
    kept(layers.LayerScale, (4, 7), (1, 0), axis=None),
    # At 0, no gradient reaches what is before it.
    kept(layers.ReZero, (4, 7, 3), (1, 0), initial=0.5),
    kept(layers.ScalarBias, IMAGES, (1, 0)),
    kept(layers.StochasticDepth, (16, 3), (0, 0), 1, rate=0.25, seed=3),
    (layers.Subsampling, {"filters": 6}, (2, 8, 8, 3), (2, 4, 4, 6), (0, 0), 0),
    (layers.Subsampling, {"filters": 5, "strides": 3}, (2, 7, 9, 1), (2, 3, 3, 5), (0, 0), 0),
    (
        *(layers.Subsampling, {"filters": 4, "data_format": "channels_first"}),
        *((2, 3, 8, 6), (2, 4, 4, 3), (0, 0), 0),
    ),
    (layers.PointwiseConvolution, {"filters": 6, "strides": 2}, IMAGES, (4, 4, 4, 6), (2, 0), 0),
    (SpectralNormalization, of_layer, (3, 5, 4, 3), (3, 5, 4, 4), (2, 3), 0),
    (Bounded, of_branch, (3, 5, 4, 3), (3, 5, 4, 2), (4, 5), 0),
    (layers.Repeated, of_block, IMAGES, IMAGES, (8, 4), 0),
]  # fmt: skip


@pytest.mark.sampled(16)
@pytest.mark.eager
@pytest.mark.parametrize(
    ("layer_class", "init_kwargs", "input_shape", "output_shape", "weights", "seeds"), CASES
)
def test_layer(layer_class, init_kwargs, input_shape, output_shape, weights, seeds, tmp_path):
    run_layer_test(layer_class, init_kwargs, input_shape, output_shape, weights, tmp_path, seeds)


def test_every_layer_is_in_the_table():
    tested = {case.values[0] if hasattr(case, "values") else case[0] for case in CASES}
    named = {getattr(layers, name) for name in layers.__all__ if name[0].isupper()}
    assert tested == named - {layers.Shortcut}


# Bad arguments: what makes the error, and which argument it is about.


def built_unit(**kwargs):
    layer = ResidualUnit(**{"filters": 8} | kwargs)
    layer.build((None, 8, 8, 8))
    return layer


OTHER_UNITS = [keras_layers.Dense(8), built_unit(filters=4), built_unit(layout="original")]
VALUES = [
    (ResidualUnit, {"filters": 8}, {
        "layout": ("preactivation",), "resize": ("pooling",), "shortcut": ("gate",),
        "batch_norm": ("private",), "normalization": ("layer",), "multiplier": ("skipinit",),
        "stochastic_depth": (1, np.nan), "lipschitz": (0, np.nan, True), "shares": OTHER_UNITS,
    }),
    (layers.StochasticDepth, {"rate": 0.5}, {"rate": (1, -0.1, np.nan)}),
    (layers.DropoutShortcut, {}, {"rate": (1, -0.1)}),
    (layers.UnsharedBatchNormalization, {"applications": 2}, {"share": ("gamma", ("scale",))}),
    (layers.Repeated, {"block": keras_layers.Dense(4), "times": 2}, {"block": ("Dense",)}),
    (SpectralNormalization, {"layer": conv()}, {
        "layer": (keras_layers.ReLU(), keras_layers.Dense(3, dtype="int8_from_float32"),
                  keras_layers.EinsumDense("ab,bc->ac", 5), keras_layers.Conv2DTranspose(2, 3),
                  keras_layers.SeparableConv2D(2, 3)),
        "bound": (0, float("nan")), "dtype": ("bfloat16",),
    }),
    (Bounded, {"branch": [conv()]}, {
        "branch": (conv(), [keras_layers.ReLU()], [conv(), 3],
                   [conv(), keras_layers.BatchNormalization(synchronized=True)],
                   [conv(), keras_layers.BatchNormalization(renorm=True)]),
        "bound": (0, None), "dtype": ("bfloat16",),
    }),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layer_class", "name", "value", "kwargs"),
    [
        (layer_class, name, value, kwargs)
        for layer_class, kwargs, values in VALUES
        for name, bad in values.items()
        for value in bad
    ],
)
def test_a_bad_argument(layer_class, name, value, kwargs):
    with refused(name):
        layer_class(**kwargs | {name: value})


class Doubled(keras_layers.Dense):
    def call(self, inputs, training=None):
        return 2 * super().call(inputs)


def quantized():
    model = keras.Sequential([keras.Input((4,)), SpectralNormalization(keras_layers.Dense(3))])
    model.quantize("int8", filters="dense")
    return model(np.zeros((1, 4), "f4"))


def with_lora():
    layer = SpectralNormalization(keras_layers.Dense(3))
    layer.build((None, 4))
    layer.layer.enable_lora(2)
    return layer(np.zeros((1, 4), "f4"))


def at_grids(layer, *inputs):
    for one in inputs:
        layer(one)


def grids(make, is_symbolic):
    shapes = ((4, 4, 4), (5, 4, 4))
    return lambda: at_grids(
        make(), *(keras.Input(s) if is_symbolic else np.zeros((1, *s), "f4") for s in shapes)
    )


def of_inner(*bad):
    return lambda: Bounded([conv(), *bad]).build((None, 4, 4, 3))


PAIRS = itertools.combinations(
    {"lipschitz": 0.9, "multiplier": "rezero", "normalization": "fixup"}.items(), 2
)
TOGETHER = [
    (lambda: ResidualUnit(6, bottleneck=True), "filters"),
    (lambda: ResidualUnit(8, strides=2, resize="zero_padding").build((None, 4, 4, 16)), "filters"),
    *((lambda p=pair: ResidualUnit(8, **dict(p)), dict(pair).keys() & {"multiplier"} or "lipschitz")
      for pair in PAIRS),
    *((lambda s=shape: ResidualUnit(8, lipschitz=0.5).build((None, *s)), "lipschitz")
      for shape in ((None, None, 8), (4, None, 8), (None, 4, 8))),
    (lambda: ResidualUnit(8, shares=built_unit()).build((None, 4, 4, 8)), "shares"),
    (lambda: ResidualUnit(8, shares=built_unit()).scale_branch(0.5), "factor"),
    *((lambda a=axis, s=shape: layers.LayerScale(axis=a).build(s), "axis")
      for axis, shape in ((0, IMAGES), (4, IMAGES), (-4, IMAGES), (1, (2, None, 3)), (-1, (2,)))),
    (lambda: layers.Subsampling(4)(np.zeros((2, 8, 8, 5), "f4")), "filters"),
    (lambda: layers.Subsampling(4, data_format="channels_first")(np.zeros((2, 5, 8, 8), "f4")),
     "filters"),
    (lambda: layers.BatchNormalization().share(layers.BatchNormalization(), ("scale",)), "parts"),
    (lambda: layers.Repeated(keras_layers.Dense(5), 2)(keras.Input((4,))), "block"),
    (lambda: layers.Repeated(layers.Repeated(conv(), 2, first=1), 2)(np.ones(IMAGES)), "first"),
    (lambda: SpectralNormalization(Doubled(3)), "layer"),
    (quantized, "layer"),
    (with_lora, "layer"),
    (lambda: SpectralNormalization(conv()).build((None, None, 4, 3)), "layer"),
    (lambda: Bounded([conv(dtype="float32"), conv(dtype="bfloat16")]), "dtype"),
    (lambda: Bounded([conv()]).build((None, None, 4, 3)), "branch"),
    *((grids(make, is_symbolic), "inputs")
      for make in (lambda: SpectralNormalization(conv()), lambda: Bounded([conv()]),
                   lambda: ResidualUnit(4, lipschitz=1.0))
      for is_symbolic in (False, True)),
    *((of_inner(bad), "branch") for bad in (
        keras_layers.LayerNormalization(), keras_layers.Softmax(), keras_layers.ReLU(threshold=1.0),
        keras_layers.UpSampling2D(interpolation="bilinear"), keras_layers.Activation("exponential"),
        keras_layers.Lambda(lambda x: 3 * x), SpectralNormalization(conv()),
        conv(activation="softmax"), conv(activation=lambda x: 2 * x))),
]  # fmt: skip


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("make", "name"), TOGETHER)
def test_arguments_that_do_not_fit(make, name):
    with refused(*([name] if isinstance(name, str) else name)):
        make()


def test_norms_that_do_not_depend_on_the_grid():
    arrays = [np.zeros((1, *size, 3), "f4") for size in ((4, 4), (5, 3))]
    at_grids(SpectralNormalization(layers.PointwiseConvolution(5, strides=2)), *arrays)
    at_grids(SpectralNormalization(keras_layers.Dense(5)), *arrays)
    wrapped = SpectralNormalization(keras_layers.DepthwiseConv2D(1))
    assert wrapped(keras.Input((None, None, 3))).shape == (None, None, None, 3)


@pytest.mark.system
def test_saved_and_served(tmp_path):
    """In a SavedModel of TensorFlow's own, which finds variables by attributes."""
    state = keras.Input((8, 8, 4))
    branch = layers.UnsharedBatchNormalization(2, share=("beta",))(state)
    block = keras.Model(state, state + SpectralNormalization(conv())(branch))
    state = inputs = keras.Input((8, 8, 4))
    for layer in (
        layers.Repeated(block, times=3),
        Bounded([layers.BatchNormalization(), conv()], 0.5),
        layers.StochasticDepth(0.5),
        layers.LayerScale(0.5),
        layers.ReZero(0.5),
        layers.ScalarBias(),
        layers.PointwiseConvolution(4),
        layers.Subsampling(8, 2),
        ResidualUnit(8, multiplier="rezero", stochastic_depth=0.5),
        ResidualUnit(8, lipschitz=0.5),
        ResidualUnit(8, shortcut="exclusive_gate"),
    ):
        state = layer(state)
    model = keras.Model(inputs, state)
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape))
    images = rng.normal(size=(2, 8, 8, 4)).astype("f4")
    expected = model(images)
    tf.saved_model.save(model, tmp_path / "model")
    serve = tf.saved_model.load(tmp_path / "model").signatures["serving_default"]
    (outputs,) = serve(tf.constant(images)).values()
    np.testing.assert_allclose(outputs, expected, atol=1e-5 * np.abs(expected).max())
