/*
 * Reads a GGUF file of arbitrary bytes. If it is accepted, uses all values, the network with one row of every
 * matrix, and the tokeniser with a text.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/gguf.h"
#include "tools/engine/linear.h"
#include "tools/engine/network.h"
#include "tools/engine/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

static uint64_t sum_bytes(const void *p, size_t n)
{
    const uint8_t *b = p;
    uint64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += b[i];
    return sum;
}

static void walk_tensors(const struct gguf *g)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        char name[GGUF_NAME_MAX + 1];

        check(t->name_bytes > 0 && t->name_bytes <= GGUF_NAME_MAX);
        memcpy(name, t->name, t->name_bytes);
        name[t->name_bytes] = '\0';
        check(gguf_tensor_find(g, name) == t);
        if (t->data)
            sum += sum_bytes(t->data, t->bytes);
    }
    check(sum < UINT64_MAX);
}

static void walk_network(const struct gguf *g)
{
    struct network net = {0};
    struct errmsg e = {""};
    uint8_t digest[DIGEST_BYTES];

    if (network_init(&net, g, &e) == 0) {
        const struct matrix *all[] = {&net.embedding,      &net.output,       &net.layers[0].q,
                                      &net.layers[0].k,    &net.layers[0].v,  &net.layers[0].o,
                                      &net.layers[0].gate, &net.layers[0].up, &net.layers[0].down};

        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
            _cleanup_(freep) float *row = malloc(all[i]->n_cols * sizeof(*row));

            check(row != NULL);
            linear_rows(all[i], all[i]->n_rows - 1, 1, row);
        }
        check(network_digest(&net, g, NULL, NULL, digest, &e) == 0);
    } else {
        check(e.text[0] != '\0');
    }
    network_deinit(&net);
}

static void walk_tokenizer(const struct gguf *g)
{
    static const char text[] = "Two words, 12\n\n<|im_end|> \xff\xc3 caf\xc3\xa9";
    _cleanup_(tokenizer_freep) struct tokenizer *t = NULL;
    _cleanup_(freep) uint32_t *ids = NULL;
    struct errmsg e = {""};
    size_t n, bytes;

    if (tokenizer_new(g, &t, &e) < 0) {
        check(e.text[0] != '\0' && t == NULL);
        return;
    }
    check(tokenizer_encode(t, text, sizeof(text) - 1, true, &ids, &n, &e) == 0);
    for (size_t i = 0; i < n; i++)
        check(tokenizer_piece(t, ids[i], &bytes) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(gguf_freep) struct gguf *g = NULL;
    struct errmsg e = {""};

    if (gguf_parse(data, size, "input", &g, &e) < 0) {
        check(e.text[0] != '\0' && g == NULL);
        return 0;
    }
    walk_tensors(g);
    walk_network(g);
    walk_tokenizer(g);
    return 0;
}
