"""Tuner for keras-tuner that searches for the depth that a network needs."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import pathlib
import shutil
import time
import warnings
from typing import TYPE_CHECKING

import keras
import keras_tuner
import numpy as np
from keras_tuner import errors
from keras_tuner.engine.tuner import maybe_distribute

from tfresidual import probes, sources
from tfresidual.definitions.arguments import ArgumentError, check_int
from tfresidual.definitions.averages import standard_error
from tfresidual.definitions.chance import ERROR_SE, error_of_guessing
from tfresidual.definitions.settings import EPSILON
from tfresidual.machine.files import read_json, replacing
from tfresidual.machine.first_step import build_optimizer, traced_once
from tfresidual.machine.locks import locked
from tfresidual.machine.passes import of_any_size
from tfresidual.probes.logs import log_key
from tfresidual.probes.perturbation import ALL_STAGES
from tfresidual.routing.chain import Chain
from tfresidual.routing.data import batches_of, check_data
from tfresidual.tuning import fingerprint
from tfresidual.tuning.as_built import (
    AS_BUILT,
    CHANGE_ERROR,
    MEAN,
    SETTLED,
    compared_with_built,
    values_of,
)
from tfresidual.tuning.depth_oracle import (
    KEPT_DISTANCE,
    OBJECTIVE,
    SOURCE,
    DepthOracle,
    blocks,
    blocks_text,
    check_same_settings,
)
from tfresidual.tuning.keras_tuner_internals import BuildingTuner
from tfresidual.tuning.search_files import (
    FAILURE_FILE,
    ORACLE_FILE,
    REMEDY,
    WEIGHTS_FILE,
    TrialFileError,
)
from tfresidual.tuning.trace import DEVIATION, STAGE_METRICS, outcomes_of, read_search, trace_of
from tfresidual.tuning.warm_start import interleave
from tfresidual.tuning.workers import POLL, SearchError, end_with_parent, is_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from keras_tuner.engine.trial import Trial

    from tfresidual.definitions.types import Frame, Images
    from tfresidual.tuning.trace import Outcome

# Arguments of a tuner that are passed to its oracle.
ORACLE_ARGUMENTS = (
    *("max_retries_per_trial", "max_consecutive_failed_trials"),
    *("tune_new_entries", "allow_new_entries"),
)
# Metrics whose complement is an error rate.
ACCURACY_METRICS = (
    *("exact_match", "accuracy", "acc", "categorical_accuracy", "sparse_categorical_accuracy"),
)
# Methods of callbacks that call those of a tuner.
HOOKS = ("on_epoch_begin", "on_epoch_end", "on_train_batch_begin", "on_train_batch_end")


class DepthSearch(BuildingTuner):
    """Tuner that searches for the fewest blocks per stage that meet the stopping rule.

    A trial trains a network with the arguments of `search`, then measures the scaled computational
    distance of every stage on held-out images, and what the same network gives as built. A
    `DepthOracle` proposes the next depths and ends the search. Networks are any Keras models in
    which `tfresidual.chain` finds the stages. Everything else is as in keras-tuner: `search`,
    `results_summary`, `get_best_hyperparameters`, `get_best_models`, callbacks, TensorBoard,
    `overwrite`, `max_trials`, further hyperparameters.

    The seed of a trial is determined by its depths: a repeated search gives the same result if the
    data has the same order. An interrupted search resumes when the same program runs again; a
    program that builds other networks, or trains them on other data or for another number of
    epochs, is refused in the same folder. See docs/howto/depth_search.md.

    Example:

    >>> def build(hp):
    ...     net = networks.ResidualNetwork((8, 8, 1), 3, blocks=tuning.blocks(hp), widths=(4,))
    ...     net.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    ...     return net
    >>> search = tuning.DepthSearch(build, epsilon=5.0, start=(2,), directory="runs")
    >>> search.search(train, validation_data=test, epochs=3, verbose=0)
    >>> search.outcome().blocks
    (1,)

    Args:
        hypermodel: function from `keras_tuner.HyperParameters` to a compiled `keras.Model` whose
            chain has `tuning.blocks(hp)` blocks in its stages, or a `keras_tuner.HyperModel`.
        epsilon: float over 0, the largest mean scaled perturbation of a stage.
        start: tuple of ints, the blocks of each stage in the first trial.
        min_blocks: int, or one int per stage: the smallest depth, 1 or more.
        max_blocks: int, or one int per stage: the largest depth.
        tolerance: int, how many blocks deeper than necessary a stage of the result may be.
        warm_start: whether a trial starts with the weights of the deepest finished trial that is
            shallower, see `tuning.interleave`. The distances are then not those of networks trained
            from scratch.
        probe_data: images for the measurements, see `tfresidual.definitions.types.Images`; by
            default the validation data of `search`.
        chain: function from the network of a trial to its `tfresidual.routing.Chain`, for example
            `lambda network: tfresidual.chain(network, blocks=Encoder)` to count whole layers. By
            default, `tfresidual.chain`.
        max_trials: int, the largest number of trials, or `None` for no limit.
        hyperparameters: a `keras_tuner.HyperParameters` with further hyperparameters, or `None`.
            Each combination of their values has its own search.
        seed: int, seed of the weights and of all other random numbers in a trial.
        **kwargs: `directory`, `project_name`, `overwrite`, `executions_per_trial` (their
            measurements are averaged), `distribution_strategy`, `max_model_size`,
            `max_retries_per_trial`, `max_consecutive_failed_trials`, `tune_new_entries` and the
            other arguments of `keras_tuner.Tuner`.

    Raises:
        ValueError: if an argument is invalid, or the folder holds another search.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", sections 2.3 and
        3.5.1.
    """

    def __init__(
        self,
        hypermodel: Callable[[keras_tuner.HyperParameters], keras.Model] | keras_tuner.HyperModel,
        *,
        epsilon: float = EPSILON,
        start: Iterable[int] = (4, 4, 4),
        min_blocks: int | Iterable[int] = 1,
        max_blocks: int | Iterable[int] = 128,
        tolerance: int = 0,
        warm_start: bool = False,
        probe_data: Images | None = None,
        chain: Callable[[keras.Model], Chain] | None = None,
        max_trials: int | None = None,
        hyperparameters: keras_tuner.HyperParameters | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        seed = check_int("seed", seed, at_least=0, at_most=2**31 - 1)
        executions = kwargs.get("executions_per_trial", 1)
        oracle = DepthOracle(
            start,
            epsilon=epsilon,
            min_blocks=min_blocks,
            max_blocks=max_blocks,
            tolerance=tolerance,
            warm_start=warm_start,
            hyperparameters=hyperparameters,
            settings={"seed": seed, "executions_per_trial": executions},
            max_trials=max_trials,
            **{name: kwargs.pop(name) for name in ORACLE_ARGUMENTS if name in kwargs},
        )
        self.epsilon: float = epsilon
        self.seed: int = seed
        self.probe_data: Images | None = probe_data
        self.chain: Callable[[keras.Model], Chain] | None = chain
        self._is_compared, self._least = False, math.inf
        # What is known of the validation data, which is read once.
        self._guessing = None
        if kwargs.pop("overwrite", False) and not is_worker():
            _remove(kwargs.get("directory"), kwargs.get("project_name"))
        super().__init__(oracle, hypermodel, **kwargs)
        if not is_worker() and self.oracle.is_begun():
            # The hyperparameters of this program count, not those of the one that began the search.
            self.oracle.reload(look=True)

    # Search

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """Trains networks until the search ends.

        Args:
            *fit_args: positional arguments of `model.fit`.
            **fit_kwargs: keyword arguments of `model.fit`. The distances are measured on
                `validation_data`, unless `probe_data` was given.

        Raises:
            ValueError: if there are no images for the measurements, a further hyperparameter has
                infinitely many values, or the search in the folder began with other networks, data
                or epochs.
            OSError: if another process searches in the same folder, or a file cannot be read or
                written; the search can be resumed.
            SearchError: if too many trials failed in a row.
        """
        end_with_parent()
        data = self._images(fit_kwargs)
        if data is None:
            raise ArgumentError(
                "validation_data",
                "hold the images to measure on, or `probe_data` must be given to `DepthSearch`",
                None,
            )
        check_data(data, again=True)
        if is_worker():
            super().search(*fit_args, **fit_kwargs)
            return
        self.oracle.combinations()
        with locked(self.project_dir, "project_name"):
            begun = self.oracle.settings
            before = self._settings_on_disk()
            self.oracle.settings = begun | self._settings(fit_args, fit_kwargs, before)
            try:
                if self.oracle.is_begun():
                    # Another process may have continued the search since this tuner was created.
                    self.oracle.reload()
            except BaseException:
                self.oracle.settings = begun
                raise
            self.save()
            super().search(*fit_args, **fit_kwargs)
            if self.oracle.failure is not None:
                # A chief cannot raise it while it answers a worker.
                raise SearchError(self.oracle.failure)

    def _settings_on_disk(self):
        path = pathlib.Path(self.project_dir, ORACLE_FILE)
        return read_json(path, REMEDY)["depth_search"]["settings"] if path.exists() else {}

    def _settings(self, fit_args, fit_kwargs, before):
        """Returns what the measurements depend on; `before` is that of the search in the folder."""
        values = before.get("hypermodel", {}).get("values", self.oracle.get_space().values)
        space = self.oracle.get_space()
        space.values = dict(values)
        # The names of layers count from 0 again.
        keras.backend.clear_session()
        network = self.build_beside(space)
        given = {"values": values}
        if isinstance(network, keras.Model):
            given |= fingerprint.of_network(network)
        return fingerprint.of_fit(fit_args, fit_kwargs, self.probe_data) | {"hypermodel": given}

    def pre_create_trial(self) -> None:
        if is_worker():
            # The chief may have no trial for this worker at the moment, and is asked again.
            time.sleep(POLL)

    def run_trial(self, trial: Trial, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Trains, measures and saves the network of a trial.

        - `"blocks"` (all of them, the objective) and `"seconds"`;
        - `"val_loss"` and the other metrics on the validation data; with an accuracy, also
          `"error"`, `"chance_error"`, that of always giving the most common label, and
          `"error_se"`, the standard error of the latter on as many images, for their comparison;
        - per stage `"stage1/blocks"`, `"stage1/distance"`, `"stage1/scaled_distance"` and the
          means, `"stage1/mean_scaled_perturbation_as_built"`, that of the untrained network,
          `"stage1/mean_scaled_perturbation_settled"`, that of the trained one, both with moving
          statistics of the images that are measured, and
          `"stage1/mean_scaled_perturbation_change_error"`, the standard error of this change.

        The saved weights are those of the execution whose worst stage has the smallest mean;
        `"stage1/kept_scaled_distance"` is the distance of that execution.

        Returns:
            A dict of these floats by name, averages over the executions (`"seconds"` is their sum).
        """
        given = kwargs.pop("callbacks", None) or ()
        results = []
        try:
            for execution in range(self.executions_per_trial):
                callbacks = copy.deepcopy(list(given))
                self.log_below(callbacks, trial, execution)
                results.append(self.execute(trial, execution, *args, callbacks=callbacks, **kwargs))
        except errors.FatalError:
            raise
        except OSError as error:
            # keras-tuner would count the trial as failed, and print where.
            raise TrialFileError(str(error)) from error
        return _averaged(results)

    def execute(
        self, trial: Trial, execution: int, *args: Any, callbacks: list[Any], **kwargs: Any
    ) -> dict[str, float]:
        """Does one training of a trial, and returns what it measured, see `run_trial`.

        Args:
            trial: the trial.
            execution: int from 0, the number of the training in the trial.
            *args: positional arguments of `search`.
            callbacks: list of callbacks that belong to this training.
            **kwargs: the other arguments of `search`.
        """
        if is_worker() and not self._is_compared:
            self._compare_with_chief(args, kwargs)
        begun = time.monotonic()
        depths = blocks(trial.hyperparameters)
        # The seed does not depend on the process, nor on the trials before.
        seeds = np.random.SeedSequence([self.seed, execution, *depths])
        keras.utils.set_random_seed(int(seeds.generate_state(1)[0] >> 1))
        network = self.build_network(trial.hyperparameters)
        chain = self._checked_chain(network, depths, kwargs)
        built = values_of(network)
        self._warm_start(trial, network)
        calls = {
            name: functools.partial(getattr(self, name.replace("train_", "")), trial, network)
            for name in HOOKS
        }
        callbacks = [*callbacks, keras.callbacks.LambdaCallback(**calls)]
        with traced_once(network):
            results = self.hypermodel.fit(
                trial.hyperparameters, network, *args, callbacks=callbacks, **kwargs
            )
        measured = {OBJECTIVE: float(sum(depths))} | self._measured(chain, depths, kwargs)
        measured |= self._evaluated(network, kwargs)
        if isinstance(results, dict):
            measured = {name: float(value) for name, value in results.items()} | measured
        worst = _worst(measured)
        if not execution or worst < self._least:
            self._least = worst
            with replacing(pathlib.Path(self.get_trial_dir(trial.trial_id), WEIGHTS_FILE)) as path:
                network.save_weights(path)
        found = compared_with_built(network, chain, built, self._images(kwargs))
        for stage, numbers in found.items():
            measured |= {log_key(name, stage): number for name, number in numbers.items()}
        return measured | {"seconds": time.monotonic() - begun}

    def on_trial_end(self, trial: Trial) -> None:
        if trial.message and is_worker():
            # The report of a worker to its chief does not include the message.
            path = pathlib.Path(self.get_trial_dir(trial.trial_id), FAILURE_FILE)
            with replacing(path) as beside:
                beside.write_text(trial.message)
        super().on_trial_end(trial)

    def _compare_with_chief(self, fit_args, fit_kwargs):
        """Raises an error if the chief began a search of other networks, or with other data."""
        before = self._settings_on_disk()
        with _fatal():
            settings = self._settings(fit_args, fit_kwargs, before)
            check_same_settings(before, settings, self.project_dir)
        self._is_compared = True

    def _warm_start(self, trial, network):
        source = trial.hyperparameters.values.get(SOURCE)
        if source is None:
            return
        lender = self.oracle.get_trial(source)
        with _fatal(), maybe_distribute(self.distribution_strategy):
            shallow = self._loaded(self.build_beside(lender.hyperparameters), lender)
        with _fatal():
            interleave(shallow, network)

    def _images(self, fit_kwargs):
        """Returns the data on which distances are measured."""
        if self.probe_data is not None:
            return self.probe_data
        data = fit_kwargs.get("validation_data")
        # Sample weights, if present, are not used here.
        return tuple(data[:2]) if isinstance(data, (tuple, list)) else data

    def _checked_chain(self, network, depths, fit_kwargs):
        """Returns the chain of a network; rejects it before training if it cannot be measured."""
        with _fatal("Argument `hypermodel` must build a network that can be measured: "):
            chain = self._chain_of(network)
        found = tuple(len(stage.blocks) for stage in chain.stages)
        if found != depths:
            raise errors.FatalValueError(
                "Argument `hypermodel` must build a network whose chain has `tuning.blocks(hp)` "
                f"blocks in its stages, here {depths}; `print(tfresidual.chain(network))` shows "
                f"which are found, and the argument `chain` says how. Received: {found}"
            )
        with _fatal():
            next(batches_of(self._images(fit_kwargs), chain, with_labels=False))
        return chain

    def _chain_of(self, network):
        """Returns the chain of a network, of which a subclassed one may be built by that."""
        return (self.chain or sources.chain)(network)

    def _evaluated(self, network, fit_kwargs):
        """Returns the metrics of a network on its validation data, named as by `fit`."""
        validation = fit_kwargs.get("validation_data")
        if validation is None:
            return {}
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(of_any_size(validation))
        steps = fit_kwargs.get("validation_steps")
        values = network.evaluate(
            inputs,
            labels,
            batch_size=fit_kwargs.get("validation_batch_size") or fit_kwargs.get("batch_size"),
            sample_weight=weights,
            steps=steps,
            verbose=0,
            return_dict=True,
        )
        named = {f"val_{name}": float(value) for name, value in values.items()}
        metric = next((name for name in ACCURACY_METRICS if name in values), None)
        if metric is None:
            return named
        if self._guessing is None:
            parts = (part for m in network.metrics for part in getattr(m, "metrics", [m]))
            kind = next((type(part).__name__ for part in parts if part.name == metric), None)
            self._guessing = error_of_guessing(validation, kind, steps) if kind else {}
        return named | {"error": 1 - float(values[metric])} | self._guessing

    def _measured(self, chain, depths, fit_kwargs):
        """Returns the measurements of a trained network that the rule needs, by name."""
        frame = probes.computational_distance(chain, self._images(fit_kwargs))
        measured = {}
        for row in frame[frame["stage"] != ALL_STAGES].to_dict("records"):
            measured[log_key("blocks", row["stage"])] = float(row["blocks"])
            # Without a block that is measured, the sums are 0, and there are no means.
            for name in STAGE_METRICS if row["blocks"] else ("distance", "scaled_distance"):
                measured[log_key(name, row["stage"])] = float(row[name] if row["blocks"] else 0)
        if not all(map(math.isfinite, measured.values())):
            raise errors.FailedTrialError(
                f"The network of {blocks_text(depths)} diverged: its distances are not finite. "
                f"Received: {measured}"
            )
        return measured

    # Results

    def outcome(self) -> Outcome:
        """Returns the result of the search, or the reason why there is none, a `tuning.Outcome`.

        With further hyperparameters, this is the result with the fewest blocks.
        """
        outcomes = self.outcomes()
        found = [outcome for outcome in outcomes if outcome.blocks is not None]
        unfinished = [outcome for outcome in outcomes if outcome.status == "searching"]
        if found:
            # Networks no better than chance come last.
            return min(found, key=lambda o: (o.is_better_than_chance is False, sum(o.blocks or ())))
        return (unfinished or outcomes)[0]

    def outcomes(self) -> list[Outcome]:
        """Returns the `tuning.Outcome`s of all combinations of further hyperparameters, a list."""
        return outcomes_of(self._current())

    def trace(self) -> Frame:
        """Returns all trials of the search in the order in which they were started.

        Returns:
            A `pandas.DataFrame` with a row per trial and stage: `trial` (from 0), `status`
                (`"completed"`, `"failed"` or `"running"`), further hyperparameters, `stage` (from
                1), `blocks`, `measured_blocks` (those that keep the shape, the rule's L),
                `distance`, `scaled_distance`, `mean_perturbation`, `mean_scaled_perturbation`,
                `scaled_distance_deviation` (standard deviation over executions), `depth_asked_for`
                (the measured blocks that the rule asks for, if the distance did not change),
                `mean_scaled_perturbation_as_built`, `mean_scaled_perturbation_settled`,
                `mean_scaled_perturbation_change_error` (see `run_trial`), `moved` (whether the
                change is more than two standard errors), `meets_rule`, `found` (whether the trial
                is the result), `error`, `seconds`, the metrics on the validation data and, with
                `warm_start`, `from_trial`, the id of the trial whose weights were used. What was
                not measured is NaN, or missing.
        """
        return trace_of(self._current())

    def get_best_hyperparameters(self, num_trials: int = 1) -> list[keras_tuner.HyperParameters]:
        """Returns the hyperparameters of trials that meet the rule, the fewest blocks first.

        A `RuntimeError` is raised if no trial meets it.
        """
        return [trial.hyperparameters for trial in self._best_trials(num_trials)]

    def get_best_models(self, num_models: int = 1) -> list[keras.Model]:
        """Returns the trained networks that meet the rule, the fewest blocks first.

        If a trial has several executions, both their average and the kept network must meet it. A
        `RuntimeError` is raised if there is no such network.
        """
        trials = self._best_trials(None)
        kept = [trial for trial in trials if self._current().is_kept_met(trial)][:num_models]
        if not kept:
            raise RuntimeError(
                "There is no best network: the trials that meet the rule do so only on average; "
                "none of their networks does on its own"
            )
        return [self.load_model(trial) for trial in kept]

    def load_model(self, trial: Trial) -> keras.Model:
        network = self.build_network(trial.hyperparameters)
        with maybe_distribute(self.distribution_strategy):
            return self._loaded(network, trial)

    def _loaded(self, network, trial):
        """Returns the network of a trial with the weights that it saved."""
        if not network.built:
            # The weights of a subclassed one exist after a first call.
            self._chain_of(network)
        load_trained(network, pathlib.Path(self.get_trial_dir(trial.trial_id), WEIGHTS_FILE))
        return network

    def results_summary(self, num_trials: int = 10) -> None:
        """Prints the outcome, the trace, and the trials that meet the rule, the best first."""
        for outcome in self.outcomes():
            others = ", ".join(f"{k}={v}" for k, v in outcome.hyperparameters.items())
            print(f"{others}: {outcome.message}" if others else outcome.message)
        print(self.trace().to_string(index=False, float_format="{:.4g}".format))
        print(f"Results in {self.project_dir}")
        for trial in self._current().get_best_trials(num_trials):
            print()
            trial.summary()

    def _best_trials(self, count):
        trials = self._current().get_best_trials(count)
        if not trials:
            raise RuntimeError(f"There is no best network: {self.outcome().message}")
        return trials

    def _current(self):
        """Returns the oracle with all trials; a worker reads it from disk."""
        return read_search(self.project_dir) if is_worker() else self.oracle

    # Files of keras-tuner

    def save(self) -> None:
        # The tuner itself has no state, so only the oracle is saved.
        if not is_worker():
            self.oracle.save()


