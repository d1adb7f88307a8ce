/* See seq_sound.h. */
#include "client/gpu/seq_sound.h"

#include <errno.h>
#include <inttypes.h>

#include "client/gpu/gpu_memory.h"
#include "client/sequence/seq.h"

static struct gpu *seq_sound_gpu_of(const struct kvc_seq *s)
{
    return s->model->client->gpu;
}

int seq_sound_init(struct gpu *g, struct seq_sound *x, struct errmsg *e)
{
    int r = gpu_flag_take(g, &x->flag, e);

    if (r < 0)
        return r;

    x->has_flag = true;
    return 0;
}

void seq_sound_deinit(struct gpu *g, struct seq_sound *x)
{
    if (x->has_flag)
        gpu_flag_drop(g, x->flag);
    x->has_flag = false;
}

int seq_sound_copy(struct gpu *g, struct seq_sound *to, const struct seq_sound *from, struct errmsg *e)
{
    to->n_sound = from->n_sound;
    return gpu_copy(g, gpu_flag_address(g, to->flag), gpu_flag_address(g, from->flag), sizeof(uint32_t), e);
}

/* Tokens in leading pages of the pool: their inputs were checked before they were published. Absent pages
 * have no inputs. */
static size_t seq_sound_n_published_tokens(const struct kvc_seq *s)
{
    size_t n = 0, packed = seq_n_packed(s);

    while (n < packed && !page_is_private(s->pages[n]))
        n++;
    return n * CHUNK_TOKENS;
}

int seq_sound_lengths_changed(const struct kvc_seq *s, struct seq_sound *x)
{
    static const uint32_t lowered = 0;
    size_t length = seq_length(s), published = seq_sound_n_published_tokens(s);
    struct gpu *g = seq_sound_gpu_of(s);
    struct errmsg *e = &s->model->client->error;

    if (x->is_faulty && length <= x->n_sound) { /* the faulty tokens were cut off */
        int r = cuda_write_words(g->kernels, gpu_flag_address(g, x->flag), &lowered, sizeof(lowered),
                                 g->stream, e);

        r = gpu_result(g, r, e);
        if (r < 0)
            return r;

        x->is_faulty = false;
    }

    if (!x->is_faulty && length < x->n_sound)
        x->n_sound = length;
    if (!x->is_faulty && published > x->n_sound)
        x->n_sound = published;
    return 0;
}

int seq_sound_check(const struct kvc_seq *s, const struct seq_sound *x)
{
    if (!x->is_faulty)
        return 0;

    return fail(
        &s->model->client->error, -EINVAL,
        "sequence %" PRIu64
        " of its model: a key or value from token %zu on was NaN, infinite or too large for binary16%s: "
        "truncate it to that length or less, or free it",
        s->number, x->n_sound, s->gpu ? ", or a graph was launched without kvc_seq_replay()" : "");
}

int seq_sound_update(const struct kvc_seq *s, struct seq_sound *x)
{
    if (!x->is_faulty && gpu_flag_is_raised(seq_sound_gpu_of(s), x->flag))
        x->is_faulty = true;
    if (!x->is_faulty)
        x->n_sound = seq_length(s);

    return seq_sound_check(s, x);
}
