"""The command line `tfresidual`.

This module is outside of the package, because importing anything from `tfresidual` loads Keras with
its backend. That takes seconds, which `tfresidual --help` should not need. The commands import the
package when they run, and `train --backend` chooses the backend before.
"""

import _thread
import atexit
import contextlib
import dataclasses
import errno
import importlib.util
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import threading
import time
import types
import warnings
import weakref

import click

# The backends of Keras that train, and their packages.
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}


def _module(name):
    """Returns a module of data of the package, without importing the package around it."""
    folder = importlib.util.find_spec("tfresidual").submodule_search_locations[0]
    path = pathlib.Path(folder, "definitions", f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"tfresidual_{name}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SETTINGS = _module("settings")
PROBES = tuple(sorted(_module("declarations").PROBES))
# The options of probes that a command takes.
OF_PROBES = ("times", "scale", "chance", "epsilon", "memory_limit")
# The settings that say what the images are.
DATA = ("digits", "data_dir", "data_file", "train_size", "validation", "test_size", "batch_size")


class Depths(click.ParamType):
    """Number of blocks of the stages: one number for all, or one per stage, as in 4,4,6."""

    name = "depths"

    def convert(self, value, param, ctx):
        try:
            depths = tuple(int(part) for part in value.split(","))
        except ValueError:
            depths = ()
        if not depths or min(depths) < 1 or max(depths) > SETTINGS.MOST_BLOCKS:
            self.fail(
                f"{value!r} is not a number from 1 to {SETTINGS.MOST_BLOCKS}, or one per stage, as "
                "in 4,4,6",
                param,
                ctx,
            )
        return depths[0] if len(depths) == 1 else depths


def option(flag, meaning, default, **kwargs):
    """Returns an option with a default that is only shown here; whoever is called has it."""
    return click.option(flag, help=f"{meaning}  [default: {default}]", default=None, **kwargs)


def options_of(kind, names=None, without=(), default=None):
    """Returns a decorator: options for fields of a class of settings, all with one `default`."""
    fields = dataclasses.fields(getattr(SETTINGS, kind))
    return options(
        *(
            _option_of(field, default)
            for field in fields
            if field.name not in without and (names is None or field.name in names)
        )
    )


def _option_of(field, default):
    setting = SETTINGS.of(field)
    meaning, offered = setting.meaning, setting.offered or setting.choices
    more = {"metavar": setting.metavar} if setting.metavar else {}
    least, most = setting.at_least, setting.at_most
    if setting.kind is bool:
        more["is_flag"] = True
    elif setting.kind is tuple:
        more["type"] = Depths()
    elif setting.kind is int:
        more["type"] = click.IntRange(least, most)
    elif setting.kind is float and "uniform" not in offered:
        # The package says what no sensible value exceeds.
        least, most = (None if b is None or abs(b) >= 1e9 else b for b in (least, most))
        is_open = setting.over is not None
        least = setting.over if is_open else least
        is_bounded = least is not None or most is not None
        more["type"] = click.FloatRange(least, most, is_open) if is_bounded else click.FLOAT
    elif setting.kind is os.PathLike:
        more["type"] = click.Path(dir_okay=setting.metavar == "DIR")
    elif setting.kind is str:
        more["type"] = click.Choice(offered)
        if len("|".join(offered)) > 35:
            meaning = f"{meaning.rstrip('.')}: {', '.join(offered)}."
        else:
            more.pop("metavar", None)
    flag = f"--{field.name.replace('_', '-')}"
    if field.default is True:
        flag += f"/--no-{flag.removeprefix('--')}"
    return option(flag, meaning, default or setting.shown or field.default, **more)


def folder_option(default):
    """Returns the option for the folder to write."""
    kind = click.Path(file_okay=False)
    return option("--out", "Folder to write.", default, type=kind, metavar="DIR")


def count_option(flag, meaning, default):
    """Returns an option for a number of things, 1 or more."""
    kind = click.IntRange(1, SETTINGS.LARGEST_COUNT)
    return option(flag, meaning, default, type=kind, metavar="N")


PIXELS = option(
    "--pixels",
    "Range of the pixels. Networks trained elsewhere may expect another one than those trained "
    "here; one that clearly errs less for another one is refused until this is given.",
    "that of the run, otherwise standardized",
    type=click.Choice(["standardized", "0-1", "0-255"]),
)


def options(*chosen):
    """Returns a decorator that adds options to a command, in the order given."""

    def add(command):
        for option in reversed(chosen):
            command = option(command)
        return command

    return add


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tfresidual", message="%(package)s %(version)s")
def cli():
    """Train residual networks and see what every block does.

    \b
    Examples:
      tfresidual study
      tfresidual study --data cifar10 --data-dir ~/tensorflow_datasets --epochs 5
      tfresidual train --network hauser_resnet --depth 10 --out runs/hauser10
      tfresidual probe runs/hauser10 --probe drop_blocks
      tfresidual compare runs/hauser10 runs/hauser20
      tfresidual tune --data mnist --epsilon 0.2 --workers 2
      tfresidual prune --model runs/hauser10 --blocks 6
      tfresidual data digitclutter --digits 5
    """


@cli.command()
@options(options_of("Settings"), folder_option("runs/NETWORK-DATA"))
def study(out, **given):
    """Train a network, run every probe on it, and write one folder with a report.

    The folder holds report.html, the network (model.keras), what the probes measured (frames/),
    the figures, the log of every epoch and the settings. An interrupted study resumes after its
    last complete epoch when the same command is given again.

    \b
    Examples:
      tfresidual study
      tfresidual study --data mnist --data-dir ~/tensorflow_datasets --epochs 2 --depth 8
      tfresidual study --layout original --shortcut exclusive_gate --out runs/gated
      tfresidual study --depth 38 --share-from 2 --batch-norm unshared --out runs/shared
      tfresidual study --recurrent --coupling 0.9 --out runs/coupled
      tfresidual study --recurrent --coupling 1 --lipschitz 0.95 --anchor input --out runs/pcr
    """
    with _package(lambda: f"{_epochs_in(out)}; probes start from scratch") as package:
        settings, out = _settings(package, given, out)
        report = package.study.run(out, settings, package.terminal())
    _tell(f"report: {report}")


@cli.command()
@options(options_of("Settings"), folder_option("runs/NETWORK-DATA"))
@option(
    "--backend",
    f"Backend of Keras: {', '.join(BACKENDS)}.",
    "that of Keras, from KERAS_BACKEND or its configuration",
    type=click.Choice(tuple(BACKENDS)),
    metavar="NAME",
)
def train(out, backend, **given):
    """Train a network into a folder, without probing it.

    The folder holds the network of the best epoch (model.keras), the log of every epoch, on
    TensorFlow with the metrics of every block, and the settings. An interrupted training resumes
    after its last complete epoch when the same command is given again; `tfresidual study` with the
    same options adds the probes and the report, on TensorFlow.

    \b
    Examples:
      tfresidual train --epochs 10
      tfresidual train --data cifar10 --network resnet110 --recipe resnet110 --epochs 300
      tfresidual train --data mnist --network resnet101 --stages 1
      tfresidual train --backend jax --data-file cifar10.npz --epochs 300
    """
    with _package(lambda: _epochs_in(out), backend, only_training=True) as package:
        settings, out = _settings(package, given, out)
        result = package.training.train(out, settings, package.terminal())
    best = result.log[f"val_{result.metric}"].max()
    _tell(
        f"network: {os.path.join(out, 'model.keras')}",
        f"best epoch: {result.best_epoch + 1}, validation {result.metric} {best:.4f}",
    )


@cli.command()
@click.argument("target", metavar="NETWORK", type=click.Path())
@click.option(
    "--probe",
    "names",
    multiple=True,
    type=click.Choice(PROBES),
    metavar="NAME",
    help=f"May be given several times: {', '.join(PROBES)}. The indices come with the read-outs, "
    "drops and repetitions they are taken from.  [default: all that the network has blocks for, "
    "except line_element and patching, which take long, and block_importance, which measures drops "
    "anew]",
)
@click.option(
    "--split",
    "splits",
    multiple=True,
    type=click.Choice(["train", "test"]),
    help="May be given twice.  [default: test]",
)
@count_option("--images", "Images of each split, in whole batches.", "all test images")
@options_of("ProbeOptions", OF_PROBES)
@options_of("Settings", ("data", *DATA), default="that of the run")
@PIXELS
@folder_option(
    "probes/ in the folder of the run or of the series, probes/NAME next to another network"
)
def probe(target, names, splits, images, pixels, out, **given):
    """Run probes on a saved network.

    NETWORK is the folder of a run, a .keras file (of this package, or any functional Keras model
    with residual blocks), a SavedModel that `export` wrote, or the folder of a series of them,
    whose results are drawn over the epochs. Writes the measurements as CSV, and the figures;
    probes.json records the network and the images. A network outside the folder of a run needs
    --data.

    \b
    Examples:
      tfresidual probe runs/resnet-digitclutter --probe drop_blocks
      tfresidual probe runs/series --data digitclutter --probe readout
      tfresidual probe net.keras --data cifar10 --probe readout --probe borderline --split train
      tfresidual probe resnet50.keras --data cifar10 --pixels 0-255
      tfresidual probe runs/resnet-digitclutter --probe repeat_last_block --times 20 --scale 0.3
    """
    chosen = {name: given.pop(name) for name in OF_PROBES}
    with contextlib.suppress(TypeError, ValueError):
        chosen["chance"] = float(chosen["chance"])
    with _package(lambda: "Completed probes are written. The same command starts again") as package:
        frames, paths = package.probing.probe(
            target,
            list(names) or None,
            out,
            splits or ("test",),
            images,
            _given(given),
            package.ProbeOptions(**_given(chosen)),
            package.terminal(),
            **_given({"pixels": pixels}),
        )
    for name, frame in frames.items():
        table = frame.to_string(index=False, float_format="{:.4g}".format)
        for line in (f"{name}:", *table.split("\n")):
            click.echo(_printable(line))
    for path in paths:
        _note(f"wrote {path}")


@cli.command()
@click.argument("source", metavar="NETWORK", type=click.Path())
@click.argument("path", metavar="DIR", type=click.Path())
@click.option("--serving-only", is_flag=True, help="Leave out the functions for probing.")
@click.option("--overwrite", is_flag=True, help="Replace an existing SavedModel.")
def export(source, path, serving_only, overwrite):
    """Write a network as one SavedModel that can be served, and probed without its code.

    NETWORK is the folder of a run, a .keras file, or a SavedModel that `export` wrote.
    `tfresidual probe DIR` probes the SavedModel; TensorFlow Serving serves it as it is.

    \b
    Examples:
      tfresidual export runs/resnet-digitclutter saved/net
      tfresidual export net.keras saved/net --serving-only
    """
    with _package(lambda: "Nothing was written") as package:
        network = package.probing.network_of(source)
        package.exporting.export(network, path, probing=not serving_only, overwrite=overwrite)
    _note(f"wrote {path}")


@cli.command()
@click.option(
    "--model",
    "target",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="A .keras file, or the folder of a run.",
)
@options_of("PruningSettings")
@options_of("Settings", ("data", *DATA), default="that of the run")
@PIXELS
@folder_option("pruned/NAME beside the network")
def prune(target, pixels, out, **given):
    """Take blocks out of a saved network, and keep the smaller one.

    Give --blocks, --speed or --most-error. Blocks are chosen on the validation images, one after
    the other, and judged on the test images. The folder holds the smaller network (model.keras),
    what each block costs (frames/) and report.html with the curves of all criteria. An interrupted
    run resumes when the same command is given again. A network that was trained elsewhere needs
    --data, and --pixels, the range of the pixels that it was trained on.

    \b
    Examples:
      tfresidual prune --model runs/resnet-digitclutter --blocks 2
      tfresidual prune --model net.keras --data cifar10 --pixels 0-255 --blocks 2 --no-compare
      tfresidual prune --model net.keras --data cifar10 --pixels 0-1 --speed 1.5 --tuning-epochs 3
    """
    fields = dataclasses.fields(SETTINGS.PruningSettings)
    chosen = {field.name: given.pop(field.name) for field in fields}
    with _package(lambda: "The same command resumes after the last complete step") as package:
        path = pathlib.Path(target)
        if out is None:
            folder = path if path.is_dir() else path.parent
            out = folder / "pruned" / ("" if path.is_dir() else path.stem)
        package.pruning.run(
            target,
            out,
            package.PruningSettings(**_given(chosen)),
            _given(given),
            package.terminal(),
            **_given({"pixels": pixels}),
        )
    _tell(
        f"report: {os.path.join(out, 'report.html')}",
        f"network: {os.path.join(out, 'model.keras')}",
    )


@cli.command()
@options_of("Settings", without=("depth",))
@options_of("SearchSettings")
@count_option("--workers", "Networks trained at the same time, each in its own process.", 1)
@folder_option("runs/depth-NETWORK-DATA")
def tune(out, workers, **given):
    """Search for the depth of a network: the fewest blocks per stage that are all small steps.

    Trains networks until the mean scaled perturbation of every stage is epsilon or less, and more
    with one block less. The folder holds report.html, the trials (frames/trace.csv), the network
    that was found (model.keras) and the project of keras-tuner. An interrupted search resumes
    when the same command is given again; --max-blocks, --max-trials and --tolerance may change.
    The exit code is 1 if the search ends without a depth that meets the rule, or with a network
    that is no better than chance.

    Several machines: run the same command on all of them, with one folder that all see, and
    KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT set to where the chief listens;
    KERASTUNER_TUNER_ID is chief on one, worker0, worker1 and so on on the others.

    \b
    Examples:
      tfresidual tune --width 8 --epochs 2 --epsilon 0.4
      tfresidual tune --data mnist --network hauser_resnet --epsilon 0.2 --epochs 5 --workers 2
      tfresidual tune --start 8,8,8 --max-blocks 40 --executions 3 --tolerance 1
    """
    fields = dataclasses.fields(SETTINGS.SearchSettings)
    chosen = {field.name: given.pop(field.name) for field in fields}
    with _package(lambda: "The same command resumes after the last finished trial") as package:
        settings, _ = _settings(package, given, None)
        if out is None:
            network = given["network"] or settings.network
            out = os.path.join("runs", f"depth-{network}-{settings.data}")
        search = package.depth_study.SearchSettings(**_given(chosen))
        outcome = package.depth_study.run(
            out, settings, search, package.terminal(), 1 if workers is None else workers
        )
    if outcome is None:
        return
    _tell(f"report: {os.path.join(out, 'report.html')}", f"{outcome.status}: {outcome.message}")
    if outcome.blocks is None or outcome.is_better_than_chance is False:
        sys.exit(1)


@cli.command()
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True, type=click.Path())
@option(
    "--out",
    "HTML file to write; an existing file is only replaced if this command wrote it.",
    "compare-NAME-NAME.html beside the first run",
    type=click.Path(),
    metavar="FILE",
)
def compare(runs, out):
    """Compare two or more runs on one page, each figure with all of them on the same axes.

    RUN is a folder that `study` or `train` wrote. The page shows the settings that differ, the
    trainings, and for every probe that was run on all networks the figures and the blocks that
    differ the most. It says what was measured on other images or with other options; `probe` with
    the same options on each run measures them alike.

    \b
    Examples:
      tfresidual compare runs/resnet-digitclutter runs/gated
      tfresidual compare runs/seed0 runs/seed1 runs/seed2 --out seeds.html
    """
    with _package(lambda: "The same command starts again") as package:
        page = package.comparison.compare(runs, out, package.terminal())
    _tell(f"page: {page}")


