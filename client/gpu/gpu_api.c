/* A client on a GPU: choosing the device and the stream, waiting. */
#include <errno.h>

#include "client/connection/client.h"
#include "client/model/model.h"
#include "client/connection/options.h"
#include "client/sequence/seq.h"
#include "client/gpu/seq_gpu.h"

int kvc_client_set_gpu(kvc_client *c, const kvc_gpu_options *o)
{
    kvc_gpu_options local;
    int r;

    if (!c)
        return -EINVAL;
    r = client_enter(c);
    if (r < 0)
        return r;
    if (!o)
        return fail(&c->error, -EINVAL, "kvc_client_set_gpu: options are NULL");
    r = options_read(&local, sizeof(local), o, sizeof(local), "kvc_gpu_options", &c->error);
    if (r < 0)
        return r;
    if (c->gpu)
        return fail(&c->error, -EBUSY, "this client is on %s already: use a client per GPU", c->gpu->uuid);
    if (c->workers.executor.run)
        return fail(&c->error, -EBUSY,
                    "this client has an executor, and threads have nothing to do on a GPU: "
                    "kvc_client_set_executor(c, NULL) takes it away");
    if (c->connection.greeted || c->models)
        return fail(&c->error, -EBUSY, "this client %s: choose its GPU before",
                    c->models ? "has models" : "is connected");
    r = gpu_open(local.uuid, local.stream, &c->gpu, &c->error);
    if (r < 0)
        return r;
    c->extents.gpu = c->gpu;
    connection_set_device(&c->connection, c->gpu->uuid);
    return 0;
}

/* First statements of a call that only a client on a GPU may make. */
static int gpu_api_enter(kvc_client *c, const char *what)
{
    int r = c ? client_enter(c) : -EINVAL;

    if (r == 0 && !c->gpu)
        return fail(&c->error, -EINVAL, "%s: this client has no GPU: call kvc_client_set_gpu() first", what);
    return r;
}

int kvc_client_set_stream(kvc_client *c, void *stream)
{
    int r = gpu_api_enter(c, "kvc_client_set_stream");

    return r < 0 ? r : gpu_set_stream(c->gpu, stream, &c->error);
}

/* Every sequence is judged; the sentence is that of the first at fault. */
static int gpu_api_judge_all(struct kvc_client *c)
{
    struct errmsg first = {""};
    int r = 0;

    for (struct kvc_model *m = c->models; m; m = m->next)
        for (struct kvc_seq *s = m->seqs; s; s = s->next)
            if (seq_gpu_judge(s) < 0 && r == 0) {
                r = -EINVAL;
                first = c->error;
            }
    if (r < 0)
        c->error = first;
    return r;
}

int kvc_client_synchronize(kvc_client *c)
{
    int r = gpu_api_enter(c, "kvc_client_synchronize");

    if (r == 0)
        r = gpu_flags_read(c->gpu, &c->error);
    return r < 0 ? r : gpu_api_judge_all(c);
}
