"""The notations of irc as Lark grammars, read with importlib.resources."""
