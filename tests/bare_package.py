"""The package without what it loads at first: programs start quicker without TensorFlow."""

import tfresidual

# The first lines of a program that needs a file of the package which does without TensorFlow.
BARE = f"""
import sys, types
sys.modules["tfresidual"] = types.ModuleType("tfresidual")
sys.modules["tfresidual"].__path__ = {list(tfresidual.__path__)!r}
"""
