"""Writes a checkpoint as a GGUF file that llama.cpp reads as a Llama with a `gpt2` tokenizer.

Usage: python -m training.courier_nano.export_gguf CHECKPOINT.pt MODEL.gguf
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from training.courier_nano import tokenizer as bpe
from training.courier_nano.model import Shape
from training.courier_nano.template import template_text

LAYER_NAMES = {
    "attention_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "out": "attn_output",
    "hidden_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def tensor_name(name: str) -> str:
    """llama.cpp's name of a weight."""
    match name.split("."):
        case ["embedding", "weight"]:
            return "token_embd.weight"
        case ["norm", "weight"]:
            return "output_norm.weight"
        case ["layers", layer, part, "weight"]:
            return f"blk.{layer}.{LAYER_NAMES[part]}.weight"
        case _:
            raise ValueError(f"no tensor of llama.cpp is known for {name}")


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Rows of q or k in llama.cpp's order: it rotates neighbours, where training rotates halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write(state: dict[str, Tensor], path: Path) -> None:
    """Writes the weights, in F16 where they are matrices, with tokenizer and template."""
    vocabulary = json.loads(bpe.TOKENIZER_PATH.read_text(encoding="utf-8"))
    shape = Shape(vocab=len(vocabulary["model"]["vocab"]))
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, shape)
    _add_tokenizer(writer, vocabulary)
    for name, weight in state.items():
        if name.endswith((".q.weight", ".k.weight")):
            weight = interleaved(weight, shape.heads)
        kind = np.float16 if weight.dim() == 2 else np.float32
        writer.add_tensor(tensor_name(name), weight.detach().float().numpy().astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name("courier-nano")
    writer.add_license("apache-2.0")
    writer.add_description("Carries packages in the courier world of Polystem, and does nothing else.")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_vocab_size(shape.vocab)


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: dict[str, Any]) -> None:
    ids: dict[str, int] = vocabulary["model"]["vocab"]
    kinds = dict.fromkeys(bpe.CONTROL, gguf.TokenType.CONTROL) | dict.fromkeys(
        bpe.USER_DEFINED, gguf.TokenType.USER_DEFINED
    )
    tokens = sorted(ids, key=ids.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["model"]["merges"]])
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_pad_token_id(ids["<|pad|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(template_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("gguf", type=Path)
    args = parser.parse_args()
    args.gguf.parent.mkdir(parents=True, exist_ok=True)
    write(torch.load(args.checkpoint)["model"], args.gguf)


if __name__ == "__main__":
    main()
