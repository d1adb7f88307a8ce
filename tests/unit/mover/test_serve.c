/*
 * Requests to kvcobra-mover: opening, creating, checking, copying and listing. The driver is the stand-in
 * of tests/standin. With TEST_GPU=1 in the environment it is the real one (tests/gpu/run.sh), and checks of
 * sizes, UUIDs and failures of the stand-in are skipped.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/extent.h"
#include "tests/lib/test.h"
#include "tests/unit/mover/mover_process.h"

/* ---- this process as a client ---- */

struct client {
    struct cuda_driver *driver;
    struct cuda_space *space;
    struct errmsg e;
};

static void client_init(struct client *c)
{
    struct cuda_device_info device;

    *c = (struct client){0};
    CU_ASSERT_EQUAL_FATAL(cuda_driver_open(&c->driver, &c->e), 0);
    CU_ASSERT_EQUAL_FATAL(cuda_device_find(c->driver, NULL, &device, &c->e), 0);
    CU_ASSERT_EQUAL_FATAL(cuda_space_new(c->driver, &device, EXTENT_BYTES, &c->space, &c->e), 0);
}

static void client_deinit(struct client *c)
{
    c->space = cuda_space_free(c->space);
    c->driver = cuda_driver_close(c->driver);
}

/* Reads or writes a whole extent. */
static void client_move(int fd, uint8_t *data, bool to_extent)
{
    struct client c;
    struct cuda_extent *x = NULL;

    client_init(&c);
    CU_ASSERT_EQUAL_FATAL(cuda_extent_import(c.space, fcntl(fd, F_DUPFD_CLOEXEC, 0), EXTENT_BYTES,
                                             CU_ACCESS_READ_WRITE, &x, &c.e),
                          0);
    CU_ASSERT_EQUAL(to_extent ? cuda_extent_write(x, 0, data, EXTENT_BYTES, &c.e)
                              : cuda_extent_read(x, 0, data, EXTENT_BYTES, &c.e),
                    0);
    cuda_extent_free(x);
    client_deinit(&c);
}

static bool on_real_gpu(void)
{
    const char *text = getenv("TEST_GPU");

    return text && strcmp(text, "1") == 0;
}

/* ---- tests ---- */

static void test_opening(void)
{
    static const char second[] = "GPU-c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1";
    Kvcobra__MoverReply *reply;

    if (on_real_gpu()) {
        test_skip("UUIDs and sizes are those of the stand-in");
        return;
    }
    CU_ASSERT_EQUAL(setenv("STANDIN_DEVICES", "2", 1), 0);
    mover_process_start(&mover);
    for (int again = 0; again < 2; again++) {
        reply = ask_open(1, second, EXTENT_BYTES);
        CU_ASSERT_FATAL(reply && reply->err == 0);
        CU_ASSERT_STRING_EQUAL(reply->open->uuid, second);
        CU_ASSERT_STRING_EQUAL(reply->open->name, "stand-in GPU 1");
        CU_ASSERT_EQUAL(reply->open->bytes, 64 * MIB);
        CU_ASSERT_EQUAL(reply->open->granularity, 65536);
        CU_ASSERT_EQUAL(reply->open->compute, 90);
        CU_ASSERT_EQUAL(reply->open->driver_version, 13000);
        CU_ASSERT_TRUE(reply->open->lists_processes);
        CU_ASSERT_FALSE(reply->open->is_shared);
        mover_reply_free(reply);
    }
    CU_ASSERT_EQUAL(reply_err(ask_open(1, "GPU-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0", EXTENT_BYTES)),
                    -EEXIST);
    CU_ASSERT_EQUAL(reply_err(ask_open(0, "GPU-00000000-0000-0000-0000-000000000000", EXTENT_BYTES)),
                    -ENODEV);
    CU_ASSERT_PTR_NOT_NULL(strstr(reply_message, second)); /* the sentence names the devices */
    CU_ASSERT_EQUAL(reply_err(ask_open(0, "gpu", EXTENT_BYTES)), -EINVAL);
    CU_ASSERT_EQUAL(reply_err(ask_open(17, "", EXTENT_BYTES)), -EINVAL);
    CU_ASSERT_EQUAL(reply_err(ask_open(UINT32_MAX, "", EXTENT_BYTES)), -EINVAL);
    CU_ASSERT_EQUAL(reply_err(ask_open(0, "", 0)), -EINVAL);
    CU_ASSERT_EQUAL(reply_err(ask_open(16, "", UINT64_MAX)), 0); /* capped at the device's memory */
    CU_ASSERT_EQUAL(ask_create(EXTENT_BYTES, NULL), -ENODEV);    /* device 0 is not open */
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
    CU_ASSERT_EQUAL(unsetenv("STANDIN_DEVICES"), 0);
}

