/* kvcobra-mover without a driver, with hostile packets, after the loss of its context,
 * and after the exit of the daemon. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/test.h"
#include "tests/unit/mover/mover_process.h"

/* Puts a file with the name of a library into @folder, which the loader then searches
 * first: a link to @target, or a text if @target is NULL. */
static void put_library(char *folder, const char *name, const char *target)
{
    char path[400], value[800];

    (void) snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (target) {
        CU_ASSERT_EQUAL_FATAL(symlink(target, path), 0);
    } else {
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

        CU_ASSERT_EQUAL(write(fd, "no library\n", 11), 11);
        (void) close(fd);
    }
    (void) snprintf(value, sizeof(value), "%s", folder);
    CU_ASSERT_EQUAL(setenv("LD_LIBRARY_PATH", value, 1), 0);
}

static void test_broken_libraries(void)
{
    char folder[] = "/tmp/kvc-test-driver-XXXXXX", path[64], before[400];
    Kvcobra__MoverReply *reply;

    (void) snprintf(before, sizeof(before), "%s", getenv("LD_LIBRARY_PATH"));
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    put_library(folder, "libnvidia-ml.so.1", NULL);
    put_library(folder, "libcuda.so.1", NULL);
    mover_process_start(&mover);
    CU_ASSERT_EQUAL(reply_err(ask_open(0, "", EXTENT_BYTES)), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(reply_message, "no usable NVIDIA driver"));
    (void) snprintf(path, sizeof(path), "%s/libcuda.so.1", folder);
    CU_ASSERT_EQUAL(unlink(path), 0);
    put_library(folder, "libcuda.so.1", STANDIN_CUDA_OLD "/libcuda.so.1");
    CU_ASSERT_EQUAL(reply_err(ask_open(0, "", EXTENT_BYTES)), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(reply_message, "too old"));
    CU_ASSERT_EQUAL(unlink(path), 0);
    put_library(folder, "libcuda.so.1", STANDIN_CUDA "/libcuda.so.1");
    /* the driver is installed now; the library that lists processes is not */
    reply = ask_open(0, "", EXTENT_BYTES);
    CU_ASSERT_FATAL(reply && reply->err == 0);
    CU_ASSERT_FALSE(reply->open->lists_processes);
    mover_reply_free(reply);
    CU_ASSERT_EQUAL(ask_lists(getpid()), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(unlink(path), 0);
    (void) snprintf(path, sizeof(path), "%s/libnvidia-ml.so.1", folder);
    CU_ASSERT_EQUAL(unlink(path), 0);
    put_library(folder, "libnvidia-ml.so.1", STANDIN_CUDA "/libnvidia-ml.so.1");
    CU_ASSERT_EQUAL(ask_lists(mover.pid), 1); /* it is now */
    CU_ASSERT_EQUAL(ask_lists(getppid()), 0);
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
    CU_ASSERT_EQUAL(setenv("LD_LIBRARY_PATH", before, 1), 0);
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

static void test_hostile_packets(void)
{
    static const struct {
        const char *bytes;
        size_t n;
    } packets[] = {{"\xff", 1}, {"\x52\x05\x08", 3}, {"\x0b\x0c", 2}, {"\x72\x00\x72\x00", 4}};
    Kvcobra__MoverRequest nothing = KVCOBRA__MOVER_REQUEST__INIT;
    uint8_t byte;

    for (size_t i = 0; i < sizeof(packets) / sizeof(packets[0]); i++) {
        start_open();
        CU_ASSERT_EQUAL(wire_send(mover.socket, packets[i].bytes, packets[i].n, NULL, 0), 0);
        CU_ASSERT_EQUAL(recv(mover.socket, &byte, 1, 0), 0); /* it has exited without a reply */
        CU_ASSERT_EQUAL(mover_process_wait(&mover), 1);
    }
    mover_process_start(&mover);
    /* a request of a newer daemon gets a reply */
    CU_ASSERT_EQUAL(reply_err(mover_process_ask(&mover, &nothing, NULL, 0, NULL)), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(reply_err(mover_process_ask(&mover, &nothing, (int[]){0, 1, 2, 0}, 4, NULL)),
                    -EOPNOTSUPP);
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
}

/* After the loss of its context, the mover replies with -EIO and exits. */
static void test_lost_context(void)
{
    CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", "cuMemsetD8_v2:2:719", 1), 0);
    start_open();
    CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
    CU_ASSERT_EQUAL(ask_create(MIB, NULL), 0);
    CU_ASSERT_EQUAL(ask_create(MIB, NULL), -EIO);
    CU_ASSERT_PTR_NOT_NULL(strstr(reply_message, "(CUDA_ERROR"));
    CU_ASSERT_EQUAL(ask_create(MIB, NULL), -ENOTCONN);
    CU_ASSERT_EQUAL(mover_process_wait(&mover), 1);
}

static bool line_in(const char *file, const char *line)
{
    char path[64], have[256];
    bool found = false;
    FILE *f;

    (void) snprintf(path, sizeof(path), "/proc/%d/%s", (int) mover.pid, file);
    f = fopen(path, "re");
    while (f && fgets(have, sizeof(have), f))
        found |= strncmp(have, line, strlen(line)) == 0;
    if (f)
        (void) fclose(f);
    return found;
}

static void test_locked_down(void)
{
    char path[64];

    start_open(); /* locking down comes before the first reply */
    CU_ASSERT_TRUE(line_in("status", "NoNewPrivs:\t1"));
    CU_ASSERT_TRUE(line_in("limits", "Max core file size        1                    1 "));
    /* mover_process_start() left it open */
    (void) snprintf(path, sizeof(path), "/proc/%d/fd/77", (int) mover.pid);
    CU_ASSERT_EQUAL(access(path, F_OK), -1);
    CU_ASSERT_EQUAL(mover_process_stop(&mover), 0);
}

/* The mover exits when its parent is killed, although another process keeps the socket open. */
static void test_the_daemon_dies(void)
{
    int pair[2], status;
    char byte;
    pid_t parent;

    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    parent = fork();
    if (parent == 0) {
        Kvcobra__MoverReply *reply;

        start_open();
        if (wire_send(pair[1], "x", 1, &mover.socket, 1) < 0) /* this copy of the socket stays open */
            _exit(1);
        do
            reply = ask_open(0, "", EXTENT_BYTES);
        while (reply);
        _exit(1);
    }
    {
        struct wire_packet p;
        static uint8_t packet[WIRE_PACKET_BYTES_MAX];

        CU_ASSERT_EQUAL_FATAL(wire_receive(pair[0], packet, &p), 0);
        CU_ASSERT_EQUAL(kill(parent, SIGKILL), 0);
        CU_ASSERT_EQUAL(waitpid(parent, &status, 0), parent);
        while (recv(p.fds[0], &byte, 1, 0) > 0) /* unread replies, then the end of the stream */
            ;
        wire_packet_close_fds(&p);
    }
    (void) close(pair[0]);
    (void) close(pair[1]);
}

const char test_suite[] = "serve_ends";
const struct test_case test_cases[] = {
    TEST(test_broken_libraries), TEST(test_hostile_packets), TEST(test_lost_context),
    TEST(test_locked_down),      TEST(test_the_daemon_dies), TEST_END,
};