@contextlib.contextmanager
def _fatal(before=""):
    """Lets a `ValueError` end the search: other depths will not help."""
    try:
        yield
    except ValueError as error:
        raise errors.FatalValueError(f"{before}{error}") from error


def load_trained(network, path):
    """Loads the weights and the optimizer state that a trial saved into a compiled network."""
    build_optimizer(network)
    with warnings.catch_warnings():
        # Keras warns of what it leaves as it was initialized.
        warnings.simplefilter("error", UserWarning)
        network.load_weights(path)


def _remove(directory, project_name):
    """Removes an earlier search in the folder, unless it is running."""
    folder = pathlib.Path(directory or ".", project_name or "untitled_project")
    if folder.exists():
        with locked(folder, "project_name"):
            shutil.rmtree(folder.resolve())


def _averaged(results):
    """Returns the mean measurements of executions, and the distances of the one that is kept."""
    # What one execution could not measure, such as infinite numbers of one as built, none has.
    names = [name for name in results[0] if all(name in result for result in results)]
    averaged = {name: math.fsum(r[name] for r in results) / len(results) for name in names}
    averaged["seconds"] = math.fsum(result["seconds"] for result in results)
    if len(results) == 1:
        return averaged
    for name in list(averaged):
        stage, _, value = name.rpartition("/")
        if value == "scaled_distance":
            distances = [result[name] for result in results]
            averaged[f"{stage}/{DEVIATION}"] = float(np.std(distances, ddof=1))
            averaged[f"{stage}/{KEPT_DISTANCE}"] = min(results, key=_worst)[name]
        if value == AS_BUILT:
            changes = [result[f"{stage}/{SETTLED}"] - result[name] for result in results]
            error = f"{stage}/{CHANGE_ERROR}"
            averaged[error] = max(averaged[error], standard_error(changes))
    if ERROR_SE in averaged:
        of_seeds = standard_error([result["error"] for result in results])
        averaged[ERROR_SE] = max(averaged[ERROR_SE], of_seeds)
    return averaged


def _worst(measured):
    """Returns the largest mean scaled perturbation of all stages."""
    return max((v for name, v in measured.items() if name.endswith(f"/{MEAN}")), default=0.0)
