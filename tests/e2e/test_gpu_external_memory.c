/*
 * External memory in a GPU's pool: the daemon's checks, the pages in it, and the state after its
 * owner sent BYE, died, or lost the daemon. A pool of 4 extents of 2 MiB, none preallocated, so pages
 * lie in external memory.
 */
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/e2e/gpu_service_fixture.h"

const char test_suite[] = "gpu_external_memory";

enum { EXTENT = 2 << 20 };

static void start(const char *more)
{
    gpu_start((const char *const[]){"--gpu-extent-bytes=2M", "--gpu-pool-bytes=8M", "--gpu-spare-extents=0",
                                    more, NULL});
}

static struct gpu_client opened(void)
{
    struct gpu_client a = gpu_client_new();

    CU_ASSERT_EQUAL_FATAL(gpu_open(&a, GPU_UUID), 0);
    return a;
}

/* Opens a session without a driver. Return: the connection. */
static int session_on(const char *device)
{
    return raw_open_on(raw_daemon.socket, device);
}

static int lend_as(int fd, unsigned char name, size_t handle_bytes, uint64_t bytes)
{
    unsigned char handle[LENT_HANDLE_BYTES + 1];
    uint64_t extent = 0;
    int r;

    memset(handle, name, sizeof(handle));
    r = raw_lend(fd, handle, handle_bytes, bytes, &extent);
    CU_ASSERT_EQUAL(extent > 0, r == 0);
    return r;
}

