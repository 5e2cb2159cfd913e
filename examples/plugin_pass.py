"""What a package adds to irc: installed beside it, found by its entry points, listed, and run.

Run it with ``python examples/plugin_pass.py``; it installs ``examples/plugin`` into a
temporary folder.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PROGRAM = """
builtin.module {
  func.func @forward(%x: !flow.tensor<[4, 8], f32>) -> !flow.tensor<[4, 8], f32> {
    %y = flow.pointwise(%x) {fn = "gelu", loc = "plugin_pass.py:1", id = "n0"}
        : (!flow.tensor<[4, 8], f32>) -> !flow.tensor<[4, 8], f32>
    func.return %y : !flow.tensor<[4, 8], f32>
  }
}
"""


def main() -> None:
    """Install the package, list it, explain it, run it."""
    package = Path(__file__).parent / "plugin"
    with TemporaryDirectory() as folder:
        # pip builds in the folder that it is given: hand it a copy.
        package = Path(shutil.copytree(package, Path(folder, "source")))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run([*pip, str(package)], check=True)
        Path(folder, "program.mlir").write_text(PROGRAM)
        search = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        for command in (
            "list passes",
            "list --verbose",
            "explain pass approximate-gelu",
            "opt program.mlir -p approximate-gelu",
        ):
            print(f"$ irc {command}", flush=True)
            subprocess.run(
                [sys.executable, "-m", "irc.cli", *command.split()],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": search},
                check=True,
            )


if __name__ == "__main__":
    main()
