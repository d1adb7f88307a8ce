/*
 * The stored state of a GPU belongs to that GPU, whatever number the next configuration gives it. The state
 * is dropped when the GPU is not configured, or its extents have another size. Two GPUs of the stand-in, a
 * supervisor, kvcobrad killed.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/e2e/gpu_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"

const char test_suite[] = "gpu_places";

#define OTHER "GPU-c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1"

static void begin(const char *gpu)
{
    const char *more[] = {gpu, NULL};

    assert(setenv("STANDIN_DEVICES", "2", 1) == 0);
    raw_geometry = random_table_geometry(2, 4, 2, 32);
    raw_table = raw_make_table(1);
    supervisor_begin(gpu_args(more));
    raw_activate_table(raw_table);
}

/* Kills the daemon and starts it with other options, which gpu_args() writes to the supervisor's list. */
static void again_with(const char *gpu, const char *more)
{
    const char *args[] = {gpu, more, NULL};

    supervisor_kill();
    (void) gpu_args(args);
    CU_ASSERT_FATAL(supervisor_again());
}

static void finish(void)
{
    supervisor_finish();
    raw_table = table_unref(raw_table);
}

/* Values of STATUS about one device. */
struct device_state {
    char uuid[64];
    uint64_t pages, sessions;
    uint32_t n_devices;
};

static struct device_state device_state_of(const char *name)
{
    Kvcobra__Reply *r = raw_status();
    struct device_state s = {.n_devices = (uint32_t) r->status->n_devices};

    for (size_t i = 0; i < r->status->n_devices; i++) {
        const Kvcobra__DeviceStatus *d = r->status->devices[i];

        if (strcmp(d->name, name) != 0)
            continue;
        (void) snprintf(s.uuid, sizeof(s.uuid), "%s", d->uuid);
        s.pages = d->pages;
        s.sessions = d->sessions;
    }
    wire_reply_free(r);
    return s;
}

/* Publishes a page in host memory, which stays in all these cases. */
static struct raw_slot publish_on_host(void)
{
    struct raw_model m = raw_model_open();
    struct raw_slot s;
    uint64_t lease;

    CU_ASSERT_EQUAL_FATAL(raw_publish(&m, 1, &s, &lease), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    raw_close_model(&m);
    return s;
}

static bool is_on_host(const struct raw_slot *s)
{
    struct raw_model m = raw_model_open();
    uint64_t lease;
    int reason;
    bool there = raw_lease_one(&m, 1, s, &lease, &reason);

    raw_close_model(&m);
    return there;
}

static struct gpu_client holder(struct raw_slot *ret, uint64_t *ret_lease)
{
    struct gpu_client a = gpu_client_new();

