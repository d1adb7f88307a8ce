/*
 * Packets with descriptors over a socket: an input chooses packets that wire_send() sends, and packets with
 * more bytes or descriptors than allowed, with other control messages, or none. wire_receive() must accept
 * exactly what protocol.h allows, with the right bytes, descriptors and credentials. No descriptor may be
 * left open.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FDS_MAX = 253, PACKETS_MAX = 8 }; /* SCM_MAX_FD of Linux */

static int ends[2], files[FDS_MAX];

static void check(bool ok)
{
    if (!ok)
        abort();
}

/* The number that the next descriptor would get: the same as before if none was left open. */
static int next_fd(void)
{
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);

    check(fd >= 0);
    (void) close(fd);
    return fd;
}

static void open_ends(void)
{
    int on = 1;

    check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    check(setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0);
    for (unsigned i = 0; i < FDS_MAX; i++)
        files[i] = STDIN_FILENO;
    files[1] = ends[0]; /* two descriptors of other files: their order is checked */
    files[2] = ends[1];
}

/* sendmsg() with any number of bytes and descriptors, and the sender's credentials if @credentials. */
static int send_any(const void *packet, size_t bytes, size_t n_fds, bool credentials)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    } control = {.bytes = {0}};
    struct ucred me = {.pid = getpid(), .uid = getuid(), .gid = getgid()};
    struct iovec iov = {(void *) packet, bytes};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes};
    struct cmsghdr *c = &control.align;

    if (credentials) {
        *c = (struct cmsghdr){CMSG_LEN(sizeof(me)), SOL_SOCKET, SCM_CREDENTIALS};
        memcpy(CMSG_DATA(c), &me, sizeof(me));
        msg.msg_controllen = CMSG_SPACE(sizeof(me));
        c = (struct cmsghdr *) (control.bytes + msg.msg_controllen);
    }
    if (n_fds > 0) {
        *c = (struct cmsghdr){CMSG_LEN(n_fds * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(c), files, n_fds * sizeof(int));
        msg.msg_controllen += CMSG_SPACE(n_fds * sizeof(int));
    }
    if (msg.msg_controllen == 0)
        msg.msg_control = NULL;
    return sendmsg(ends[0], &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static bool same_file(int a, int b)
{
    struct stat sa, sb;

    check(fstat(a, &sa) == 0 && fstat(b, &sb) == 0);
    return sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

static void receive(const void *packet, size_t bytes, size_t n_fds)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    struct wire_packet p = {.bytes = 77};
    int r = wire_receive(ends[1], buf, &p);

    if (bytes > WIRE_PACKET_BYTES_MAX || n_fds > WIRE_FDS_MAX) {
        check(r == -EBADMSG && p.bytes == 77);
        return;
    }
    if (bytes == 0) {
        check(r == -EPIPE && p.bytes == 77);
        return;
    }
    check(r == 0 && p.bytes == bytes && memcmp(buf, packet, bytes) == 0 && p.n_fds == n_fds);
    check(p.pid == getpid() && p.uid == getuid() && p.gid == getgid());
    for (size_t i = 0; i < n_fds; i++) {
        check(same_file(p.fds[i], files[i]));
        check(fcntl(p.fds[i], F_GETFD) == FD_CLOEXEC);
    }
    wire_packet_close_fds(&p);
    check(p.n_fds == 0);
}

static void exchange(const uint8_t choice[static 4])
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX + 8];
    size_t bytes = choice[0] | (size_t) choice[1] << 8, n_fds = choice[2];
    bool own = choice[3] & 1;
    int r;

    if (choice[3] & 2)
        bytes = WIRE_PACKET_BYTES_MAX - 4 + choice[0] % 12; /* around the limit */
    n_fds = choice[3] & 4 ? n_fds % (FDS_MAX + 1) : n_fds % (WIRE_FDS_MAX + 2);
    memset(packet, choice[0] ^ choice[2], bytes);
    if (own && bytes > 0 && bytes <= WIRE_PACKET_BYTES_MAX && n_fds <= WIRE_FDS_MAX)
        r = wire_send(ends[0], packet, bytes, files, n_fds);
    else
        r = send_any(packet, bytes, n_fds, choice[3] & 8);
    check(r == 0);
    if (choice[3] & 16) { /* two packets wait */
        check(send_any(packet, 1, 0, false) == 0);
        receive(packet, bytes, n_fds);
        receive(packet, 1, 0);
    } else {
        receive(packet, bytes, n_fds);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wire_packet p;
    uint8_t byte;
    int next;

    if (ends[1] == 0)
        open_ends();
    next = next_fd();
    for (size_t i = 0; i + 4 <= size && i < 4 * PACKETS_MAX; i += 4)
        exchange(data + i);
    check(wire_receive(ends[1], &byte, &p) == -EAGAIN);
    check(next_fd() == next);
    return 0;
}
