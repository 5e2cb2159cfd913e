"""The ways into flow: one package per kind of program that irc reads."""
