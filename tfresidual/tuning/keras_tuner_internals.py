"""What this package uses of keras-tuner that keras-tuner does not document.

These are five names: of an oracle, `_set_project_dir` and `_display`; of a tuner, `_try_build`,
`_build_hypermodel` and `_configure_tensorboard_dir`.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import keras_tuner

if TYPE_CHECKING:
    import keras
    from keras_tuner.engine.trial import Trial


class PlacedOracle(keras_tuner.Oracle):
    """An oracle that knows the folder of its search, `folder`, and leaves the files to others."""

    folder: pathlib.Path

    def place_in(self, folder: pathlib.Path) -> None:
        """Sets the folder, which a tuner does otherwise."""
        self._set_project_dir(str(folder.parent), folder.name)

    def _set_project_dir(self, directory, project_name):
        super()._set_project_dir(directory, project_name)
        self.folder = pathlib.Path(directory, project_name)

    def announce(self, trial: Trial) -> None:
        """Prints that a trial begins, unless `verbose` is 0."""
        self._display.on_trial_begin(trial)

    def durations(self, trial: Trial, now: Any) -> tuple[str, str]:
        """Returns how long a trial and the whole search have taken, as text."""
        # A restarted chief does not know when the trial started.
        display = self._display
        starts = display.trial_start.get(trial.trial_id, now), display.search_start or now
        of_trial, of_search = (display.format_duration(now - start) for start in starts)
        return of_trial, of_search


class BuildingTuner(keras_tuner.Tuner):
    """A tuner whose parts can be used one by one."""

    def build_network(self, hyperparameters: keras_tuner.HyperParameters) -> keras.Model:
        """Returns the network of a trial, after which those before it are gone."""
        return self._try_build(hyperparameters)

    def build_beside(self, hyperparameters: keras_tuner.HyperParameters) -> keras.Model:
        """Returns another network, beside that of a trial."""
        return self._build_hypermodel(hyperparameters)

    def log_below(self, callbacks: list, trial: Trial, execution: int) -> None:
        """Gives the `TensorBoard` callbacks among some a folder per execution."""
        # keras-tuner imports TensorBoard even if it is not used.
        if any(type(callback).__name__ == "TensorBoard" for callback in callbacks):
            self._configure_tensorboard_dir(callbacks, trial, execution)
