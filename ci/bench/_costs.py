"""What decode steps of Llama-3-8B's shape take on an H200, in seconds: `ci/bench/sparse_engine
llama8b PRECISION --costs FILE`, 2026-11-30 (RESULTS.md)."""

from __future__ import annotations

from inferx.paths.costs import CostTable, SparseCosts

H200 = {
    "bf16": CostTable(
        tokens=[1, 2, 4, 8, 64],
        dense=[3717e-6, 4287e-6, 4289e-6, 4335e-6, 5074e-6],
        sparse=[
            SparseCosts(
                1,
                [0.192, 0.475, 0.597, 0.678, 0.798, 1.0],
                [1498e-6, 2346e-6, 2712e-6, 2960e-6, 3318e-6, 3899e-6],
            ),
            SparseCosts(
                2,
                [0.192, 0.659, 0.798, 0.87, 0.949, 1.0],
                [1968e-6, 3535e-6, 3990e-6, 4232e-6, 4490e-6, 4629e-6],
            ),
            SparseCosts(
                4,
                [0.192, 0.856, 0.949, 0.98, 0.997, 1.0],
                [2403e-6, 4695e-6, 5014e-6, 5112e-6, 5156e-6, 5160e-6],
            ),
        ],
    ),
    "fp8": CostTable(
        tokens=[1, 2, 4, 8, 64],
        dense=[2286e-6, 2684e-6, 2705e-6, 2740e-6, 3295e-6],
        sparse=[
            SparseCosts(
                1,
                [0.192, 0.479, 0.596, 0.676, 0.8, 1.0],
                [1286e-6, 1721e-6, 1898e-6, 2028e-6, 2211e-6, 2487e-6],
            ),
            SparseCosts(
                2,
                [0.192, 0.657, 0.799, 0.872, 0.95, 1.0],
                [1787e-6, 2667e-6, 2925e-6, 3060e-6, 3202e-6, 3264e-6],
            ),
            SparseCosts(
                4,
                [0.192, 0.854, 0.949, 0.98, 0.997, 1.0],
                [2512e-6, 4614e-6, 4924e-6, 5029e-6, 5051e-6, 5053e-6],
            ),
        ],
    ),
}
