"""Views of a :class:`~gradwright.checking.report.Report`: terminal, HTML, machine-readable."""
