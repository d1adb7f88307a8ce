/*
 * A client's device memory, and losing the GPU, on the stand-in driver: when freed memory is used again, the
 * errors of full memory and of a lost GPU, and that no object of the driver stays open.
 */
#include "client/gpu/gpu.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_open.h"
#include "client/gpu/gpu_table.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tests/standin/libcuda.h"

#define MIB ((size_t) 1 << 20)

static struct gpu *open_gpu(void)
{
    struct gpu *g = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(gpu_open(NULL, NULL, &g, &e), 0);
    return g;
}

/* Keeps the stand-in loaded, with its counts, while a client's driver is closed. */
static void *keep_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    CU_ASSERT_PTR_NOT_NULL_FATAL(library);
    return library;
}

static void expect_nothing_left(void)
{
    struct standin_left l = standin_look();

    CU_ASSERT_EQUAL(l.allocations, 0);
    CU_ASSERT_EQUAL(l.contexts, 0);
    CU_ASSERT_EQUAL(l.modules, 0);
    CU_ASSERT_EQUAL(l.mappings, 0);
    CU_ASSERT_EQUAL(l.ranges, 0);
}

/* 1000 and 1020 bytes are both rounded up to 1024; 1025 are not. */
static void test_memory_is_used_again(void)
{
    void *driver = keep_driver();
    struct gpu *g = open_gpu();
    struct gpu_memory a = {0}, b = {0}, c = {0};
    struct errmsg e = {""};
    cu_ptr at;

    CU_ASSERT_EQUAL_FATAL(gpu_alloc(g, 1000, &a, &e), 0);
    CU_ASSERT_EQUAL(a.at % 256, 0);
    CU_ASSERT_EQUAL(a.bytes, 1024);
    at = a.at;
    gpu_free(g, &a);
    CU_ASSERT_EQUAL(a.bytes, 0);
    gpu_free(g, &a); /* an empty one */
    CU_ASSERT_EQUAL(standin_look().allocations, 1);
    CU_ASSERT_EQUAL_FATAL(gpu_alloc(g, 1025, &b, &e), 0);
    CU_ASSERT_NOT_EQUAL(b.at, at);
    CU_ASSERT_EQUAL_FATAL(gpu_alloc(g, 1020, &c, &e), 0);
    CU_ASSERT_EQUAL(c.at, at);
    CU_ASSERT_EQUAL(standin_look().allocations, 2);
    gpu_free(g, &b);
    gpu_free(g, &c);
    CU_ASSERT_EQUAL(gpu_close(g), NULL);
    expect_nothing_left();
    (void) dlclose(driver);
}

/* Cached memory above the limit is freed when the stream was waited for, not
 * before: queued work may use it. */
static void test_too_much_goes_back(void)
{
    void *driver = keep_driver();
    struct gpu *g = open_gpu();
    struct gpu_memory m[3] = {{0}};
    struct errmsg e = {""};

    for (size_t i = 0; i < 3; i++)
        CU_ASSERT_EQUAL_FATAL(gpu_alloc(g, GPU_CACHED_BYTES / 2, &m[i], &e), 0);
    for (size_t i = 0; i < 3; i++)
        gpu_free(g, &m[i]);
    CU_ASSERT_EQUAL(standin_look().allocations, 3);
    CU_ASSERT_EQUAL(gpu_synchronize(g, &e), 0);
    CU_ASSERT_EQUAL(standin_look().allocations, 2);
    CU_ASSERT_EQUAL(g->cached_bytes, GPU_CACHED_BYTES);
    CU_ASSERT_EQUAL(gpu_close(g), NULL);
    expect_nothing_left();
    (void) dlclose(driver);
}

/* Cached memory of another size is freed first; without any, nothing changes. */
static void test_out_of_memory(void)
{
    void *driver = keep_driver();
    struct errmsg e = {""};
    struct gpu_memory a = {0}, b = {0};
    struct gpu *g;
    char setting[64];

    (void) snprintf(setting, sizeof(setting), "cuMemAlloc_v2:2:%d", CU_OUT_OF_MEMORY);
    CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", setting, 1), 0);
    g = open_gpu();
    CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_alloc(g, MIB, &a, &e), 0);
    CU_ASSERT_EQUAL(gpu_alloc(g, 2 * MIB, &b, &e), -ENOMEM); /* the second call of the driver */
    CU_ASSERT_EQUAL(b.bytes, 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "2097152"));
    CU_ASSERT_EQUAL(gpu_check_usable(g, &e), 0); /* that is no loss */
    gpu_free(g, &a);
    CU_ASSERT_EQUAL(gpu_close(g), NULL);

    CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", setting, 1), 0);
    g = open_gpu();
    CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_alloc(g, MIB, &a, &e), 0);
    gpu_free(g, &a);
    CU_ASSERT_EQUAL_FATAL(gpu_alloc(g, 2 * MIB, &b, &e), 0);
    CU_ASSERT_EQUAL(standin_look().allocations, 1);
    gpu_free(g, &b);
    CU_ASSERT_EQUAL(gpu_alloc(g, SIZE_MAX, &b, &e), -ENOMEM);
    CU_ASSERT_EQUAL(gpu_close(g), NULL);
    expect_nothing_left();
    (void) dlclose(driver);
}