/* Memory from the driver holds bytes of other processes; extents are cleared. */
static void test_creating(void)
{
    uint8_t *data = malloc(EXTENT_BYTES);
    size_t n_set = 0;
    int fd = -1;

    assert(data);
    start_open();
    CU_ASSERT_EQUAL_FATAL(ask_create(EXTENT_BYTES, &fd), 0);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    client_move(fd, data, false);
    for (size_t i = 0; i < EXTENT_BYTES; i++)
        n_set += data[i] != 0;
    CU_ASSERT_EQUAL(n_set, 0);
    CU_ASSERT_EQUAL(ask_create(EXTENT_BYTES + 1, NULL), -EINVAL);
    CU_ASSERT_EQUAL(ask_create(0, NULL), -EINVAL);
    if (!on_real_gpu()) {
        /* the stand-in has 64 MiB, less the extents in use */
        CU_ASSERT_EQUAL(ask_create(64 * MIB, NULL), -ENOMEM);
        CU_ASSERT_PTR_NOT_NULL(strstr(reply_message, "GPU memory"));
    }
    CU_ASSERT_EQUAL(ask_create(UINT64_MAX & ~(uint64_t) (EXTENT_BYTES - 1), NULL), -ENOMEM);
    CU_ASSERT_EQUAL(ask_create(EXTENT_BYTES, NULL), 0); /* the mover works after these errors */
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
    CU_ASSERT_EQUAL(close(fd), 0);
    free(data);
}

/* The published definition: bit by bit, reflected polynomial 0x82f63b78. */
static uint32_t crc_by_bits(const uint8_t *p, size_t n)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
    }
    return ~crc;
}

static int extent_of_noise(uint8_t **ret_data)
{
    uint8_t *data = malloc(EXTENT_BYTES);
    int fd = -1;

    assert(data);
    for (size_t i = 0; i < EXTENT_BYTES; i++)
        data[i] = (uint8_t) test_rand();
    CU_ASSERT_EQUAL_FATAL(ask_create(EXTENT_BYTES, &fd), 0);
    client_move(fd, data, true);
    *ret_data = data;
    return fd;
}

static void test_checking(void)
{
    /* empty, one byte, across pieces of a megabyte, all but both ends, at the end, one piece */
    static const uint64_t ranges[][2] = {{5, 0},
                                         {7, 1},
                                         {MIB - 3, MIB + 9},
                                         {1, EXTENT_BYTES - 2},
                                         {EXTENT_BYTES - 4, 4},
                                         {EXTENT_BYTES, 0},
                                         {3, MIB - 1},
                                         {3, MIB}};
    static const uint64_t beyond[][2] = {{0, 1}, {EXTENT_BYTES - 4, 5}};
    static const uint64_t wrapped[][2] = {{UINT64_MAX, 2}};
    uint32_t crc[8] = {0};
    uint8_t *data;
    int fd, foreign = memfd_create("not-a-gpu", MFD_CLOEXEC);

    start_open();
    fd = extent_of_noise(&data);
    CU_ASSERT_EQUAL(ask_check(&fd, 1, EXTENT_BYTES, ranges, 8, crc), 0);
    for (size_t i = 0; i < 8; i++)
        CU_ASSERT_EQUAL(crc[i], crc_by_bits(data + ranges[i][0], ranges[i][1]));
    CU_ASSERT_EQUAL(ask_check(&fd, 1, EXTENT_BYTES, NULL, 0, crc), 0);
    CU_ASSERT_EQUAL(ask_check(&fd, 1, EXTENT_BYTES, beyond, 2, crc), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(reply_message, "the range of 5 bytes at"));
    CU_ASSERT_EQUAL(ask_check(&fd, 1, EXTENT_BYTES, wrapped, 1, crc), -EINVAL);
    /* more than the device was opened for */
    CU_ASSERT_EQUAL(ask_check(&fd, 1, 2 * EXTENT_BYTES, ranges, 1, crc), -ENOSPC);
    CU_ASSERT_EQUAL(ask_check(&fd, 1, EXTENT_BYTES - 1, NULL, 0, crc), -EINVAL);
    if (!on_real_gpu()) /* the error of a real driver for other descriptors is not documented */
        CU_ASSERT_EQUAL(ask_check(&foreign, 1, EXTENT_BYTES, ranges, 1, crc), -EBADMSG);
    CU_ASSERT_EQUAL(ask_check(NULL, 0, EXTENT_BYTES, ranges, 1, crc), -EINVAL);
    CU_ASSERT_EQUAL(ask_check((int[]){fd, fd}, 2, EXTENT_BYTES, ranges, 1, crc), -EINVAL);
    CU_ASSERT_EQUAL(ask_check(&fd, 1, EXTENT_BYTES, ranges, 6, crc), 0);
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
    (void) close(fd);
    (void) close(foreign);
    free(data);
}

