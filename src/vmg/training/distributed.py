"""Several processes that train one model, each on its share of every minibatch.

All processes hold the same parameters and draw the same order of rows; each takes its own slice of a batch and its own
posterior noise. Its gradient is that of mean(−log p) over its slice + KL/N, weighed by the rows of the slice, so that
the mean over processes is the gradient at the joined batch, with the KL counted once. One message a step carries all of
it: the gradients and the objective's terms as one flat vector. Conjugate posteriors, such as that of the noise, take in
the outputs of the joined batch, which are gathered, so they have the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor, nn

from vmg.likelihoods import Likelihood
from vmg.math.linalg import NotPositiveDefiniteError
from vmg.objective import ElboTerms
from vmg.processes import add_up_, any_true, gather, gather_rows, rank_and_size, send_
from vmg.training.grouped_parameters import GroupedParameters
from vmg.training.progress import Finished, History, Hook
from vmg.training.rows import Batch

__all__ = ["Processes", "SharedStep", "Step"]

Step = Callable[[Batch, float], ElboTerms]
"""Takes the objective at a minibatch and leaves the gradient of its negative in the grouped parameters."""


class Processes:
    """The processes of the default group; one alone where there is none."""

    def __init__(self) -> None:
        self.rank, self.size = rank_and_size()
        self._seed = 0
        self._noise: torch.Generator | None = None

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1

    # -- before the first step ----------------------------------------------------------------------------------------

    def start_equal(
        self, modules: nn.Module, rows: Tensor, generator: torch.Generator | None
    ) -> torch.Generator | None:
        """Give all processes the first one's parameters, buffers and order of rows; the generator of that order.

        Rows are shared by what each process reads of them, so all must be given the same table.
        """
        if self.alone:
            return generator
        common = torch.Generator() if generator is None else generator
        shapes = gather(list(rows.shape), "before the first step")
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(f"x must have the same shape in all processes; got {shapes}")
        if generator is None:  # each process draws its own seed, the first one's counts
            common.manual_seed(int(torch.randint(2**62, ())))
        state = common.get_state()
        tensors = [tensor.detach() for tensor in (*modules.parameters(), *modules.buffers())]
        send_([state, *tensors], "before the first step")
        common.set_state(state)
        self._seed = int(torch.empty((), dtype=torch.int64).random_(generator=_copy_of(common)))
        return common

    def noise_generator(self, common: torch.Generator | None, done: int) -> torch.Generator | None:
        """The generator of this process's own posterior noise after a number of steps."""
        if self.alone:
            return common
        self._noise = torch.Generator()
        self._seed_noise(done)
        return self._noise

    def _seed_noise(self, step: int) -> None:
        """Start the noise anew after a report, so that a run which goes on from there draws the same."""
        if self._noise is not None:
            self._noise.manual_seed(hash((self._seed, self.rank, step)) & (2**63 - 1))

    # -- at every step ------------------------------------------------------------------------------------------------

    def sizes(self, n: int) -> list[int]:
        """The number of rows that each process takes of the ``n`` rows of a batch."""
        if n < self.size:
            raise ValueError(f"batch_size must be at least the number of processes ({self.size}); got {n}")
        return [n // self.size + (rank < n % self.size) for rank in range(self.size)]

    def n_own(self, n: int) -> int:
        """How many of the ``n`` rows of a batch this process takes."""
        return self.sizes(n)[self.rank]

    def slice(self, index: Tensor) -> Tensor:
        """This process's part of row indices [*batch_shape, B]."""
        return index if self.alone else index.split(self.sizes(index.shape[-1]), -1)[self.rank]

    def weigh(self, batch: Batch, n: int) -> Batch:
        """Weights that make the mean over processes of the means over slices the mean over all ``n`` rows."""
        own = self.n_own(n)
        if self.alone or own * self.size == n:
            return batch
        share = own * self.size / n
        ones = torch.ones(batch.y.shape[: batch.y.dim() - 1], dtype=batch.x.dtype, device=batch.x.device)
        return batch._replace(weight=share * (ones if batch.weight is None else batch.weight))

    def share(self, evaluate: Step, parameters: GroupedParameters) -> Step:
        """A step that leaves the mean of all processes' gradients."""
        return evaluate if self.alone else SharedStep(evaluate, parameters, self.size)

    def joined(self, likelihood: Likelihood, terms: ElboTerms, batch: Batch, n: int) -> tuple[ElboTerms, Batch]:
        """Outputs, targets and weights of all ``n`` rows, in the order of ranks, where a likelihood takes them in."""
        if self.alone or type(likelihood).update_ is Likelihood.update_:
            return terms, batch
        assert terms.f is not None
        parts = [terms.f, batch.y, *([] if batch.weight is None else [batch.weight.unsqueeze(-1)])]
        rows = gather_rows(torch.cat(parts, -1), -2, sizes=self.sizes(n), task="gathering outputs")
        f, y, *weights = rows.split([part.shape[-1] for part in parts], -1)
        return terms._replace(f=f), batch._replace(y=y, weight=weights[0].squeeze(-1) if weights else None)

    # -- at reports ---------------------------------------------------------------------------------------------------

    def agree_on(self, history: History) -> Hook:
        """A hook that ends the run in all processes where a callback of one has ended it."""

        def agree(done: Finished) -> None:
            if self.alone:
                return
            if any_true(history.was_stopped, f"at step {done.step}") and not history.was_stopped:
                history.stopped = f"stopped by a callback of another process at step {done.step}"
            self._seed_noise(done.step)

        return agree


class SharedStep:
    """A step whose gradients and terms are means over processes, exchanged as one flat vector."""

    def __init__(self, evaluate: Step, parameters: GroupedParameters, size: int) -> None:
        self._evaluate, self._parameters, self._size = evaluate, parameters, size
        sizes = [tensor.numel() for tensor in parameters.tensors]
        dtype = reduce(torch.promote_types, [tensor.dtype for tensor in parameters.tensors])
        self._flat = torch.zeros(sum(sizes) + 2, dtype=dtype, device=parameters.tensors[0].device)
        *self._parts, self._terms = self._flat.split([*sizes, 2])

    def __call__(self, batch: Batch, kl_weight: float) -> ElboTerms:
        try:
            terms = self._evaluate(batch, kl_weight)
            self._terms.copy_(torch.stack([terms.expected_log_likelihood, terms.kl]).reshape(2, -1).mean(-1))
        except NotPositiveDefiniteError:  # all processes must learn of it, or the others wait for ever
            terms = None
            self._terms.fill_(torch.nan)
        gradients = [tensor.grad for tensor in self._parameters.tensors]
        for part, gradient in zip(self._parts, gradients, strict=True):
            if gradient is not None:
                part.copy_(gradient.reshape(-1))
        add_up_([self._flat], "adding gradients up")
        if terms is None or not torch.isfinite(self._terms).all():
            raise NotPositiveDefiniteError("the objective of a process is not finite")
        for part, gradient in zip(self._parts, gradients, strict=True):
            if gradient is not None:
                torch.div(part.view(gradient.shape), self._size, out=gradient)
        likelihood, kl = (self._terms / self._size).unbind()
        return ElboTerms(likelihood, kl, terms.f)


def _copy_of(generator: torch.Generator) -> torch.Generator:
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy
