"""What there is to know about an error code."""

from typing import NamedTuple


class ErrorPage(NamedTuple):
    """What there is to know about an error code.

    Attributes:
        code: The code, words joined by hyphens.
        title: The error in one line.
        exit_code: The exit status of a command that ends with it.
        what: What irc found.
        why: Why it cannot go on.
        example: A command or input that fails so.
        fix: The same, mended.
    """

    code: str
    title: str
    exit_code: int
    what: str
    why: str
    example: str
    fix: str

    def render(self) -> str:
        """The page as text."""
        example = self.example.replace("\n", "\n    ")
        fix = self.fix.replace("\n", "\n    ")
        return (
            f"{self.code}: {self.title} (exit code {self.exit_code})\n\n"
            f"{self.what}\n{self.why}\n\n"
            f"Fails:\n    {example}\n\nInstead:\n    {fix}\n"
        )
