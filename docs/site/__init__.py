"""The site that `make docs` builds: the manual's pages, and reference pages made from docstrings."""
