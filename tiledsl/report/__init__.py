"""Pages that a browser shows: HTML in one file, which needs no network. What is on them is plain data; see page.py."""
