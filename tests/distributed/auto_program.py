"""A step whose mesh is searched, run by each process; it prints what was chosen and two losses."""

# pyright: basic
from __future__ import annotations

import json

import torch
from torch import nn
from torch.nn import functional as F

import irc

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
x, y = torch.randn(8, 16), torch.randn(8, 16)
step = irc.compile_step(
    model, loss=F.mse_loss, optimizer="sgd", mesh="auto", cluster="demo-gpus", example=(x, y)
)
losses = [float(step(x, y, lr=0.1)) for _ in range(2)]
mesh = str(step.options.mesh)
called = irc.compile(nn.Linear(16, 64).eval(), mesh="auto", cluster="demo-gpus", example=(x,))
with torch.no_grad():
    shape = list(called(x).shape)
print(json.dumps({"mesh": mesh, "losses": losses, "shape": shape}))
