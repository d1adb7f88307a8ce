/* The compressed cache: a sequence of the client library as a struct kv_cache. Uses only kvcobra.h. */
#include "client/kvcobra.h"
#include "tools/engine/engine.h"
#include "tools/engine/engine_internal.h"
#include "base/threads.h"

/* The client has the sentence of a failure; the engine gets it from cache_kvcobra_last_error(). */
static int cache_kvcobra_append(void *ctx, uint32_t layer, const float *k, const float *v, size_t n,
                                struct errmsg *e)
{
    (void) e;
    return kvc_seq_append(ctx, layer, KVC_F32, k, v, n);
}

static int cache_kvcobra_attend(void *ctx, uint32_t layer, const float *q, size_t n_q, float *out,
                                struct errmsg *e)
{
    (void) e;
    return kvc_seq_attend(ctx, layer, q, n_q, out);
}

static size_t cache_kvcobra_length(void *ctx)
{
    return kvc_seq_length(ctx);
}

static const char *cache_kvcobra_last_error(const void *client)
{
    return kvc_last_error(client);
}

struct kv_cache kvcobra_cache_ops(struct kvc_client *c, struct kvc_seq *s)
{
    return (struct kv_cache){
        .ctx = s,
        .append = cache_kvcobra_append,
        .attend = cache_kvcobra_attend,
        .length = cache_kvcobra_length,
        .last_error = cache_kvcobra_last_error,
        .error_ctx = c,
    };
}

static void cache_kvcobra_run_on_threads(void *ctx, void (*task)(void *arg, size_t i, unsigned worker),
                                         void *arg, size_t n_items)
{
    threads_run(ctx, task, arg, n_items);
}

int kvcobra_cache_lend_threads(const struct engine *en, struct kvc_client *c)
{
    const kvc_executor x = {
        .struct_bytes = sizeof(x),
        .ctx = en->threads,
        .run = cache_kvcobra_run_on_threads,
        .n_workers = threads_count(en->threads),
    };

    return kvc_client_set_executor(c, &x);
}
