"""Functions that run in several processes at once, talking by gloo on loopback."""

import os
import socket
import traceback

import torch
from torch import distributed, multiprocessing


def _enter(rank, size, port, function, arguments, queue):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    try:
        distributed.init_process_group("gloo", rank=rank, world_size=size)
        queue.put((rank, function(rank, *arguments), None))
    except BaseException as error:
        queue.put((rank, f"{type(error).__name__}: {error}", traceback.format_exc()))
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def run_together(function, *arguments, size=2, timeout=60, deaths=()):
    """What ``function(rank, *arguments)`` gives in each process; an error becomes its text. ``deaths`` give nothing."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue = context.Queue()
    processes = [
        context.Process(target=_enter, args=(rank, size, port, function, arguments, queue)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    found = dict.fromkeys(range(size))
    for _ in range(size - len(deaths)):
        rank, answer, trace = queue.get(timeout=timeout)
        found[rank] = answer
        if trace is not None and not deaths:
            print(trace)
    for process in processes:
        process.join(timeout)
    return [found[rank] for rank in range(size)]