@cli.command(epilog=f"Datasets: {', '.join(SETTINGS.DATASETS)}.")
@click.argument("data", metavar="NAME", type=click.Choice(SETTINGS.DATASETS))
@options_of("Settings", [name for name in DATA if name != "data_file"])
@click.option("--download", is_flag=True, help="Let tensorflow-datasets download what is missing.")
@click.option(
    "--to",
    type=click.Path(dir_okay=False),
    metavar="FILE.npz",
    help="Also write the images into one file, for machines without TensorFlow.",
)
def data(download, to, **given):
    """Prepare a dataset.

    Digitclutter is generated on this machine, without any download. The others must be on disk, or
    can be downloaded with --download.

    \b
    Examples:
      tfresidual data digitclutter --digits 5 --train-size 100000
      tfresidual data cifar10 --download
      tfresidual data cifar10 --to cifar10.npz
    """
    with _package(lambda: "The same command starts again", only_training=True) as package:
        settings, _ = _settings(package, given, None)
        if to is not None:
            package.data.write_file(settings, to, package.terminal(), download=download)
        parts = package.data.prepare(settings, package.terminal(), download=download)
        description = package.settings.describe(settings)
    size = "x".join(map(str, description.input_shape))
    named = zip(("train", "validation", "test"), parts, strict=True)
    _tell(
        *(f"{n}: {len(p)} batches of {settings.batch_size}, images {size}" for n, p in named),
        f"classes: {description.classes}, chance error {description.chance_error:.1%}",
    )
    if to is not None:
        _note(f"wrote {to}")


