"""# Benchmarks

    make benchmarks

runs all of these one after the other, in one to two hours on two cores; each can also be run alone.

    python benchmarks/run.py [NAME ...] [--rounds N] [--page]

runs some of them, with fewer rounds (`--rounds 2` takes half the time), or only writes this page,
which is made of the docstrings of the scripts and of the rows in `results/`. What is compared is
measured in turn in one run, so that a slow phase of the machine affects all of it. A ratio "a / b"
is that of the seconds, the median of the ratios of each round, with the lowest and the highest:
above 1, b is faster. Seconds are medians, too. Rows that need bfloat16 are measured where the
processor has it, and those of PyTorch and JAX where they are installed.

TensorFlow runs convolutions on oneDNN by default only where the processor has AVX-512.
`TF_ENABLE_ONEDNN_OPTS=1` in the environment, before TensorFlow is loaded, turns it on; the command
line of the package does so, says in a line which kernels run, and writes it to the settings of the
run. Other kernels round in another way, so a training is finished on those that it began on.
"""

import argparse
import pathlib
import subprocess
import sys

from results import HERE, NAMES, RESULTS, docstring, write_page


def main():
    there = [name for name in NAMES if (HERE / f"{name}.py").exists()]
    parser = argparse.ArgumentParser(description="Runs the benchmarks one after the other.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(there)}")
    parser.add_argument("--rounds", type=int, help="rounds of each, where they have rounds")
    parser.add_argument("--page", action="store_true", help="only write README.md")
    parser.add_argument("--alone", action="store_true", help="drop the rows of earlier runs")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="folder for the rows")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(there):
        parser.error(f"NAME must be one of {', '.join(there)}. Received: {', '.join(unknown)}")
    if arguments.page:
        write_page()
        return
    failed = []
    for name in arguments.names or there:
        script = HERE / f"{name}.py"
        print(f"== {name}: {docstring(script).partition(chr(10))[0]}", flush=True)
        command = [sys.executable, script, "--results", arguments.results]
        if arguments.alone:
            command.append("--alone")
        if arguments.rounds is not None and '"--rounds"' in script.read_text():
            command += ["--rounds", str(arguments.rounds)]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
