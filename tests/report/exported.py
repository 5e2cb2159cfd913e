"""Runs an exported source on several processes and compares with eager.

Started by torchrun: ``exported.py SOURCE NETS NET``, NET being a function of the file NETS.
"""

import importlib.util
import os
import sys
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor


def load(path: str, name: str) -> ModuleType:
    """Import a file under a name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main(source: str, nets: str, net: str) -> None:
    """Compare the output and every gradient, in double precision."""
    dist.init_process_group("gloo")
    exported = load(source, "exported_plan")
    model, x = getattr(load(nets, "nets"), net)()
    model.double()
    x = x.double() if x.is_floating_point() else x
    expected, gradients = output_and_gradients(model, x)
    names, sizes = zip(*exported.MESH.items(), strict=True)
    exported.parallelize(model, init_device_mesh("cpu", sizes, mesh_dim_names=names))
    output, sharded = output_and_gradients(model, x)
    assert torch.allclose(output, expected, rtol=1e-9, atol=1e-12)
    num_split = 0
    for name, grad in sharded.items():
        if isinstance(grad, DTensor):
            num_split += any(placed.is_shard() for placed in grad.placements)
            grad = grad.full_tensor()
        assert torch.allclose(grad, gradients[name], rtol=1e-9, atol=1e-9), name
    assert num_split
    if dist.get_rank() == 0:
        print(f"{len(sharded)} gradients agree, {num_split} of them split")
    dist.destroy_process_group()


def output_and_gradients(
    model: nn.Module, x: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Run forward and backward."""
    model.zero_grad()
    y = model(x)
    (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    return y.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    # The mesh still holds groups whose threads may want the interpreter when it has ended, which
    # aborts the process now and then (pytorch issue 190489).
    os._exit(0)
