"""linkwise: which bytes cross which link, how often, and when it matters."""

from linkwise._version import __version__

__all__ = ["__version__"]
