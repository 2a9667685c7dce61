"""Loads TensorFlow without the lines that it always writes to stderr."""

import contextlib
import os
import re
import sys
import tempfile

# Lines that TensorFlow writes before it reads its log level from the environment.
NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|I\d{4} \d\d:\d\d:.*"
    rb"|To enable the following instructions: .*"
)


@contextlib.contextmanager
def quietly():
    """Drops the lines that TensorFlow writes to stderr when it is loaded within the block.

    Everything else is written when the block ends. Does nothing if TensorFlow is loaded, or if the
    environment sets its log level.
    """
    try:
        if "tensorflow" in sys.modules or "TF_CPP_MIN_LOG_LEVEL" in os.environ:
            raise OSError
        stderr = os.dup(2)
    except OSError:
        # There is nothing to drop, or there is no stderr.
        yield
        return
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            output.seek(0)
            for line in output:
                if not NOISE.fullmatch(line.rstrip(b"\r\n")):
                    os.write(2, line)
