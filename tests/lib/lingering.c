/* See lingering.h. */
#include "tests/lib/lingering.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/test.h"
#include "tests/lib/wait.h"

enum { LINGER_S = 3600, FDS_MAX = 253 /* the kernel's limit for a packet */ };

int lingering_send(int socket, int fd, unsigned n)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control = {.bytes = {0}};
    char byte = '?';
    struct iovec iov = {&byte, 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = CMSG_SPACE(n * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

    assert(n > 0 && n <= FDS_MAX);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(n * sizeof(int));
    for (unsigned i = 0; i < n; i++)
        memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(fd));
    return sendmsg(socket, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* A TCP connection over loopback whose peer does not read, full of unsent bytes. */
static int lingering_tcp(int *ret_peer)
{
    static const char bytes[65536];
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct linger linger = {.l_onoff = 1, .l_linger = LINGER_S};
    socklen_t n = sizeof(sa);
    int small = 4096, /* few bytes to read */
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) == 0);
    assert(bind(listener, (struct sockaddr *) &sa, sizeof(sa)) == 0 && listen(listener, 1) == 0);
    assert(getsockname(listener, (struct sockaddr *) &sa, &n) == 0);
    assert(connect(fd, (struct sockaddr *) &sa, sizeof(sa)) == 0);
    *ret_peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert(*ret_peer >= 0 && close(listener) == 0);
    assert(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)) == 0);
    assert(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
    while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        ;
    assert(errno == EAGAIN);
    return fd;
}

int lingering_socket(int *ret_peer)
{
    int tcp = lingering_tcp(ret_peer), pair[2];

    assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    assert(lingering_send(pair[0], tcp, 1) == 0);
    assert(close(tcp) == 0 && close(pair[0]) == 0); /* neither is the last reference */
    return pair[1];
}

bool lingering_is_closed(int peer)
{
    static char bytes[65536];
    struct timeval timeout = {.tv_sec = WAIT_LIMIT_S};
    ssize_t n;

    assert(setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0);
    do
        n = recv(peer, bytes, sizeof(bytes), 0);
    while (n > 0 || (n < 0 && errno == EINTR));
    return n == 0 || errno == ECONNRESET; /* the kernel may reset a connection whose close is interrupted */
}
