/* See seq.h. */
#include "client/sequence/seq.h"

#include <errno.h>

#include "client/sequence/seq_ops.h"
#include "client/sequence/seq_window.h"

int seq_enter(struct kvc_seq *s)
{
    int r = s ? client_enter(s->model->client) : -EINVAL;

    return r < 0 ? r : seq_check_no_fetch(s);
}

int seq_check_no_fetch(const struct kvc_seq *s)
{
    if (!s->fetch)
        return 0;

    return fail(&s->model->client->error, -EBUSY,
                "a fetch of this sequence exists: call kvc_fetch_free() before other calls");
}

int seq_check_whole(const struct kvc_seq *s)
{
    if (s->first_lost == SIZE_MAX)
        return s->ops->check_sound(s);

    return fail(&s->model->client->error, -ESTALE,
                "pages of this sequence were lost with the daemon from token %zu on: truncate it to that or "
                "less and compute the rest again",
                s->first_lost * CHUNK_TOKENS);
}

int seq_check_position(const struct kvc_seq *s, size_t position)
{
    if (position >= s->first_read * CHUNK_TOKENS)
        return 0;

    return fail(
        &s->model->client->error, -EINVAL,
        "position %zu: the sequence was matched for a window of %u tokens and has no tokens before %zu",
        position, s->window, s->first_read * CHUNK_TOKENS);
}

size_t seq_length(const struct kvc_seq *s)
{
    size_t length = SIZE_MAX;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].length < length)
            length = s->layers[i].length;
    return length;
}

bool seq_is_between_steps(const struct kvc_seq *s)
{
    for (uint32_t i = 1; i < seq_n_layers(s); i++)
        if (s->layers[i].length != s->layers[0].length)
            return false;
    return true;
}

size_t seq_n_packed(const struct kvc_seq *s)
{
    size_t n = SIZE_MAX;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].n_packed < n)
            n = s->layers[i].n_packed;
    return n;
}

size_t seq_n_coded(const struct kvc_seq *s)
{
    return seq_codes_at_once(s) ? seq_length(s) / CHUNK_TOKENS : seq_n_packed(s);
}

size_t seq_n_packed_most(const struct kvc_seq *s)
{
    size_t n = 0;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].n_packed > n)
            n = s->layers[i].n_packed;
    return n;
}

size_t seq_n_encoded_most(const struct kvc_seq *s)
{
    size_t n = 0;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].n_packed + s->layers[i].n_ahead > n)
            n = s->layers[i].n_packed + s->layers[i].n_ahead;
    return n;
}

size_t seq_cut(struct kvc_seq *s, size_t n)
{
    size_t length = seq_length(s), n_packed = seq_n_packed_most(s);

    if (n > length)
        n = length;
    if (n < n_packed * CHUNK_TOKENS) {
        n = n / CHUNK_TOKENS * CHUNK_TOKENS;
        n_packed = n / CHUNK_TOKENS;
    }
    if (seq_window_first(s->window, n) < s->first_read)
        n = n_packed = 0;
    if (n == 0)
        s->first_read = 0;

    for (uint32_t i = 0; i < seq_n_layers(s); i++) {
        s->layers[i].length = n;
        if (s->layers[i].n_packed > n_packed)
            s->layers[i].n_packed = n_packed;
        if ((s->layers[i].n_packed + s->layers[i].n_ahead) * CHUNK_TOKENS > n)
            s->layers[i].n_ahead = 0; /* other rows will fill the chunk */
    }

    if (s->n_matched > n / CHUNK_TOKENS)
        s->n_matched = n / CHUNK_TOKENS;
    return n;
}

size_t kvc_seq_length(const kvc_seq *s)
{
    return s && client_is_ours(s->model->client) ? seq_length(s) : 0;
}
