"""What an error raised by other code says, in one line."""

import re

# Colours, and what TensorFlow writes before the message itself.
_MARKS = re.compile(r"\x1b\[[0-9;]*m|\{\{.*?\}\}")
# What Keras writes before the message itself.
_FRAME = "Exception encountered when calling"


def said(error):
    """Returns the first line of the message of an error, or its class if there is none."""
    lines = [_MARKS.sub("", line).strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith(_FRAME)]
    return lines[0] if lines else type(error).__name__
