"""A TrainJob of Kubeflow Trainer, for `kubectl apply -f`."""

from __future__ import annotations

from irc.backends.launch.job import WORKER, Job
from irc.backends.launch.manifest import to_yaml

_NOTE = """\
# For kubectl apply -f: the plan lies under this path in the image, or on a volume of the runtime.
"""


def kubeflow(job: Job) -> str:
    """Return the manifest (trainer.kubeflow.org/v1alpha1).

    The cluster's runtime ``torch-distributed`` tells torchrun about nodes, processes and where they
    meet; irc and PyTorch are in the image.
    """
    count = str(job.ranks_per_node)
    amount = {_resource(job.gpu): count} if job.gpu else {"cpu": count}
    trainer = {
        **({"image": job.launching.image} if job.launching.image else {}),
        "numNodes": job.nodes,
        "numProcPerNode": job.ranks_per_node,
        "command": ["torchrun"],
        "args": ["-m", WORKER, job.place],
        "resourcesPerNode": {"requests": amount, "limits": amount.copy()},
    }
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job.label},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
    }
    return f"{_NOTE}{job.comment}{to_yaml(manifest)}"


def _resource(gpu: str) -> str:
    return "amd.com/gpu" if gpu.startswith("MI") else "nvidia.com/gpu"
