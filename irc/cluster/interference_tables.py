"""Tables of interference that were fitted to published measurements.

Mist's profiles (Zhu et al. 2025; Dazz993/Mist@d69e530a, mist/tools/results-final) time a product of
N x 4096 x 4096 in float16, an all-gather, and copies from and to the host, at the same time: some
650 points for each group of ranks. What `irc cluster interference` fits to half of them predicts
the other half within 2.5 % in the mean on the A100 (40 GB; groups of 2, 4 and 8 over NVLink, and
one rank a node on 2 and 4 nodes), 1.7 % on the L4 (over PCIe), 0.6 % on the V100 (32 GB). Of other
devices nothing of the kind is published: what runs at a time is priced there as if alone.
"""

from __future__ import annotations

from irc.cluster.interference import Interference

A100 = Interference.of(
    (
        {"compute": 1.94, "link": 1.03},
        {"compute": 1.06, "nic": 1.4},
        {"compute": 1.01, "d2h": 1},
        {"link": 1.01, "d2h": 1},
        {"compute": 1.98, "link": 1.04, "d2h": 1.01},
        {"nic": 1.37, "d2h": 5.13},
        {"compute": 1.08, "nic": 2.31, "d2h": 1.74},
        {"compute": 1.01, "h2d": 1},
        {"link": 1.01, "h2d": 1},
        {"compute": 1.97, "link": 1.03, "h2d": 1},
        {"nic": 1.64, "h2d": 1},
        {"compute": 1.05, "nic": 1.76, "h2d": 1.01},
        {"d2h": 1.36, "h2d": 1.64},
        {"compute": 1.02, "d2h": 1.38, "h2d": 1.63},
        {"link": 1.03, "d2h": 1.25, "h2d": 2.36},
        {"compute": 1.85, "link": 1.12, "d2h": 1.3, "h2d": 2.22},
        {"nic": 2.57, "d2h": 1.07, "h2d": 1.17},
        {"compute": 1.05, "nic": 2.99, "d2h": 1.1, "h2d": 1.18},
    )
)
L4 = Interference.of(
    (
        {"compute": 1.3, "link": 1.03},
        {"compute": 1.83, "d2h": 2.15},
        {"link": 1.69, "d2h": 2.13},
        {"compute": 2.24, "link": 1.71, "d2h": 2.23},
        {"compute": 1.85, "h2d": 2.11},
        {"link": 2.18, "h2d": 1.74},
        {"compute": 2.24, "link": 1.74, "h2d": 2.28},
        {"d2h": 1.98, "h2d": 1.97},
        {"compute": 2.2, "d2h": 3.85, "h2d": 3.32},
        {"link": 2.37, "d2h": 2.71, "h2d": 3.88},
        {"compute": 2.43, "link": 1.88, "d2h": 3.45, "h2d": 4.95},
    )
)
V100 = Interference.of(
    (
        {"compute": 1.58, "link": 1.65},
        {"compute": 1, "d2h": 1},
        {"link": 1.01, "d2h": 1},
        {"compute": 1.7, "link": 1.54, "d2h": 1},
        {"compute": 1, "h2d": 1},
        {"link": 1, "h2d": 1},
        {"compute": 1.73, "link": 1.54, "h2d": 1},
        {"d2h": 1.26, "h2d": 1.25},
        {"compute": 1, "d2h": 1.26, "h2d": 1.25},
        {"link": 1.01, "d2h": 1.26, "h2d": 1.25},
        {"compute": 1.68, "link": 1.61, "d2h": 1.26, "h2d": 1.25},
    )
)
