#!/usr/bin/env python3
"""Which names of pages in a cluster keep most of a prompt when a node is lost, without filling one node.

    python3 lab/bench/cluster_names.py

Each chunk's name is hashed to a slot of its own, so a prompt has chunks on all nodes and ends at the first one that is
lost. A hash tag that a group of chunks shares, the name of its first chunk, would keep a group together; but prompts with a
common beginning then share the node of the group in which they part. This replays prompts with a common beginning of some
tokens and prints, for each rule: the chunks that are still found with one node lost (mean over the nodes), and the bytes on the
fullest node over the mean.
"""
import hashlib

CHUNK = 64
CHUNKS = 48
PROMPTS = 1000
COMMON = (64, 512, 576, 2000)
RULES = {  # the first chunk of the group of chunk i
    "each chunk alone (as it is)": lambda i: i,
    "groups of 8": lambda i: i // 8 * 8,
    "groups of 16": lambda i: i // 16 * 16,
    "groups of 32": lambda i: i // 32 * 32,
    "0 to 3, 4 to 7, then of 8": lambda i: 0 if i < 4 else 4 if i < 8 else i // 8 * 8,
    "0 to 3, 4 to 15, then of 16": lambda i: 0 if i < 4 else 4 if i < 16 else i // 16 * 16,
    "0 to 3, 4 to 31, then of 32": lambda i: 0 if i < 4 else 4 if i < 32 else i // 32 * 32,
}


def prompts(common_tokens):
    """Names of the chunks of each prompt: chained, so that they are equal as far as the tokens are."""
    common = common_tokens // CHUNK
    shared = [f"{common_tokens} {i}" for i in range(common)]
    return [shared + [f"{common_tokens} {p} {i}" for i in range(common, CHUNKS)] for p in range(PROMPTS)]


def node_of(tag, n_nodes):
    return int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "little") % 16384 * n_nodes // 16384


def measure(rule, n_nodes, common_tokens):
    kept, pages = [0] * n_nodes, set()
    for names in prompts(common_tokens):
        nodes = [node_of(names[rule(i)], n_nodes) for i in range(CHUNKS)]
        pages.update(zip(names, nodes))
        for lost in range(n_nodes):
            kept[lost] += nodes.index(lost) if lost in nodes else CHUNKS
    load = [sum(1 for _, node in pages if node == k) for k in range(n_nodes)]
    return sum(kept) / n_nodes / PROMPTS, max(load) * n_nodes / sum(load)


def main():
    print(f"{PROMPTS} prompts of {CHUNKS} chunks of {CHUNK} tokens: chunks that are found with one node lost, fullest node / mean")
    for n_nodes in (3, 6):
        print(f"\n{n_nodes} nodes; common beginning" + "".join(f"{tokens:>10} tokens" for tokens in COMMON))
        for name, rule in RULES.items():
            cells = (measure(rule, n_nodes, tokens) for tokens in COMMON)
            print(f"{name:<32}" + "".join(f"{kept:>11.1f} {load:>5.2f}" for kept, load in cells))


main()
