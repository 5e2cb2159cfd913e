"""Runs an exported parallelize_module source on several processes and compares with eager.

Started by torchrun: ``exported.py SOURCE MODEL``, MODEL being a name of `tests.report.nets`.
"""

import importlib.util
import sys

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def load(path: str, name: str) -> object:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main(source: str, nets: str, net: str) -> None:
    """Compare outputs and the gradients of the first weight."""
    dist.init_process_group("gloo")
    exported = load(source, "exported_plan")
    model, x = getattr(load(nets, "nets"), net)()
    expected = model(x)
    expected.square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    names, sizes = zip(*exported.MESH.items(), strict=True)  # type: ignore[attr-defined]
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    exported.parallelize(model, mesh)  # type: ignore[attr-defined]
    found = model(x)
    found.square().mean().backward()
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error < 1e-5, error
    split = 0
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        if hasattr(grad, "full_tensor"):
            split += any(p.is_shard() for p in grad.placements)
            grad = grad.full_tensor()
        wanted = gradients[name]
        off = float((grad - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))
        assert off < 1e-3, (name, off)
    assert split
    if dist.get_rank() == 0:
        print(f"error {error:.1e}, {split} split gradients")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
