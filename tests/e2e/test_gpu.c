/*
 * Devices of a daemon, with the stand-in driver in the mover's library path: which device a session gets, the
 * answers about GPUs that do not exist, and what STATUS and operators see.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/page_layout.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "gpu";

/* The stand-in's devices: 16 bytes of 0xc0 and their number. */
#define FIRST "GPU-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0"
#define SECOND "GPU-c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1"
#define ABSENT "GPU-eeeeeeee-eeee-eeee-eeee-eeeeeeeeeeee"

static char gpu_list[256], mover[256];
static const char *const args[] = {gpu_list,           mover, "--gpu-pool-bytes=32M", "--gpu-extent-bytes=8M",
                                   "--pool-bytes=64M", NULL};

/* @variables: NULL-terminated names and values, for this daemon and its mover only. */
static void start_with(unsigned flags, const char *gpu, const char *library_path,
                       const char *const *variables)
{
    const char *before = getenv("LD_LIBRARY_PATH");
    char *kept = before ? strdup(before) : NULL;

    (void) snprintf(gpu_list, sizeof(gpu_list), "--gpu=%s", gpu);
    assert(setenv("LD_LIBRARY_PATH", library_path, 1) == 0 && setenv("STANDIN_DEVICES", "2", 1) == 0);
    for (const char *const *v = variables; v && v[0]; v += 2)
        assert(setenv(v[0], v[1], 1) == 0);
    (void) snprintf(mover, sizeof(mover), "--mover=%s", getenv("KVC_MOVER"));
    raw_start(flags, args);
    for (const char *const *v = variables; v && v[0]; v += 2)
        (void) unsetenv(v[0]);
    (void) unsetenv("STANDIN_DEVICES");
    (void) (kept ? setenv("LD_LIBRARY_PATH", kept, 1) : unsetenv("LD_LIBRARY_PATH"));
    free(kept);
}

static void start(const char *gpu, const char *library_path, const char *const *variables)
{
    start_with(DAEMON_BY_PATH, gpu, library_path, variables);
}

static const char *standin(void)
{
    return getenv("KVC_STANDIN_CUDA");
}

/* ---- sessions ---- */

struct hello_answer {
    int err;
    bool resumed;
    char message[512];
    uint8_t token[SESSION_TOKEN_BYTES];
};

static struct hello_answer hello(int fd, const char *device, const uint8_t *token)
{
    Kvcobra__Hello m = KVCOBRA__HELLO__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &m);
    struct hello_answer a = {0};
    Kvcobra__Reply *r;

    m.version_min = PROTO_VERSION_MIN;
    m.version_max = PROTO_VERSION;
    m.client_name = (char *) "gpu test";
    m.device = (char *) device;
    m.session_token = (ProtobufCBinaryData){token ? SESSION_TOKEN_BYTES : 0, (uint8_t *) token};
    r = raw_request(fd, &q, NULL, 0, NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r);
    a.err = r->err;
    (void) snprintf(a.message, sizeof(a.message), "%s", r->message);
    if (a.err == 0) {
        a.resumed = r->hello->resumed;
        memcpy(a.token, r->hello->session_token.data, sizeof(a.token));
    }
    wire_reply_free(r);
    return a;
}

/*
 * Repeats HELLO until the answer is not -EAGAIN: the mover needs a while to open a device, and waits a second
 * before it tries again.
 */
static struct hello_answer hello_when_known(int fd, const char *device, int not_yet)
{
    struct hello_answer a = hello(fd, device, NULL);

    for (struct wait w = wait_begin(); (a.err == -EAGAIN || a.err == not_yet) && wait_again(&w);)
        a = hello(fd, device, NULL);
    return a;
}

struct session_place {
    char name[16], uuid[64];
    uint64_t pool_bytes, extent_bytes;
    uint8_t pool[BOOT_ID_BYTES];
};

