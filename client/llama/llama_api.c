/* The calls of kvcobra-llama.h: sequences on one side, the bytes of a state (llama_state.h) on the other. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/options.h"
#include "client/llama/llama_state.h"
#include "client/sequence/seq.h"
#include "gpu/dtype.h"

enum {
    LLAMA_LAYOUT_OLDEST = sizeof(kvc_llama_layout), /* as in the first version */
    LLAMA_ALIGN = 4                                 /* of a state, and so of all its numbers */
};

static const char llama_layout_name[] = "kvc_llama_layout";

static struct llama_shape llama_shape_of(const struct kvc_model *m)
{
    return (struct llama_shape){
        .n_layers = m->geometry.n_layers, .n_kv_heads = m->shard.n_heads, .head_dim = m->geometry.d};
}

static int llama_check_pointer(const void *state, struct errmsg *e)
{
    if (!state || (uintptr_t) state % LLAMA_ALIGN != 0)
        return fail(e, -EINVAL, "the state is at address %p: it must be aligned to %d bytes", state,
                    LLAMA_ALIGN);

    return 0;
}

static int llama_check_seq(const struct kvc_seq *s)
{
    if (s->keys != KVC_KEYS_AFTER_ROPE)
        return fail(
            &s->model->client->error, -EINVAL,
            "the sequence has keys before RoPE, but a state of llama.cpp has keys after RoPE: make the "
            "sequence by kvc_seq_new_with() with keys = KVC_KEYS_AFTER_ROPE");

    return 0;
}

static int llama_parse(const struct kvc_model *m, const void *state, size_t state_bytes,
                       struct llama_state *ret)
{
    struct llama_shape shape = llama_shape_of(m);
    struct errmsg *e = &m->client->error;
    int r = llama_check_pointer(state, e);

    return r < 0 ? r : llama_state_parse(state, state_bytes, &shape, ret, e);
}

int kvc_llama_state_check(kvc_model *m, const void *state, size_t state_bytes, kvc_llama_layout *ret_layout)
{
    struct llama_state got;
    int r = m ? client_enter(m->client) : -EINVAL;

    if (r < 0)
        return r;
    if (!ret_layout)
        return fail(&m->client->error, -EINVAL, "kvc_llama_state_check: ret_layout is NULL");

    r = llama_parse(m, state, state_bytes, &got);
    if (r < 0)
        return r;

    return options_write(ret_layout, &got.layout, sizeof(got.layout), LLAMA_LAYOUT_OLDEST, llama_layout_name,
                         &m->client->error);
}

/* ---- reading ---- */

/* Tokens [first, n_tokens) of one layer of a text, which the state may have more of. */
struct llama_piece {
    const uint8_t *state;
    const struct llama_state *at;
    size_t n_numbers; /* per token */
    size_t first, n;
    void *turned; /* [n, n_numbers] for values that the state has transposed; NULL: it has not */
};

/* [n_numbers, all tokens] to [n, n_numbers] */
static void llama_turn(const struct llama_piece *p, const uint8_t *from)
{
    size_t n_all = p->at->layout.n_tokens;

    if (dtype_bytes(p->at->layout.dtype) == sizeof(uint32_t)) {
        const uint32_t *in = (const uint32_t *) from;
        uint32_t *out = p->turned;

        for (size_t i = 0; i < p->n_numbers; i++)
            for (size_t t = 0; t < p->n; t++)
                out[t * p->n_numbers + i] = in[i * n_all + p->first + t];
    } else {
        const uint16_t *in = (const uint16_t *) from;
        uint16_t *out = p->turned;

        for (size_t i = 0; i < p->n_numbers; i++)
            for (size_t t = 0; t < p->n; t++)
                out[t * p->n_numbers + i] = in[i * n_all + p->first + t];
    }
}

static int llama_append_layer(struct kvc_seq *s, const struct llama_piece *p, uint32_t layer)
{
    size_t skip = p->first * p->n_numbers * dtype_bytes(p->at->layout.dtype);
    const uint8_t *k = p->state + p->at->k + layer * p->at->step,
                  *v = p->state + p->at->v + layer * p->at->step;
    const void *values = v + skip;

    if (p->turned) {
        llama_turn(p, v);
        values = p->turned;
    }

    return kvc_seq_append(s, layer, (enum kvc_dtype) p->at->layout.dtype, k + skip, values, p->n);
}

/* A failure leaves all layers with the tokens before. */
static int llama_append(struct kvc_seq *s, const struct llama_piece *p)
{
    struct errmsg *e = &s->model->client->error, why;
    int r = 0;

    for (uint32_t layer = 0; r == 0 && layer < seq_n_layers(s); layer++)
        r = llama_append_layer(s, p, layer);
    if (r == 0)
        return 0;

    why = *e;
    (void) kvc_seq_truncate(s, p->first, &(size_t){0});
    *e = why;
    return r;
}

