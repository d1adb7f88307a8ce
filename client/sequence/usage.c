/* See usage.h. The parts add up to the bytes that are held. */
#include "client/sequence/usage.h"

#include <errno.h>

#include "base/options.h"
#include "client/sequence/seq_ops.h"
#include "client/sequence/seq_tail.h"

uint64_t usage_exact_bytes(const struct kvc_seq *s, uint64_t tokens)
{
    return tokens * seq_n_layers(s) * s->model->shard.n_heads * seq_tail_width(s) * 2 * sizeof(uint16_t);
}

void usage_count_pages(const struct kvc_seq *s, kvc_usage *u)
{
    const struct page_layout *l = &s->table->layout;
    uint64_t slots = 0;
    size_t n_coded = seq_n_coded(s), n_packed = seq_n_packed(s), n_absent = 0;

    for (size_t i = 0; i < s->n_pages; i++) {
        if (s->pages[i]->place == PAGE_ABSENT) {
            n_absent++;
            continue;
        }

        slots += l->slot_bytes[s->pages[i]->class];
        if (page_is_shared(s->pages[i]))
            u->shared_bytes += l->slot_bytes[s->pages[i]->class];
    }

    n_coded -= n_absent;
    if (n_absent > 0)
        u->numbers -= u->numbers / u->tokens * n_absent * CHUNK_TOKENS;
    u->code_bytes = n_coded * CHUNK_TOKENS / 8 * s->table->code_bits;
    u->header_bytes = n_coded * PAGE_HEADER_BYTES;
    u->sink_bytes =
        n_coded > 0 && s->pages[0]->place != PAGE_ABSENT ? usage_exact_bytes(s, s->table->table->n_sink) : 0;
    u->padding_bytes = slots - u->code_bytes - u->header_bytes - u->sink_bytes;
    u->tail_bytes = usage_exact_bytes(s, u->tokens - n_packed * CHUNK_TOKENS);
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
    s->ops->count_usage(s, &u);
    for (unsigned side = 0; side < 2; side++) {
        u.coded[side] = s->table->counts[side].coords;
        u.saturated[side] = s->table->counts[side].saturated;
    }

    return options_write(ret_usage, &u, sizeof(u), offsetof(kvc_usage, coded), "kvc_usage",
                         &s->model->client->error);
}
