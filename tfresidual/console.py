"""What is said on the terminal while something takes long."""

from rich.console import Console


def terminal():
    """The console for progress: on stderr, so that stdout holds results alone."""
    return Console(stderr=True)


def say(console, text):
    """Prints a line, or nothing where there is no console."""
    if console is not None:
        console.print(text, highlight=False, soft_wrap=True)
