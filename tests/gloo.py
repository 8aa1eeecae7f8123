"""Two processes that talk by gloo on loopback, started once and given one function after the other."""

import os
import socket
import traceback

import torch
from torch import distributed, multiprocessing


def _serve(rank, size, port, tasks, answers):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=size)
    while (task := tasks.get()) is not None:
        function, arguments = task
        try:
            answers.put((rank, function(rank, *arguments), None))
        except BaseException as error:
            answers.put((rank, f"{type(error).__name__}: {error}", traceback.format_exc()))
    distributed.destroy_process_group()


class Pair:
    """The processes; :meth:`run` gives what a function of the rank answers in each, an error being its text."""

    def __init__(self, size=2):
        context = multiprocessing.get_context("spawn")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.answers, self.tasks = context.Queue(), [context.Queue() for _ in range(size)]
        self.processes = [
            context.Process(target=_serve, args=(rank, size, port, tasks, self.answers), daemon=True)
            for rank, tasks in enumerate(self.tasks)
        ]
        for process in self.processes:
            process.start()

    def run(self, function, *arguments, survivors=None, timeout=300):
        """``survivors`` are the ranks that live to answer."""
        for tasks in self.tasks:
            tasks.put((function, arguments))
        found = {}
        for _ in survivors or self.tasks:
            rank, answer, trace = self.answers.get(timeout=timeout)
            found[rank] = answer
            if trace is not None:
                print(trace)
        return [found.get(rank) for rank in range(len(self.tasks))]

    def close(self):
        for process, tasks in zip(self.processes, self.tasks, strict=True):
            if process.is_alive():
                tasks.put(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
