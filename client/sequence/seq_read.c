/* Reading a sequence back: checks arguments, then calls the operations of the sequence (seq_ops.h). */
#include <errno.h>

#include "client/sequence/seq.h"
#include "client/sequence/seq_ops.h"

int kvc_seq_read(kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n, float *out)
{
    int r = seq_enter(s);
    struct errmsg *e;

    if (r < 0)
        return r;

    e = &s->model->client->error;
    if (layer >= seq_n_layers(s) || (side != KVC_K && side != KVC_V))
        return fail(e, -EINVAL, "layer %u, side %d: the model has %u layers, sides are KVC_K and KVC_V",
                    layer, (int) side, seq_n_layers(s));
    if (first > s->layers[layer].length || n > s->layers[layer].length - first)
        return fail(e, -EINVAL, "positions %zu to %zu: layer %u has %zu tokens", first, first + n, layer,
                    s->layers[layer].length);
    if (n == 0)
        return 0;
    if (!out)
        return fail(e, -EINVAL, "kvc_seq_read: out is NULL");

    r = seq_check_whole(s);
    if (r < 0)
        return r;

    return s->ops->read(s, layer, side, first, n, out);
}
