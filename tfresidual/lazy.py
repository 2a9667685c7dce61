"""Packages whose files are loaded when something in them is first used."""

import importlib
import sys


def lazily(package, files):
    """The functions `__getattr__` and `__dir__` of a package.

    Args:
        package: name of the package, its `__name__`. Its `__all__` lists what it has.
        files: dict from the name of an attribute to the file that it is in.
    """

    def __getattr__(name):
        if name not in files:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{files[name]}"), name)
        vars(sys.modules[package])[name] = value
        return value

    def __dir__():
        module = vars(sys.modules[package])
        return sorted({*module, *module["__all__"]})

    return __getattr__, __dir__
