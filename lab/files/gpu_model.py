"""rigbook lab: a random Llama of 0.8B in bfloat16 with the lab's tokenizer.

`python3 gpu_model.py MAKE_TINY_MODEL.py FOLDER`. So large, that a card's memory gives a number of
cache blocks that vLLM can count: a tiny model's would be too many.
"""

import runpy
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

tokenizer = runpy.run_path(sys.argv[1])["make_tokenizer"]()
tokenizer.save_pretrained(sys.argv[2])
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
config = LlamaConfig(
    vocab_size=512, hidden_size=2048, intermediate_size=5632, num_hidden_layers=16,
    num_attention_heads=16, num_key_value_heads=16, head_dim=128, max_position_embeddings=2048,
    bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    tie_word_embeddings=False, dtype="bfloat16",
)  # fmt: skip
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
model.to("cpu").save_pretrained(sys.argv[2])
print("parameters:", sum(weight.numel() for weight in model.parameters()))
