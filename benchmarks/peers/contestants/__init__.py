"""One module a library, run in that library's own environment: METHODS[problem][method]."""
