"""A model over windows of text: prefills of one length, on the kernels' references.

The first tokens of a window are its context. They stand for a prompt, whose prefill is dense: they
are never masked, measured or scored. The rest of the window stands for decoded tokens.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from inferx.errors import SparsityError
from inferx.model.activations import Activations
from inferx.model.batch import ForwardBatch, KVCache
from inferx.model.footprint import dtype_name
from inferx.model.llama import LlamaForCausalLM
from inferx.model.loading import LoadedModel
from inferx.perplexity import surprise, windows
from inferx.text.tokenizer import Tokenizer

WINDOW = 512  # tokens
CONTEXT = 128  # of them
COUNTED = WINDOW - CONTEXT
_CHARACTERS = 16  # a token, at most, of any text worth measuring: more of the text is not encoded

Window = list[int]


class Text:
    """A text in two halves that share no token: thresholds are found on the first, and judged on
    the second."""

    def __init__(self, text: str, tokenizer: Tokenizer, name: str) -> None:
        self._text, self._tokenizer, self._name = text, tokenizer, name

    def whole(self, num_tokens: int) -> list[Window]:
        return self._windows(self._text, num_tokens, "")

    def calibration(self, num_tokens: int) -> list[Window]:
        return self._windows(self._text[: len(self._text) // 2], num_tokens, "half of ")

    def held_out(self, num_tokens: int) -> list[Window]:
        return self._windows(self._text[len(self._text) // 2 :], num_tokens, "half of ")

    def _windows(self, text: str, num_tokens: int, which: str) -> list[Window]:
        """As many as count `num_tokens`, context excluded. Raises SparsityError."""
        count = max(2, -(-num_tokens // COUNTED))  # two: one has no standard error
        part = text[: count * WINDOW * _CHARACTERS]
        found = windows(self._tokenizer.encode(part, add_special_tokens=False), WINDOW)
        if len(found) < count:
            raise SparsityError(
                f"{which}{self._name} has {len(found)} windows of {WINDOW} tokens, and "
                f"{num_tokens} tokens to count take {count}: give a longer text, or lower --tokens"
            )
        return found[:count]


def data_hash(texts: Sequence[Window]) -> str:
    return hashlib.sha256(array("q", [token for text in texts for token in text])).hexdigest()


class WindowedModel:
    """A Llama-like model that computes one window at a time."""

    def __init__(self, loaded: LoadedModel) -> None:
        assert isinstance(loaded.model, LlamaForCausalLM)
        self.model = loaded.model
        self.config = loaded.config
        self.dtype = dtype_name(loaded.dtype)
        self.device = device = loaded.device
        shape = (1, WINDOW, self.config.num_kv_heads, self.config.head_dim)
        # A layer reads what it wrote just before, so that all can share one page
        self._kv = KVCache(
            *(torch.zeros(shape, dtype=loaded.kv_dtype, device=device) for _ in "kv")
        )
        places = torch.arange(WINDOW, device=device)
        length = torch.tensor([WINDOW], dtype=torch.int32, device=device)
        self._batch = ForwardBatch(
            token_ids=places,
            positions=places,
            slot_mapping=places,
            query_start=torch.tensor([0, WINDOW], dtype=torch.int32, device=device),
            seq_lens=length,
            block_table=torch.zeros(1, 1, dtype=torch.int32, device=device),
            logits_indices=places,
            num_decodes=0,
            max_query_len=WINDOW,
            max_seq_len=WINDOW,
        )

    @torch.inference_mode()
    def hidden(self, window: Window, activations: Activations | None = None) -> Tensor:
        """The final norm's output: [WINDOW, hidden_size]."""
        ids = torch.tensor(window, device=self.device)
        batch = self._batch._replace(token_ids=ids)
        return self.model.forward(batch, [self._kv] * self.config.num_layers, activations)

    @torch.inference_mode()
    def surprise(self, window: Window, activations: Activations | None = None) -> float:
        """The mean -log p of the tokens that follow counted ones."""
        hidden = self.hidden(window, activations)[CONTEXT:]
        return surprise(hidden, self.model.logits, window[CONTEXT:]) / (COUNTED - 1)

    def embed(self, window: Window) -> Tensor:
        """What the first layer gets: [WINDOW, hidden_size]."""
        return self.model.embed_tokens(torch.tensor(window, device=self.device))

    @torch.inference_mode()
    def block(self, index: int, x: Tensor, activations: Activations | None = None) -> Tensor:
        """One layer with its norms and residual additions, on [WINDOW, hidden_size]."""
        layer = self.model.layers[index]
        step = self.model.step(self._batch, self._kv, activations)
        residual = x.clone()
        attended = layer.attention(layer.input_norm(x), step, self._kv)
        normed = layer.post_attention_norm.add(attended, residual)
        return residual.add_(layer.mlp(normed, step))