static void wait_for_lent(uint32_t n)
{
    for (struct wait w = wait_begin(); gpu_status().lent_extents != n && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL_FATAL(gpu_status().lent_extents, n);
}

/* ---- registration ---- */

static void test_not_unless_configured(void)
{
    int fd;

    start(NULL);
    fd = session_on(GPU_UUID);
    CU_ASSERT_EQUAL(lend_as(fd, 1, LENT_HANDLE_BYTES, EXTENT), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(gpu_status().lent_extents, 0);
    (void) close(fd);
    gpu_stop();
}

static void test_refused_memory(void)
{
    int fd, other, host;

    start("--gpu-lend=yes");
    host = session_on("");
    CU_ASSERT_EQUAL(lend_as(host, 1, LENT_HANDLE_BYTES, EXTENT), -EOPNOTSUPP);
    fd = session_on(GPU_UUID);
    other = session_on(GPU_UUID);
    CU_ASSERT_EQUAL(lend_as(fd, 1, LENT_HANDLE_BYTES - 1, EXTENT), -EINVAL);
    CU_ASSERT_EQUAL(lend_as(fd, 1, LENT_HANDLE_BYTES + 1, EXTENT), -EINVAL);
    CU_ASSERT_EQUAL(lend_as(fd, 1, 0, EXTENT), -EINVAL);
    CU_ASSERT_EQUAL(lend_as(fd, 1, LENT_HANDLE_BYTES, EXTENT - 1), -EINVAL);
    CU_ASSERT_EQUAL(lend_as(fd, 1, LENT_HANDLE_BYTES, 2 * EXTENT), -EINVAL);
    CU_ASSERT_EQUAL(gpu_status().lent_extents, 0);
    CU_ASSERT_EQUAL(lend_as(fd, 1, LENT_HANDLE_BYTES, EXTENT), 0);
    /* the same memory would be two extents */
    CU_ASSERT_EQUAL(lend_as(fd, 1, LENT_HANDLE_BYTES, EXTENT), -EEXIST);
    CU_ASSERT_EQUAL(lend_as(other, 1, LENT_HANDLE_BYTES, EXTENT), -EEXIST);
    CU_ASSERT_EQUAL(lend_as(other, 2, LENT_HANDLE_BYTES, EXTENT), 0);
    CU_ASSERT_EQUAL(lend_as(fd, 3, LENT_HANDLE_BYTES, EXTENT), 0);
    CU_ASSERT_EQUAL(lend_as(fd, 4, LENT_HANDLE_BYTES, EXTENT), 0);
    CU_ASSERT_EQUAL(lend_as(fd, 5, LENT_HANDLE_BYTES, EXTENT), -ENOSPC); /* the pool has four */
    CU_ASSERT_EQUAL(gpu_status().extent_bytes, 4 * EXTENT);
    (void) close(host);
    (void) close(fd);
    (void) close(other);
    CU_ASSERT_EQUAL(gpu_status().lent_extents, 4); /* this process lives, and may connect again */
    raw_stop();
}

static void test_limit_of_a_session(void)
{
    int fd, other;

    gpu_start((const char *const[]){"--gpu-extent-bytes=2M", "--gpu-pool-bytes=8M", "--gpu-spare-extents=0",
                                    "--gpu-lend=yes", "--lent-extents-per-session=2", NULL});
    fd = session_on(GPU_UUID);
    other = session_on(GPU_UUID);
    CU_ASSERT_EQUAL(lend_as(fd, 1, LENT_HANDLE_BYTES, EXTENT), 0);
    CU_ASSERT_EQUAL(lend_as(fd, 2, LENT_HANDLE_BYTES, EXTENT), 0);
    CU_ASSERT_EQUAL(lend_as(fd, 3, LENT_HANDLE_BYTES, EXTENT), -EDQUOT);
    CU_ASSERT_EQUAL(lend_as(other, 3, LENT_HANDLE_BYTES, EXTENT), 0);
    (void) close(fd);
    (void) close(other);
    raw_stop();
}

/* ---- pages ---- */

static void test_two_processes_use_it(void)
{
    struct gpu_client a, b;
    struct raw_slot of_a, of_b;
    uint64_t extent = 0, leases[4];

    start("--gpu-lend=yes");
    a = opened();
    b = opened();
    CU_ASSERT_EQUAL_FATAL(gpu_lend(&a, EXTENT, &extent), 0);
    of_a = gpu_publish(&a, 1, &leases[0]);
    of_b = gpu_publish(&b, 2, &leases[1]);
    CU_ASSERT_TRUE(of_a.extent == extent && of_b.extent == extent);
    CU_ASSERT_EQUAL(gpu_lease(&b, 1, &of_a, &leases[2]), 0);
    CU_ASSERT_TRUE(gpu_reads(&b, 1, &of_a));
    CU_ASSERT_EQUAL(gpu_lease(&a, 2, &of_b, &leases[3]), 0);
    CU_ASSERT_TRUE(gpu_reads(&a, 2, &of_b));
    CU_ASSERT_FALSE(gpu_reads(&a, 2, &of_a));
    /* the mover has no descriptor of external memory */
    CU_ASSERT_EQUAL(gpu_read_raw(&b, leases[1]), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(gpu_status().extent_bytes, EXTENT); /* no other extent was created */
    CU_ASSERT_EQUAL(gpu_status().held_bytes, 2 * GPU_PAGE_BYTES);
    CU_ASSERT_TRUE(gpu_client_end(&b));
    CU_ASSERT_EQUAL(gpu_status().lent_extents, 1);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    wait_for_lent(0);
    CU_ASSERT_EQUAL(gpu_status().pages, 0);
    gpu_stop();
}

/*
 * @die: the owner is killed; else it sends BYE. Pages that others hold count until they are released. No
 * client gets them again, and afterwards their keys are free.
 */
static void owner_ends(bool die)
{
    struct gpu_client a, b, c;
    struct raw_slot held, unheld, reserved, again;
    uint64_t extent = 0, lease, own;

    gpu_list_process(0);
    start("--gpu-lend=yes");
    a = opened();
    b = opened();
    c = opened();
    CU_ASSERT_EQUAL_FATAL(gpu_lend(&a, EXTENT, &extent), 0);
    held = gpu_publish(&a, 1, &own);
    unheld = gpu_publish(&a, 2, &lease);
    CU_ASSERT_EQUAL(gpu_release(&a, lease), 0);
    CU_ASSERT_EQUAL(gpu_lease(&b, 1, &held, &lease), 0);
    reserved = gpu_reserve(&b, 3);
    CU_ASSERT_EQUAL(reserved.extent, extent);
    CU_ASSERT_EQUAL(gpu_fill(&b, 3, &reserved), 0);
    if (die)
        gpu_client_kill(&a);
    else
        CU_ASSERT_EQUAL(gpu_bye(&a), 0);
    gpu_wait_for_quarantined(0);
    gpu_wait_for_held(1); /* b's page; its reservation has ended */
    CU_ASSERT_EQUAL(gpu_commit(&b, 3, &reserved, NULL), -ESTALE);
    CU_ASSERT_EQUAL(gpu_get_extent(&b, extent), -ESTALE);
    CU_ASSERT_EQUAL(gpu_lease(&c, 1, &held, NULL), -ENODATA);
    CU_ASSERT_EQUAL(gpu_lease(&c, 2, &unheld, NULL), -ENODATA);
    again = gpu_reserve_soon(&c, 3);
    CU_ASSERT_TRUE(again.err == 0 && again.extent != extent);
    CU_ASSERT_EQUAL(gpu_reserve(&c, 1).err, -EAGAIN); /* page 1 is still held in external memory */
    CU_ASSERT_EQUAL(gpu_status().lent_extents, 1);
    CU_ASSERT_EQUAL(gpu_release(&b, lease), 0);
    wait_for_lent(0);
    CU_ASSERT_EQUAL(gpu_get_extent(&b, extent), -ENOENT);
    again = gpu_publish(&c, 1, NULL);
    CU_ASSERT_EQUAL(gpu_lease(&b, 1, &again, NULL), 0);
    CU_ASSERT_TRUE(gpu_reads(&b, 1, &again));
    if (!die)
        CU_ASSERT_TRUE(gpu_client_end(&a));
    CU_ASSERT_TRUE(gpu_client_end(&b));
    CU_ASSERT_TRUE(gpu_client_end(&c));
    gpu_stop();
}

static void test_owner_says_bye(void)
{
    owner_ends(false);
}

static void test_owner_is_killed(void)
{
    owner_ends(true);
}

/* A lost connection ends nothing: the process lives, and has its external memory when it connects again. */
static void test_owner_reconnects(void)
{
    struct gpu_client a, b;
    struct raw_slot s;
    uint64_t extent = 0, lease;

    start("--gpu-lend=yes");
    a = opened();
    b = opened();
    CU_ASSERT_EQUAL_FATAL(gpu_lend(&a, EXTENT, &extent), 0);
    gpu_disconnect(&a);
    s = gpu_publish(&b, 1, &lease);
    CU_ASSERT_EQUAL(s.extent, extent);
    CU_ASSERT_EQUAL(gpu_resume(&a), 0);
    CU_ASSERT_EQUAL(gpu_lease(&a, 1, &s, NULL), 0);
    CU_ASSERT_TRUE(gpu_reads(&a, 1, &s));
    CU_ASSERT_TRUE(gpu_client_end(&a));
    CU_ASSERT_EQUAL(gpu_release(&b, lease), 0);
    wait_for_lent(0);
    CU_ASSERT_TRUE(gpu_client_end(&b));
    gpu_stop();
}

/* ---- random actions ---- */

enum { CLIENTS = 3, HELD_MAX = 20, LENDS_MAX = 40, LENT_MAX = 8, KNOWN = 64, CHUNKS = 200, STEPS = 1500 };

struct leased_page { /* a page or a slot, and the lease on it */
    uint64_t n, lease;
    struct raw_slot slot;
};

static struct client {
    struct gpu_client client;
    struct leased_page held[HELD_MAX], pending;
    size_t n_held;
    uint64_t lent[LENT_MAX]; /* external memory of this session */
    size_t n_lent;
    bool is_pending;
} clients[CLIENTS];
static struct leased_page known[KNOWN];
static size_t n_known;
static unsigned n_lends, n_gone, n_leased;

static void lend(struct client *c)
{
    int r;

    if (n_lends == LENDS_MAX || c->n_lent == LENT_MAX)
        return;
    r = gpu_lend(&c->client, EXTENT, &c->lent[c->n_lent]);
    CU_ASSERT_TRUE_FATAL(r == 0 || r == -ENOSPC);
    c->n_lent += r == 0;
    n_lends++;
}

/*
 * Ends the session by BYE or the process by SIGKILL, and opens a new session. Returns when the daemon has
 * handled the end.
 */
static void end_session(struct client *c, bool die)
{
    struct client *other = &clients[c == clients];

    if (die) {
        gpu_client_kill(&c->client);
        for (size_t i = 0; i < c->n_lent; i++)
            for (struct wait w = wait_begin();
                 gpu_get_extent(&other->client, c->lent[i]) == 0 && wait_again(&w);)
                ;
        *c = (struct client){.client = gpu_client_new()};
    } else {
        CU_ASSERT_EQUAL_FATAL(gpu_bye(&c->client), 0);
        *c = (struct client){.client = c->client};
    }
    n_gone++;
    CU_ASSERT_EQUAL_FATAL(gpu_open(&c->client, GPU_UUID), 0);
}

static void finish_pending(struct client *c)
{
    struct leased_page *x = &c->pending;
    int r = gpu_commit(&c->client, x->n, &x->slot, &x->lease);

    c->is_pending = false;
    /* the owner ended; another process holds a page of this key from its memory */
    CU_ASSERT_TRUE_FATAL(r == 0 || r == -ESTALE || r == -EAGAIN);
    if (r < 0) {
        r = gpu_abort(&c->client, &x->slot);
        CU_ASSERT_TRUE_FATAL(r == 0 || r == -ESTALE);
        return;
    }
    CU_ASSERT_EQUAL_FATAL(gpu_release(&c->client, x->lease), 0);
    known[n_known++ % KNOWN] = *x; /* if another process's page was first, a lease finds nothing */
}

static void publish(struct client *c)
{
    uint64_t n = 1 + test_rand_below(CHUNKS);
    struct raw_slot s;

    if (c->is_pending) {
        finish_pending(c);
        return;
    }
    s = gpu_reserve(&c->client, n);
    CU_ASSERT_TRUE_FATAL(s.err == 0 || s.err == -EAGAIN || s.err == -ENOSPC);
    if (s.err < 0 || s.exists)
        return;
    CU_ASSERT_EQUAL_FATAL(gpu_fill(&c->client, n, &s), 0);
    c->pending = (struct leased_page){.n = n, .slot = s};
    c->is_pending = true;
}

static void lease(struct client *c)
{
    struct leased_page x;
    int r;

    if (n_known == 0 || c->n_held == HELD_MAX)
        return;
    x = known[test_rand_below(n_known < KNOWN ? n_known : KNOWN)];
    r = gpu_lease(&c->client, x.n, &x.slot, &x.lease);
    CU_ASSERT_TRUE_FATAL(r == 0 || r == -ENODATA);
    if (r < 0)
        return;
    /* in any memory, the page is there and unchanged */
    CU_ASSERT_TRUE_FATAL(gpu_reads(&c->client, x.n, &x.slot));
    c->held[c->n_held++] = x;
    n_leased++;
}

static void step(struct client *c)
{
    unsigned what = (unsigned) test_rand_below(100);

    if (what < 4)
        lend(c);
    else if (what < 6)
        end_session(c, what < 5);
    else if (what < 50)
        publish(c);
    else if (what < 80)
        lease(c);
    else if (c->n_held > 0)
        CU_ASSERT_EQUAL_FATAL(gpu_release(&c->client, c->held[--c->n_held].lease), 0);
}

static void test_random_actions(void)
{
    gpu_list_process(0);
    start("--gpu-lend=yes");
    for (unsigned i = 0; i < CLIENTS; i++)
        clients[i] = (struct client){.client = opened()};
    for (unsigned i = 0; i < STEPS; i++)
        step(&clients[test_rand_below(CLIENTS)]);
    printf("lends=%u gone=%u leased=%u\n", n_lends, n_gone, n_leased);
    CU_ASSERT_TRUE(n_lends > 10 && n_gone > 5 && n_leased > 50);
    for (unsigned i = 0; i < CLIENTS; i++)
        CU_ASSERT_TRUE(gpu_client_end(&clients[i].client));
    wait_for_lent(0);
    gpu_wait_for_quarantined(0);
    gpu_wait_for_held(0);
    CU_ASSERT_FALSE(daemon_logged(&raw_daemon, "checked daemon"));
    gpu_stop();
}

const struct test_case test_cases[] = {
    TEST(test_not_unless_configured), TEST(test_refused_memory), TEST(test_limit_of_a_session),
    TEST(test_two_processes_use_it),  TEST(test_owner_says_bye), TEST(test_owner_is_killed),
    TEST(test_owner_reconnects),      TEST(test_random_actions), TEST_END,
};
