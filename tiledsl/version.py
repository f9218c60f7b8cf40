"""The version of tiledsl, for what is stored with results."""

__version__ = "0.1.0"
