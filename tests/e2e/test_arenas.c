/* Arenas: who allocates their memory, when it is freed, and how much all clients together may have. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/other_user_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "arenas";

/* ---- the memory of one arena ---- */

static uint64_t allocated_bytes(int fd)
{
    struct stat st;

    assert(fstat(fd, &st) == 0);
    return (uint64_t) st.st_blocks * 512;
}

static void say_bye(int fd)
{
    Kvcobra__Bye bye = KVCOBRA__BYE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_BYE, &bye);

    CU_ASSERT_EQUAL(raw_errno(fd, &q), 0);
}

/* The daemon opened the object, and its descriptor in /proc tells how much memory it has. */
static int open_object_of_daemon(const char *name)
{
    char folder[64], path[400], target[128];
    int fd = -1;

    (void) snprintf(folder, sizeof(folder), "/proc/%ld/fd", (long) raw_daemon.pid);
    for (int i = 0; i < 256 && fd < 0; i++) {
        ssize_t n;

        (void) snprintf(path, sizeof(path), "%s/%d", folder, i);
        n = readlink(path, target, sizeof(target) - 1);
        target[n > 0 ? n : 0] = '\0';
        if (strstr(target, name))
            fd = open(path, O_RDWR | O_CLOEXEC);
    }
    CU_ASSERT_FATAL(fd >= 0);
    return fd;
}

/*
 * The daemon allocates nothing that it does not write, and what it wrote (READ_RAW) is freed at the end of
 * the session, although the client keeps the arena mapped.
 */
static void test_memory_of_an_arena(void)
{
    Kvcobra__ReadRaw read = KVCOBRA__READ_RAW__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_READ_RAW, &read);
    struct raw_slot slot;
    struct raw_model m;
    uint64_t lease;
    int arena;

    raw_start(DAEMON_BY_PATH, NULL);
    m = raw_model_open();
    arena = open_object_of_daemon("kvcobra-arena");
    CU_ASSERT_EQUAL(allocated_bytes(arena), 0);
    CU_ASSERT_EQUAL_FATAL(raw_publish(&m, 1, &slot, &lease), 0);
    CU_ASSERT(allocated_bytes(arena) > 0);

    read.lease = lease;
    read.type = KVCOBRA__NUMBER_TYPE__NUMBER_F32;
    read.arena_offset = 8 << 20;
    CU_ASSERT_EQUAL(raw_errno(m.fd, &q), 0);
    CU_ASSERT(m.arena[8 << 20] | m.arena[(8 << 20) + 1] | m.arena[(8 << 20) + 2]);
    say_bye(m.fd);
    for (struct wait w = wait_begin(); allocated_bytes(arena) > 0 && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL(allocated_bytes(arena), 0);
    (void) close(arena);
    raw_close_model(&m);
    raw_stop();
}

/* A session page is one page of memory, which its client cannot make larger. */
static void test_session_page(void)
{
    struct raw_model m;
    struct stat st;
    int page;

    raw_start(DAEMON_BY_PATH, NULL);
    m = raw_model_open();
    CU_ASSERT_EQUAL(m.session_bytes, 4096);
    memset(m.session + 8, 1, m.session_bytes - 8);
    page = open_object_of_daemon("kvcobra-session");
    CU_ASSERT(fstat(page, &st) == 0 && st.st_size == 4096 && st.st_blocks * 512 == 4096);
    CU_ASSERT(ftruncate(page, 8192) < 0 && errno == EPERM);
    (void) close(page);
    raw_close_model(&m);
    raw_stop();
}

/* ---- the arenas of all clients ---- */

/* A session of @uid; SO_PEERCRED has the effective user of connect(). Return: errno of OPEN_MODEL. */
static int open_as(uid_t uid, struct raw_model *ret)
{
    int fd, r;

    assert(seteuid(uid) == 0);
    fd = raw_connect(raw_daemon.socket);
    assert(seteuid(0) == 0);
    CU_ASSERT_EQUAL_FATAL(raw_hello(fd), 0);
    CU_ASSERT_EQUAL_FATAL(raw_confirm(fd), 0);
    r = raw_open_model(fd, &raw_geometry, raw_table->model_digest, ret);
    if (r < 0)
        (void) close(fd);
    return r;
}

/* Opens sessions of @uid until the daemon refuses with @expected. Return: their number. */
static size_t open_all(uid_t uid, struct raw_model *ret, int expected)
{
    size_t n = 0;
    int r = 0;

    while (n < 32 && (r = open_as(uid, &ret[n])) == 0)
        n++;
    CU_ASSERT_EQUAL(r, expected);
    return n;
}

/*
 * Of 16 arenas one tenant gets 14: the last two are for tenants that have none. A tenant that finds all taken
 * gets one as soon as another client has ended.
 */
static void test_arenas_of_all(void)
{
    const char *const args[] = {"--arena-bytes=1M", "--arenas-bytes=16M", "--quota-bytes=64M",
                                "--socket-mode=666", NULL};
    struct raw_model many[33], second[33], third[33], fourth;
    size_t n;
    int r;

    if (!other_user_is_possible())
        return;

    raw_start(DAEMON_BY_PATH, args);
    assert(chmod(raw_daemon.folder, 0711) == 0); /* other users reach the socket */
    n = open_all(OTHER_USER_UID, many, -EDQUOT);
    CU_ASSERT_EQUAL(n, 14);
    CU_ASSERT_EQUAL(open_all(OTHER_USER_UID - 1, second, -EDQUOT), 1);
    CU_ASSERT_EQUAL(open_all(OTHER_USER_UID - 2, third, -ENOSPC), 1);
    CU_ASSERT_EQUAL(open_as(OTHER_USER_UID - 3, &fourth), -ENOSPC);
    raw_close_model(&many[--n]);
    r = -ENOSPC;
    for (struct wait w = wait_begin(); r == -ENOSPC && wait_again(&w);)
        r = open_as(OTHER_USER_UID - 3, &fourth);
    CU_ASSERT_EQUAL(r, 0);
    raw_close_model(&fourth);
    raw_close_model(&third[0]);
    raw_close_model(&second[0]);
    while (n > 0)
        raw_close_model(&many[--n]);
    raw_stop();
}

const struct test_case test_cases[] = {
    TEST(test_memory_of_an_arena),
    TEST(test_session_page),
    TEST(test_arenas_of_all),
    TEST_END,
};