def main(arguments=None):
    """Runs the command line; errors become one line on stderr and an exit code."""
    with _streams(), _plain_warnings(), _Interrupts() as interrupts:
        try:
            cli.main(args=arguments, prog_name="tfresidual", standalone_mode=False, obj=interrupts)
            # Output that cannot be printed must fail here, not when the interpreter exits.
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            sys.exit(2)
        except click.ClickException as error:
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "tfresidual"
            _fail(f"{error.format_message()} (see '{command} --help')", error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            interrupts.are_over = True
            _fail("interrupted", 130)
        except OSError as error:
            # Errors of the package are handled in `_package`; this one comes from printing.
            _drop(sys.stdout)
            if error.errno == errno.EPIPE:
                sys.exit(1)
            _fail(f"the results cannot be printed: {error.strerror}", 1)
        except Exception:
            # TensorFlow turns exceptions raised in its functions into errors of its own.
            if not interrupts.have_come:
                raise
            _fail("interrupted", 130)


@contextlib.contextmanager
def _plain_warnings():
    """Prints each warning of the package once, in one line, unless Python was told otherwise."""
    if sys.warnoptions:
        yield
        return
    usual, told = warnings.showwarning, set()

    def show(message, *place):
        text = _with_options(" ".join(str(message).split()))
        if not _is_of_package():
            usual(message, *place)
        elif text not in told:
            told.add(text)
            _note(f"tfresidual: warning: {text}")

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


def _is_of_package():
    """Returns whether the code that calls `warnings.warn` now, wherever it points, is ours."""
    frame = sys._getframe(2)
    while frame.f_globals["__name__"] in ("warnings", "_py_warnings"):
        frame = frame.f_back
    return frame.f_globals["__name__"].partition(".")[0] in ("tfresidual", __name__)


class _Interrupts:
    """Makes Ctrl-C end the command at any moment.

    Python raises the exception wherever the main thread is at that moment. In a `__del__`, or in a
    function called from C, it is reported as ignored and then lost; this happens while TensorFlow
    compiles a function. Therefore a thread checks whether the exception still exists, and
    interrupts again if it does not.
    """

    SECONDS_BETWEEN_LOOKS = 0.1

    def __init__(self):
        self.are_over = False
        self._raised = None

    @property
    def have_come(self):
        """Whether Ctrl-C was pressed."""
        return self._raised is not None

    def __enter__(self):
        is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if not is_default or threading.current_thread() is not threading.main_thread():
            self.are_over = True
            return self
        self._hook, sys.unraisablehook = sys.unraisablehook, self._report
        signal.signal(signal.SIGINT, self._interrupt)
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.are_over = True
        if signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = self._hook
            # What has ended is not interrupted any more, while the libraries are cleaned up.
            atexit.unregister(_ignore_interrupts)
            atexit.register(_ignore_interrupts)

    def _interrupt(self, *_):
        error = _Interrupted()
        self._raised = weakref.ref(error)
        try:
            raise error
        finally:
            # The traceback refers to this frame, which therefore must not refer to the exception.
            del error

    def _watch(self):
        while not self.are_over:
            time.sleep(self.SECONDS_BETWEEN_LOOKS)
            if self._raised is None or self._raised() is not None or self.are_over:
                continue
            if hasattr(signal, "pthread_kill"):
                # The signal also interrupts a main thread that is waiting for something.
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            else:
                _thread.interrupt_main()

    def _report(self, unraisable):
        if not isinstance(unraisable.exc_value, _Interrupted):
            self._hook(unraisable)


def _ignore_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C. In contrast to its base class, it supports weak references."""


@contextlib.contextmanager
def _streams():
    """Opens the standard streams that are closed, and ignores errors of writing to stderr.

    A file that is opened while a standard stream is closed takes the stream's number; what
    libraries print would then be written into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, number)
            if opened != number:
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    stderr, sys.stderr = sys.stderr, _Lenient(sys.stderr)
    errors = getattr(sys.stdout, "errors", None)
    with contextlib.suppress(AttributeError):
        # Not all terminals have all letters.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        sys.stderr = stderr
        with contextlib.suppress(AttributeError, OSError):
            sys.stdout.reconfigure(errors=errors)


