"""`processes.run` gives what `subprocess.run` gives."""

import os
import pathlib
import signal
import subprocess
import sys

import processes
import pytest

pytestmark = pytest.mark.system

PROGRAMS = {
    "prints": "import sys; print(sys.argv, 'ä'); sys.stderr.write('told')",
    "reads": "import os, sys; print(os.getcwd(), sorted(os.environ), sys.stdin.read())",
    "is a program of its own": "x = 3\ndef f(): return x\nprint(__name__, f())",
    "exits": "raise SystemExit(7)",
    "says why": "import sys; sys.exit('wrong')",
    "leaves at once": "import os; os._exit(9)",
    "cleans up": "import atexit; atexit.register(print, 'over')",
    "is killed": f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_is_that_of_a_new_process(name, tmp_path):
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "MINE": "1"}
    options = {"cwd": tmp_path, "env": environment}
    found = processes.run(PROGRAMS[name], "a b", 3, **options)
    command = [sys.executable, "-P", "-c", PROGRAMS[name], "a b", "3"]
    expected = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **options
    )
    assert found.returncode == expected.returncode
    assert (found.stdout, found.stderr) == (expected.stdout, expected.stderr)


def test_a_script_and_an_error(tmp_path):
    script = pathlib.Path(tmp_path, "script.py")
    script.write_text("import tensorflow as tf\nprint(tf.constant(3).numpy())\n1 / 0\n")
    result = processes.run(script)
    assert (result.returncode, result.stdout) == (1, "3\n")
    assert result.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_a_program_that_takes_too_long():
    with pytest.raises(subprocess.TimeoutExpired):
        processes.run("import time; time.sleep(60)", timeout=0.5)
    assert processes.run("print('next')").stdout == "next\n"