static void test_copies(void)
{
    struct gpu *g = open_gpu();
    struct gpu_memory a = {0}, b = {0};
    struct errmsg e = {""};
    char got[7] = "";

    CU_ASSERT_EQUAL_FATAL(gpu_alloc(g, 100, &a, &e), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_alloc(g, 100, &b, &e), 0);
    CU_ASSERT_EQUAL(gpu_write(g, a.at + 3, "copied", 7, &e), 0);
    CU_ASSERT_EQUAL(gpu_copy(g, b.at + 90, a.at + 3, 7, &e), 0);
    CU_ASSERT_EQUAL(gpu_read(g, got, b.at + 90, 7, &e), 0);
    CU_ASSERT_STRING_EQUAL(got, "copied");
    gpu_free(g, &a);
    gpu_free(g, &b);
    CU_ASSERT_EQUAL(gpu_close(g), NULL);
}

/* More flags than one slab has; a flag that was set is 0 for its next owner. */
static void test_flags(void)
{
    static const uint32_t one = 1;
    struct gpu *g = open_gpu();
    uint32_t flags[GPU_FLAGS + 2], again;
    struct errmsg e = {""};

    for (size_t i = 0; i < GPU_FLAGS + 2; i++)
        CU_ASSERT_EQUAL_FATAL(gpu_flag_take(g, &flags[i], &e), 0);
    for (size_t i = 1; i < GPU_FLAGS + 2; i++)
        CU_ASSERT_NOT_EQUAL(gpu_flag_address(g, flags[i]), gpu_flag_address(g, flags[i - 1]));
    CU_ASSERT_EQUAL(gpu_write(g, gpu_flag_address(g, flags[GPU_FLAGS + 1]), &one, sizeof(one), &e), 0);
    CU_ASSERT_EQUAL(gpu_flags_read(g, &e), 0);
    for (size_t i = 0; i < GPU_FLAGS + 2; i++)
        CU_ASSERT_EQUAL(gpu_flag_is_raised(g, flags[i]), i == GPU_FLAGS + 1);
    gpu_flag_drop(g, flags[GPU_FLAGS + 1]);
    CU_ASSERT_EQUAL_FATAL(gpu_flag_take(g, &again, &e), 0);
    CU_ASSERT_EQUAL(again, flags[GPU_FLAGS + 1]);
    CU_ASSERT_EQUAL(gpu_flags_read(g, &e), 0);
    CU_ASSERT_FALSE(gpu_flag_is_raised(g, again));
    CU_ASSERT_EQUAL(gpu_close(g), NULL);
}

static void test_slots(void)
{
    struct gpu *g = open_gpu();
    struct gpu_slots p = {.slot_bytes = 3 * MIB};
    cu_ptr slots[3], again;
    struct errmsg e = {""};

    for (size_t i = 0; i < 3; i++) /* slabs of 4 MiB: one slot each */
        CU_ASSERT_EQUAL_FATAL(gpu_slot_take(g, &p, &slots[i], &e), 0);
    CU_ASSERT_EQUAL(p.n_slabs, 3);
    gpu_slot_give(&p, slots[1]);
    CU_ASSERT_EQUAL_FATAL(gpu_slot_take(g, &p, &again, &e), 0);
    CU_ASSERT_EQUAL(again, slots[1]);
    for (size_t i = 0; i < 3; i++)
        gpu_slot_give(&p, slots[i]);
    gpu_slots_deinit(g, &p);
    p.slot_bytes = 1000 * 128; /* 32 of them in a slab */
    for (size_t i = 0; i < 33; i++) {
        CU_ASSERT_EQUAL_FATAL(gpu_slot_take(g, &p, &again, &e), 0);
        CU_ASSERT_EQUAL(gpu_write(g, again + p.slot_bytes - 4, "end", 4, &e), 0); /* inside of its slab */
    }
    CU_ASSERT_EQUAL(p.n_slabs, 2);
    gpu_slots_deinit(g, &p);
    CU_ASSERT_EQUAL(gpu_close(g), NULL);
}

