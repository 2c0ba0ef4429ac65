"""SmolLM2's prompts for comparing greedy tokens, and how far an output is from transformers'."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from _smollm2 import Tokens, tokenizer

_REPOSITORY = Path(__file__).resolve().parent.parent.parent
LENGTHS = {
    "english": (1, 4, 16, 33, 90, 180, 400, 700, 1100, 1500),
    "chinese": (2, 8, 17, 40, 70, 150, 300, 500, 900, 1300),
    "code": (1, 6, 15, 31, 64, 130, 257, 600, 1000, 1400),
    "emoji": (3, 5, 9, 20, 32, 48, 100, 200, 350, 512),
}
CHINESE = (
    "第{}天，海边的老灯塔又亮了。守塔人把一天的风向、潮水和来往的船只都写进一本绿皮的本子里。"
    "九点钟风向转西，十点钟渔船开始返航；他数了两遍，一共{}艘。猫对船没有什么看法，只看着炉子。"
)
EMOJI = "{}: 🌊🐈🔥 then 🚢🚢 and 👩‍🚀👨‍👩‍👧‍👦 said 👍🏽 {} times, 🇫🇷🇯🇵 ✨ OK? 😀😅🤖 "


def texts() -> dict[str, str]:
    code = sorted((_REPOSITORY / "backend" / "inferx" / "engine").glob("s*.py"))
    return {
        "english": (_REPOSITORY / "LICENSE").read_text(),
        "chinese": "".join(CHINESE.format(day, 3 * day % 17) for day in range(1, 60)),
        "code": "".join(Path(path).read_text() for path in code),
        "emoji": "".join(EMOJI.format(i, i * i) for i in range(1, 60)),
    }


def prompts() -> list[tuple[str, Tokens]]:
    encode = tokenizer().encode
    return [
        (f"{language} {length}", encode(text, add_special_tokens=False)[:length])
        for language, text in texts().items()
        for length in LENGTHS[language]
    ]


@torch.inference_mode()
def distances(
    model: transformers.PreTrainedModel,
    prompt: Tokens,
    output: Tokens,
    frequency_penalty: float = 0,
) -> list[float]:
    """By how much each token of ours is less likely, in log-probability, than transformers'
    likeliest there, given our tokens before it; each time a token is among those, its logit is
    lower by the penalty."""
    ids = torch.tensor([prompt + output])
    logits = model(ids, logits_to_keep=len(output) + 1).logits[0, :-1].float()
    if frequency_penalty:
        places = torch.nn.functional.one_hot(torch.tensor(output), logits.shape[1])
        logits -= frequency_penalty * (places.cumsum(0) - places)
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(output).unsqueeze(1)).squeeze(1)
    return (logprobs.amax(-1) - chosen).tolist()
