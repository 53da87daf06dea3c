"""How AUTOMATIC1111 parses prompts, and the effect of weights on encoded texts.

Writes `tests/fixtures/prompts.json`: what its parser (`modules/prompt_parser.py` of a checkout of version 1.10 with lark
1.1.2) makes of texts, well-formed and random. Its reading of some malformed texts depends on the order in which
Python's sets happen to be: every text is read by several processes with different hash seeds, and kept where all agree.

Writes `tests/fixtures/prompts.safetensors`: weighted hidden states over the tiny models, by transformers and PyTorch; for
compel by the package `compel` 2.0.2.

`--webui DIR` is the checkout. Neither it nor lark nor compel is needed by the other parts.
"""

import json
import os
import random
import subprocess
import sys

HASH_SEEDS = range(24)
STEPS = 10

WELL_FORMED = [
    "test", "a [b:3]", "a [b: 3]", "a [[[b]]:2]", "[(a:2):3]", "a [b : c : 1] d", "a[b:[c:d:2]:1]e", "a [unbalanced",
    "a [b:.5] c", "a [{b|d{:.5] c", "((a][:b:c [d:3]", "[a|(b:1.1)]", "[fe|]male", "[fe|||]male", "[a:b:1.5]",
    "[a::4] [:b:.25]", "[a:b:-2]", "[a:b:+2]", "[a:b:1e0]", "[a:b:\t3 ]", "\\[a:b:3]", "[a\\]b:c:3]", "[a:b:3]\\", "a|b",
    "[a|b|[c:d:5]]", "[[a|b]:c:5]", "(a [b:c:5]:1.3)", "normal text", "an (important) word", "(unbalanced",
    "\\(literal\\]", "(unnecessary)(parens)", "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).", "(a:1.5) [b]",
    "(a: 1.5 )", "(a:-1)", "(a:.5)(b:1.)", "a:1.5)", "(a:b:1.5)", "a BREAK b", "BREAK", "a BREAK BREAK b", "(a BREAK b)",
    "aBREAK BREAKb", "a,BREAK,b", "a\\b", "\\\\(a)", "([a)]", "a AND b", "a :1.2 AND b : -.5", "a:1.5", "a: 2. ",
    "SAND AND ANDy", "AND", "a AND", "a:1:2 AND b:", "(a:1.2) AND [b:c:3]:0.5", "a\nAND b :2\n", "Café (naïve:1.2) [é:ü:3]",
]
PIECES = list("[]()::|ab ") + ["[", "]", ":", "1", ".5", "\\", "[a:b:3]", "[a|b]", "2", " AND ", " BREAK ", ":1.2", ",", "é"]

# Prompts whose weights are applied: spans of a text and a weight.
WEIGHTED = [
    [("a ", 1.0), ("red", 1.5), (" apple on a ", 1.0), ("table", 0.6)],
    [("a (cat)", 1.0), (" and a dog", 0.0), (", grass" * 40, 1.2), (" far away", 0.8)],
]
EMPHASES = ("original", "no-norm", "comfy", "compel")
MODELS = {"sd1": ("", "last"), "sdxl": ("_2", "penultimate")}


def texts():
    """The texts that are read: some written, some drawn."""
    draw = random.Random(8)
    drawn = ["".join(draw.choice(PIECES) for _ in range(draw.randint(1, 14))) for _ in range(700)]
    return WELL_FORMED + drawn


def read(webui):
    """Print, as JSON, what the parser in `webui` makes of every text. Runs in a process of its own."""
    sys.path.insert(0, webui)
    from modules import prompt_parser as parser

    for text in texts():
        [parts], flat, _ = parser.get_multicond_prompt_list([text])
        [schedule] = parser.get_learned_conditioning_prompt_schedules([text], STEPS)
        try:
            spans = parser.parse_prompt_attention(text)
        except ValueError:
            spans = None  # `(a:1.2.3)` stops it
        print(json.dumps([[[flat[i], weight] for i, weight in parts], schedule, spans]))