static struct session_place confirm(int fd)
{
    Kvcobra__Confirm m = KVCOBRA__CONFIRM__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_CONFIRM, &m);
    Kvcobra__Reply *r = raw_request(fd, &q, NULL, 0, NULL);
    struct session_place p = {0};

    CU_ASSERT_PTR_NOT_NULL_FATAL(r);
    CU_ASSERT_EQUAL_FATAL(r->err, 0);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r->confirm->device);
    (void) snprintf(p.name, sizeof(p.name), "%s", r->confirm->device->name);
    (void) snprintf(p.uuid, sizeof(p.uuid), "%s", r->confirm->device->uuid);
    p.pool_bytes = r->confirm->device->pool_bytes;
    p.extent_bytes = r->confirm->device->extent_bytes;
    CU_ASSERT_EQUAL_FATAL(r->confirm->pool.len, sizeof(p.pool));
    memcpy(p.pool, r->confirm->pool.data, sizeof(p.pool));
    wire_reply_free(r);
    return p;
}

/* Checks that the daemon serves host memory, which it does in every state of its GPUs. */
static void expect_pages_of_the_host(void)
{
    struct raw_model m = raw_model_open();
    struct raw_slot slot;
    uint64_t lease;

    CU_ASSERT_EQUAL(raw_publish(&m, 1, &slot, &lease), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    raw_close_model(&m);
}

static void copy_device(unsigned i, Kvcobra__DeviceStatus *ret, char name[16], char uuid[64],
                        char message[512])
{
    Kvcobra__Reply *r = raw_status();

    CU_ASSERT_FATAL(r->status->n_devices > i);
    *ret = *r->status->devices[i];
    (void) snprintf(name, 16, "%s", ret->name);
    (void) snprintf(uuid, 64, "%s", ret->uuid);
    (void) snprintf(message, 512, "%s", ret->message);
    wire_reply_free(r);
}

static void expect_state(unsigned i, const char *name, const char *uuid, Kvcobra__DeviceState state,
                         const char *message)
{
    char got_name[16], got_uuid[64], got_message[512];
    Kvcobra__DeviceStatus d;

    copy_device(i, &d, got_name, got_uuid, got_message);
    CU_ASSERT_STRING_EQUAL(got_name, name);
    CU_ASSERT_STRING_EQUAL(got_uuid, uuid);
    CU_ASSERT_EQUAL(d.state, state);
    if (!strstr(got_message, message))
        printf("    \"%s\" does not say \"%s\"\n", got_message, message);
    CU_ASSERT_PTR_NOT_NULL(strstr(got_message, message));
}

/* ---- two GPUs ---- */

/*
 * The first GPU opens. On the second, the driver fails once to reserve addresses: this GPU is unavailable,
 * and opens when another client names it in HELLO.
 */
static void test_two_gpus(void)
{
    static const char *const broken[] = {"STANDIN_FAIL", "cuMemAddressReserve:2:2", NULL};
    int cpu = -1, one = -1, two = -1;
    struct session_place on_cpu, on_one, on_two;
    struct hello_answer a;

    start(FIRST "," SECOND, standin(), broken);
    cpu = raw_connect(raw_daemon.socket);
    one = raw_connect(raw_daemon.socket);
    two = raw_connect(raw_daemon.socket);

    CU_ASSERT_EQUAL(hello(cpu, "", NULL).err, 0);
    on_cpu = confirm(cpu);
    CU_ASSERT_STRING_EQUAL(on_cpu.name, "cpu");
    CU_ASSERT_STRING_EQUAL(on_cpu.uuid, "");
    CU_ASSERT(on_cpu.pool_bytes == 64 << 20 && on_cpu.extent_bytes == 2 << 20);

    /* UUIDs are compared by their digits */
    CU_ASSERT_EQUAL(hello_when_known(one, "MIG-C0C0C0C0C0C0C0C0C0C0C0C0C0C0C0C0", -EAGAIN).err, 0);
    on_one = confirm(one);
    CU_ASSERT_STRING_EQUAL(on_one.name, "gpu0");
    CU_ASSERT_STRING_EQUAL(on_one.uuid, FIRST);
    CU_ASSERT(on_one.pool_bytes == 32 << 20 && on_one.extent_bytes == 8 << 20);
    CU_ASSERT(memcmp(on_one.pool, on_cpu.pool, sizeof(on_one.pool)) != 0);

    a = hello_when_known(two, SECOND, -EAGAIN);
    CU_ASSERT_EQUAL(a.err, -ENODEV);
    CU_ASSERT(strstr(a.message, "gpu1 is not available: ") && strstr(a.message, "CUDA_ERROR_OUT_OF_MEMORY"));
    expect_state(1, "gpu0", FIRST, KVCOBRA__DEVICE_STATE__DEVICE_READY, "");
    expect_state(2, "gpu1", SECOND, KVCOBRA__DEVICE_STATE__DEVICE_UNAVAILABLE, "CUDA_ERROR_OUT_OF_MEMORY");
    CU_ASSERT(daemon_logged(&raw_daemon, "event=gpu-unavailable device=gpu1"));
    expect_pages_of_the_host();

    CU_ASSERT_EQUAL(hello_when_known(two, SECOND, -ENODEV).err, 0);
    on_two = confirm(two);
    CU_ASSERT_STRING_EQUAL(on_two.name, "gpu1");
    CU_ASSERT(memcmp(on_two.pool, on_one.pool, sizeof(on_two.pool)) != 0);
    expect_state(2, "gpu1", SECOND, KVCOBRA__DEVICE_STATE__DEVICE_READY, "");
    (void) close(cpu);
    (void) close(one);
    (void) close(two);
    raw_wait_for_no_sessions();
    raw_stop();
}

/* HELLO with a UUID that is not configured, and with a token of a session on another device. */
static void test_which_device(void)
{
    int one, other;
    struct hello_answer a, b;

    start(FIRST, standin(), NULL);
    one = raw_connect(raw_daemon.socket);
    other = raw_connect(raw_daemon.socket);
    a = hello(one, ABSENT, NULL);
    CU_ASSERT_EQUAL(a.err, -ENODEV);
    CU_ASSERT(strstr(a.message, ABSENT) && strstr(a.message, FIRST));
    CU_ASSERT_EQUAL(hello(one, "no UUID at all", NULL).err, -ENODEV);
    CU_ASSERT_EQUAL(raw_confirm(one), -EPROTO); /* nothing was granted */
    a = hello_when_known(one, FIRST, -EAGAIN);
    CU_ASSERT_EQUAL_FATAL(a.err, 0);
    (void) confirm(one);
    b = hello(other, "", a.token);
    /* the session is on the GPU, which is not the device of this request */
    CU_ASSERT(b.err == 0 && !b.resumed);
    (void) close(other);
    other = raw_connect(raw_daemon.socket);
    b = hello(other, FIRST, a.token);
    CU_ASSERT(b.err == 0 && b.resumed);
    (void) confirm(other);
    CU_ASSERT(raw_is_closed(one));
    (void) close(one);
    (void) close(other);
    raw_wait_for_no_sessions();
    raw_stop();
}

/* ---- operators ---- */

static int set_quota(int fd, const char *tenant, uint64_t bytes, uint64_t guarantee)
{
    Kvcobra__SetQuota m = KVCOBRA__SET_QUOTA__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_SET_QUOTA, &m);

    m.tenant = (char *) tenant;
    m.quota_bytes = bytes;
    m.guarantee_bytes = guarantee;
    m.set_guarantee = true;
    return raw_errno(fd, &q);
}

