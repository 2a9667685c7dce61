"""Passes over a `tf.data.Dataset` that end at once. TensorFlow only."""

import tensorflow as tf


def without_tuning(dataset):
    """Returns the dataset without the thread that tunes its parallel parts, for which passes wait.

    As a pass ends, TensorFlow 2.21 tells that thread to stop and waits for it. On busy processors,
    the thread may check the stop flag just before it is set; it then sleeps on, longer the longer
    the pass was, up to a minute. Untuned, `AUTOTUNE` means parallel calls on all processors, up to
    16, and the elements and their order are the same. A dataset whose options say whether it is
    tuned is returned as it is.
    """
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
