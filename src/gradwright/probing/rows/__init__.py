"""The probes: one module a section of the table, each with ``PROBES``; a module that is added is found."""
