"""Heads of small networks."""

import keras


def dense(activation, outputs):
    """The function that puts a new layer after a state, whose outputs are far from each other."""

    def head(state):
        wide = keras.initializers.Orthogonal(2.0)
        return keras.layers.Dense(outputs, activation, kernel_initializer=wide)(state)

    return head