static void test_copying(void)
{
    uint8_t *data, *got = calloc(1, EXTENT_BYTES);
    int fd, file = memfd_create("file", MFD_CLOEXEC), read_only;
    const size_t at = 100001, n = MIB + 12345;
    char path[64];

    assert(got);
    start_open();
    fd = extent_of_noise(&data);
    CU_ASSERT_EQUAL(ask_copy(fd, file, at, n, false), 0);
    CU_ASSERT_EQUAL(pread(file, got, EXTENT_BYTES, 0), (ssize_t) n);
    CU_ASSERT_EQUAL(memcmp(got, data + at, n), 0);

    memset(got, 0x5a, n);
    CU_ASSERT_EQUAL(pwrite(file, got, n, 0), (ssize_t) n);
    CU_ASSERT_EQUAL(ask_copy(fd, file, at + 1, n, true), 0);
    client_move(fd, got, false);
    memset(data + at + 1, 0x5a, n);
    CU_ASSERT_EQUAL(memcmp(got, data, EXTENT_BYTES), 0); /* the rest is unchanged */

    CU_ASSERT_EQUAL(ask_copy(fd, file, 0, 0, true), 0);
    CU_ASSERT_EQUAL(ask_copy(fd, file, 0, n + 1, true), -EBADMSG); /* the file is shorter than the range */
    CU_ASSERT_EQUAL(ask_copy(fd, file, EXTENT_BYTES - n + 1, n, true), -EINVAL);
    if (!on_real_gpu())
        CU_ASSERT_EQUAL(ask_copy(file, fd, 0, n, true), -EBADMSG); /* descriptors swapped */
    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    read_only = open(path, O_RDONLY | O_CLOEXEC);
    CU_ASSERT_EQUAL(ask_copy(fd, read_only, 0, 1, false), -EBADMSG);
    CU_ASSERT_EQUAL(ask_copy(fd, file, 0, 1, false), 0);
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
    (void) close(read_only);
    (void) close(file);
    (void) close(fd);
    free(got);
    free(data);
}

static void test_listing(void)
{
    struct client c;

    start_open();
    if (on_real_gpu() && ask_lists(mover.pid) == -EOPNOTSUPP) {
        test_skip(reply_message); /* for example in a container */
        CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
        return;
    }
    CU_ASSERT_EQUAL(ask_lists(mover.pid), 1);
    CU_ASSERT_EQUAL(ask_lists(getppid()), 0);
    client_init(&c);
    CU_ASSERT_EQUAL(ask_lists(getpid()), 1);
    client_deinit(&c);
    if (!on_real_gpu()) /* a real driver may list a process for a while after its exit */
        CU_ASSERT_EQUAL(ask_lists(getpid()), 0);
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
}

/* A MIG partition has two UUIDs: one in the library, another in the driver. */
static void test_partition(void)
{
    if (on_real_gpu()) {
        test_skip("a test cannot partition a real GPU");
        return;
    }
    CU_ASSERT_EQUAL(setenv("STANDIN_MIG", "1", 1), 0);
    start_open();
    CU_ASSERT_EQUAL(ask_lists(mover.pid), 1);
    CU_ASSERT_EQUAL(ask_lists(getppid()), 0);
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
    CU_ASSERT_EQUAL(unsetenv("STANDIN_MIG"), 0);
}

