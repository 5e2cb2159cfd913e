"""A worker whose kernels are torch functions: ``python -m tests.plan.reference_worker PLAN``."""

import sys

from irc.runtime.worker import main
from tests.plan.programs import reference_segments

if __name__ == "__main__":
    sys.exit(main(load=reference_segments))
