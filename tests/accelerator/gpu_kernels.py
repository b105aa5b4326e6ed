"""The CUDA kernels against those of the CPU, bit for bit: python gpu_kernels.py"""

from __future__ import annotations

import itertools

import torch

from osdp import _C

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
COUNTS = (0, 1, 3, 17, 4096, 100_003)


def sample(count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=generator, dtype=torch.float64)
    if count > 16:
        values[:6] = torch.tensor(
            [float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1e300], dtype=torch.float64
        )
    return values.to(dtype)


def same(got: torch.Tensor, wanted: torch.Tensor, what: str) -> int:
    got = got.cpu()
    nan = got.isnan() & wanted.isnan()
    equal = (got == wanted) & (got.signbit() == wanted.signbit()) | nan
    if not bool(equal.all()):
        at = int(equal.flatten().logical_not().nonzero()[0])
        print(f"{what}: {int((~equal).sum())} of {got.numel()} differ, the first at {at}: {got.flatten()[at]} "
              f"instead of {wanted.flatten()[at]}", flush=True)  # fmt: skip
        return 1
    return 0


def main() -> None:
    k, wrong, tried = _C.kernels, 0, 0
    print("built with CUDA kernels:", k.built_with_cuda())
    for a, b, n in itertools.product(DTYPES, DTYPES, COUNTS):
        src, dst = sample(n, b, 1), sample(n, a, 2)
        gpu = dst.cuda()
        k.cast(dst, src), k.cast(gpu, src.cuda())
        wrong += same(gpu, dst, f"cast {b} to {a}, {n}")
        for factor in (1.0, 0.3):
            dst = sample(n, a, 2)
            gpu = dst.cuda()
            k.accumulate(dst, src, factor), k.accumulate(gpu, src.cuda(), factor)
            wrong += same(gpu, dst, f"accumulate {b} into {a}, {n}, {factor}")
        tried += 3
    for a, n in itertools.product(DTYPES, COUNTS):
        dst = sample(n, a, 3)
        gpu = dst.cuda()
        k.scale(dst, 0.7), k.scale(gpu, 0.7)
        wrong += same(gpu, dst, f"scale {a}, {n}")
        k.zero(gpu), k.zero(dst)
        wrong += same(gpu, dst, f"zero {a}, {n}")
        tried += 2
    for a, rows, cols, offset in itertools.product(DTYPES, (1, 5, 64), (1, 7, 32), (0, 1)):
        whole = sample(rows * (cols + 3), a, 4).view(rows, cols + 3)
        there = whole.cuda()
        packed, far = torch.zeros(rows, cols, dtype=a), torch.zeros(rows, cols, dtype=a, device="cuda")
        k.pack(packed, whole[:, offset : offset + cols]), k.pack(far, there[:, offset : offset + cols])
        wrong += same(far, packed, f"pack {a} {rows} x {cols}")
        far.mul_(2), packed.mul_(2)
        part, part_there = whole[:, offset : offset + cols], there[:, offset : offset + cols]
        k.unpack(part, packed), k.unpack(part_there, far)
        wrong += same(there, whole, f"unpack {a} {rows} x {cols}")
        tried += 2
    print(f"{tried} comparisons, {wrong} wrong")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
