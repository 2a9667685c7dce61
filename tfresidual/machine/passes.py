"""Passes over a `tf.data.Dataset`. TensorFlow only."""

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


def of_any_size(data):
    """Returns data whose batches are of no fixed size, if it is a dataset of unknown length.

    At the end of such a dataset, `evaluate` of Keras up to 3.15.1 runs its step once more, without
    a batch: a metric then counts a batch of fixed size that is not there.
    """
    if not isinstance(data, tf.data.Dataset) or data.cardinality() != tf.data.UNKNOWN_CARDINALITY:
        return data

    def freed(part):
        is_dense = isinstance(part, tf.Tensor) and part.shape.rank
        shape = [None, *part.shape[1:]] if is_dense else None
        return tf.compat.v1.placeholder_with_default(part, shape) if is_dense else part

    return data.map(lambda *batch: tf.nest.map_structure(freed, batch))
