"""Publishes a prompt of made-up vectors with the only active table, and prints how many of its tokens were there before."""
import array

import kvcobra

TOKENS = [n % 200 for n in range(300)]

with kvcobra.Client() as client:
    model = kvcobra.Model(client)
    g = model.geometry
    with kvcobra.Sequence(model, keys="after") as sequence:
        found = sequence.match(TOKENS)
        n = len(TOKENS) - found
        shape = [n, g.n_kv_heads, g.head_dim]
        numbers = array.array("f", [(i * 7 % 13 - 6) / 6 for i in range(n * g.n_kv_heads * g.head_dim)])
        vectors = memoryview(numbers).cast("B").cast("f", shape)
        for layer in range(g.n_layers):
            sequence.append(layer, vectors, vectors)
        sequence.commit(TOKENS)
print(found)