/* Processes that the driver still lists are in the reply. More processes than a reply can hold
 * give an error instead of a partial list. */
static void test_long_lists(void)
{
    char path[] = "/tmp/kvc-test-listed-XXXXXX";
    int file;

    if (on_real_gpu()) {
        test_skip("only the stand-in can list processes that do not exist");
        return;
    }
    file = mkstemp(path);
    CU_ASSERT_FATAL(file >= 0);
    CU_ASSERT_EQUAL(setenv("STANDIN_ALSO_LISTED", path, 1), 0);
    start_open();
    CU_ASSERT_EQUAL(dprintf(file, "%d\n4194000\n", 4193999), 16);
    CU_ASSERT(ask_lists(4193999) == 1 && ask_lists(4194000) == 1);
    for (int i = 0; i < WIRE_ITEMS_MAX; i++)
        CU_ASSERT(dprintf(file, "%d\n", 4000000 + i) > 0);
    CU_ASSERT_EQUAL(ask_lists(mover.pid), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
    CU_ASSERT_EQUAL(unsetenv("STANDIN_ALSO_LISTED"), 0);
    (void) close(file);
    (void) unlink(path);
}

/* An MPS server, another PID namespace or a library that fails gives an error instead of a wrong list. */
static void test_no_list(void)
{
    static const struct {
        const char *name, *value, *word;
    } reasons[] = {{"STANDIN_MPS", "1", "MPS"},
                   {"STANDIN_MPS", "2", "MPS"}, /* only the driver says so */
                   {"STANDIN_MPS", "3", "MPS"}, /* only libnvidia-ml does */
                   {"STANDIN_OTHER_NAMESPACE", "1", "namespace"},
                   {"STANDIN_NO_LIST", "1", "refuses"}};

    if (on_real_gpu()) {
        test_skip("only the stand-in can fail on request");
        return;
    }
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        Kvcobra__MoverReply *reply;
        int fd = -1;

        CU_ASSERT_EQUAL(setenv(reasons[i].name, reasons[i].value, 1), 0);
        mover_process_start(&mover);
        reply = ask_open(0, "", EXTENT_BYTES);
        CU_ASSERT_FATAL(reply && reply->err == 0);
        CU_ASSERT_FALSE(reply->open->lists_processes);
        CU_ASSERT_EQUAL(reply->open->is_shared, i < 3);
        mover_reply_free(reply);
        CU_ASSERT_EQUAL(ask_lists(getpid()), -EOPNOTSUPP);
        CU_ASSERT_PTR_NOT_NULL(strstr(reply_message, reasons[i].word));
        CU_ASSERT_EQUAL(ask_create(EXTENT_BYTES, &fd), 0); /* other requests work */
        CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
        CU_ASSERT_EQUAL(unsetenv(reasons[i].name), 0);
        (void) close(fd);
    }
}

/* A server of MPS among the processes runs the work of its clients, whom the driver does not list. */
static void test_server_in_the_list(void)
{
    char path[] = "/tmp/kvc-test-listed-XXXXXX";
    int file;

    if (on_real_gpu()) {
        test_skip("only the stand-in can list processes that do not exist");
        return;
    }
    file = mkstemp(path);
    CU_ASSERT_FATAL(file >= 0);
    CU_ASSERT_EQUAL(dprintf(file, "4193998\n"), 8);
    CU_ASSERT_EQUAL(setenv("STANDIN_ALSO_LISTED", path, 1), 0);
    CU_ASSERT_EQUAL(setenv("STANDIN_SERVER_PID", "4193997", 1), 0);
    start_open();
    CU_ASSERT_EQUAL(ask_lists(4193998), 1);
    CU_ASSERT_EQUAL(dprintf(file, "4193997\n"), 8);
    CU_ASSERT_EQUAL(ask_lists(4193998), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(reply_message, "an MPS server runs the work of its clients"));
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
    CU_ASSERT_EQUAL(unsetenv("STANDIN_SERVER_PID"), 0);
    CU_ASSERT_EQUAL(unsetenv("STANDIN_ALSO_LISTED"), 0);
    (void) close(file);
    (void) unlink(path);
}

