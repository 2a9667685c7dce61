"""TensorFlow loaded without the lines that it always writes to stderr."""

import contextlib
import os
import re
import sys
import tempfile

# It asks the environment how much to say only after it has said this.
NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|I\d{4} \d\d:\d\d:.*"
    rb"|To enable the following instructions: .*"
)


@contextlib.contextmanager
def quietly():
    """Drops from stderr, as long as the block runs, what TensorFlow says whenever it is loaded.

    Everything else is written when the block ends. Nothing is done where TensorFlow is loaded
    already, or the environment says how much it logs.
    """
    try:
        if "tensorflow" in sys.modules or "TF_CPP_MIN_LOG_LEVEL" in os.environ:
            raise OSError
        stderr = os.dup(2)
    except OSError:
        # Or there is no stderr.
        yield
        return
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            said.seek(0)
            for line in said:
                if not NOISE.fullmatch(line.rstrip(b"\r\n")):
                    os.write(2, line)
