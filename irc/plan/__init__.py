"""The artefact that a compilation leaves behind: its schema, how to save, load and verify it."""
