"""Processes that have TensorFlow loaded when they begin.

A process takes four seconds until it has imported TensorFlow and the package. Here one imports
them, does nothing else, and forks: what a fork does is what a new process does. For tests of what
another process finds, writes and prints. What is about imports, the environment at the start,
signals or the installed command starts a process of its own.
"""

import atexit
import functools
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile


def run(program, *arguments, cwd=None, env=None, timeout=500):
    """Runs a program as `subprocess.run` does with `capture_output=True, text=True`.

    Args:
        program: str, code that runs as after `python -P -c`, or the `pathlib.Path` of a script.
        *arguments: `sys.argv[1:]`.
        cwd: the folder to run in; by default that of this process.
        env: dict, all of its environment; by default that of this process.
        timeout: float, seconds.

    Returns:
        A `subprocess.CompletedProcess`.
    """
    server = _server()
    command = [str(program), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        out, err = pathlib.Path(folder, "out"), pathlib.Path(folder, "err")
        request = {
            "command": command,
            "is_script": isinstance(program, pathlib.Path),
            "cwd": str(cwd or pathlib.Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "streams": [str(out), str(err)],
        }
        server.stdin.write(json.dumps(request).encode() + b"\n")
        pid = int(server.stdout.readline())
        has_ended, _, _ = select.select([server.stdout], [], [], timeout)
        if not has_ended:
            os.kill(pid, signal.SIGKILL)
        code = int(server.stdout.readline())
        if not has_ended:
            raise subprocess.TimeoutExpired(command, timeout, out.read_text(), err.read_text())
        return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())


@functools.cache
def _server():
    """The process that forks, until this one ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    # TensorFlow reads its level once.
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    server = subprocess.Popen([sys.executable, "-P", __file__], bufsize=0, env=environment, **pipes)
    atexit.register(server.communicate)
    return server


def _request():
    """Forks for every request that comes in. Returns in the forks, each with its request."""
    import gc
    import importlib

    rooms = "callbacks jobs.depth_study jobs.probing jobs.study plots probes report sources"
    for name in ["tfresidual_cli", *(f"tfresidual.{room}" for room in rooms.split())]:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            return json.loads(line)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit()


def _become(request):
    """Makes this fork what a new process is: its streams, environment, folder and arguments."""
    for number, path in enumerate([os.devnull, *request["streams"]]):
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.argv[1:] = request["command"][1:]


if __name__ == "__main__":
    import runpy
    import types

    _REQUEST = _request()
    _become(_REQUEST)
    if _REQUEST["is_script"]:
        # As for `python script.py`, and what the tests import.
        script = pathlib.Path(_REQUEST["command"][0])
        sys.path[:] = [str(script.parent), *sys.path, str(pathlib.Path(__file__).parent)]
        runpy.run_path(_REQUEST["command"][0], run_name="__main__")
    else:
        sys.argv[0] = "-c"
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(_REQUEST["command"][0], "<string>", "exec"), vars(sys.modules["__main__"]))
