#!/usr/bin/env python3
"""Writes two tasks for lm-evaluation-harness into a folder: recall (multiple choice) and recall_write (generation).

    recall_task.py FOLDER [QUESTIONS]

Each question is a text of some 400 tokens that says the numbers of four boxes, and asks for one of them. All sentences are our own.
"""
import json
import os
import random
import sys

COLOURS = ("red", "green", "blue", "yellow", "white", "black", "brown", "grey")
FILLER = (
    "The harbour was quiet before the boats came back.",
    "A long wall kept the wind away from the garden.",
    "Most of the windows on the north side were small.",
    "The road climbs slowly and then turns to the east.",
    "In the evening the kitchen smelled of bread.",
    "The clock above the door had stopped at noon.",
    "Two chairs stood beside the stove all winter.",
    "The path behind the barn is dry even after rain.",
    "The leaves lay in a heap behind the shed.",
    "The stairs were steep, and the rail was loose.",
)
N_BOXES, N_SENTENCES = 4, 30

YAML = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: {output}
doc_to_text: "{{{{text}}}}"
doc_to_target: "{target}"
{more}metric_list:
  - metric: {metric}
    aggregation: mean
    higher_is_better: true
"""
CHOICE = 'doc_to_choice: "{{choices}}"\ntarget_delimiter: " "\n'
WRITE = "target_delimiter: \" \"\ngeneration_kwargs:\n  until: [\".\", \",\", \"\\n\"]\n  max_gen_toks: 8\n  do_sample: false\n"
WRITE += "filter_list:\n  - name: words\n    filter:\n      - function: remove_whitespace\n      - function: take_first\n"


def question(number):
    """The same number gives the same question."""
    rng = random.Random(number)
    colours, codes = rng.sample(COLOURS, N_BOXES), [str(code) for code in rng.sample(range(1000, 10000), N_BOXES)]
    sentences = [rng.choice(FILLER) for _ in range(N_SENTENCES)]
    for colour, code in zip(colours, codes):
        sentences.insert(rng.randrange(len(sentences) + 1), f"The secret number of the {colour} box is {code}.")
    asked = f"secret number of the {colours[0]} box"
    choices = sorted(codes)
    return {"text": " ".join(sentences) + f"\n\nWhat is the {asked}? The {asked} is", "choices": choices,
            "answer": choices.index(codes[0]), "code": codes[0]}


def write(folder, n=40):
    os.makedirs(folder, exist_ok=True)
    file = os.path.join(os.path.abspath(folder), "recall.jsonl")
    with open(file, "w", encoding="utf-8") as out:
        for number in range(n):
            out.write(json.dumps(question(number)) + "\n")
    for name, output, target, more, metric in (("recall", "multiple_choice", "{{answer}}", CHOICE, "acc"),
                                               ("recall_write", "generate_until", "{{code}}", WRITE, "exact_match")):
        with open(os.path.join(folder, name + ".yaml"), "w", encoding="utf-8") as out:
            out.write(YAML.format(name=name, file=json.dumps(file), output=output, target=target, more=more, metric=metric))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    write(sys.argv[1], *map(int, sys.argv[2:]))