/* ---- what all kinds of requests have in common ---- */

/* A request of each kind that names @device. */
struct requests {
    Kvcobra__MoverOpen open;
    Kvcobra__MoverCreate create;
    Kvcobra__MoverCheck check;
    Kvcobra__MoverCopy copy;
    Kvcobra__MoverProcesses processes;
    Kvcobra__MoverRequest all[5];
};

/* How many descriptors belong to each of requests.all. */
static const size_t n_fds_of[5] = {0, 0, 1, 2, 0};

static void requests_init(struct requests *q, uint32_t device)
{
    kvcobra__mover_open__init(&q->open);
    kvcobra__mover_create__init(&q->create);
    kvcobra__mover_check__init(&q->check);
    kvcobra__mover_copy__init(&q->copy);
    kvcobra__mover_processes__init(&q->processes);
    q->open.device = q->create.device = q->check.device = q->copy.device = q->processes.device = device;
    q->open.bytes = q->create.bytes = q->check.extent_bytes = q->copy.extent_bytes = EXTENT_BYTES;
    for (size_t i = 0; i < 5; i++)
        kvcobra__mover_request__init(&q->all[i]);
    q->all[0].body_case = KVCOBRA__MOVER_REQUEST__BODY_OPEN;
    q->all[0].open = &q->open;
    q->all[1].body_case = KVCOBRA__MOVER_REQUEST__BODY_CREATE;
    q->all[1].create = &q->create;
    q->all[2].body_case = KVCOBRA__MOVER_REQUEST__BODY_CHECK;
    q->all[2].check = &q->check;
    q->all[3].body_case = KVCOBRA__MOVER_REQUEST__BODY_COPY;
    q->all[3].copy = &q->copy;
    q->all[4].body_case = KVCOBRA__MOVER_REQUEST__BODY_PROCESSES;
    q->all[4].processes = &q->processes;
}

/* The mover closes descriptors after its reply, but before the next one: this function waits for that one. */
static unsigned count_fds_of_mover(void)
{
    char path[64];
    unsigned n = 0;
    DIR *d;

    CU_ASSERT_EQUAL(reply_err(ask_open(0, "", EXTENT_BYTES)), 0);
    (void) snprintf(path, sizeof(path), "/proc/%d/fd", (int) mover.pid);
    d = opendir(path);
    assert(d);
    while (readdir(d))
        n++;
    (void) closedir(d);
    return n;
}

/* A device that is not open, another number of descriptors: an error with its sentence, for each kind. */
static void test_refusals_of_each_kind(void)
{
    static const uint32_t devices[] = {1, 16, 17, 18, UINT32_MAX};
    struct requests q;
    int fd = memfd_create("any", MFD_CLOEXEC), fds[3] = {fd, fd, fd};
    unsigned n_fds;

    start_open();
    n_fds = count_fds_of_mover();
    for (size_t i = 1; i < 5; i++) { /* all but open */
        for (size_t k = 0; k < sizeof(devices) / sizeof(devices[0]); k++) {
            char want[64];

            requests_init(&q, devices[k]);
            (void) snprintf(want, sizeof(want), "device %u is not open", (unsigned) devices[k]);
            CU_ASSERT_EQUAL(reply_err(mover_process_ask(&mover, &q.all[i], fds, n_fds_of[i], NULL)), -ENODEV);
            CU_ASSERT_STRING_EQUAL(reply_message, want);
        }
    }
    requests_init(&q, 0);
    for (size_t i = 0; i < 5; i++) {
        for (size_t n = 0; n <= 3; n++) {
            char want[80];

            if (n == n_fds_of[i])
                continue;
            (void) snprintf(want, sizeof(want), "%zu descriptors came with the request, %zu belong to it", n,
                            n_fds_of[i]);
            CU_ASSERT_EQUAL(reply_err(mover_process_ask(&mover, &q.all[i], fds, n, NULL)), -EINVAL);
            CU_ASSERT_STRING_EQUAL(reply_message, want);
        }
    }
    CU_ASSERT_EQUAL(count_fds_of_mover(), n_fds);
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
    (void) close(fd);
}