class _Lenient:
    """A stream for messages and progress: nothing fails because nobody can read them."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        try:
            return self._stream.write(text)
        except OSError:
            _drop(self._stream)
            return len(text)

    def flush(self):
        try:
            self._stream.flush()
        except OSError:
            _drop(self._stream)

    def __getattr__(self, name):
        return getattr(self._stream, name)


def _drop(stream):
    """Discards what a stream has not written, so that the interpreter does not try it at exit."""
    with contextlib.suppress(OSError), open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())


def _printable(text):
    """Returns text without control characters and bytes that are not UTF-8, which are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _tell(*lines):
    """Prints what a command has written into files, which is there even if nobody can read this."""
    try:
        for line in lines:
            click.echo(_printable(line))
        sys.stdout.flush()
    except OSError as error:
        _drop(sys.stdout)
        if error.errno != errno.EPIPE:
            _note(f"tfresidual: finished, but this cannot be printed ({error.strerror}):")
            for line in lines:
                _note(line)


def _note(line):
    click.echo(_printable(line), err=True)


def _fail(message, code):
    _note(f"tfresidual: {' '.join(message.split())}")
    sys.exit(code)


def _epochs_in(out):
    """Returns text on how much of an interrupted training is complete, and how to resume it."""
    paths = pathlib.Path(out or "", "checkpoints").glob("epoch-*.keras") if out else ()
    numbers = [path.stem.removeprefix("epoch-") for path in paths]
    epochs = [int(number) + 1 for number in numbers if re.fullmatch("[0-9]+", number)]
    if not epochs:
        return "No epoch was complete. The same command starts again"
    count = "1 epoch is" if max(epochs) == 1 else f"{max(epochs)} epochs are"
    return f"{count} complete. The same command resumes from there"


