/*
 * llama_state_parse() on arbitrary bytes, for two models. An accepted state must be what llama_state_plan()
 * and llama_state_write_headers() make of its layout, except for ids and for the stream that has the cells.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "client/llama/llama_state.h"
#include "gpu/dtype.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

/* Offset of the numbers of layer @i of keys, then of values. */
static size_t numbers_at(const struct llama_state *state, const struct llama_shape *shape, uint32_t i)
{
    return i < shape->n_layers ? state->k + i * state->step : state->v + (i - shape->n_layers) * state->step;
}

/* Writes the state again, from its layout and its numbers. */
static void rewrite(const uint8_t *data, size_t size, const struct llama_shape *shape,
                    const struct llama_state *got)
{
    size_t n_numbers = got->layout.n_tokens * llama_row_numbers(shape) * dtype_bytes(got->layout.dtype);
    _cleanup_(freep) uint8_t *again = malloc(size);
    struct llama_state plan, parsed;
    struct errmsg e = {""};
    size_t bytes;

    check(llama_state_plan(&got->layout, shape, &plan, &bytes, &e) == 0 && bytes == size);
    check(plan.step == got->step && plan.k <= got->k && got->k <= size);
    check(again != NULL);
    llama_state_write_headers(&plan, shape, again);
    for (uint32_t i = 0; i < 2 * shape->n_layers; i++) {
        size_t from = numbers_at(got, shape, i), to = numbers_at(&plan, shape, i);

        check(from <= size && n_numbers <= size - from && from % 4 == 0);
        check(memcmp(again + to - 12, data + from - 12, 12) == 0); /* the header of the layer */
        memcpy(again + to, data + from, n_numbers);
    }
    check(llama_state_parse(again, size, shape, &parsed, &e) == 0);
    check(memcmp(&parsed, &plan, sizeof(plan)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct llama_shape shapes[] = {{2, 1, 32}, {1, 2, 64}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct llama_state got;
        struct errmsg e = {""};
        int r = llama_state_parse(data, size, &shapes[i], &got, &e);

        check(r == 0 || e.text[0] != '\0');
        if (r == 0)
            rewrite(data, size, &shapes[i], &got);
    }
    return 0;
}