int kvc_llama_state_read(kvc_seq *s, const void *state, size_t state_bytes, size_t n_tokens)
{
    _cleanup_(freep) void *turned = NULL;
    struct llama_state got;
    struct llama_piece piece = {.state = state, .at = &got};
    struct llama_shape shape;
    struct errmsg *e;
    int r = seq_enter(s);

    if (r < 0)
        return r;

    e = &s->model->client->error;
    r = llama_check_seq(s);
    if (r == 0)
        r = llama_parse(s->model, state, state_bytes, &got);
    if (r < 0)
        return r;

    piece.first = seq_length(s);
    if (!seq_is_between_steps(s))
        return fail(e, -EINVAL,
                    "the layers of the sequence differ in length: finish the step or truncate it");
    if (n_tokens < piece.first || n_tokens > got.layout.n_tokens)
        return fail(e, -EINVAL, "%zu tokens: the sequence has %zu already, and the state has %u", n_tokens,
                    piece.first, got.layout.n_tokens);

    shape = llama_shape_of(s->model);
    piece.n = n_tokens - piece.first;
    piece.n_numbers = llama_row_numbers(&shape);
    if (got.layout.v_transposed) {
        /* no larger than the state */
        piece.turned = turned = malloc(piece.n * piece.n_numbers * dtype_bytes(got.layout.dtype) + 1);
        if (!turned)
            return fail(e, -ENOMEM, "out of memory for the values of %zu tokens", piece.n);
    }

    return llama_append(s, &piece);
}

/* ---- writing ---- */

/* A layout of the caller, and the places of its states. */
static int llama_plan(const struct kvc_model *m, const kvc_llama_layout *to, struct llama_state *ret,
                      size_t *ret_bytes)
{
    struct llama_shape shape = llama_shape_of(m);
    struct errmsg *e = &m->client->error;
    kvc_llama_layout layout;
    int r;

    if (!to)
        return fail(e, -EINVAL, "the layout of the state is NULL");

    r = options_read(&layout, sizeof(layout), to, LLAMA_LAYOUT_OLDEST, llama_layout_name, e);
    return r < 0 ? r : llama_state_plan(&layout, &shape, ret, ret_bytes, e);
}

int kvc_llama_state_bytes(kvc_model *m, const kvc_llama_layout *to, size_t *ret_bytes)
{
    struct llama_state plan;
    int r = m ? client_enter(m->client) : -EINVAL;

    if (r < 0)
        return r;
    if (!ret_bytes)
        return fail(&m->client->error, -EINVAL, "kvc_llama_state_bytes: ret_bytes is NULL");

    return llama_plan(m, to, &plan, ret_bytes);
}

/* Decodes the sides of @first_side to @last_side of all layers to their places. */
static int llama_read_sides(struct kvc_seq *s, const struct llama_state *plan, uint8_t *state, bool keys,
                            bool values)
{
    const kvc_llama_layout *layout = &plan->layout;
    uint32_t n_layers = seq_n_layers(s), d = s->model->geometry.d;
    _cleanup_(freep) void **bases = calloc(n_layers, 2 * sizeof(*bases));
    kvc_blocks to = {.struct_bytes = sizeof(to), .bases = bases, .dtype = layout->dtype};

    if (!bases)
        return fail(&s->model->client->error, -ENOMEM, "out of memory for %u layers", n_layers);

    for (size_t i = 0; i < n_layers; i++) {
        bases[2 * i + KVC_K] = keys ? state + plan->k + i * plan->step : NULL;
        bases[2 * i + KVC_V] = values ? state + plan->v + i * plan->step : NULL;
    }
    if (!keys) { /* values alone: transposed */
        to.token_stride = 1;
        to.dim_stride = layout->n_tokens;
        to.head_stride = (size_t) d * layout->n_tokens;
    }

    return kvc_seq_read_blocks(s, 0, layout->n_tokens, &to);
}

int kvc_llama_state_write(kvc_seq *s, const kvc_llama_layout *to, void *ret_state, size_t state_bytes)
{
    struct llama_state plan;
    struct llama_shape shape;
    struct errmsg *e;
    size_t bytes;
    int r = seq_enter(s);

    if (r < 0)
        return r;

    e = &s->model->client->error;
    r = llama_check_seq(s);
    if (r == 0)
        r = llama_plan(s->model, to, &plan, &bytes);
    if (r == 0)
        r = llama_check_pointer(ret_state, e);
    if (r < 0)
        return r;
    if (plan.layout.n_tokens > seq_length(s))
        return fail(e, -EINVAL, "a state of %u tokens: the sequence has %zu", plan.layout.n_tokens,
                    seq_length(s));
    if (state_bytes < bytes)
        return fail(e, -ENOSPC, "the state needs %zu bytes, the buffer has %zu", bytes, state_bytes);

    shape = llama_shape_of(s->model);
    llama_state_write_headers(&plan, &shape, ret_state);
    r = llama_read_sides(s, &plan, ret_state, true, !plan.layout.v_transposed);
    return r == 0 && plan.layout.v_transposed ? llama_read_sides(s, &plan, ret_state, false, true) : r;
}
