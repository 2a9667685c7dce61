"""A report: one HTML file with figures, tables and settings, which needs nothing beside it."""

import importlib

_FILES = {
    "Section": "section",
    "search_sections": "search",
    "study_figures": "block_study",
    "study_sections": "block_study",
    "write": "document",
}

__all__ = ["Section", "search_sections", "study_figures", "study_sections", "write"]


def __getattr__(name):
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
