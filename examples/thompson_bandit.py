"""A contextual bandit
===================

Thompson sampling: act by one function from the posterior, learn, draw another.

    python examples/thompson_bandit.py
"""

import torch
from torch import nn

import vmg
from vmg.likelihoods import GaussianLikelihood

N_ARMS, N_ROUNDS, BATCH = 3, 12, 25


def reward(context: torch.Tensor, arm: torch.Tensor) -> torch.Tensor:
    """The best arm depends on the context's first number."""
    best = (context[:, 0] > -0.5).long() + (context[:, 0] > 0.5).long()
    return (arm == best).float() + 0.2 * torch.randn(len(context))


def features(context: torch.Tensor, arm: torch.Tensor) -> torch.Tensor:
    return torch.cat([context, nn.functional.one_hot(arm, N_ARMS).float()], dim=-1)


def main() -> None:
    torch.manual_seed(0)
    n_data = N_ROUNDS * BATCH
    plain = nn.Sequential(nn.Linear(2 + N_ARMS, 32), nn.ReLU(), nn.Linear(32, 1))
    model, likelihood = vmg.nn.bayesianize(plain, n_data=n_data), GaussianLikelihood()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    inputs, rewards = torch.empty(0, 2 + N_ARMS), torch.empty(0, 1)
    for number in range(1, N_ROUNDS + 1):
        context = torch.rand(BATCH, 2) * 2 - 1
        function = vmg.sample_functions(model, 1)
        arms = torch.arange(N_ARMS).expand(BATCH, N_ARMS)
        with torch.no_grad():
            values = torch.cat([function(features(context, arms[:, k]))[0] for k in range(N_ARMS)], dim=-1)
        chosen = values.argmax(-1)
        earned = reward(context, chosen)
        inputs = torch.cat([inputs, features(context, chosen)])
        rewards = torch.cat([rewards, earned.unsqueeze(-1)])
        for _ in range(100):
            terms = vmg.elbo(model, likelihood, inputs, rewards, n_data=len(inputs))
            optimiser.zero_grad()
            (-terms.total).backward()
            optimiser.step()
        if number % 3 == 0:
            print(f"round {number:>2}: mean reward {earned.mean():.2f}")


if __name__ == "__main__":
    main()
