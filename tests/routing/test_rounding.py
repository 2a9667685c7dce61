"""Rounded weights, against Keras' own quantized layers and by hand in float64."""

import keras
import numpy as np
import pytest
from keras import layers

from tfresidual.routing.rounding import bytes_of, kernels_of, rounded

RNG = np.random.default_rng(5)
# Layers, the shape of what they take, and the axes of the inputs of their kernels.
LAYERS = {
    "dense": (lambda: layers.Dense(6), (4,), [(0,)]),
    "query": (lambda: layers.EinsumDense("abc,cde->abde", (None, 2, 4)), (5, 8), [(0,)]),
    "output": (lambda: layers.EinsumDense("abde,dec->abc", (None, 6)), (5, 2, 4), [(0, 1)]),
    "turned": (lambda: layers.EinsumDense("...b,cb->...c", (6,)), (3, 4), [(1,)]),
    "embedding": (lambda: layers.Embedding(7, 4), (3,), [(1,)]),
    "convolution": (lambda: layers.Conv2D(5, 3), (6, 6, 2), [(0, 1, 2)]),
    "transposed": (lambda: layers.Conv2DTranspose(5, 3), (6, 6, 2), [(0, 1, 3)]),
    "depthwise": (lambda: layers.DepthwiseConv2D(3, depth_multiplier=2), (6, 6, 2), [(0, 1)]),
    "separable": (lambda: layers.SeparableConv1D(5, 3), (6, 2), [(0,), (0, 1)]),
    "normalization": (lambda: layers.BatchNormalization(), (6, 2), []),
}
QUANTIZED = ("dense", "query", "output", "embedding")


def layer_of(name):
    make, shape, axes = LAYERS[name]
    layer = make()
    layer.build((None, *shape))
    for weight in layer.weights:
        weight.assign(RNG.normal(size=weight.shape))
    return layer, axes


def by_hand(values, bits, per, axes):
    """In float64, group by group."""
    most, result = 2 ** (bits - 1) - 1, np.zeros(values.shape)
    outputs = [axis for axis in range(values.ndim) if axis not in axes]
    for place in np.ndindex(*(values.shape[axis] for axis in outputs)):
        index = [slice(None)] * values.ndim
        for axis, one in zip(outputs, place, strict=True):
            index[axis] = one
        column = values[tuple(index)].astype(float)
        flat = column.ravel()
        size = {"channel": flat.size}.get(per, per)
        for start in range(0, flat.size, size):
            group = flat[start : start + size]
            step = np.abs(group).max() / most
            group[:] = np.round(group / step) * step
        result[tuple(index)] = flat.reshape(column.shape)
    return result


@pytest.mark.parametrize("per", ["channel", 4, 1])
@pytest.mark.parametrize("bits", [8, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_weights_are_rounded_as_by_hand(name, bits, per):
    layer, axes = layer_of(name)
    kernels = kernels_of([layer])
    assert [own for _, own in kernels] == axes
    for kernel, own in kernels:
        values = kernel.numpy()
        found = rounded(kernel, bits, per, own)
        np.testing.assert_allclose(found, by_hand(values, bits, per, own), atol=1e-6)
        assert rounded(kernel, 32, per, own).numpy().tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("mode", "config"),
    [("int8", None), ("int4", keras.quantizers.Int4QuantizationConfig(block_size=-1))],
)
@pytest.mark.parametrize("name", QUANTIZED)
def test_weights_are_those_of_a_quantized_layer(name, mode, config):
    layer, _ = layer_of(name)
    ((kernel, axes),) = kernels_of([layer])
    bits = int(mode[3:])
    expected, size = rounded(kernel, bits, axes=axes), bytes_of(kernel, bits, axes=axes)
    most = 2 ** (bits - 1) - 1
    whole, scale = keras.quantizers.abs_max_quantize(kernel, axes, (-most, most))
    np.testing.assert_array_equal(expected, keras.ops.cast(whole, "float32") / scale)
    layer.quantize(mode, config=config)
    kept = {weight.name: weight for weight in layer.weights if weight.name != "bias"}
    assert size == sum(np.asarray(weight).nbytes for weight in kept.values())
    if mode == "int8":
        stored = next(one for name, one in kept.items() if not name.endswith("scale"))
        np.testing.assert_array_equal(stored, whole)


def test_a_tensor_may_have_a_single_scale():
    values = RNG.normal(size=(3, 4, 2)).astype("float32")
    step = np.abs(values).max() / 7
    expected = np.round(values / step) * step
    np.testing.assert_allclose(rounded(values, 4, "tensor"), expected, atol=1e-6)
    assert bytes_of(values, 4, "tensor") == 12 + 4
    assert bytes_of(values, 3, 5) == 9 + 4 * 3 * 2
    assert bytes_of(values) == values.nbytes
