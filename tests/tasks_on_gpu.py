"""What holds of every task on a GPU."""

import copy

import torch

from cases import assert_near
from equipool.cuda import capture_step
from equipool.training import Shard

CUDA = torch.device("cuda")


def first_batch(task, device=CUDA):
    return {key: value[0] for key, value in task.batches(0, 1, device, Shard()).items()}


def assert_nothing_waits(task):
    """Neither a loss nor drawing batches waits for the device."""
    network, batch = task.network().to(CUDA), first_batch(task)
    task.loss(network, batch).value.backward()  # what is built once
    torch.cuda.set_sync_debug_mode("error")
    try:
        task.loss(network, batch).value.backward()
        task.batches(7, 60, CUDA, Shard())
    finally:
        torch.cuda.set_sync_debug_mode("default")


def assert_captured_trains_as_eager(task, learning_rate):
    torch.manual_seed(0)
    start = task.network()
    weights = []
    for captured in (False, True):
        network = copy.deepcopy(start).to(CUDA)
        optimizer = torch.optim.SGD(network.parameters(), lr=learning_rate)
        batch = first_batch(task)

        def step(network=network, optimizer=optimizer, batch=batch):
            optimizer.zero_grad(set_to_none=True)
            task.loss(network, batch).value.backward()
            optimizer.step()

        run = capture_step(step, warmup=3) if captured else step
        for _ in range(2 if captured else 5):
            run()
        weights.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    moved = weights[0] - torch.cat([p.flatten() for p in start.to(CUDA).parameters()])
    assert moved.norm() > 0
    assert_near(weights[1], weights[0], 1e-4)
