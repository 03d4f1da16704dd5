"""Records which beam each beam came from, in real beam searches: bench/beam_parents.json, which bench/paging.py replays.

    OMP_NUM_THREADS=1 python -m bench.record_beams --width 4

A few minutes for each width on one core; run it again only when another model should stand behind the figures. The
search is transformers' (the best continuations of all beams that do not end, in lockstep), in float32, with the end of
sequence left out so that every prompt gives the same number of steps.

The file: for each width a line for each prompt, a word for each step, and in it a digit for each beam, best first: the
position, before the step, of the beam that it extends.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from bench.report import say
from bench.serving import find_model

_FILE = Path(__file__).with_name("beam_parents.json")
_STEPS = 96
_PROMPTS = (
    "Give three tips for staying healthy.",
    "Explain why the sky is blue to a child of eight.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "What is the capital of France, and what is it known for?",
    "Describe the structure of an atom.",
    "How can we reduce air pollution in large cities? Name measures for traffic, heating and industry.",
    "Rewrite this sentence in the passive voice: The committee approved the new budget after a long debate.",
    "Translate into French: Good morning, I would like to book a table for two at seven o'clock this evening.",
    (
        "Summarise in two sentences: The steam engine, improved by James Watt in the eighteenth century, drove pumps, mills "
        "and later locomotives. It moved production from homes to factories, drew people to the cities and made long "
        "journeys short, and it filled the air of those cities with smoke."
    ),
    "Write a Python function that returns the n-th Fibonacci number, and explain its running time.",
    "You are given a list of numbers. Describe step by step how merge sort puts them in order.",
    "Compose a polite email that asks a colleague to review a document by Friday.",
    "List the planets of the solar system in order of their distance from the sun, with one fact about each.",
    "A train leaves at 9:15 and arrives at 11:50 after three stops of five minutes each. How long did it move?",
    "What are the differences between a virus and a bacterium? Answer in a table with three rows.",
    "Suggest a name and a slogan for a small bakery that bakes bread from old kinds of grain.",
    "Describe a walk through a forest in autumn. Use all five senses, and do not use the words leaf or tree.",
    "Explain how a bill becomes a law in a parliament with two chambers, and where it can fail on the way.",
    (
        "Continue the story: When Anna opened the door, the room was empty except for a chair, a lamp and the old clock "
        "that her grandfather had brought from the sea. It had stopped at ten past four, and under it lay a key."
    ),
    "Which of these does not belong, and why: apple, banana, carrot, cherry, pear?",
    "Write four lines that rhyme about a cat who is afraid of mice.",
    "Explain the difference between simple and compound interest with an example of 1,000 euros at 5 % for 3 years.",
    (
        "Give a recipe for tomato soup for four people: first the ingredients with amounts, then the steps in order, then "
        "what can be changed for those who do not eat dairy products."
    ),
    "What should one consider before adopting a dog from a shelter? Give arguments for and against.",
)


def main() -> None:
    """Records one width, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, choices=(2, 4, 6), action="append", help="beams (default: 2, 4 and 6)")
    parser.add_argument("--model", type=Path, help="a model's directory (default: SmolLM2-135M-Instruct)")
    flags = parser.parse_args()
    folder = flags.model or find_model()
    recorded = json.loads(_FILE.read_text()) if _FILE.exists() else {"widths": {}}
    recorded["source"] = f"SmolLM2-135M-Instruct in float32, transformers {transformers.__version__}"
    for width in flags.width or (2, 4, 6):
        began = time.perf_counter()
        recorded["widths"][str(width)] = _record(folder, width)
        say(f"width {width}: {len(_PROMPTS)} prompts, {_STEPS} steps in {time.perf_counter() - began:.0f} s")
        _FILE.write_text(json.dumps(recorded, indent=1) + "\n")


@torch.inference_mode()
def _record(folder: Path, width: int) -> list[str]:
    """The parents of all prompts, searched side by side: beams [prompts x width]."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    chats = [[{"role": "user", "content": prompt}] for prompt in _PROMPTS]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True
    )
    count = len(_PROMPTS)
    mask = inputs["attention_mask"].repeat_interleave(width, dim=0)
    output = model(**inputs, use_cache=True, logits_to_keep=1)
    cache = output.past_key_values
    cache.batch_repeat_interleave(width)
    # At first each prompt has one beam: the others, equal to it, are kept from winning.
    scores = torch.full((count, width), float("-inf"))
    scores[:, 0] = 0.0
    logits = output.logits[:, -1].repeat_interleave(width, dim=0)
    first = torch.arange(count)[:, None] * width  # the first row of each prompt
    steps = []
    for _ in range(_STEPS):
        logprobs = logits.log_softmax(-1)
        logprobs[:, tokenizer.eos_token_id] = float("-inf")
        vocabulary = logprobs.shape[-1]
        extended = (scores.view(-1, 1) + logprobs).view(count, width * vocabulary)
        scores, best = extended.topk(width, dim=-1)
        parents, tokens = best // vocabulary, best % vocabulary
        steps.append(parents.tolist())
        cache.reorder_cache((first + parents).view(-1))
        mask = torch.cat([mask, mask.new_ones(count * width, 1)], dim=1)
        output = model(
            input_ids=tokens.view(-1, 1),
            attention_mask=mask,
            position_ids=mask.sum(-1, keepdim=True) - 1,
            past_key_values=cache,
            use_cache=True,
        )
        logits = output.logits[:, -1]
    # The first step has no parents to choose from.
    return [" ".join("".join(map(str, step[prompt])) for step in steps[1:]) for prompt in range(count)]


if __name__ == "__main__":
    main()
