/* How many bytes a sequence takes, by what they are for. The sum is what is held, to the byte. */
#include <errno.h>

#include "client/connection/client.h"
#include "client/connection/options.h"
#include "client/sequence/seq.h"

static uint64_t usage_exact_bytes(const struct kvc_seq *s, uint64_t tokens)
{
    return tokens * seq_n_layers(s) * s->model->shard.n_heads * s->model->geometry.d * 2 * sizeof(uint16_t);
}

/*
 * A sequence of the product: slots of its pages, claimed ones included, and its tail. Whatever of a slot is
 * neither header, sinks nor codes is padding.
 */
static void usage_count_product(const struct kvc_seq *s, kvc_usage *u)
{
    const struct page_layout *l = &s->table->layout;
    uint64_t slots = 0;
    size_t n_packed = seq_n_packed(s);

    for (size_t i = 0; i < s->n_pages; i++) {
        slots += l->slot_bytes[s->pages[i]->class];
        if (page_is_shared(s->pages[i]))
            u->shared_bytes += l->slot_bytes[s->pages[i]->class];
    }
    u->code_bytes = n_packed * CHUNK_TOKENS / 8 * s->table->code_bits;
    u->header_bytes = n_packed * PAGE_HEADER_BYTES;
    u->sink_bytes = n_packed > 0 ? usage_exact_bytes(s, s->table->table->n_sink) : 0;
    u->padding_bytes = slots - u->code_bytes - u->header_bytes - u->sink_bytes;
    u->tail_bytes = usage_exact_bytes(s, u->tokens - n_packed * CHUNK_TOKENS);
}

/*
 * An evaluation sequence: what the product would hold with its n_sink and n_recent. A last chunk that is not
 * full is charged its tokens' codes, and a header and the rounding of a slot.
 */
static void usage_count_eval(const struct kvc_seq *s, kvc_usage *u)
{
    const struct page_layout *l = &s->table->layout;
    uint64_t tail = eval_tail_tokens(s), packed = u->tokens - tail, n_sink = eval_n_sink(s);
    uint64_t n_pages = (packed + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    uint64_t padding_bits = packed * s->table->padding_bits;

    u->code_bytes = (packed * s->table->code_bits + 7) / 8;
    u->header_bytes = n_pages * PAGE_HEADER_BYTES;
    u->sink_bytes = usage_exact_bytes(s, packed < n_sink ? packed : n_sink);
    u->padding_bytes =
        (padding_bits + 7) / 8 + n_pages * (l->slot_bytes[PAGE_REST] - l->page_bytes[PAGE_REST]);
    u->tail_bytes = usage_exact_bytes(s, tail);
}

int kvc_seq_get_usage(kvc_seq *s, kvc_usage *ret_usage)
{
    kvc_usage u = {.struct_bytes = sizeof(u)};
    int r = seq_enter(s);

    if (r < 0)
        return r;
    if (!ret_usage)
        return fail(&s->model->client->error, -EINVAL, "kvc_seq_get_usage: ret_usage is NULL");
    u.tokens = seq_length(s);
    u.numbers = u.tokens * seq_n_layers(s) * s->model->shard.n_heads * s->model->geometry.d * 2;
    if (s->eval)
        usage_count_eval(s, &u);
    else
        usage_count_product(s, &u);
    return options_write(ret_usage, &u, sizeof(u), sizeof(u), "kvc_usage", &s->model->client->error);
}
