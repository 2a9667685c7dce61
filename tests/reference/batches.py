"""Batches as they are, for probes and `fit`."""

import keras


class Batches(keras.utils.PyDataset):
    """The batches given, by their place."""

    def __init__(self, *batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]
