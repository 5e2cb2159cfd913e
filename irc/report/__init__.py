"""What irc tells people about a plan: explanations, tables and pages."""