def _given(values):
    """Returns the values that were given, without those that are `None`."""
    return {name: value for name, value in values.items() if value is not None}


def _settings(package, given, out):
    """Returns the settings from the options that were given, and the folder to write."""
    changes = package.settings.with_data_of_file(_given(given))
    settings = package.settings.Settings(**changes)
    if out is None:
        out = os.path.join("runs", f"{settings.network}-{settings.data}")
    return settings, out


@contextlib.contextmanager
def _package(after_interrupt, backend=None, only_training=False):
    """Provides the package, loaded without the noise of the libraries; errors end the command.

    After Ctrl-C, `after_interrupt` returns text on what is complete and how to resume. With
    `only_training`, only what runs on every backend is loaded.
    """
    backend = _chosen_backend(backend)
    try:
        with _interruptible(lambda: "Nothing was written"):
            click.echo(f"loading {BACKENDS.get(backend, backend)}", err=True)
            with _without_noise():
                package = _loaded(only_training)
    except ImportError as error:
        # A part of the package that does not run here says so; other modules have names.
        if error.name is not None:
            raise
        _fail(str(error), 2)
    try:
        with _interruptible(after_interrupt):
            yield package
    except package.failures as error:
        _fail(_with_options(str(error)), 1)
    except (ValueError, OSError) as error:
        # Messages of the package about arguments end with the values received.
        if "Received: " not in str(error) and not isinstance(error, OSError):
            raise
        _fail(_with_options(str(error)), 2)


