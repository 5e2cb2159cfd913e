"""The pipeline: which passes run, in which order, and what checks them.

``default`` has the order, ``places`` puts the passes of plug-ins into it, ``run`` runs and checks
them (``levels``: is the program what a pass takes; ``foreign``: passes of other packages), and
``make`` goes all the way to a plan.
"""

from irc.pipeline.default import default_pipeline
from irc.pipeline.make import lower, make_plan
from irc.pipeline.options import Options, VerifyEach
from irc.pipeline.run import run_passes

__all__ = ["Options", "VerifyEach", "default_pipeline", "lower", "make_plan", "run_passes"]
