/*
 * Creating, connecting and freeing a client. On top of all rooms: a new client gets the operations of the
 * host and the hooks of sequences here, and is freed with everything that belongs to it.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/options.h"
#include "client/connection/clock.h"
#include "client/model/model.h"
#include "client/publishing/publish.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_host.h"
#include "client/sequence/seq_resume.h"
#include "gpu/attend.h"

enum { GPU_OPENING_MS = 10000, GPU_OPENING_STEP_MS = 50 };

/* ---- operations of a client of the host ---- */

static int client_host_check(struct kvc_client *c)
{
    (void) c;
    return 0;
}

static bool client_host_is_idle(struct kvc_client *c)
{
    (void) c;
    return true;
}

static const char *client_host_kernel_name(struct kvc_client *c, struct model_table *t)
{
    (void) c;
    (void) t;
    return attend_kernel_name();
}

static void client_host_free_table(struct kvc_client *c, struct model_table *t)
{
    (void) c;
    (void) t;
}

static void client_host_close(struct kvc_client *c)
{
    (void) c;
}

static const struct client_ops client_host_ops = {
    .pages = &page_host_ops,
    .seqs = &seq_host_ops,
    .uses_threads = true,
    .check = client_host_check,
    .prepare_flush = client_host_is_idle,
    .publish = publish_arena,
    .kernel_name = client_host_kernel_name,
    .free_table = client_host_free_table,
    .quiesce = client_host_is_idle,
    .close = client_host_close,
};

/* ---- creating ---- */

/* A page that the kernel zeroes in a child process: reading it is a load, where
 * getpid() would be a system call. */
static int client_mark_process(volatile uint8_t **ret)
{
    size_t bytes = (size_t) sysconf(_SC_PAGESIZE);
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return -ENOMEM;
    if (madvise(p, bytes, MADV_WIPEONFORK) < 0) {
        int r = -errno;

        (void) munmap(p, bytes);
        return r;
    }

    *p = 1;
    *ret = p;
    return 0;
}

int kvc_client_new(kvc_client **ret_client)
{
    struct kvc_client *c;
    int r;

    if (!ret_client)
        return -EINVAL;

    c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;

    r = client_mark_process(&c->alive);
    if (r < 0) {
        free(c);
        return r;
    }

    c->ops = &client_host_ops;
    c->hooks = &seq_resume_hooks;
    connection_init(&c->connection);
    extents_init(&c->extents);
    workers_init(&c->workers);
    *ret_client = c;
    return 0;
}

/* ---- connecting ---- */

static int client_connect_once(struct kvc_client *c, const char *path)
{
    if (c->connection.greeted)
        return client_reconnect(c);

    return connection_open(&c->connection, path, &c->error);
}

/* Waits while the daemon opens the GPU, which it does at the first request for it. */
static int client_connect(struct kvc_client *c, const char *path)
{
    int64_t end_ms = clock_ms() + GPU_OPENING_MS;
    int r = client_connect_once(c, path);

    while (r == -EAGAIN && c->connection.device[0] && clock_ms() < end_ms) {
        (void) poll(NULL, 0, GPU_OPENING_STEP_MS);
        r = client_connect_once(c, path);
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
        return client_connect(c, path);

    connection_check(&c->connection, true);
    if (connection_is_open(&c->connection) || !connection_is_to(&c->connection, path))
        return fail(&c->error, -EISCONN, "this client %s kvcobrad at %s: use a new client",
                    connection_is_open(&c->connection) ? "is already connected to" : "belongs to",
                    c->connection.path);

    return client_connect(c, path);
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

/* ---- freeing ---- */

static void client_free_models(struct kvc_client *c)
{
    while (c->models) {
        struct kvc_model *m = c->models;

        model_ref(m);
        while (m->seqs)
            seq_free(m->seqs);
        m->refs = 1;
        model_unref(m);
    }
}

static void client_free_page_handles(struct kvc_client *c)
{
    while (c->free_pages) {
        struct page *p = c->free_pages;

        c->free_pages = p->next;
        free(p);
    }
}

kvc_client *kvc_client_free(kvc_client *c)
{
    bool is_idle;

    if (!c)
        return NULL;
    if (!client_is_ours(c)) {
        /* In a child process the mappings do not exist and the connection is the parent's. Only the
         * descriptor is closed: while the child has it, the daemon does not see the parent close the socket.
         */
        connection_leave(&c->connection);
        return NULL;
    }

    connection_leave_soon(&c->connection);
    while (c->fetches)
        (void) kvc_fetch_free(c->fetches);
    client_free_models(c);
    /* Work of a GPU ends before the memory that it reads is unmapped. If it cannot be waited for, BYE is not
     * sent: the daemon then keeps the client's slots until this process has ended. */
    is_idle = c->ops->quiesce(c);
    extents_deinit(&c->extents);
    session_deinit(&c->session);
    workers_deinit(&c->workers);
    client_free_page_handles(c);
    c->ops->close(c);
    if (is_idle)
        connection_bye(&c->connection); /* no memory of the daemon is mapped: it need not wait for our exit */
    connection_deinit(&c->connection);
    client_leases_deinit(
        &c->leases); /* replies to fetches that were cancelled are recorded there until now */
    (void) munmap((void *) c->alive, (size_t) sysconf(_SC_PAGESIZE));
    free(c);
    return NULL;
}
