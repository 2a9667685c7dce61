"""Passes over a `tf.data.Dataset`: what they give, and how they end."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfresidual import datasets
from tfresidual.machine.passes import without_tuning
from tfresidual.routing.data import batches_of


def doubled():
    return tf.data.Dataset.range(64).map(lambda x: 2 * x, num_parallel_calls=tf.data.AUTOTUNE)


def test_the_elements_and_their_order_stay():
    untuned = without_tuning(doubled().prefetch(tf.data.AUTOTUNE))
    np.testing.assert_array_equal(list(untuned.as_numpy_iterator()), 2 * np.arange(64))
    assert len(untuned) == 64
    assert untuned.options().autotune.enabled is False


@pytest.mark.parametrize("chosen", [True, False])
def test_options_that_a_user_has_chosen_stay(chosen):
    options = tf.data.Options()
    options.autotune.enabled = chosen
    data = doubled().with_options(options)
    assert without_tuning(data) is data


def test_datasets_are_not_tuned(tmp_path):
    sizes = {"train_size": 64, "test_size": 32}
    train, test = datasets.load("digitclutter", 32, data_dir=str(tmp_path), **sizes)
    for data in (train, datasets.plain(train), test.take(1)):
        assert data.options().autotune.enabled is False


PASSES = """
import os, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import numpy as np
import tensorflow as tf
from tfresidual.routing.data import batches_of

images = tf.zeros((16, 2))
data = tf.data.Dataset.range(10**9).map(
    lambda x: (images, tf.zeros(16, tf.int64)), num_parallel_calls=tf.data.AUTOTUNE
).prefetch(tf.data.AUTOTUNE)
for _ in range(2):
    batches = batches_of(data)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        next(batches)
    begun = time.monotonic()
    del batches
    print(time.monotonic() - begun)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors cannot be chosen here")
@pytest.mark.system
@pytest.mark.nightly
def test_a_pass_ends_at_once():
    """As TensorFlow has it, two of three such passes take a second to end."""
    done = subprocess.run([sys.executable, "-c", PASSES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert max(map(float, done.stdout.split())) < 0.4


def test_data_of_a_user_is_read_without_tuning():
    data = tf.data.Dataset.from_tensors((tf.zeros((4, 2)), tf.zeros(4, tf.int64)))
    batches = batches_of(data)
    assert [images.shape[0] for images, *_ in batches] == [4]
    # The dataset itself is as it was.
    assert data.options().autotune.enabled is None
