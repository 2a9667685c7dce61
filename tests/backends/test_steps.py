"""Training on JAX and PyTorch is that on TensorFlow: the same numbers, files that move both ways.

Every network is saved here, trained for ten steps from that file on each backend, and saved there.
"""

import importlib.util
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from reference import train_files
from reference.random_network import CASES, CONSTRAINED_CASES, case_id

import tfresidual as tfr
from tfresidual import networks, training

pytestmark = pytest.mark.nightly

BACKENDS = ("jax", "torch")
IMAGES, CLASSES = 10 * train_files.BATCH, 5
SMALL = {"input_shape": (8, 8, 3), "classes": CLASSES, "widths": (4, 8)}
RATE = 0.02


def built(**kwargs):
    return networks.ResidualNetwork(**(SMALL | {"blocks": 2} | kwargs))


def compiled(network, coupling=None, **kwargs):
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    if coupling is not None:
        optimizer = training.GradientCoupling(optimizer, coupling, **kwargs)
    network.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return network


def plain(blocks=3):
    """A model of Keras' layers alone, whose blocks are coupled; they start equal."""
    state = inputs = keras.Input(SMALL["input_shape"])
    layers = [
        [keras.layers.Conv2D(3, 3, padding="same"), keras.layers.BatchNormalization()]
        for _ in range(blocks)
    ]
    for convolve, normalize in layers:
        state = keras.layers.Add()([state, normalize(convolve(state))])
        convolve.set_weights(layers[0][0].get_weights())
    state = keras.layers.GlobalAveragePooling2D()(state)
    network = keras.Model(inputs, keras.layers.Dense(CLASSES, "softmax")(state))
    return compiled(network, 0.8, groups=[layers], kernel="triangular")


def multi_label():
    network = built(classifier_activation="sigmoid")
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    network.compile(optimizer, training.MultiLabelCrossentropy(), metrics=[training.ExactMatch()])
    return network


# Every layout, transition and kind of sharing, bounds with and without an anchor.
NETWORKS = {
    case_id(case): lambda case=case: compiled(built(**case | {"input_shape": (8, 8, 3)}))
    for case in [*CASES[::7], *CONSTRAINED_CASES[::7]]
}
NETWORKS |= {
    "coupled": lambda: compiled(built(recurrent_initialization=True), 1.0),
    "coupled by distance": lambda: compiled(built(blocks=3), 0.7, kernel="triangular"),
    "coupled and bounded": lambda: compiled(
        built(recurrent_initialization=True, lipschitz=0.9, anchor="input"), 0.5
    ),
    "coupled and plain": plain,
    "multi-label": multi_label,
    "mixed_bfloat16": lambda: compiled(built(dtype="mixed_bfloat16")),
    "mixed_bfloat16 bounded": lambda: compiled(built(dtype="mixed_bfloat16", lipschitz=0.9)),
    "hauser": lambda: compiled(networks.hauser_resnet(2, (8, 8, 3), CLASSES)),
    "SkipInit": lambda: compiled(built(normalization=None, multiplier="rezero")),
    "LayerScale": lambda: compiled(built(multiplier="layer_scale", layout="original")),
    "Fixup": lambda: compiled(built(normalization="fixup", layout="relu_before_addition")),
    "mixed_bfloat16 ReZero": lambda: compiled(built(dtype="mixed_bfloat16", multiplier="rezero")),
    "stochastic depth": lambda: compiled(built(stochastic_depth=0.5)),
}
# Largest differences of losses, outputs and weights after ten steps: what rounding in another
# order makes of them. bfloat16 has 8 bits.
TOLERANCE, TOLERANCE_OF_BFLOAT16 = 5e-4, 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The networks as files, and what they are after ten steps on TensorFlow."""
    folder = tmp_path_factory.mktemp("networks")
    rng = np.random.default_rng(0)
    np.savez(
        folder / "data.npz",
        images=rng.normal(size=(IMAGES, *SMALL["input_shape"])).astype("float32"),
        classes=rng.integers(0, CLASSES, IMAGES),
        sets=rng.integers(0, 2, (IMAGES, CLASSES)),
    )
    for place, make in enumerate(NETWORKS.values()):
        keras.utils.set_random_seed(place)
        network = make()
        network.optimizer.build(network.trainable_variables)
        network.save(folder / f"{place:02d}.keras")
    train_files.train_files(folder)
    return folder


@pytest.fixture(scope="module", params=BACKENDS)
def trained(request, folder):
    """The folder after training on another backend, and its name."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    # In several processes, the backends of tests may come in any order.
    if not (folder / request.param).exists():
        subprocess.run(
            [sys.executable, "-P", train_files.__file__, folder],
            env=os.environ | {"KERAS_BACKEND": request.param},
            check=True,
        )
    return folder, request.param


def results(folder, backend, name):
    place = list(NETWORKS).index(name)
    with np.load(folder / backend / f"{place:02d}.npz") as arrays:
        values = dict(arrays)
    weights = [values.pop(f"arr_{index}") for index in range(len(values) - 3)]
    return values, weights, folder / backend / f"{place:02d}.keras"


@pytest.mark.parametrize("name", NETWORKS)
def test_ten_steps(trained, name):
    folder, backend = trained
    tolerance = TOLERANCE_OF_BFLOAT16 if "bfloat16" in name else TOLERANCE
    expected, weights_expected, _ = results(folder, "tensorflow", name)
    values, weights, path = results(folder, backend, name)
    np.testing.assert_allclose(values["before"], expected["before"], atol=tolerance)
    network = keras.saving.load_model(path)
    paths = [weight.path for weight in network.weights]
    if "dropout" in name or name == "stochastic depth":
        # Another backend draws other random numbers.
        assert np.isfinite(values["loss"]).all()
        assert not np.allclose(values["before"], values["after"])
    else:
        np.testing.assert_allclose(values["loss"], expected["loss"], rtol=tolerance)
        np.testing.assert_allclose(values["after"], expected["after"], atol=tolerance)
        for where, weight, other in zip(paths, weights, weights_expected, strict=True):
            size = max(1, np.abs(other).max())
            if "vector_of" in where:
                # A singular vector with the other sign is one, too.
                weight = weight * np.sign(np.sum(weight * other))
            np.testing.assert_allclose(weight, other, atol=tolerance * size, err_msg=where)
    # The file of the other backend is the trained network here, too.
    for weight, read in zip(weights, network.get_weights(), strict=True):
        np.testing.assert_array_equal(read, weight)
    with np.load(folder / "data.npz") as data:
        outputs = network.predict(data["images"], train_files.BATCH, verbose=0)
    np.testing.assert_allclose(outputs, values["after"], atol=tolerance)


def test_coupled_blocks_stay_equal_to_the_last_bit(trained):
    folder, backend = trained
    _, _, path = results(folder, backend, "coupled")
    network = keras.saving.load_model(path)
    first, second = (network.get_layer(f"stage1_block{index}") for index in (0, 1))
    roles = second.weights_by_role()
    assert len(roles) > 4
    for role, weight in roles.items():
        np.testing.assert_array_equal(weight, first.weights_by_role()[role])


def test_a_file_of_another_backend_can_be_probed(trained):
    folder, backend = trained
    _, _, path = results(folder, backend, "coupled and bounded")
    with np.load(folder / "data.npz") as data:
        frame = tfr.probes.block_metrics(tfr.chain(path), (data["images"], data["classes"]))
    assert len(frame) == 4
    # The ratio of a block that changes the shape is not defined.
    assert np.isfinite(frame["l2_ratio"]).sum() == 3
