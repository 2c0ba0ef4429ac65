"""Two workloads of practice, each a stream of questions that come at random moments.

finance   customer service of a bank: questions of 86 characters behind a handbook that all of
          them share, 4,096 tokens with the answer; 1,200 requests/s at scale 1
medical   entity recognition in clinical notes: diagnoses with ICD-10 codes and drug names, hot
          terms among them, every answer with a confidence; 350 requests/s at scale 1
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from inferx_client.bench.prompts import Request, RequestSource, Words

Name = Literal["finance", "medical"]

QUESTION_CHARACTERS = 86
QUESTION_TOKENS = 64  # left for a question: digits may be a token each


@dataclass(frozen=True)
class Workload:
    """`rate`: requests a second at scale 1; lengths in tokens."""

    rate: float
    context: int  # prompt and answer together, or of the instruction alone
    output_tokens: int
    confidence: bool  # ask for the answer's probability, and count an answer without one


WORKLOADS: dict[Name, Workload] = {
    "finance": Workload(rate=1200, context=4096, output_tokens=64, confidence=False),
    "medical": Workload(rate=350, context=192, output_tokens=96, confidence=True),
}

_QUESTIONS = (
    ("Why was my card payment ", " declined although there is money left?"),
    ("My transfer with the reference ", " has not arrived, where is it now?"),
    ("Please explain the fee on my statement, entry ", ", and take it back."),
    ("What interest do I pay on loan ", " from next month, and until when?"),
    ("I want to raise the limit of card ", " for my trip: how do I do that?"),
    ("Somebody else has used my account ", ", please block it and call me."),
)
_CONDITIONS = (
    ("acute myocardial infarction", "I21.9"), ("type 2 diabetes mellitus", "E11.9"),
    ("essential hypertension", "I10"), ("atrial fibrillation", "I48.91"),
    ("community-acquired pneumonia", "J18.9"), ("chronic kidney disease", "N18.9"),
    ("iron deficiency anaemia", "D50.9"), ("migraine without aura", "G43.009"),
)  # fmt: skip
_DRUGS = (
    "aspirin 100 mg", "metformin 850 mg", "ramipril 5 mg", "apixaban 5 mg", "amoxicillin 1 g",
    "atorvastatin 40 mg", "furosemide 40 mg", "sumatriptan 50 mg",
)  # fmt: skip
_HOT_TERMS = ("心肌梗死", "阿司匹林")
_HOT_SHARE = 0.3  # of the notes


def requests_of(
    name: Name, words: Words, *, context: int | None, output_tokens: int | None, seed: int
) -> RequestSource:
    """`context` and `output_tokens` replace the workload's own."""
    own = WORKLOADS[name]
    outputs = output_tokens or own.output_tokens
    context = context or own.context
    if name == "finance":
        context -= outputs + QUESTION_TOKENS
    shared = words.text(context, (name, seed))
    write = question if name == "finance" else note

    def request(index: int) -> Request:
        return Request(f"{shared}\n\n{write(random.Random(f'{seed} {index}'))}", outputs)

    return request


def question(draw: random.Random) -> str:
    """A customer's question of QUESTION_CHARACTERS characters: the number in it fills them."""
    before, after = draw.choice(_QUESTIONS)
    digits = QUESTION_CHARACTERS - len(before) - len(after)
    return before + "".join(draw.choices("0123456789", k=digits)) + after


def note(draw: random.Random) -> str:
    """A clinical note with two diagnoses and two drugs, and what is asked about it."""
    conditions = draw.sample(_CONDITIONS, 2)
    drugs = draw.sample(_DRUGS, 2)
    hot = f" {draw.choice(_HOT_TERMS)}." if draw.random() < _HOT_SHARE else ""
    diagnoses = " and ".join(f"{condition} ({code})" for condition, code in conditions)
    return (
        f"Patient, {draw.randint(19, 94)} years, admitted with {diagnoses}; "
        f"takes {' and '.join(drugs)}.{hot}\n"
        "List every diagnosis with its ICD-10 code and every drug:"
    )