/* A stream that its owner destroyed too early cannot be waited for, but closing waits for the device. */
static void test_stream_is_gone(void)
{
    void *driver = keep_driver();
    struct gpu *g = open_gpu();
    struct errmsg e = {""};
    cu_stream stream = NULL;

    CU_ASSERT_EQUAL_FATAL(gpu_enter(g, &e), 0);
    CU_ASSERT_EQUAL_FATAL(g->driver->stream_create(&stream, 0), CU_SUCCESS);
    CU_ASSERT_EQUAL(gpu_set_stream(g, stream, &e), 0);
    CU_ASSERT_EQUAL(gpu_synchronize(g, &e), 0);
    CU_ASSERT_EQUAL(g->driver->stream_destroy(stream), CU_SUCCESS);
    cuda_space_leave(g->space);
    CU_ASSERT_EQUAL(gpu_synchronize(g, &e), -EBADMSG);
    CU_ASSERT_EQUAL(gpu_check_usable(g, &e), 0); /* the GPU is well */
    CU_ASSERT_TRUE(gpu_quiesce(g));
    CU_ASSERT_EQUAL(gpu_close(g), NULL);
    expect_nothing_left();
    (void) dlclose(driver);
}

/* After a fault of a kernel every call fails with the first sentence; closing
 * works and leaves no object open. */
static void test_loss(void)
{
    void *driver = keep_driver();
    struct gpu_memory a = {0}, b = {0};
    struct errmsg e = {""};
    char setting[64], first[ERRMSG_BYTES], got[4];
    struct gpu *g;

    (void) snprintf(setting, sizeof(setting), "cuStreamSynchronize:1:%d", CU_ILLEGAL_ADDRESS);
    CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", setting, 1), 0);
    g = open_gpu();
    CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_alloc(g, 100, &a, &e), 0);
    CU_ASSERT_EQUAL(gpu_synchronize(g, &e), -EIO);
    CU_ASSERT_EQUAL(gpu_check_usable(g, &e), -EIO);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "has lost its GPU"));
    memcpy(first, e.text, sizeof(first));
    CU_ASSERT_EQUAL(gpu_synchronize(g, &e), -EIO); /* though the driver would succeed now */
    CU_ASSERT_STRING_EQUAL(e.text, first);
    CU_ASSERT_EQUAL(gpu_alloc(g, 100, &b, &e), -EIO);
    CU_ASSERT_EQUAL(gpu_read(g, got, a.at, 4, &e), -EIO);
    CU_ASSERT_EQUAL(gpu_copy(g, a.at, a.at + 50, 4, &e), -EIO);
    CU_ASSERT_EQUAL(gpu_set_stream(g, NULL, &e), -EIO);
    CU_ASSERT_STRING_EQUAL(e.text, first);
    gpu_free(g, &a);
    CU_ASSERT_EQUAL(gpu_close(g), NULL);
    expect_nothing_left();
    (void) dlclose(driver);
}

/* Each call of opening fails once: its errno, no object left open. */
static void test_opening_fails(void)
{
    static const char *const calls[] = {
        "cuInit",           "cuDeviceGetCount",   "cuDeviceGetUuid_v2", "cuDevicePrimaryCtxRetain",
        "cuModuleLoadData", "cuModuleGetFunction"};
    void *driver = keep_driver();
    struct errmsg e = {""};
    struct gpu *g = NULL;

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        char setting[64];

        (void) snprintf(setting, sizeof(setting), "%s:1:%d", calls[i], CU_OUT_OF_MEMORY);
        CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", setting, 1), 0);
        errmsg_clear(&e);
        CU_ASSERT_EQUAL(gpu_open(NULL, NULL, &g, &e), -ENOMEM);
        CU_ASSERT_PTR_NULL(g);
        CU_ASSERT_NOT_EQUAL(e.text[0], '\0');
        CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
    }
    CU_ASSERT_EQUAL(gpu_open("GPU-00000000-0000-0000-0000-000000000000", NULL, &g, &e), -ENODEV);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "GPU-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0"));
    CU_ASSERT_EQUAL(gpu_open("the big one", NULL, &g, &e), -EINVAL);
    CU_ASSERT_EQUAL_FATAL(gpu_open("GPU-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0", NULL, &g, &e), 0);
    CU_ASSERT_STRING_EQUAL(g->uuid, "GPU-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0");
    CU_ASSERT_EQUAL(gpu_close(g), NULL);
    CU_ASSERT_EQUAL_FATAL(gpu_open("MIG-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0", NULL, &g, &e),
                          0); /* a part of a GPU */
    CU_ASSERT_STRING_EQUAL(
        g->uuid, "GPU-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0"); /* as the driver and the daemon write it */
    CU_ASSERT_EQUAL(gpu_close(g), NULL);
    expect_nothing_left();
    (void) dlclose(driver);
}

const char test_suite[] = "a client's GPU";
const struct test_case test_cases[] = {
    TEST(test_memory_is_used_again),
    TEST(test_too_much_goes_back),
    TEST(test_out_of_memory),
    TEST(test_copies),
    TEST(test_flags),
    TEST(test_slots),
    TEST(test_stream_is_gone),
    TEST(test_loss),
    TEST(test_opening_fails),
    TEST_END,
};