    CU_ASSERT_EQUAL_FATAL(gpu_open(&a, GPU_UUID), 0);
    *ret = gpu_publish(&a, 1, ret_lease);
    CU_ASSERT_EQUAL_FATAL(ret->err, 0);
    return a;
}

static void test_another_order(void)
{
    struct gpu_client a;
    struct raw_slot s;
    uint64_t lease;
    struct device_state was, is;

    begin("--gpu=" GPU_UUID "," OTHER);
    a = holder(&s, &lease);
    was = device_state_of("gpu0");
    CU_ASSERT(strcmp(was.uuid, GPU_UUID) == 0 && was.pages == 1 && was.sessions == 1 &&
              device_state_of("gpu1").pages == 0);
    again_with("--gpu=" OTHER "," GPU_UUID, NULL);
    is = device_state_of("gpu1");
    CU_ASSERT(strcmp(is.uuid, GPU_UUID) == 0 && is.pages == 1 && is.sessions == 1);
    CU_ASSERT(strcmp(device_state_of("gpu0").uuid, OTHER) == 0 && device_state_of("gpu0").pages == 0);
    gpu_disconnect(&a);
    CU_ASSERT_EQUAL(gpu_resume(&a), 0); /* the session is on GPU_UUID */
    CU_ASSERT_EQUAL(gpu_keep(&a, lease), 0);
    CU_ASSERT_TRUE(gpu_reads(&a, 1, &s));
    CU_ASSERT_EQUAL(gpu_release(&a, lease), 0);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    finish();
}

/*
 * A removed GPU loses its pages, with a log line, and its session ends; everything else stays. When the GPU
 * is configured again, its pool is empty and has a new id.
 */
static void test_removed_from_the_configuration(void)
{
    struct raw_slot s, host, none;
    struct gpu_client a, b;
    uint64_t lease;

    begin("--gpu=" GPU_UUID "," OTHER);
    host = publish_on_host();
    a = holder(&s, &lease);
    CU_ASSERT_EQUAL(supervisor_stored("kvc-gpu-"), 1);
    again_with("--gpu=" OTHER, NULL);
    CU_ASSERT(daemon_logged(&raw_daemon, "event=device-left extents=1"));
    CU_ASSERT(device_state_of("gpu0").n_devices == 2 && strcmp(device_state_of("gpu0").uuid, OTHER) == 0 &&
              device_state_of("gpu0").pages == 0);
    CU_ASSERT_EQUAL(supervisor_stored("kvc-gpu-"), 0);
    CU_ASSERT_EQUAL(supervisor_stored("kvc-pid-"), 0);
    CU_ASSERT(is_on_host(&host));
    b = gpu_client_new();
    CU_ASSERT_EQUAL(gpu_open(&b, GPU_UUID), -ENODEV);
    again_with("--gpu=" OTHER "," GPU_UUID, NULL);
    CU_ASSERT(strcmp(device_state_of("gpu1").uuid, GPU_UUID) == 0 && device_state_of("gpu1").pages == 0 &&
              device_state_of("gpu1").sessions == 0);
    CU_ASSERT_EQUAL_FATAL(gpu_open(&b, GPU_UUID), 0);
    CU_ASSERT_EQUAL(gpu_lease(&b, 1, &s, NULL), -ENODATA);
    none = gpu_publish(&b, 1, NULL);
    /* numbers continue */
    CU_ASSERT(none.err == 0 && none.generation > s.generation && none.extent != s.extent);
    CU_ASSERT(is_on_host(&host));
    CU_ASSERT_TRUE(gpu_client_end(&b));
    gpu_client_kill(&a);
    finish();
}

/* Another size of extents empties the pool of that device. */
static void test_other_extent_size(void)
{
    struct raw_slot s, host;
    struct gpu_client a;
    uint64_t lease;

    begin("--gpu=" GPU_UUID);
    host = publish_on_host();
    a = holder(&s, &lease);
    again_with("--gpu=" GPU_UUID, "--gpu-extent-bytes=1M");
    CU_ASSERT(daemon_logged(&raw_daemon, "event=pool-lost device=gpu0"));
    CU_ASSERT(!daemon_logged(&raw_daemon, "event=pool-lost device=cpu"));
    CU_ASSERT(device_state_of("gpu0").pages == 0 && device_state_of("gpu0").sessions == 0);
    CU_ASSERT(is_on_host(&host));
    again_with("--gpu=" GPU_UUID, "--extent-bytes=2M");
    CU_ASSERT(daemon_logged(&raw_daemon, "event=pool-lost device=cpu"));
    CU_ASSERT(!is_on_host(&host));
    gpu_client_kill(&a);
    finish();
}

/* "first" is the GPU whose pages are stored, although the driver lists another one first. */
static void test_first_is_the_kept_one(void)
{
    struct gpu_client a;
    struct raw_slot s;

    begin("--gpu=" OTHER);
    a = gpu_client_new();
    CU_ASSERT_EQUAL_FATAL(gpu_open(&a, OTHER), 0);
    s = gpu_publish(&a, 1, NULL);
    CU_ASSERT_EQUAL(s.err, 0);
    again_with("--gpu=first", NULL);
    CU_ASSERT(strcmp(device_state_of("gpu0").uuid, OTHER) == 0 && device_state_of("gpu0").pages == 1);
    again_with("--gpu=" GPU_UUID, NULL); /* with its name: the stored one is dropped */
    CU_ASSERT(daemon_logged(&raw_daemon, "event=device-left"));
    CU_ASSERT(strcmp(device_state_of("gpu0").uuid, GPU_UUID) == 0 && device_state_of("gpu0").pages == 0);
    gpu_client_kill(&a);
    finish();
}

const struct test_case test_cases[] = {
    TEST(test_another_order),
    TEST(test_removed_from_the_configuration),
    TEST(test_other_extent_size),
    TEST(test_first_is_the_kept_one),
    TEST_END,
};
