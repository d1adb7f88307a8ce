/* Which socket a program uses: what it is given, the environment, the user's daemon, the system's. */
#include "client/kvcobra.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/test.h"

const char test_suite[] = "socket_path";

static char folder[32], own[64];

static const char *found(enum kvc_socket which, const char *given)
{
    static char path[108];

    CU_ASSERT_EQUAL(kvc_socket_path(which, given, path, sizeof(path)), 0);
    return path;
}

static void clear_environment(void)
{
    (void) unsetenv("KVCOBRA_SOCKET");
    (void) unsetenv("KVCOBRA_OPERATOR_SOCKET");
    (void) unsetenv("XDG_RUNTIME_DIR");
}

/* Makes kvcobra/kvcobra.sock in a new $XDG_RUNTIME_DIR; @is_socket: or a file of that name. */
static void make_own(bool is_socket)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    FILE *f;

    (void) strcpy(folder, "/tmp/kvcobra-test-XXXXXX");
    CU_ASSERT_FATAL(fd >= 0 && mkdtemp(folder) != NULL);
    (void) snprintf(own, sizeof(own), "%s/kvcobra", folder);
    CU_ASSERT_EQUAL_FATAL(mkdir(own, 0700), 0);
    (void) snprintf(own, sizeof(own), "%s/kvcobra/kvcobra.sock", folder);
    (void) strcpy(sa.sun_path, own);
    if (is_socket) {
        CU_ASSERT_EQUAL_FATAL(bind(fd, (const struct sockaddr *) &sa, sizeof(sa)), 0);
    } else {
        f = fopen(own, "we");
        CU_ASSERT_PTR_NOT_NULL_FATAL(f);
        (void) fclose(f);
    }
    (void) close(fd);
    CU_ASSERT_EQUAL(setenv("XDG_RUNTIME_DIR", folder, 1), 0);
}

static void remove_own(void)
{
    (void) unlink(own);
    *strrchr(own, '/') = '\0';
    CU_ASSERT(rmdir(own) == 0 && rmdir(folder) == 0);
    clear_environment();
}

static void test_order(void)
{
    clear_environment();
    CU_ASSERT_STRING_EQUAL(found(KVC_SOCKET_CLIENTS, NULL), "/run/kvcobra/kvcobra.sock");
    CU_ASSERT_STRING_EQUAL(found(KVC_SOCKET_OPERATORS, ""), "/run/kvcobra/operator.sock");

    make_own(true);
    CU_ASSERT_STRING_EQUAL(found(KVC_SOCKET_CLIENTS, NULL), own);
    CU_ASSERT_STRING_EQUAL(found(KVC_SOCKET_OPERATORS, NULL), "/run/kvcobra/operator.sock"); /* not there */

    CU_ASSERT_EQUAL(setenv("KVCOBRA_SOCKET", "/a", 1), 0);
    CU_ASSERT_EQUAL(setenv("KVCOBRA_OPERATOR_SOCKET", "/b", 1), 0);
    CU_ASSERT_STRING_EQUAL(found(KVC_SOCKET_CLIENTS, NULL), "/a");
    CU_ASSERT_STRING_EQUAL(found(KVC_SOCKET_OPERATORS, NULL), "/b");
    CU_ASSERT_STRING_EQUAL(found(KVC_SOCKET_CLIENTS, "/c"), "/c");

    CU_ASSERT_EQUAL(setenv("KVCOBRA_SOCKET", "", 1), 0); /* as if it were not set */
    CU_ASSERT_STRING_EQUAL(found(KVC_SOCKET_CLIENTS, NULL), own);
    remove_own();
}

static void test_not_a_socket(void)
{
    clear_environment();
    make_own(false);
    CU_ASSERT_STRING_EQUAL(found(KVC_SOCKET_CLIENTS, NULL), "/run/kvcobra/kvcobra.sock");
    remove_own();
    CU_ASSERT_EQUAL(setenv("XDG_RUNTIME_DIR", "relative", 1), 0);
    CU_ASSERT_STRING_EQUAL(found(KVC_SOCKET_CLIENTS, NULL), "/run/kvcobra/kvcobra.sock");
    clear_environment();
}

static void test_refused(void)
{
    char path[26] = "untouched", longer[300];
    kvc_client *c = NULL;

    clear_environment();
    CU_ASSERT_EQUAL(kvc_socket_path(KVC_SOCKET_CLIENTS, NULL, NULL, 0), -EINVAL);
    CU_ASSERT_EQUAL(kvc_socket_path((enum kvc_socket) 2, NULL, path, sizeof(path)), -EINVAL);
    CU_ASSERT_EQUAL(kvc_socket_path(KVC_SOCKET_OPERATORS, NULL, path, sizeof(path)), -ENOSPC);
    CU_ASSERT_STRING_EQUAL(path, "untouched");
    CU_ASSERT_EQUAL(kvc_socket_path(KVC_SOCKET_CLIENTS, NULL, path, sizeof(path)),
                    0); /* 25 bytes and the zero */

    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&c), 0);
    CU_ASSERT_EQUAL(kvc_client_connect(c, longer), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(c), "longer than the 107 bytes"));
    CU_ASSERT_EQUAL(setenv("KVCOBRA_SOCKET", longer, 1), 0);
    CU_ASSERT_EQUAL(kvc_client_connect(c, NULL), -EINVAL);
    c = kvc_client_free(c);
    clear_environment();
}

/* In the folder of a user's own daemon, another user serves the socket. */
static void test_other_user(void)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    kvc_client *c = NULL;
    int fds[2], fd, status;
    pid_t child;
    char byte;

    if (geteuid() != 0) {
        test_skip("only root can become another user");
        return;
    }
    clear_environment();
    make_own(true);
    CU_ASSERT_EQUAL(unlink(own), 0);
    (void) strcpy(sa.sun_path, own);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CU_ASSERT_FATAL(fd >= 0 && bind(fd, (const struct sockaddr *) &sa, sizeof(sa)) == 0 && pipe(fds) == 0);

    child = fork();
    if (child == 0) { /* the kernel notes who listens */
        bool listens = setgid(65534) == 0 && setuid(65534) == 0 && listen(fd, 1) == 0;

        (void) !write(fds[1], listens ? "y" : "n", 1);
        (void) pause();
        _exit(0);
    }
    (void) close(fds[1]);
    CU_ASSERT(read(fds[0], &byte, 1) == 1 && byte == 'y');
    (void) close(fds[0]);

    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&c), 0);
    CU_ASSERT_EQUAL(kvc_client_connect(c, NULL), -EACCES);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(c), "served by user 65534"));
    c = kvc_client_free(c);
    (void) kill(child, SIGKILL);
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    (void) close(fd);
    remove_own();
}

const struct test_case test_cases[] = {TEST(test_order), TEST(test_not_a_socket), TEST(test_refused),
                                       TEST(test_other_user), TEST_END};
