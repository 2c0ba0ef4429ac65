"""Triton's metrics page as tests read it."""

from __future__ import annotations

_TAKEN = "nv_inference_request_success"  # Triton's count of what it has given to a model
OUTCOMES = {
    "success": "inferx:request_success_total",
    "rejected": "inferx:request_rejections_total",
    "cancelled": "inferx:request_cancellations_total",
    "failed": "inferx:request_failures_total",
}


def total(page: str, family: str, **labels: str) -> float:
    """The sum of the family's samples with these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith(family + "{") and all(label in line for label in wanted)
    )


def num_unended(page: str, **labels: str) -> float:
    """Requests that Triton has given to models and that are not yet counted as ended."""
    ended = sum(total(page, family, **labels) for family in OUTCOMES.values())
    return total(page, _TAKEN, **labels) - ended
