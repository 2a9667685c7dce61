"""Bounded layers on JAX and PyTorch: the numbers of TensorFlow, before and after some steps."""

import importlib.util
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from tfresidual import layers

pytestmark = pytest.mark.nightly
K = keras.layers

PROGRAM = """
import sys, keras, numpy as np
from tfresidual import layers
model = keras.saving.load_model(sys.argv[1])
data = np.load(sys.argv[2])
outputs = [model.predict(data["x"], verbose=0)]
history = model.fit(data["x"], data["y"], batch_size=8, epochs=3, shuffle=False, verbose=0)
outputs.append(model.predict(data["x"], verbose=0))
bounded = [layer for layer in model.layers if hasattr(layer, "lipschitz_bound")]
bounds = [[*layer.lipschitz_bound().values()] for layer in bounded]
with layers.fixed_norms():
    outputs.append(np.asarray(keras.ops.convert_to_numpy(model(data["x"]))))
np.savez(sys.argv[3], loss=history.history["loss"], outputs=outputs, bounds=bounds)
model.save(sys.argv[3] + ".keras")
"""


def model_of_all_kinds(jit):
    def bounded(layer, bound=0.8):
        return layers.SpectralNormalization(layer, bound)

    inputs = state = keras.Input((6, 5, 3))
    branch = [layers.BatchNormalization(), K.ReLU(), K.Conv2D(4, 3, padding="same"),
              K.BatchNormalization(), K.LeakyReLU(), K.Conv2D(3, 1)]  # fmt: skip
    state = K.Add()([state, layers.Bounded(branch, 0.5)(state)])
    for layer in (
        K.Conv2D(4, 3, strides=(2, 1), activation="gelu"),
        K.DepthwiseConv2D(2, depth_multiplier=2, padding="same"),
        K.Conv2D(4, 2, dilation_rate=2, padding="same"),
        K.Reshape((6, 4)),
        K.Conv1D(4, 2, padding="causal"),
        K.Flatten(),
        K.Dense(2),
    ):
        is_linear = not isinstance(layer, (K.Reshape, K.Flatten))
        state = bounded(layer)(state) if is_linear else layer(state)
    model = keras.Model(inputs, state)
    model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=jit)
    return model


def run(backend, path, data, out):
    subprocess.run(
        [sys.executable, "-c", PROGRAM, path, data, out],
        env=os.environ | {"KERAS_BACKEND": backend},
        check=True,
    )
    with np.load(f"{out}.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bounded")
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(16, *shape)).astype("f4") for shape in ((6, 5, 3), (2,)))
    np.savez(folder / "data.npz", x=x, y=y)
    for name, jit in (("plain", False), ("compiled", True)):
        keras.utils.set_random_seed(0)
        model_of_all_kinds(jit).save(folder / f"{name}.keras")
    return folder


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_numbers_are_those_of_tensorflow(folder, backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    name = "compiled" if backend == "jax" else "plain"
    arguments = [str(folder / f"{name}.keras"), str(folder / "data.npz")]
    expected = run("tensorflow", str(folder / "plain.keras"), arguments[1], str(folder / "tf"))
    found = run(backend, *arguments, str(folder / backend))
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=2e-3)
    np.testing.assert_allclose(found["outputs"], expected["outputs"], atol=2e-3)
    # All but the residuals.
    for place in (0, 1, 3, 4):
        np.testing.assert_allclose(
            found["bounds"][:, place], expected["bounds"][:, place], rtol=2e-3
        )
    loaded = keras.saving.load_model(f"{folder / backend}.keras")
    with np.load(arguments[1]) as data:
        outputs = loaded.predict(data["x"], verbose=0)
    np.testing.assert_allclose(outputs, found["outputs"][1], atol=1e-4)


TRACED = """
import jax, keras, numpy as np
from tfresidual import layers
x = np.ones((2, 5, 4), "float32")
for layer in (layers.SpectralNormalization(keras.layers.Dense(4)),
              layers.Bounded([keras.layers.Dense(4)], 0.5)):
    def inference(state):
        return layer(state)
    layer.build((None, 5, 4))
    kernel = layer.trainable_weights[0]
    for _ in range(2):
        kernel.assign(2 * kernel)
        free = layer(x)
        kernel.assign(3 * kernel)
        traced = jax.jit(inference)(x)
        keras.ops.while_loop(lambda index, state: index < 2,
                             lambda index, state: (index + 1, layer(state)), (0, x))
        np.testing.assert_allclose(layer(x), traced, rtol=1e-5)
        layer.get_weights()

class Cell(keras.layers.Layer):
    state_size = output_size = 4
    def __init__(self):
        super().__init__()
        self.layer = layers.SpectralNormalization(keras.layers.Dense(4, use_bias=False), 0.5)
    def call(self, inputs, states):
        state = self.layer(states[0]) + inputs
        return state, [state]

cell = Cell()
inputs = keras.Input((5, 4))
model = keras.Model(inputs, keras.layers.RNN(cell)(inputs))
model.predict(x, verbose=0)
for _ in range(2):
    cell.layer.layer.kernel.assign(3 * cell.layer.layer.kernel)
    found, state = model.predict(x, verbose=0), 0 * x[:, 0]
    for index in range(5):
        state = cell.layer(state) + x[:, index]
    np.testing.assert_allclose(found, state, rtol=1e-4)
"""


def test_code_that_the_user_traces():
    """On JAX, norms are used there, and stored where that is possible."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    subprocess.run([sys.executable, "-c", TRACED], env=environment, check=True)
