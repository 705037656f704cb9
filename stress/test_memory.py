"""A thousand solves with their gradients: memory stays where it was."""

from __future__ import annotations

import gc
import os
import warnings

import pytest
import torch
from subjects import SUBJECTS_TO_REPEAT

from legato.errors import LegatoWarning

REPEATS = int(os.environ.get("LEGATO_STRESS_REPEATS", "1000"))
WARM = 100
SLACK = 4 << 20
"""Bytes that the allocator may keep more at the end than after the first hundred: 4 MB.

One leaked graph of the smallest subject, a thousand times, is more than that.
"""
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_use(device: str) -> int:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    return resident()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc to read memory from")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SUBJECTS_TO_REPEAT)
def test_memory_is_flat(name, device, tally, budget):
    make = SUBJECTS_TO_REPEAT[name]
    subject = make()
    before, done, live = 0, 0, 0
    for number in range(REPEATS + WARM):
        if number == WARM:
            before, live = in_use(device), len(gc.get_objects())
        if budget.left <= 0 and number > WARM:
            break
        leaves = {
            k: v.to(device, torch.float32).clone().requires_grad_()
            for k, v in subject.inputs.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LegatoWarning)
            subject.compute(leaves).square().sum().backward()
        done += number >= WARM
    grown = in_use(device) - before
    objects = len(gc.get_objects()) - live
    tally.count(f"repeated solves on {device}", done)
    if grown > SLACK or objects > 1000:
        tally.finding(
            "memory grows", f"{name} on {device}: {grown} bytes and {objects} objects in {done}"
        )
    assert grown <= SLACK
    assert objects <= 1000