static bool find_tenant(const char *name, Kvcobra__TenantStatus *ret)
{
    Kvcobra__Reply *r = raw_status();
    bool found = false;

    for (size_t i = 0; i < r->status->n_tenants; i++) {
        if (strcmp(r->status->tenants[i]->name, name) == 0) {
            *ret = *r->status->tenants[i]; /* only the numbers are valid after the reply is freed */
            found = true;
        }
    }
    wire_reply_free(r);
    return found;
}

/* One uid is two tenants here. The arenas of both are in host memory. Guarantees must fit each pool. */
static void test_tenants(void)
{
    char host[32], gpu[40];
    Kvcobra__TenantStatus t = KVCOBRA__TENANT_STATUS__INIT, h = t;
    struct raw_model m;
    int operator_fd, fd;

    (void) snprintf(host, sizeof(host), "uid-%lu", (unsigned long) getuid());
    (void) snprintf(gpu, sizeof(gpu), "%s@gpu0", host);
    start_with(DAEMON_BY_PATH | DAEMON_WITH_STATE, FIRST, standin(), NULL);
    operator_fd = raw_open(raw_daemon.operator_socket);
    fd = raw_connect(raw_daemon.socket);
    CU_ASSERT_EQUAL_FATAL(hello_when_known(fd, FIRST, -EAGAIN).err, 0);
    (void) confirm(fd);
    CU_ASSERT_EQUAL(raw_open_model(fd, &raw_geometry, random_table_model_digest, &m), 0);
    CU_ASSERT_FATAL(find_tenant(gpu, &t) && find_tenant(host, &h));
    CU_ASSERT(t.sessions == 1 && t.arena_bytes == 0 && t.quota_bytes == 32 << 20);
    CU_ASSERT(h.sessions == 0 && h.arena_bytes == m.arena_bytes && h.quota_bytes > t.quota_bytes);

    CU_ASSERT_EQUAL(raw_evict(gpu), 0);
    CU_ASSERT_EQUAL(raw_evict("uid-4242@gpu0"), -ENOENT);
    CU_ASSERT_EQUAL(set_quota(operator_fd, gpu, 16 << 20, 8 << 20), 0);
    CU_ASSERT_EQUAL(set_quota(operator_fd, "uid-4242@gpu0", 32 << 20, 24 << 20), 0); /* 8 + 24 of 32 */
    CU_ASSERT_EQUAL(set_quota(operator_fd, "uid-4243@gpu0", 32 << 20, 1), -ENOSPC);
    /* the whole pool of the host */
    CU_ASSERT_EQUAL(set_quota(operator_fd, "uid-4243", 128 << 20, 64 << 20), 0);
    CU_ASSERT_EQUAL(set_quota(operator_fd, "uid-4243@gpu1", 1 << 20, 0), -ENOENT);
    CU_ASSERT_EQUAL(set_quota(operator_fd, "uid-4243@cpu", 1 << 20, 0), -ENOENT);
    CU_ASSERT_EQUAL(set_quota(operator_fd, "uid-4243@", 1 << 20, 0), -ENOENT);
    CU_ASSERT(find_tenant(gpu, &t) && t.quota_bytes == 16 << 20 && t.guarantee_bytes == 8 << 20);
    CU_ASSERT(find_tenant(host, &h) && h.quota_bytes != t.quota_bytes);

    raw_close_model(&m);
    raw_wait_for_no_sessions();
    CU_ASSERT(find_tenant(host, &h) && h.arena_bytes == 0);
    (void) close(operator_fd);
    CU_ASSERT(daemon_end(&raw_daemon)); /* quotas are stored by device, also if the driver is missing */
    CU_ASSERT_FATAL(daemon_start_again(&raw_daemon, args));
    CU_ASSERT(find_tenant(gpu, &t) && t.quota_bytes == 16 << 20 && t.guarantee_bytes == 8 << 20);
    CU_ASSERT(find_tenant("uid-4242@gpu0", &t) && t.guarantee_bytes == 24 << 20);
    CU_ASSERT(find_tenant("uid-4243", &t) && t.guarantee_bytes == 64 << 20);
    raw_stop();
}

