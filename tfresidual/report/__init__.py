"""A report: one self-contained HTML file with figures, tables and settings."""

from tfresidual.report.alt_text import axes_text
from tfresidual.report.document import write
from tfresidual.report.pruning import pruning_sections
from tfresidual.report.search import search_sections
from tfresidual.report.section import Section

__all__ = ["Section", "axes_text", "pruning_sections", "search_sections", "write"]
