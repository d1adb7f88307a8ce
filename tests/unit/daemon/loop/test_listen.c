/* Sockets at paths: their modes, what is removed at the end, and whose names are taken over. */
#include "daemon/loop/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "listen";

static char folder[] = "/tmp/kvcobra-listen-XXXXXX", path[sizeof(folder) + 8], lock[sizeof(folder) + 16],
            victim[sizeof(folder) + 8];
static bool is_exchanged; /* after bind(): by a link to the victim */

int __real_bind(int fd, const struct sockaddr *address, socklen_t bytes);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t bytes);

int __wrap_bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
    int r = __real_bind(fd, address, bytes);

    if (is_exchanged && r == 0)
        CU_ASSERT(unlink(path) == 0 && symlink(victim, path) == 0);
    return r;
}

static void begin(void)
{
    memcpy(folder + sizeof(folder) - 7, "XXXXXX", 6);
    assert(mkdtemp(folder));
    (void) snprintf(path, sizeof(path), "%s/s", folder);
    (void) snprintf(lock, sizeof(lock), "%s.lock", path);
    (void) snprintf(victim, sizeof(victim), "%s/victim", folder);
}

static void end(void)
{
    (void) unlink(path);
    (void) unlink(lock);
    (void) unlink(victim);
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

static mode_t mode_of(const char *name)
{
    struct stat st;

    return lstat(name, &st) == 0 ? st.st_mode & 07777 : 0;
}

static bool exists(const char *name)
{
    return access(name, F_OK) == 0;
}

static void test_modes(void)
{
    static const mode_t modes[] = {0600, 0660, 0666};
    struct listen_socket l;
    struct errmsg e = {""};

    begin();
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        CU_ASSERT_EQUAL_FATAL(listen_at(&l, SOCK_SEQPACKET, path, modes[i], getegid(), &e), 0);
        CU_ASSERT_EQUAL(mode_of(path), modes[i]);
        listen_deinit(&l);
        CU_ASSERT(!exists(path) && !exists(lock));
    }
    end();
}

/* A name that means another file when the socket stops stays. */
static void test_names_of_others_stay(void)
{
    struct listen_socket a, b;
    struct errmsg e = {""};

    begin();
    CU_ASSERT_EQUAL_FATAL(listen_at(&a, SOCK_SEQPACKET, path, 0600, (gid_t) -1, &e), 0);
    CU_ASSERT(unlink(path) == 0 && unlink(lock) == 0);
    CU_ASSERT_EQUAL_FATAL(listen_at(&b, SOCK_SEQPACKET, path, 0600, (gid_t) -1, &e), 0);
    listen_deinit(&a);
    CU_ASSERT(exists(path) && exists(lock));
    CU_ASSERT_EQUAL(listen_at(&a, SOCK_SEQPACKET, path, 0600, (gid_t) -1, &e),
                    -EADDRINUSE); /* the lock holds */
    CU_ASSERT(exists(path) && exists(lock));
    listen_deinit(&a);
    listen_deinit(&b);
    CU_ASSERT(!exists(path) && !exists(lock));
    end();
}

/* Without its lock file, a socket that is served is not replaced. */
static void test_served_without_a_lock(void)
{
    struct listen_socket a, b;
    struct errmsg e = {""};

    begin();
    CU_ASSERT_EQUAL_FATAL(listen_at(&a, SOCK_SEQPACKET, path, 0600, (gid_t) -1, &e), 0);
    CU_ASSERT_EQUAL(unlink(lock), 0);
    CU_ASSERT_EQUAL(listen_at(&b, SOCK_SEQPACKET, path, 0600, (gid_t) -1, &e), -EADDRINUSE);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "another process serves"));
    listen_deinit(&b);
    CU_ASSERT_EQUAL(listen_at(&b, SOCK_STREAM, path, 0600, (gid_t) -1, &e), -EADDRINUSE);
    listen_deinit(&b);
    CU_ASSERT(exists(path) && !exists(lock));
    listen_deinit(&a);
    end();
}

/* What a killed process leaves is replaced, also while another process still has the socket open. */
static void test_left_by_a_dead_process(void)
{
    struct listen_socket l = {.fd = -1};
    struct errmsg e = {""};
    int pair[2], status;
    pid_t pid;

    begin();
    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    pid = fork();
    if (pid == 0) {
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(int))];
        } control = {.bytes = {0}};
        struct iovec iov = {(char[1]){0}, 1};
        struct msghdr m = {.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = control.bytes,
                           .msg_controllen = sizeof(control)};
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);

        if (listen_at(&l, SOCK_SEQPACKET, path, 0600, (gid_t) -1, NULL) < 0)
            _exit(1);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &l.fd, sizeof(int));
        _exit(sendmsg(pair[1], &m, 0) == 1 ? 0 : 2); /* the socket lives on in the queue */
    }
    CU_ASSERT(waitpid(pid, &status, 0) == pid && status == 0);
    CU_ASSERT(exists(path));
    CU_ASSERT_EQUAL(listen_at(&l, SOCK_SEQPACKET, path, 0600, (gid_t) -1, &e), 0);
    listen_deinit(&l);
    (void) close(pair[0]);
    (void) close(pair[1]);
    end();
}

static void test_not_a_socket(void)
{
    struct listen_socket l;
    struct errmsg e = {""};
    int fd;

    begin();
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CU_ASSERT_EQUAL(listen_at(&l, SOCK_SEQPACKET, path, 0600, (gid_t) -1, &e), -EEXIST);
    listen_deinit(&l);
    CU_ASSERT(exists(path) && !exists(lock));
    (void) close(fd);
    end();
}

static void test_socket_of_another_user(void)
{
    struct listen_socket l;
    struct errmsg e = {""};
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd;

    if (geteuid() != 0) {
        test_skip("only root can make a socket of another user");
        return;
    }
    begin();
    memcpy(sa.sun_path, path, strlen(path));
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CU_ASSERT_EQUAL(bind(fd, (const struct sockaddr *) &sa, sizeof(sa)), 0);
    CU_ASSERT_EQUAL(chown(path, 4321, (gid_t) -1), 0);
    CU_ASSERT_EQUAL(listen_at(&l, SOCK_SEQPACKET, path, 0600, (gid_t) -1, &e), -EPERM);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "belongs to user 4321"));
    listen_deinit(&l);
    CU_ASSERT(exists(path));
    (void) close(fd);
    end();
}

/* In a folder of another user, the name is exchanged for a link between bind() and the next call. */
static void test_link_is_not_followed(void)
{
    struct listen_socket l;
    struct errmsg e = {""};
    int fd;

    begin();
    fd = open(victim, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    is_exchanged = true;
    CU_ASSERT_EQUAL(listen_at(&l, SOCK_SEQPACKET, path, 0666, (gid_t) -1, &e), -ESTALE);
    is_exchanged = false;
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "was replaced"));
    CU_ASSERT_EQUAL(mode_of(victim), 0600);
    listen_deinit(&l);
    CU_ASSERT(exists(path)); /* the link is not this process's */
    (void) close(fd);
    end();
}

const struct test_case test_cases[] = {
    TEST(test_modes),
    TEST(test_names_of_others_stay),
    TEST(test_served_without_a_lock),
    TEST(test_left_by_a_dead_process),
    TEST(test_not_a_socket),
    TEST(test_socket_of_another_user),
    TEST(test_link_is_not_followed),
    TEST_END,
};
