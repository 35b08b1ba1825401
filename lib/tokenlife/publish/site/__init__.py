"""Pages from executed notebooks: staging, vendored files, Sphinx extension, checks.

No notebook imports this package, so a change here builds the site again but runs no chapter again.
"""
