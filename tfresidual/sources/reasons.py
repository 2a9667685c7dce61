"""What an error raised by other code says, in one line."""

import re

# Colours, and what TensorFlow writes before the message itself.
_MARKS = re.compile(r"\x1b\[[0-9;]*m|\{\{.*?\}\}")
# What Keras writes before the message itself, or before another message that is the reason.
_FRAME = re.compile(r"Exception encountered when calling|.* Error encountered:$")


def said(error):
    """Returns the first line of the message of an error, or its class if there is none.

    A line that ends in a colon is followed by the next one.
    """
    lines = [_MARKS.sub("", line).strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not _FRAME.match(line)]
    count = next((number for number, line in enumerate(lines, 1) if line[-1] != ":"), len(lines))
    return " ".join(lines[:count]) or type(error).__name__
