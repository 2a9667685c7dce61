"""A version of Keras in which calls cannot be recorded is refused, and left as it is."""

import keras
import numpy as np
import pytest
from keras import layers

import tfresidual as tfr
from tfresidual.sources import keras_inside

pytestmark = pytest.mark.eager


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4)

    def call(self, inputs):
        return inputs + self.dense(inputs)


def without_recording(operation, *args, **kwargs):
    return operation.compute_output_spec(*args, **kwargs)


def methods():
    owners = (layers.Layer, keras.Operation, keras.Variable)
    return [dict(vars(owner)) for owner in owners]


@pytest.mark.parametrize("change", ["no such method", "another way"])
def test_another_keras_is_refused(monkeypatch, change):
    model, inputs = Subclassed(), np.ones((2, 4), "float32")
    assert len(tfr.chain(model, inputs=inputs).blocks) == 1
    keras_inside._check_fits.cache_clear()
    if change == "another way":
        monkeypatch.setattr(keras.Operation, "__call__", without_recording)
    else:
        monkeypatch.delattr(keras.Operation, "symbolic_call")
        monkeypatch.delattr(layers.Layer, "symbolic_call")
    before = methods()
    with pytest.raises(keras_inside.UnknownKerasError, match=f"Keras, .*{keras.__version__}.*3.15"):
        tfr.chain(model, inputs=inputs)
    assert methods() == before
    monkeypatch.undo()
    assert len(tfr.chain(model, inputs=inputs).blocks) == 1
