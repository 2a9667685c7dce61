"""Shows docstrings as they are meant: examples as code, and scalar products."""

import inspect
import re
import textwrap

import griffe

from tfresidual.definitions import settings

# Examples are paragraphs, or several in a row, that begin with a prompt.
EXAMPLE = re.compile(r"^>>> .*?(?=\n\n(?!>>> )|\Z)", re.MULTILINE | re.DOTALL)
# Scalar products, which would be tags of HTML: in running text, not in code.
CODE = re.compile(r"(```.*?```|`[^`]*`|^ {4,}.*?$)", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^Example:$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Changes docstrings before they are taken apart."""

    def on_object(self, *, obj, **kwargs):
        """Changes the docstring of one module, class or function."""
        if obj.docstring is not None:
            text = obj.docstring.value
            if obj.is_class and obj.path.startswith("tfresidual.definitions.settings."):
                # Its fields are added when it is defined.
                text = inspect.getdoc(getattr(settings, obj.name))
            text = HEADING.sub("**Example**", text)
            parts = CODE.split(EXAMPLE.sub(_fenced, text))
            parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
            obj.docstring.value = "".join(parts)


def _fenced(match):
    return f"```pycon\n{textwrap.dedent(match[0])}\n```"
