/* See seq_options.h. */
#include "client/sequence/seq_options.h"

#include <errno.h>

#include "client/connection/client.h"
#include "client/connection/client_ops.h"
#include "client/sequence/seq_ops.h"
#include "base/options.h"

static int seq_options_check(const struct kvc_client *c, const kvc_seq_options *o, struct errmsg *e)
{
    const struct seq_ops *ops = c->ops->seqs;

    if (o->salt_bytes > 0 && !o->salt)
        return fail(e, -EINVAL, "the salt is NULL, but has %zu bytes", o->salt_bytes);
    if (o->salt_bytes > KVC_SALT_BYTES_MAX)
        return fail(e, -EINVAL, "the salt has %zu bytes, at most %d are allowed: hash it", o->salt_bytes,
                    KVC_SALT_BYTES_MAX);
    if (o->keys > KVC_KEYS_AFTER_ROPE || o->pairs > KVC_PAIRS_INTERLEAVED)
        return fail(e, -EINVAL, "kvc_seq_options: keys is %u and pairs %u, each must be 0 or 1", o->keys,
                    o->pairs);
    if (o->flags & ~(KVC_SEQ_PUBLISH_ALL | KVC_SEQ_REPEATABLE | KVC_SEQ_COUNTED))
        return fail(e, -EINVAL, "kvc_seq_options: unknown flags in 0x%x", o->flags);
    if (o->fetch_ms > SEQ_FETCH_MS_MAX && o->fetch_ms != KVC_FETCH_NEVER)
        return fail(e, -EINVAL, "kvc_seq_options: fetch_ms is %u, it must be at most %d, or KVC_FETCH_NEVER",
                    o->fetch_ms, SEQ_FETCH_MS_MAX);
    if (!ops->takes_forms && (o->keys || o->pairs || o->flags & ~ops->flags))
        return fail(
            e, -EOPNOTSUPP,
            "keys after RoPE, interleaved pairs and flags of kvc_seq_options but KVC_SEQ_COUNTED need a "
            "client whose pages are in host memory; this client's are on a GPU");
    if (o->flags & ~ops->flags)
        return fail(e, -EOPNOTSUPP,
                    "KVC_SEQ_REPEATABLE is about attention, which a client on a GPU with its pages in host "
                    "memory does not compute");

    return 0;
}

uint32_t seq_options_fetch_ms(const kvc_seq_options *o)
{
    if (o->fetch_ms == KVC_FETCH_NEVER)
        return 0;
    return o->fetch_ms > 0 ? o->fetch_ms : SEQ_FETCH_MS;
}

int seq_options_read(struct kvc_client *c, const kvc_seq_options *o, kvc_seq_options *ret)
{
    int r;

    *ret = (kvc_seq_options){.struct_bytes = sizeof(*ret)};
    if (!o)
        return 0;

    r = options_read(ret, sizeof(*ret), o, sizeof(*ret), "kvc_seq_options", &c->error);
    if (r < 0)
        return r;

    return seq_options_check(c, ret, &c->error);
}
