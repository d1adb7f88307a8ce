/* The compressed cache: a sequence of the client library, seen as the engine's cache. Nothing but kvcobra.h.
 */
#include "client/kvcobra.h"
#include "tools/engine/engine.h"
#include "tools/engine/engine_internal.h"
#include "tools/engine/threads.h"

/* The client keeps the sentence of a failure; the engine asks last_error() for it. */
static int append(void *ctx, uint32_t layer, const float *k, const float *v, size_t n, struct errmsg *e)
{
    (void) e;
    return kvc_seq_append(ctx, layer, KVC_F32, k, v, n);
}

static int attend(void *ctx, uint32_t layer, const float *q, size_t n_q, float *out, struct errmsg *e)
{
    (void) e;
    return kvc_seq_attend(ctx, layer, q, n_q, out);
}

static size_t length(void *ctx)
{
    return kvc_seq_length(ctx);
}

static const char *last_error(const void *client)
{
    return kvc_last_error(client);
}

struct kv_cache kvcobra_cache_ops(struct kvc_client *c, struct kvc_seq *s)
{
    return (struct kv_cache){
        .ctx = s,
        .append = append,
        .attend = attend,
        .length = length,
        .last_error = last_error,
        .error_ctx = c,
    };
}

static void run_on_threads(void *ctx, void (*task)(void *arg, size_t i, unsigned worker), void *arg,
                           size_t n_items)
{
    threads_run(ctx, task, arg, n_items);
}

int kvcobra_cache_lend_threads(const struct engine *en, struct kvc_client *c)
{
    const kvc_executor x = {
        .struct_bytes = sizeof(x),
        .ctx = en->threads,
        .run = run_on_threads,
        .n_workers = threads_count(en->threads),
    };

    return kvc_client_set_executor(c, &x);
}