def parsed(webui):
    """The texts with what every process makes of them."""
    answers = []
    for seed in HASH_SEEDS:
        command = [sys.executable, __file__, str(webui)]
        run = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": str(seed)}, capture_output=True, check=True)
        answers.append([json.loads(line) for line in run.stdout.decode().splitlines()])
    rows = []
    for text, found in zip(texts(), zip(*answers, strict=True), strict=True):
        parts, schedule, spans = found[0]
        agreed = all(other[1] == schedule for other in found)
        rows.append({"text": text, "parts": parts, "schedule": schedule if agreed else None, "spans": spans})
    return rows


def weigh(states, empty, weights, emphasis):
    """Weighted states of one chunk `(77, d)`."""
    column = torch.tensor(weights)[:, None]
    if emphasis == "comfy":
        return (states - empty) * column + empty
    scaled = states * column
    return scaled * (states.mean() / scaled.mean()) if emphasis == "original" else scaled


def encode(model, ids, layer):
    """Hidden states of chunks of ids."""
    output = model(input_ids=torch.tensor(ids), output_hidden_states=True)
    return output.last_hidden_state if layer == "last" else output.hidden_states[-2]


def weighted():
    """The weighted states of every prompt, model and emphasis, and the ids and weights of its chunks."""
    from compel.embeddings_provider import EmbeddingsProvider

    class Provider(EmbeddingsProvider):
        """compel's arithmetic, on the requested layer, without a normalization for SDXL."""

        def _encode_token_ids_to_embeddings(self, token_ids, attention_mask=None):
            output = self.text_encoder(token_ids, attention_mask, output_hidden_states=True, return_dict=True)
            return output.last_hidden_state if self.kiln_layer == "last" else output.hidden_states[-2]

    tensors = {}
    for name, (suffix, layer) in MODELS.items():
        folder = common.MODELS / name
        tokenizer = common.CLIPTokenizer.from_pretrained(folder / f"tokenizer{suffix}")
        classes = {"": common.CLIPTextModel, "_2": common.CLIPTextModelWithProjection}
        model = classes[suffix].from_pretrained(folder / f"text_encoder{suffix}", dtype=torch.float32).eval()
        model.set_attn_implementation("eager")
        empty_ids = tokenizer("", padding="max_length")["input_ids"]
        empty = encode(model, [empty_ids], layer)[0]
        for k, spans in enumerate(WEIGHTED):
            tokens = [
                (token, weight)
                for text, weight in spans
                for token in tokenizer(text, add_special_tokens=False)["input_ids"]
            ]
            chunks = [tokens[start : start + 75] for start in range(0, len(tokens), 75)]
            ids, weights = [], []
            for chunk in chunks:
                pad = 75 - len(chunk)
                specials = [tokenizer.eos_token_id] + [tokenizer.pad_token_id] * pad
                ids.append([tokenizer.bos_token_id] + [token for token, _ in chunk] + specials)
                weights.append([1.0] + [weight for _, weight in chunk] + [1.0] * (1 + pad))
            states = encode(model, ids, layer)
            tensors[f"{name}.p{k}.ids"] = torch.tensor(ids)
            for emphasis in EMPHASES:
                if emphasis == "compel":
                    provider = Provider(tokenizer, model, truncate=False)
                    provider.kiln_layer = layer
                    fragments = [[text for text, _ in spans]], [[weight for _, weight in spans]]
                    found = provider.get_embeddings_for_weighted_prompt_fragments(*fragments)
                    found = found.reshape(states.shape)
                else:
                    found = torch.stack([weigh(z, empty, w, emphasis) for z, w in zip(states, weights, strict=True)])
                tensors[f"{name}.p{k}.{emphasis}"] = found
    return tensors


def main(webui):
    """Write the fixtures."""
    path = common.FIXTURES / "prompts.json"
    rows = [json.dumps(row, ensure_ascii=False) for row in parsed(webui)]
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    notes = {"prompts": json.dumps(WEIGHTED)}
    common.save_safetensors(common.FIXTURES / "prompts.safetensors", weighted(), notes)


if __name__ == "__main__":
    read(sys.argv[1])
else:
    import common
    import torch
