"""The layer of the paper
======================

Equations 1 to 11 of Louizos & Welling (2016) in one file of plain PyTorch, nothing else. It is
``vmg.nn.MatrixGaussianLinear`` with diagonal covariances; a test holds the two equal. Letters: R inputs and a bias, C
outputs, P pseudo-points.

    python examples/paper_layer.py
"""

import math

import torch
from torch import Tensor, nn

SIGMA2 = 1e-6  # the paper's damping of Σ11; it says 1e-8, which float32 cannot resolve


# [kl-weights]
def kl_weights(M: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """KL(MN(M, diag(u), diag(v)) || MN(0, I, I)), equation 4; u and v are variances."""
    r, c = M.shape
    trace = u.sum() * v.sum()
    log_determinant = c * u.log().sum() + r * v.log().sum()
    return 0.5 * (trace + M.square().sum() - r * c - log_determinant)


# [kl-points]
def kl_points(alpha: Tensor, alpha_max: float) -> Tensor:
    """KL of one entry x(1 + √α ε) to the log-uniform prior (Kingma et al. 2015, eq. 14), zero at the largest α."""

    def negative(a: Tensor) -> Tensor:
        return 0.5 * a.log() + 1.16145124 * a - 1.50204118 * a**2 + 0.58629921 * a**3

    return negative(torch.tensor(alpha_max).to(alpha)) - negative(alpha)


# [condition]
def condition(x: Tensor, M: Tensor, u: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [N, C] and row variance [N] of x W given the pseudo-data, equations 8 and 9."""
    S11 = (A * u) @ A.T + SIGMA2 * torch.eye(len(A), dtype=A.dtype)
    s12 = (A * u) @ x.T  # [P, N]
    s22 = (x * u * x).sum(1)
    gain = torch.linalg.solve(S11, s12)
    return x @ M + gain.T @ (B - A @ M), s22 - (s12 * gain).sum(0)


# [layer]
class PaperLayer(nn.Module):
    """y = [x, 1]/√R W with W ~ MN(M, U, V), drawn row by row given pseudo-data that are noisy themselves."""

    def __init__(self, n_inputs: int, n_outputs: int, n_points: int, max_noise: float = 0.25) -> None:
        super().__init__()
        R, C, self.max_noise = n_inputs + 1, n_outputs, max_noise
        self.M = nn.Parameter(torch.randn(R, C) * math.sqrt(4 / (n_inputs + n_outputs)))
        self.log_u = nn.Parameter(0.01 * torch.randn(R))  # logarithms of standard deviations
        self.log_v = nn.Parameter(0.01 * torch.randn(C))
        self.A = nn.Parameter(0.02 * torch.rand(n_points, R) - 0.01)
        self.B = nn.Parameter(0.02 * torch.rand(n_points, C) - 0.01)
        self.log_noise = nn.Parameter(torch.full((2,), math.log(max_noise)))  # log √α of A and of B
        with torch.no_grad():
            self.M[-1], self.log_u[-1] = 0.0, -4.0  # the bias row

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(len(x), self.M.shape[1])
        return self.draw(x, torch.randn_like(self.A), torch.randn_like(self.B), noise)

    # [draw]
    def draw(self, x: Tensor, noise_A: Tensor, noise_B: Tensor, noise: Tensor) -> Tensor:
        """One draw of the pre-activations [N, C] from standard normal numbers."""
        root_alpha = self.log_noise.exp()
        A = self.A * (1 + root_alpha[0] * noise_A)
        B = self.B * (1 + root_alpha[1] * noise_B)
        root_R = math.sqrt(len(self.M))
        design = torch.cat([x, torch.ones_like(x[:, :1])], dim=1) / root_R
        mean, variance = condition(design, self.M, torch.exp(2 * self.log_u), A / root_R, B)
        return mean + variance.clamp_min(1e-12).sqrt()[:, None] * self.log_v.exp() * noise

    # [complexity]
    def kl(self) -> Tensor:
        """-L_c of equation 11: the divergences of the weights and of the pseudo-data."""
        weights = kl_weights(self.M, torch.exp(2 * self.log_u), torch.exp(2 * self.log_v))
        points = kl_points(torch.exp(2 * self.log_noise), self.max_noise**2)
        return weights + self.A.numel() * points[0] + self.B.numel() * points[1]

    # [end]
    def project(self) -> None:
        """Keep √α at most at its bound; after each step, because a clamp in the graph would stop the gradient."""
        self.log_noise.data.clamp_(-4.0, math.log(self.max_noise))


def main() -> None:
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 100)[:, None]
    y = torch.tanh(2 * x) + 0.1 * torch.randn(100, 1)
    network = nn.Sequential(PaperLayer(1, 30, 1), nn.Tanh(), PaperLayer(30, 1, 5))
    log_precision = nn.Parameter(torch.zeros(()))  # of the noise
    optimiser = torch.optim.Adam([*network.parameters(), log_precision], lr=0.01)
    layers = [layer for layer in network if isinstance(layer, PaperLayer)]
    for step in range(1, 2_001):
        optimiser.zero_grad()
        log_likelihood = 0.5 * (log_precision - math.log(2 * math.pi) - log_precision.exp() * (y - network(x)) ** 2)
        objective = log_likelihood.mean() - sum(layer.kl() for layer in layers) / len(x)
        (-objective).backward()
        optimiser.step()
        for layer in layers:
            layer.project()
        if step % 500 == 0:
            print(f"step {step}  objective {objective.item():.3f}  noise {(-0.5 * log_precision).exp().item():.3f}")
    with torch.no_grad():
        mean = torch.stack([network(x) for _ in range(200)]).mean(0)
    print(f"root mean squared error of the mean {(mean - torch.tanh(2 * x)).square().mean().sqrt().item():.3f}")


if __name__ == "__main__":
    main()
