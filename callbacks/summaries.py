"""What says to TensorBoard in which of its tabs a number or an image belongs."""

import tensorflow as tf


def metadata_of(plugin):
    """Returns the metadata of a summary.

    `tf.summary.scalar` and `tf.summary.image` write the same, but need TensorBoard to be installed.

    Args:
        plugin: str, the name of TensorBoard's plugin, such as `"scalars"` or `"images"`.
    """
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    return metadata
