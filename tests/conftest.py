"""Set-up of all tests: a quiet TensorFlow, a fixed seed, and the global settings put back."""

import os
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import pytest

pytest.register_assert_rewrite("reference.layer_test")


# Whoever starts the tests in the background has interrupts ignored, by the processes of the tests
# too; some of them are about interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    # Keras 3.15 calls np.array on its variables (backend/tensorflow/core.py, on saving weights and
    # in get_weights), whose __array__ lacks the `copy` keyword of NumPy 2.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning:keras.src",
    )


@pytest.fixture(autouse=True)
def seed():
    """Seeds Python, NumPy and TensorFlow before every test; returns the seed."""
    # Tests that do not need TensorFlow should not wait for its import.
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(0)
    return 0


@pytest.fixture
def global_policy():
    """A function that sets Keras' global dtype policy; the old one comes back after the test."""
    import keras

    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)
