"""Two methods of dictionary learning: sparse coding and TopK sparse autoencoders.

`SparseCoder` implements sparse coding as in Yun et al. 2021, "Transformer visualization via
dictionary learning". FISTA finds non-negative codes. Atoms are updated along the residual, with a
step divided by the diagonal of the Hessian.

`TopKCoder` is a sparse autoencoder that keeps the k largest codes (Makhzani and Frey 2014; Gao et
al. 2024), with an auxiliary loss that revives dead atoms.

For both methods, states are centred with a mean norm of about one, and atoms have norm one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

ITERATIONS = 60
"""Number of FISTA iterations per state; more iterations hardly change the codes."""

QUICK = 25
"""Number of FISTA iterations during learning, where approximate codes are enough."""

FIRST_L1 = 0.1
"""Initial L1 weight, for states of norm one. It adapts to the desired number of active codes."""

AUX = 1 / 32
"""Weight of the auxiliary loss that revives dead atoms, as in Gao et al. 2024."""


@dataclass
class SparseCoder:
    """Sparse coding: finds codes a ≥ 0 that minimize ½|x − a·atoms|² + l1·Σa."""

    atoms_AD: Tensor
    l1: float = FIRST_L1
    hessian_A: Tensor = field(default_factory=lambda: torch.zeros(0))

    method = "sparse"

    @torch.no_grad()
    def codes(self, x_ND: Tensor, iterations: int = ITERATIONS) -> Tensor:
        gram_AA = self.atoms_AD @ self.atoms_AD.T
        fit_NA = x_ND @ self.atoms_AD.T - self.l1
        step = 1.0 / largest_eigenvalue(gram_AA)
        code_NA = torch.zeros_like(fit_NA)
        ahead_NA, speed = code_NA, 1.0
        for _ in range(iterations):
            new_NA = (ahead_NA + step * (fit_NA - ahead_NA @ gram_AA)).clamp_(min=0)
            faster = (1 + (1 + 4 * speed * speed) ** 0.5) / 2
            ahead_NA = new_NA + ((speed - 1) / faster) * (new_NA - code_NA)
            code_NA, speed = new_NA, faster
        return code_NA

    def reconstruct(self, code_NA: Tensor) -> Tensor:
        return code_NA @ self.atoms_AD

    @torch.no_grad()
    def learn(self, x_ND: Tensor, rate: float) -> Tensor:
        """Take one learning step and return the codes before it.

        `rate`: relative step size, which decreases from 1 to 0 over the training.
        """
        code_NA = self.codes(x_ND, QUICK)
        left_ND = x_ND - self.reconstruct(code_NA)
        seen_A = code_NA.square().mean(0)
        if not len(self.hessian_A):
            self.hessian_A = seen_A.clone()
        self.hessian_A.lerp_(seen_A, 0.05)
        move_AD = (code_NA.T @ left_ND) / len(x_ND)
        size_A = self.hessian_A + 0.05 * self.hessian_A.mean() + 1e-12
        self.atoms_AD = F.normalize(self.atoms_AD + (0.3 * rate / size_A)[:, None] * move_AD, dim=1)
        return code_NA

    def adjust_sparsity(self, n_active: float, wanted: float) -> None:
        """Adjust the L1 weight slightly, so that the mean number of active codes approaches
        `wanted`."""
        self.l1 *= min(1.1, max(0.9, (max(n_active, 0.1) / wanted) ** 0.1))

    def to(self, device: torch.device | str) -> SparseCoder:
        return SparseCoder(self.atoms_AD.to(device), self.l1)

    def restart_atoms(self, numbers_R: Tensor, rows_RD: Tensor) -> None:
        """Set atoms that are never active to reconstruction errors, scaled to norm one."""
        self.atoms_AD[numbers_R] = F.normalize(rows_RD, dim=1)
        self.hessian_A[numbers_R] = self.hessian_A.mean()


class TopKCoder:
    """TopK sparse autoencoder: keeps the k largest values of relu(x·reader + bias) as codes."""

    method = "topk"

    def __init__(self, atoms_AD: Tensor, k: int) -> None:
        self.k = k
        self.atoms_AD = atoms_AD.clone().requires_grad_()
        self.reader_AD = atoms_AD.clone().requires_grad_()
        self.bias_A = torch.zeros(len(atoms_AD), device=atoms_AD.device, requires_grad=True)
        self.idle_A = torch.zeros(len(atoms_AD), device=atoms_AD.device)
        """Number of states since each atom was last active."""
        self.parts = [self.atoms_AD, self.reader_AD, self.bias_A]
        self.adam = torch.optim.Adam(self.parts, lr=1e-3, betas=(0.9, 0.99))

    @torch.no_grad()
    def codes(self, x_ND: Tensor) -> Tensor:
        return self._kept(self._before(x_ND), self.k)

    def reconstruct(self, code_NA: Tensor) -> Tensor:
        return code_NA @ self.atoms_AD.detach()

    def learn(self, x_ND: Tensor, rate: float) -> Tensor:
        before_NA = self._before(x_ND)
        code_NA = self._kept(before_NA, self.k)
        left_ND = x_ND - code_NA @ self.atoms_AD
        total = x_ND.square().mean()
        loss = left_ND.square().mean() / total
        dead_A = self.idle_A > 20 * len(x_ND)
        if dead_A.any():  # dead atoms are fitted to the residual
            among_NA = before_NA.masked_fill(~dead_A, 0.0)
            waking_NA = self._kept(among_NA, min(2 * self.k, int(dead_A.sum())))
            missed_ND = left_ND.detach() - waking_NA @ self.atoms_AD
            loss = loss + AUX * missed_ND.square().mean() / left_ND.detach().square().mean()
        self.adam.zero_grad()
        loss.backward()
        for group in self.adam.param_groups:
            group["lr"] = 3e-3 * rate
        self._along_the_sphere()
        self.adam.step()
        with torch.no_grad():
            self.atoms_AD.copy_(F.normalize(self.atoms_AD, dim=1))
            fired_A = (code_NA > 0).any(0)
            self.idle_A = torch.where(fired_A, 0.0, self.idle_A + len(x_ND))
        return code_NA.detach()

    @torch.no_grad()
    def _along_the_sphere(self) -> None:
        """Remove the component of the gradient that changes only the norm of an atom."""
        gradient_AD = self.atoms_AD.grad
        assert gradient_AD is not None
        gradient_AD -= (gradient_AD * self.atoms_AD).sum(1, keepdim=True) * self.atoms_AD

    def _before(self, x_ND: Tensor) -> Tensor:
        return F.relu(F.linear(x_ND, self.reader_AD, self.bias_A))

    @staticmethod
    def _kept(code_NA: Tensor, k: int) -> Tensor:
        top = code_NA.topk(min(k, code_NA.shape[1]), dim=1)
        return torch.zeros_like(code_NA).scatter(1, top.indices, top.values)

    def adjust_sparsity(self, n_active: float, wanted: float) -> None:
        """Do nothing, because exactly k codes are active by design."""

    def to(self, device: torch.device | str) -> TopKCoder:
        return TopKCoder.of(*(part.detach().to(device) for part in self.parts), k=self.k)

    @classmethod
    @torch.no_grad()
    def of(cls, atoms_AD: Tensor, reader_AD: Tensor, bias_A: Tensor, *, k: int) -> TopKCoder:
        made = cls(atoms_AD, k)
        made.reader_AD.copy_(reader_AD)
        made.bias_A.copy_(bias_A)
        return made

    @torch.no_grad()
    def restart_atoms(self, numbers_R: Tensor, rows_RD: Tensor) -> None:
        """Set atoms that the auxiliary loss could not revive to reconstruction errors, and reset
        their optimizer moments."""
        rows_RD = F.normalize(rows_RD, dim=1)
        self.atoms_AD[numbers_R] = rows_RD
        self.reader_AD[numbers_R] = rows_RD * self.reader_AD.norm(dim=1).mean()
        self.bias_A[numbers_R] = 0.0
        self.idle_A[numbers_R] = 0.0
        for part in self.parts:
            for name in ("exp_avg", "exp_avg_sq"):
                self.adam.state[part][name][numbers_R] = 0.0


Coder = SparseCoder | TopKCoder


def fit_coder(
    rows_ND: Tensor,
    coder: Callable[[Tensor], Coder],
    n: int,
    *,
    k: float | None,
    steps: int,
    seed: int,
    batch: int = 512,
    note: Callable[[int, Coder, Tensor], bool] = lambda step, coder, codes: False,
) -> Coder:
    """Learn a dictionary of `n` atoms from states that are centred and have a norm of about one.

    `k`: desired number of active codes per state; None: the sparsity is not adjusted. `note`:
    called after every step; learning stops if it returns True. Equal seeds give equal dictionaries
    on one machine.
    """
    random = torch.Generator().manual_seed(seed)
    first = torch.randperm(len(rows_ND), generator=random)[:n]
    noise_AD = torch.randn(n, rows_ND.shape[1], generator=random).to(rows_ND.device)
    atoms_AD = F.normalize(noise_AD, dim=1)
    atoms_AD[: len(first)] += 2 * F.normalize(rows_ND[first.to(rows_ND.device)], dim=1)
    made = coder(F.normalize(atoms_AD, dim=1))
    idle_A = torch.zeros(n, dtype=torch.long)
    for step in range(steps):
        rows = torch.randint(len(rows_ND), (batch,), generator=random).to(rows_ND.device)
        x_BD = rows_ND[rows]
        code_BA = made.learn(x_BD, min(1.0, 1.5 * (1 - step / steps)))
        active_BA = code_BA > 0
        if k is not None and step < 0.7 * steps:
            made.adjust_sparsity(float(active_BA.sum(1).float().mean()), k)
        idle_A = torch.where(active_BA.any(0).cpu(), 0, idle_A + 1)
        if step % 25 == 24 and step < 0.8 * steps:
            _revive(made, x_BD, code_BA, torch.nonzero(idle_A >= 25).flatten())
            idle_A[idle_A >= 25] = 0
        if note(step, made, code_BA):
            break
    return made


def _revive(made: Coder, x_BD: Tensor, code_BA: Tensor, dead_R: Tensor) -> None:
    """Restart dead atoms at the largest reconstruction errors of a batch, one atom per state."""
    if not len(dead_R):
        return
    left_BD = x_BD - made.reconstruct(code_BA)
    worst_B = left_BD.square().sum(1).argsort(descending=True, stable=True)[: len(dead_R)]
    dead_R = dead_R[: len(worst_B)].to(x_BD.device)
    with torch.no_grad():
        made.restart_atoms(dead_R, left_BD[worst_B])


def largest_eigenvalue(gram_AA: Tensor, steps: int = 20) -> float:
    """Return the largest eigenvalue by power iteration, rounded up slightly. FISTA diverges if its
    steps are too large."""
    vector_A = torch.ones(len(gram_AA), device=gram_AA.device)
    for _ in range(steps):
        vector_A = F.normalize(gram_AA @ vector_A, dim=0)
    return 1.05 * float(vector_A @ gram_AA @ vector_A) + 1e-6