/* A section's quota and guarantee on GPUs are apart from those on the host, and there before a process is. */
static void test_named_tenant(void)
{
    char config[128];
    const char *const more[] = {
        gpu_list, mover, "--gpu-pool-bytes=32M", "--gpu-extent-bytes=8M", "--pool-bytes=64M", config, NULL};
    Kvcobra__TenantStatus t;
    int operator_fd;
    FILE *f;

    start_with(DAEMON_BY_PATH | DAEMON_WITH_STATE, FIRST, standin(), NULL);
    CU_ASSERT(daemon_end(&raw_daemon));
    (void) snprintf(config, sizeof(config), "--config=%s/named.conf", raw_daemon.folder);
    f = fopen(config + strlen("--config="), "we");
    assert(f &&
           fputs("tenants = 8\n[tenant team]\nusers = 4711\ngpu-quota-bytes = 24M\n"
                 "gpu-guarantee-bytes = 9M\n[tenant other]\nusers = 4712\n",
                 f) >= 0 &&
           fclose(f) == 0);
    CU_ASSERT_FATAL(daemon_start_again(&raw_daemon, more));
    CU_ASSERT(find_tenant("team@gpu0", &t) && t.quota_bytes == 24 << 20 && t.guarantee_bytes == 9 << 20);
    CU_ASSERT_FALSE(find_tenant("team", &t) || find_tenant("other@gpu0", &t));
    operator_fd = raw_open(raw_daemon.operator_socket);
    CU_ASSERT_EQUAL(set_quota(operator_fd, "other@gpu0", 32 << 20, 16 << 20),
                    0); /* two extents each, of four */
    CU_ASSERT_EQUAL(set_quota(operator_fd, "uid-4713@gpu0", 32 << 20, 1), -ENOSPC);
    CU_ASSERT_EQUAL(set_quota(operator_fd, "team@gpu1", 32 << 20, 0), -ENOENT);
    CU_ASSERT_EQUAL(set_quota(operator_fd, "third@gpu0", 32 << 20, 0), -ENOENT);
    CU_ASSERT_EQUAL(set_quota(operator_fd, "team@gpu0", 20 << 20, 8 << 20), 0); /* goes before the section */
    (void) close(operator_fd);
    CU_ASSERT(daemon_end(&raw_daemon));
    CU_ASSERT_FATAL(daemon_start_again(&raw_daemon, more));
    CU_ASSERT(find_tenant("team@gpu0", &t) && t.quota_bytes == 20 << 20 && t.guarantee_bytes == 8 << 20);
    CU_ASSERT(find_tenant("other@gpu0", &t) && t.guarantee_bytes == 16 << 20);
    raw_stop();
}

