"""The native folder of a plan: its program worked out, compiled, checked and written."""

from irc.native.host import NativeHostProgram
from irc.native.write import Native

__all__ = ["Native", "NativeHostProgram"]
