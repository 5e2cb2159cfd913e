"""Lets the tests of backends import ``gpu_kernels``, which lies beside this file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