@contextlib.contextmanager
def _interruptible(after_interrupt):
    """Ends the command after Ctrl-C, with text on what is complete and how to resume."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if not _is_interrupt(error):
            raise
        click.get_current_context().obj.are_over = True
        _fail(f"interrupted. {after_interrupt()}", 130)


def _is_interrupt(error):
    """Returns whether an error comes from Ctrl-C, of which libraries make errors of their own.

    NumPy makes an ImportError of it where an extension loads it, and TensorFlow errors of the
    functions that it runs.
    """
    return isinstance(error, KeyboardInterrupt) or click.get_current_context().obj.have_come


def _loaded(only_training):
    """Returns the modules of the package that commands use."""
    from tfresidual.jobs import data, settings, training
    from tfresidual.machine.console import terminal
    from tfresidual.machine.locks import FolderInUseError

    package = types.SimpleNamespace(
        failures=(FolderInUseError,),
        data=data,
        settings=settings,
        terminal=terminal,
        training=training,
    )
    if only_training:
        return package
    from tfresidual import tuning
    from tfresidual.definitions.settings import PruningSettings
    from tfresidual.jobs import comparison, depth_study, probing, pruning, study
    from tfresidual.machine import on_tensorflow as on_tensorflow
    from tfresidual.probes.running import ProbeOptions
    from tfresidual.sources import exporting

    vars(package).update(
        failures=(tuning.SearchError, FolderInUseError),
        comparison=comparison,
        depth_study=depth_study,
        exporting=exporting,
        probing=probing,
        pruning=pruning,
        study=study,
        ProbeOptions=ProbeOptions,
        PruningSettings=PruningSettings,
    )
    return package


def _chosen_backend(name):
    """Returns the backend of Keras, chosen if possible; ends the command otherwise."""
    if "keras" in sys.modules:
        loaded = sys.modules["keras"].config.backend()
        if name not in (None, loaded):
            _fail(
                f"Option `--backend` must be {loaded}, which Keras was loaded with in this "
                f"process. Received: --backend={name!r}",
                2,
            )
        return loaded
    if name is not None:
        os.environ["KERAS_BACKEND"] = name
    chosen = name or os.environ.get("KERAS_BACKEND") or _configured_backend()
    if chosen in BACKENDS and importlib.util.find_spec(chosen) is None:
        others = [other for other in BACKENDS if importlib.util.find_spec(other) is not None]
        _fail(
            f"Keras cannot run on {chosen}: {BACKENDS[chosen]} is not installed. Install it with "
            f"`pip install {chosen}`, or choose another backend with KERAS_BACKEND or `train "
            f"--backend`; installed: {', '.join(others) or 'none'}. Received: "
            + (f"--backend={name!r}" if name else f"KERAS_BACKEND={chosen}"),
            2,
        )
    return chosen


def _configured_backend():
    """Returns the backend that Keras' configuration file names, as Keras finds it."""
    home = os.path.expanduser("~")
    home = os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")
    home = os.environ.get("KERAS_HOME", home)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        path = pathlib.Path(home, "keras.json")
        return json.loads(path.read_text()).get("backend", "tensorflow")
    return "tensorflow"


