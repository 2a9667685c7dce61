"""A layer of a transformer encoder, whose parts have no names of their own."""

import keras


@keras.saving.register_keras_serializable("tests")
class Encoder(keras.layers.Layer):
    """Attention and MLP, each added to what it reads."""

    def __init__(self, width=4, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.attend = keras.layers.MultiHeadAttention(2, 2)
        self.first, self.second = (keras.layers.LayerNormalization() for _ in range(2))
        self.expand, self.contract = keras.layers.Dense(width, "gelu"), keras.layers.Dense(width)

    def build(self, shape):
        self.attend.build(shape, shape)
        for part in (self.first, self.second, self.expand, self.contract):
            part.build(shape)

    def call(self, state):
        normal = self.first(state)
        state = state + self.attend(normal, normal)
        return state + self.contract(self.expand(self.second(state)))

    def get_config(self):
        return super().get_config() | {"width": self.width}