/* ---- missing GPUs ---- */

/*
 * HELLO with the UUID that the GPU would have: the daemon cannot find the UUID, and its sentence says why it
 * has no GPU.
 */
static void expect_no_gpu(const char *library_path, const char *const *variables, const char *why)
{
    struct hello_answer a;
    int fd;

    start("first", library_path, variables);
    fd = raw_connect(raw_daemon.socket);
    a = hello_when_known(fd, FIRST, -EAGAIN);
    CU_ASSERT_EQUAL(a.err, -ENODEV);
    if (!strstr(a.message, why))
        printf("    \"%s\" does not say \"%s\"\n", a.message, why);
    CU_ASSERT_PTR_NOT_NULL(strstr(a.message, why));
    expect_state(1, "gpu0", "", KVCOBRA__DEVICE_STATE__DEVICE_UNAVAILABLE, why);
    CU_ASSERT_EQUAL(hello(fd, "", NULL).err, 0);
    (void) close(fd);
    expect_pages_of_the_host();
    raw_stop();
}

static void test_no_gpu(void)
{
    static const char *const no_fd[] = {"STANDIN_NO_FD", "1", NULL}, *const none[] = {"STANDIN_DEVICES", "0",
                                                                                      NULL};

    expect_no_gpu("/nonexistent", NULL, "libcuda.so.1");
    expect_no_gpu(getenv("KVC_STANDIN_CUDA_OLD"), NULL, "too old");
    expect_no_gpu(standin(), no_fd, "share memory");
    expect_no_gpu(standin(), none, "cannot start the NVIDIA driver");
}

/* "first" is the driver's first GPU, and has its UUID from then on. */
static void test_first(void)
{
    struct hello_answer a;
    struct session_place p;
    int fd;

    start("first", standin(), NULL);
    fd = raw_connect(raw_daemon.socket);
    a = hello_when_known(fd, SECOND, -EAGAIN);
    CU_ASSERT_EQUAL(a.err, -ENODEV);
    CU_ASSERT_PTR_NOT_NULL(strstr(a.message, FIRST));
    CU_ASSERT_EQUAL(hello_when_known(fd, FIRST, -EAGAIN).err, 0);
    p = confirm(fd);
    CU_ASSERT_STRING_EQUAL(p.uuid, FIRST);
    (void) close(fd);
    raw_wait_for_no_sessions();
    raw_stop();
}

