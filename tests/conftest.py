"""Set-up of all tests: a quiet TensorFlow, a fixed seed, and the global settings put back.

Python looks for garbage between tests and not within them: while a graph is traced, which creates
millions of objects that stay, that is a third of the time.
"""

import contextlib
import gc
import os
import pathlib
import signal
import subprocess
import sys
from concurrent import futures

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
    config.addinivalue_line(
        "filterwarnings", "ignore:Even though the `tf.config.experimental_run_functions_eagerly`"
    )


# Objects created since the last look after which there is another one, about 200 MB.
MOST_OBJECTS = 500_000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Runs tests with the mark `eager`, but those with `compiled`, operation by operation.

    That is a hook and no fixture, so that it holds for the fixtures of modules too. The numbers
    are those of the same code, in half the time; probes/test_contract.py compares them for
    every probe.
    """
    marks = {mark.name for mark in item.iter_markers()}
    is_eager = "eager" in marks and "compiled" not in marks and not _has_bounds(item)
    gc.disable()
    _run_eagerly(is_eager)
    try:
        return (yield)
    finally:
        _run_eagerly(False)
        if gc.get_count()[0] > MOST_OBJECTS:
            gc.collect()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leaves `n` cases of a test with the mark `sampled(n)` in every run; the others are nightly.

    They are spread over all cases; neighbours in a product of parameters are far from each other.
    """
    groups = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("nightly"):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in groups.values():
        count = cases[0].get_closest_marker("sampled").args[0]
        places = sorted(range(len(cases)), key=lambda place: place * GOLDEN % 1)
        for place in places[count:]:
            cases[place].add_marker("nightly")


# Multiples of it, modulo 1, fill the interval evenly.
GOLDEN = 0.6180339887


def _has_bounds(item):
    """Whether a network of the test's parameters has bounds: searching for them, in loops of many
    operations, takes long without compiling."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return "lipschitz" in str(parameters)


def _run_eagerly(is_eager):
    if is_eager or "tensorflow" in sys.modules:
        import tensorflow as tf

        tf.config.run_functions_eagerly(is_eager)


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


@pytest.fixture
def elsewhere():
    """A function that enters a context manager in a thread of its own, for as long as a block."""

    @contextlib.contextmanager
    def enter(manager):
        with futures.ThreadPoolExecutor(max_workers=1) as thread:
            thread.submit(manager.__enter__).result()
            try:
                yield
            finally:
                thread.submit(manager.__exit__, None, None, None).result()

    return enter


@pytest.fixture
def killed_while_writing():
    """A function that lets a process begin to replace a file or folder, and kills it.

    It returns the path that the process wrote to.
    """
    from bare_package import BARE

    def begin(target, kind="replacing"):
        code = f"""
import os, signal
from tfresidual.machine import files
with files.{kind}({str(target)!r}) as written:
    print(written, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
        result = subprocess.run([sys.executable, "-c", BARE + code], stdout=subprocess.PIPE)
        return pathlib.Path(result.stdout.decode().strip())

    return begin


@pytest.fixture(scope="module")
def no_old_garbage():
    """Every trial begins with a garbage collection, which need not look at all of TensorFlow."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