/* The mover keeps no descriptor of an extent or a file when a request ends, well or not. */
static void test_no_descriptor_stays(void)
{
    static const uint64_t whole[][2] = {{0, EXTENT_BYTES}}, beyond[][2] = {{1, EXTENT_BYTES}};
    int fd = -1, other = -1, file = memfd_create("file", MFD_CLOEXEC);
    uint32_t crc;
    unsigned n;

    start_open();
    CU_ASSERT_EQUAL_FATAL(ask_create(EXTENT_BYTES, &fd), 0);
    n = count_fds_of_mover();
    CU_ASSERT_EQUAL(ask_create(EXTENT_BYTES, &other), 0);
    CU_ASSERT_EQUAL(count_fds_of_mover(), n);
    CU_ASSERT_EQUAL(ask_create(EXTENT_BYTES + 1, NULL), -EINVAL);
    CU_ASSERT_EQUAL(ask_check(&fd, 1, EXTENT_BYTES, whole, 1, &crc), 0);
    CU_ASSERT_EQUAL(ask_check(&fd, 1, EXTENT_BYTES, beyond, 1, &crc), -EINVAL);
    CU_ASSERT_EQUAL(ask_copy(fd, file, 0, 1, false), 0);
    CU_ASSERT_EQUAL(ask_copy(fd, file, 0, 2, true), -EBADMSG);
    CU_ASSERT_EQUAL(ask_copy(fd, file, EXTENT_BYTES, 1, true), -EINVAL);
    CU_ASSERT_EQUAL(count_fds_of_mover(), n);
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
    (void) close(fd);
    (void) close(other);
    (void) close(file);
}

/* A call of the driver that fails ends one request, whose file has no byte more; the next request works. */
static void test_failing_calls(void)
{
    static const char *const calls[] = {"cuMemcpyDtoH_v2:2:2", "cuMemcpyHtoD_v2:2:2", "cuMemsetD8_v2:2:2"};
    static const uint64_t whole[][2] = {{0, EXTENT_BYTES}};

    if (on_real_gpu()) {
        test_skip("only the stand-in can fail on request");
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        int fd = -1, file = memfd_create("file", MFD_CLOEXEC);
        uint32_t crc;
        struct stat st;

        CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", calls[i], 1), 0);
        start_open();
        CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
        CU_ASSERT_EQUAL_FATAL(ask_create(EXTENT_BYTES, &fd), 0);
        CU_ASSERT_EQUAL(ask_create(EXTENT_BYTES, NULL), i == 2 ? -ENOMEM : 0);
        CU_ASSERT_EQUAL(ask_check(&fd, 1, EXTENT_BYTES, whole, 1, &crc), i == 0 ? -ENOMEM : 0);
        CU_ASSERT_EQUAL(ask_check(&fd, 1, EXTENT_BYTES, whole, 1, &crc), 0);
        CU_ASSERT_EQUAL(ftruncate(file, 2 * (off_t) MIB), 0);
        CU_ASSERT_EQUAL(ask_copy(fd, file, 0, 2 * MIB, true), i == 1 ? -ENOMEM : 0);
        CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);

        CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", calls[i], 1), 0);
        start_open();
        CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
        CU_ASSERT_EQUAL(ftruncate(file, 0), 0);
        CU_ASSERT_EQUAL(ask_copy(fd, file, 0, 2 * MIB, false), i == 0 ? -ENOMEM : 0);
        CU_ASSERT_EQUAL(fstat(file, &st), 0);
        CU_ASSERT_EQUAL(st.st_size, i == 0 ? (off_t) MIB : 2 * (off_t) MIB); /* the second piece failed */
        CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
        (void) close(fd);
        (void) close(file);
    }
}

const char test_suite[] = "serve";
const struct test_case test_cases[] = {
    TEST(test_opening),
    TEST(test_creating),
    TEST(test_checking),
    TEST(test_copying),
    TEST(test_listing),
    TEST(test_partition),
    TEST(test_long_lists),
    TEST(test_no_list),
    TEST(test_server_in_the_list),
    TEST(test_refusals_of_each_kind),
    TEST(test_no_descriptor_stays),
    TEST(test_failing_calls),
    TEST_END,
};