/* A GPU without the features that the daemon needs. */
static void test_sizes(void)
{
    static const char *const small[] = {"STANDIN_BYTES", "16777216", NULL};

    int fd;

    start(FIRST, standin(), small);
    fd = raw_connect(raw_daemon.socket);
    CU_ASSERT_EQUAL(hello_when_known(fd, FIRST, -EAGAIN).err, -ENODEV);
    expect_state(1, "gpu0", FIRST, KVCOBRA__DEVICE_STATE__DEVICE_UNAVAILABLE, "lower --gpu-pool-bytes");
    (void) close(fd);
    raw_stop();
}

/* A GPU opens but has no memory left: sessions begin, and STATUS has the reason. */
static void test_no_memory(void)
{
    static const char *const full[] = {"STANDIN_FAIL", "cuMemCreate:1:-2", NULL};
    Kvcobra__DeviceStatus d;
    char name[16], uuid[64], message[512] = "";
    int fd;

    start(FIRST, standin(), full);
    fd = raw_connect(raw_daemon.socket);
    CU_ASSERT_EQUAL_FATAL(hello_when_known(fd, FIRST, -EAGAIN).err, 0);
    (void) confirm(fd);
    for (struct wait w = wait_begin();
         message[0] == '\0' && wait_again(&w);) /* a tick preallocates an extent */
        copy_device(1, &d, name, uuid, message);
    expect_state(1, "gpu0", FIRST, KVCOBRA__DEVICE_STATE__DEVICE_READY, "CUDA_ERROR_OUT_OF_MEMORY");
    (void) close(fd);
    raw_wait_for_no_sessions();
    raw_stop();
}

/* The mover is not installed: sessions in host memory work. */
static void test_no_mover(void)
{
    static const char *const nothing[] = {"KVC_MOVER", "/nonexistent/kvcobra-mover", NULL};
    char *kept = strdup(getenv("KVC_MOVER"));
    struct hello_answer a;
    int fd;

    start(FIRST, standin(), nothing);
    assert(setenv("KVC_MOVER", kept, 1) == 0);
    free(kept);
    fd = raw_connect(raw_daemon.socket);
    a = hello(fd, FIRST, NULL);
    CU_ASSERT_EQUAL(a.err, -ENODEV);
    CU_ASSERT(strstr(a.message, "/nonexistent/kvcobra-mover") && strstr(a.message, "No such file"));
    (void) close(fd);
    expect_pages_of_the_host();
    raw_stop();
}

/* When the mover has ended, clients get -EAGAIN, not -ENODEV: the GPU is not missing. */
static void test_mover_ends(void)
{
    static const char *const ends[] = {"KVC_MOVER", "/bin/false", NULL};
    char *kept = strdup(getenv("KVC_MOVER"));
    struct hello_answer a = {.err = -EAGAIN};
    int fd;

    start(FIRST, standin(), ends);
    assert(setenv("KVC_MOVER", kept, 1) == 0);
    free(kept);
    fd = raw_connect(raw_daemon.socket);
    for (struct wait w = wait_begin();
         /* -EAGAIN also while the first mover opens the GPU */
         a.err == -EAGAIN && !strstr(a.message, "mover ended") && wait_again(&w);)
        a = hello(fd, FIRST, NULL);
    CU_ASSERT_EQUAL(a.err, -EAGAIN);
    CU_ASSERT_PTR_NOT_NULL(strstr(a.message, "mover ended"));
    (void) close(fd);
    expect_pages_of_the_host();
    raw_stop();
}

const struct test_case test_cases[] = {
    TEST(test_two_gpus), TEST(test_which_device), TEST(test_tenants), TEST(test_named_tenant),
    TEST(test_no_gpu),   TEST(test_first),        TEST(test_sizes),   TEST(test_no_memory),
    TEST(test_no_mover), TEST(test_mover_ends),   TEST_END,
};
