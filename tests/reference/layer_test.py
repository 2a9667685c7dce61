"""What every layer of the package has to hold, in one function."""

import json

import keras
import numpy as np


def run_layer_test(
    layer_class,
    init_kwargs,
    input_shape,
    expected_output_shape,
    expected_weights,
    folder,
    seed_generators=0,
):
    """Checks a layer from its configuration to its file.

    Config and JSON round trip, weight counts, symbolic against eager shapes and dtypes, one
    compiled training step, `mixed_bfloat16` and float64, and `.keras` and `.weights.h5` files.

    Args:
        layer_class: the class.
        init_kwargs: dict, its arguments, without `dtype`, or a function that returns them, for a
            layer that takes the dtype of layers within it.
        input_shape: tuple with the batch, or a list of them for a layer of several inputs.
        expected_output_shape: tuple with the batch.
        expected_weights: tuple of the numbers of trainable and of other weight tensors.
        folder: folder for files, such as `tmp_path`.
        seed_generators: int, number of seed generators the layer holds.
    """
    shapes = input_shape if isinstance(input_shape, list) else [input_shape]
    rng = np.random.default_rng(0)
    data = [rng.normal(size=shape).astype("float32") for shape in shapes]
    target = rng.normal(size=expected_output_shape).astype("float32")

    layer = _made(layer_class, init_kwargs)
    _check_config(layer_class, layer, init_kwargs)

    layer.build(*shapes)
    counts = (len(layer.trainable_weights), len(layer.non_trainable_weights))
    assert counts == expected_weights
    assert len(layer.variables) - len(layer.weights) == seed_generators
    assert tuple(layer.compute_output_shape(*shapes)) == expected_output_shape

    model = _model(layer_class, init_kwargs, shapes)
    assert model.output_shape == (None, *expected_output_shape[1:])
    before = model.layers[-1](*data)
    assert tuple(before.shape) == expected_output_shape
    assert before.dtype == model.output.dtype == "float32"
    assert np.isfinite(before).all()

    _check_training_step(model, data, target)
    after = np.asarray(model.layers[-1](*data))
    _check_files(model, layer_class, init_kwargs, shapes, data, after, folder)
    _check_mixed_precision(model, layer_class, init_kwargs, shapes, data, target)

    double = _made(layer_class, init_kwargs, "float64")(*[array.astype("f8") for array in data])
    assert double.dtype == "float64"


def _made(layer_class, init_kwargs, dtype="float32"):
    if not callable(init_kwargs):
        return layer_class(**init_kwargs, dtype=dtype)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        return layer_class(**init_kwargs())
    finally:
        keras.config.set_dtype_policy(before)


def _model(layer_class, init_kwargs, shapes, dtype="float32"):
    layer = _made(layer_class, init_kwargs, dtype)
    inputs = [keras.Input(shape[1:]) for shape in shapes]
    return keras.Model(inputs, layer(*inputs))


def _check_config(layer_class, layer, init_kwargs):
    config = layer.get_config()
    for name in init_kwargs() if callable(init_kwargs) else init_kwargs:
        assert name in config
        assert hasattr(layer, name)
    assert layer_class.from_config(config).get_config() == config
    text = json.dumps(config)
    revived = layer_class.from_config(json.loads(text))
    assert json.dumps(revived.get_config()) == text
    serialized = json.dumps(keras.saving.serialize_keras_object(layer))
    assert json.loads(serialized)["registered_name"] == f"tfresidual>{layer_class.__name__}"
    revived = keras.saving.deserialize_keras_object(json.loads(serialized))
    assert type(revived) is layer_class
    assert json.dumps(revived.get_config()) == text


def _check_training_step(model, data, target):
    """One step of a model that has a dense layer before each input, which the gradient reaches."""
    layer = model.layers[-1]
    policy = layer.dtype_policy
    inputs = [keras.Input(array.shape[1:]) for array in data]
    fronts = [keras.layers.Dense(x.shape[-1], use_bias=False, dtype=policy) for x in inputs]
    outputs = layer(*[front(x) for front, x in zip(fronts, inputs, strict=True)])
    training = keras.Model(inputs, outputs)
    training.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", jit_compile=False)
    before = [np.asarray(weight) for weight in training.trainable_weights]
    history = training.fit(data, target, batch_size=len(target), verbose=0).history
    assert np.isfinite(history["loss"]).all()
    changed = {
        weight.path
        for weight, old in zip(training.trainable_weights, before, strict=True)
        if np.any(np.asarray(weight) != old)
    }
    assert {front.kernel.path for front in fronts} <= changed
    own = {weight.path for weight in layer.trainable_weights}
    assert bool(own) == bool(own & changed)


def _check_files(model, layer_class, init_kwargs, shapes, data, expected, folder):
    path = folder / "layer.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.layers[-1]) is layer_class
    np.testing.assert_array_equal(loaded.layers[-1](*data), expected)
    path = folder / "layer.weights.h5"
    model.save_weights(path)
    fresh = _model(layer_class, init_kwargs, shapes)
    fresh.load_weights(path)
    np.testing.assert_array_equal(fresh.layers[-1](*data), expected)


def _check_mixed_precision(model, layer_class, init_kwargs, shapes, data, target):
    mixed = _model(layer_class, init_kwargs, shapes, "mixed_bfloat16")
    layer = mixed.layers[-1]
    for sublayer in layer._flatten_layers():
        assert sublayer.compute_dtype == "bfloat16", sublayer.path
        assert sublayer.variable_dtype == "float32", sublayer.path
    mixed.set_weights(model.get_weights())
    output = layer(*data)
    assert output.dtype == mixed.output.dtype == "bfloat16"
    expected = np.asarray(model.layers[-1](*data))
    difference = np.abs(np.asarray(output).astype("float32") - expected).max()
    assert difference <= 0.05 * max(1.0, np.abs(expected).max())
    _check_training_step(mixed, data, target)
    restored = layer_class.from_config(layer.get_config())
    assert restored.dtype_policy.name == "mixed_bfloat16"
