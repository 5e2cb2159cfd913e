"""The command line: an ONNX file is compiled for four ranks, run and checked.

Run it with ``python examples/command_line.py``; it writes an MLP, then calls ``irc`` as a
shell would.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from irc.commands.demo_onnx import write_perceptron


def main() -> None:
    """Write, compile, run, check; stop at the first command that fails."""
    with TemporaryDirectory() as folder:
        write_perceptron(Path(folder, "mlp.onnx"))
        for command in (
            "compile mlp.onnx -o plan --mesh data=2,tensor=2 --cluster 8xH100",
            "run plan",
            "check plan",
            "launch plan --format torchrun",
        ):
            print(f"$ irc {command}", flush=True)
            subprocess.run(
                [sys.executable, "-m", "irc.cli", *command.split()], cwd=folder, check=True
            )


if __name__ == "__main__":
    main()
