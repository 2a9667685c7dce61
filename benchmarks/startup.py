"""What `import tfresidual` adds to `import keras`, and how long `tfresidual --help` takes.

    python benchmarks/startup.py [--rounds 7]

Every measurement starts a new process. `import keras` alone is timed in turn with both imports. The
first round fills the file system's caches and does not count.
"""

import pathlib
import shutil
import subprocess
import sys

from results import NOT_MEASURED, Row, compared, run, timed
from timing import seconds_of


def measure(arguments):
    beside = pathlib.Path(sys.executable).with_name("tfresidual")
    program = beside if beside.exists() else shutil.which("tfresidual")
    commands = {
        "keras": [sys.executable, "-c", "import keras"],
        "both": [sys.executable, "-c", "import keras, tfresidual"],
    }
    if program is not None:
        commands["help"] = [program, "--help"]
    seconds = {name: [] for name in commands}
    for _ in range(arguments.rounds + 1):
        for name, command in commands.items():
            done = seconds_of(lambda c=command: subprocess.run(c, check=True, capture_output=True))
            seconds[name].append(done[1])
    seconds = {name: values[1:] for name, values in seconds.items()}
    yield compared("import keras, tfresidual / import keras", "", seconds["both"], seconds["keras"])
    if program is None:
        yield Row("tfresidual --help", note=f"{NOT_MEASURED}: not installed as a program")
    else:
        yield timed("tfresidual --help", "", seconds["help"])


def add_arguments(parser):
    parser.add_argument("--rounds", type=int, default=7)


if __name__ == "__main__":
    run(measure, add_arguments)
