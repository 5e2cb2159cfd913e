"""The rewrite rules of irc, one file for each kind of structure."""