# Names of arguments of the package, and of the parameters of commands that they come from.
OTHER_NAMES = {
    "data_file": "to",
    "folder": "out",
    "name": "data",
    "net": "source",
    "page": "out",
    "source": "target",
    "target": "source",
}


def _with_options(message):
    """Returns a message of the package with options of the command in place of arguments."""
    context = click.get_current_context(silent=True)
    if context is None:
        # In a thread of its own.
        return message
    names = {
        parameter.name: parameter.opts[0]
        if isinstance(parameter, click.Option)
        else parameter.make_metavar(context)
        for parameter in context.command.params
    }
    names = {other: names[own] for other, own in OTHER_NAMES.items() if own in names} | names

    for name, shown in names.items():
        message = message.replace(f"`{name}`", f"`{shown}`").replace(f"`{name}=True`", f"`{shown}`")
        for before in (" ", "("):
            message = message.replace(f"{before}{name}=", f"{before}{shown}=")
    return message.replace("Argument `--", "Option `--").replace("Arguments `--", "Options `--")


def _any_file():
    """Returns a file to write to and read; one that keeps nothing if no folder can hold it."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return open(os.devnull, "r+b")


@contextlib.contextmanager
def _without_noise():
    """Keeps what TensorFlow's libraries write to stderr off the terminal while they load."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    terminal = os.dup(2)
    with _any_file() as noise:
        os.dup2(noise.fileno(), 2)
        try:
            yield
        except Exception as error:
            if not _is_interrupt(error):
                noise.seek(0)
                with contextlib.suppress(OSError):
                    os.write(terminal, noise.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
