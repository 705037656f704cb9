"""A thousand solves with their gradients: memory stays where it was."""

from __future__ import annotations

import gc
import os
import warnings

import torch
from subjects import SUBJECTS_TO_REPEAT
from tally import Tally

from legato.errors import LegatoWarning

REPEATS = 1000
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


EVERY = [(name, device) for name in SUBJECTS_TO_REPEAT for device in DEVICES]
CHUNKS = len(EVERY) if os.path.exists("/proc/self/statm") else 0


def chunk(number: int, tally: Tally) -> None:
    """One subject on one device, solved and differentiated again and again."""
    name, device = EVERY[number]
    make = SUBJECTS_TO_REPEAT[name]
    subject = make()
    before, done, live = 0, 0, 0
    for turn in range(REPEATS + WARM):
        if turn == WARM:
            before, live = in_use(device), len(gc.get_objects())
        leaves = {
            k: v.to(device, torch.float32).clone().requires_grad_()
            for k, v in subject.inputs.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LegatoWarning)
            subject.compute(leaves).square().sum().backward()
        done += turn >= WARM
    grown = in_use(device) - before
    objects = len(gc.get_objects()) - live
    tally.count(f"repeated solves on {device}", done)
    if grown > SLACK or objects > 1000:
        tally.finding(
            "memory grows", f"{name} on {device}: {grown} bytes and {objects} objects in {done}"
        )
