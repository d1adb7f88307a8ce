/* The client handle: birth, connection, last words, death. */
#include "client/connection/client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/model/model.h"
#include "client/connection/options.h"
#include "client/connection/reconnect.h"
#include "client/sequence/seq.h"
#include "client/gpu/seq_gpu.h"

enum { GPU_OPENING_MS = 10000, GPU_OPENING_STEP_MS = 50 };

const char *kvc_version(void)
{
    return KVC_VERSION_STRING;
}

/* A page that the kernel empties in a child: asking it costs a load, where getpid() would cost a system call.
 */
static volatile uint8_t *client_mark_process(void)
{
    size_t bytes = (size_t) sysconf(_SC_PAGESIZE);
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    if (madvise(p, bytes, MADV_WIPEONFORK) < 0) {
        (void) munmap(p, bytes);
        return NULL;
    }
    *p = 1;
    return p;
}

int kvc_client_new(kvc_client **ret_client)
{
    struct kvc_client *c;

    if (!ret_client)
        return -EINVAL;
    c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->alive = client_mark_process();
    if (!c->alive) {
        free(c);
        return -ENOMEM;
    }
    connection_init(&c->connection);
    workers_init(&c->workers);
    *ret_client = c;
    return 0;
}

int client_enter(struct kvc_client *c)
{
    struct session_page *page;

    if (!*c->alive)
        return fail(&c->error, -ECHILD, "this handle was made before fork(): make a new client in the child");
    errmsg_clear(&c->error);
    page = session_page(&c->session);
    if (page) /* ours alone to write; the daemon looks whether it moved */
        atomic_fetch_add_explicit(&page->renewals, 1, memory_order_relaxed);
    return c->gpu ? gpu_check(c->gpu, &c->error) : 0;
}

static void client_tell_pages(struct kvc_client *c)
{
    for (struct kvc_model *m = c->models; m; m = m->next)
        for (struct kvc_seq *s = m->seqs; s; s = s->next)
            if (s->gpu)
                (void) seq_gpu_refresh(s); /* tried again by whatever reads them */
}

void client_flush(struct kvc_client *c)
{
    if (c->gpu) {
        if (gpu_is_capturing(
                c->gpu)) /* what is told now every launch of the graph would tell again; later, then */
            return;
        client_tell_pages(c);
        if ((leases_have_released(&c->leases) || extents_have_unused(&c->extents)) &&
            gpu_synchronize(c->gpu, NULL) < 0)
            return;
        extents_trim(&c->extents);
    }
    leases_flush(&c->leases, &c->connection);
}

int client_enter_connected(struct kvc_client *c)
{
    int r = c ? client_enter(c) : -EINVAL;

    return r < 0 ? r : client_revive(c);
}

static int client_try_to_connect(struct kvc_client *c, const char *path)
{
    return c->connection.greeted ? client_reconnect(c) : connection_open(&c->connection, path, &c->error);
}

/* A daemon opens a GPU when somebody asks for it, which takes it a while. */
static int client_connect_patiently(struct kvc_client *c, const char *path)
{
    int64_t end_ms = clock_ms() + GPU_OPENING_MS;
    int r = client_try_to_connect(c, path);

    while (r == -EAGAIN && c->gpu && clock_ms() < end_ms) {
        (void) poll(NULL, 0, GPU_OPENING_STEP_MS);
        r = client_try_to_connect(c, path);
    }
    return r;
}

int kvc_client_connect(kvc_client *c, const char *path)
{
    int r;

    if (!c)
        return -EINVAL;
    r = client_enter(c);
    if (r < 0)
        return r;
    if (!c->connection.greeted)
        return client_connect_patiently(c, path);
    connection_check(&c->connection, true);
    if (connection_is_open(&c->connection) || !connection_is_to(&c->connection, path))
        return fail(&c->error, -EISCONN, "this client %s kvcobrad at %s: use a new client",
                    connection_is_open(&c->connection) ? "is already connected to" : "belongs to",
                    c->connection.path);
    return client_connect_patiently(c, path);
}

int kvc_client_get_info(kvc_client *c, kvc_client_info *ret_info)
{
    kvc_client_info info = {.struct_bytes = sizeof(info)};
    const struct connection *conn;
    int r;

    if (!c)
        return -EINVAL;
    r = client_enter(c);
    if (r < 0)
        return r;
    if (!ret_info)
        return fail(&c->error, -EINVAL, "kvc_client_get_info: ret_info is NULL");
    connection_check(&c->connection, true);
    conn = &c->connection;
    info.connected = connection_is_open(conn);
    info.resumed = conn->resumed;
    info.session = conn->session;
    info.n_reconnects = c->n_reconnects;
    info.n_failed = info.connected ? 0 : conn->backoff.n_failed;
    if (!info.connected && conn->greeted && !backoff_is_over(&conn->backoff, clock_ms()))
        info.retry_ms = (uint32_t) (conn->backoff.next_ms - clock_ms());
    memcpy(info.boot_id, conn->boot_id, sizeof(info.boot_id));
    return options_write(ret_info, &info, sizeof(info), sizeof(info), "kvc_client_info", &c->error);
}

const char *kvc_last_error(const kvc_client *c)
{
    if (!c)
        return "the client handle is NULL";
    return c->error.text[0] ? c->error.text : "no error";
}

static void client_free_free_pages(struct kvc_client *c)
{
    while (c->free_pages) {
        struct page *p = c->free_pages;

        c->free_pages = p->next;
        free(p);
    }
}

kvc_client *kvc_client_free(kvc_client *c)
{
    bool quiet;

    if (!c)
        return NULL;
    if (!client_is_ours(c)) {
        /* The mappings are the parent's and do not exist here; its conversation must not be touched. What can
         * be given up is the descriptor: while we hold it, the daemon does not see the parent's socket close.
         */
        connection_lose(&c->connection);
        return NULL;
    }
    while (c->models) {
        struct kvc_model *m = c->models;

        model_ref(m);
        while (m->seqs)
            seq_free(m->seqs);
        m->refs = 1;
        model_unref(m);
    }
    /* Work of a GPU ends before what it reads is unmapped; what cannot be waited for is not said goodbye to:
     * the daemon then keeps what was held from others until this process has ended. */
    quiet = !c->gpu || gpu_quiesce(c->gpu);
    leases_deinit(&c->leases);
    extents_deinit(&c->extents);
    session_deinit(&c->session);
    workers_deinit(&c->workers);
    client_free_free_pages(c);
    c->gpu = gpu_close(c->gpu);
    if (quiet)
        connection_bye(
            &c->connection); /* nothing of the daemon's is mapped any more: it need not wait for our exit */
    connection_deinit(&c->connection);
    (void) munmap((void *) c->alive, (size_t) sysconf(_SC_PAGESIZE));
    free(c);
    return NULL;
}
