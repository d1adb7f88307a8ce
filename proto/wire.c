/* Packets and messages; see wire.h. */
#include "proto/wire.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd_number.h"
#include "proto/wire_limits.h"

#ifndef SO_PASSRIGHTS /* Linux 6.16 */
#define SO_PASSRIGHTS 83
#endif

/* ---- messages ---- */

/*
 * Heap that protobuf-c may take for one packet. Freed bytes still count, so that the budget
 * bounds the work too. Blocks come from malloc(), so that a message can outlive the budget and
 * be freed with protobuf-c's own allocator.
 */
struct budget {
    size_t left;
    bool refused;
};

static void *wire_budget_alloc(void *data, size_t bytes)
{
    struct budget *b = data;
    void *p = NULL;

    if (bytes <= b->left) {
        b->left -= bytes;
        p = malloc(bytes > 0 ? bytes : 1);
    }
    b->refused |= !p;
    return p;
}

static void wire_budget_free(void *data, void *p)
{
    (void) data;
    free(p);
}

int wire_unpack(const ProtobufCMessageDescriptor *type, const void *packet, size_t bytes,
                ProtobufCMessage **ret)
{
    struct budget budget = {.left = WIRE_UNPACK_BYTES_MAX};
    ProtobufCAllocator allocator = {wire_budget_alloc, wire_budget_free, &budget};
    ProtobufCMessage *m;
    int r;

    if (bytes == 0 || bytes > WIRE_PACKET_BYTES_MAX)
        return -EBADMSG;

    r = wire_limits_check(type, packet, bytes);
    if (r < 0)
        return r;

    m = protobuf_c_message_unpack(type, &allocator, bytes, packet);
    if (!m)
        return budget.refused ? -ENOMEM : -EBADMSG;

    *ret = m;
    return 0;
}

const char *wire_refusal(int err)
{
    _Static_assert(WIRE_UNKNOWN_FIELDS_MAX == 16 && WIRE_ITEMS_MAX == 512, "the sentence below has them");

    switch (err) {
    case -EOPNOTSUPP:
        return "it has more fields that this version does not know than the protocol allows, 16 in one "
               "message "
               "and 512 in all: use the same version of KV-COBRA at both ends";
    case -E2BIG:
        return "it has more items, or a longer text, than the protocol allows";
    case -ENOMEM:
        return "decoding it takes more memory than there is, or than the protocol allows";
    default:
        return "it is not a message of the protocol";
    }
}

int wire_request_unpack(const void *packet, size_t bytes, Kvcobra__Request **ret)
{
    return wire_unpack(&kvcobra__request__descriptor, packet, bytes, (ProtobufCMessage **) ret);
}

int wire_reply_unpack(const void *packet, size_t bytes, Kvcobra__Reply **ret)
{
    return wire_unpack(&kvcobra__reply__descriptor, packet, bytes, (ProtobufCMessage **) ret);
}

void wire_request_free(Kvcobra__Request *m)
{
    if (m)
        kvcobra__request__free_unpacked(m, NULL);
}

void wire_reply_free(Kvcobra__Reply *m)
{
    if (m)
        kvcobra__reply__free_unpacked(m, NULL);
}

ssize_t wire_pack(const ProtobufCMessage *m, void *buf)
{
    size_t bytes = protobuf_c_message_get_packed_size(m);

    if (bytes > WIRE_PACKET_BYTES_MAX)
        return -EMSGSIZE;

    return (ssize_t) protobuf_c_message_pack(m, buf);
}

ssize_t wire_request_pack(const Kvcobra__Request *m, void *buf)
{
    return wire_pack(&m->base, buf);
}

ssize_t wire_reply_pack(const Kvcobra__Reply *m, void *buf)
{
    return wire_pack(&m->base, buf);
}

/* ---- packets ---- */

/* Gives the buffer the alignment of struct cmsghdr. */
union send_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(WIRE_FDS_MAX * sizeof(int))];
};

union receive_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(WIRE_FDS_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
};

int wire_send(int socket, const void *packet, size_t bytes, const int *fds, size_t n_fds)
{
    union send_control control = {.bytes = {0}};
    struct iovec iov = {(void *) packet, bytes}; /* sendmsg() only reads */
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    assert(bytes > 0 && bytes <= WIRE_PACKET_BYTES_MAX && n_fds <= WIRE_FDS_MAX);
    if (n_fds > 0) {
        struct cmsghdr *c;

        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }

    do
        n = sendmsg(socket, &msg, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0; /* a SOCK_SEQPACKET socket sends all bytes or none */
}

/*
 * Adds the credentials and descriptors of @msg to @p, which then owns them. False if there are more
 * descriptors than a packet may have; those are closed.
 */
static bool wire_take_control(struct msghdr *msg, struct wire_packet *p)
{
    bool ok = true;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET)
            continue;
        if (c->cmsg_type == SCM_CREDENTIALS && c->cmsg_len == CMSG_LEN(sizeof(struct ucred))) {
            struct ucred u;

            memcpy(&u, CMSG_DATA(c), sizeof(u));
            p->pid = u.pid;
            p->uid = u.uid;
            p->gid = u.gid;
        } else if (c->cmsg_type == SCM_RIGHTS) {
            size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

            for (size_t i = 0; i < n; i++) {
                int fd;

                memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
                fd = fd_above_standard(fd);
                if (p->n_fds < WIRE_FDS_MAX && fd >= 0) {
                    p->fds[p->n_fds++] = fd;
                } else { /* without credentials, descriptors may fill their space too */
                    closep(&fd);
                    ok = false;
                }
            }
        }
    }

    return ok;
}

static int wire_receive_flags(int socket, int flags, void *buf, struct wire_packet *ret)
{
    union receive_control control;
    struct iovec iov = {buf, WIRE_PACKET_BYTES_MAX};
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    struct wire_packet p = {0};
    ssize_t n;
    bool whole;

    do
        n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC | flags);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;

    whole = wire_take_control(&msg, &p) && !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
    if (n == 0 || !whole) {
        wire_packet_close_fds(&p);
        return whole ? -EPIPE : -EBADMSG;
    }

    p.bytes = (size_t) n;
    *ret = p;
    return 0;
}

int wire_receive(int socket, void *buf, struct wire_packet *ret)
{
    return wire_receive_flags(socket, 0, buf, ret);
}

int wire_receive_now(int socket, void *buf, struct wire_packet *ret)
{
    return wire_receive_flags(socket, MSG_DONTWAIT, buf, ret);
}

int wire_refuse_descriptors(int socket)
{
    const int off = 0;

    return setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off)) < 0 ? -errno : 0;
}

bool wire_refuses_descriptors(int socket)
{
    socklen_t bytes = sizeof(int);
    int on = 1;

    return getsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &on, &bytes) == 0 && on == 0;
}

/*
 * Credentials fill the whole room, so the kernel discards its copies of the descriptors and says MSG_CTRUNC.
 * That never waits: the packet stays in the queue with references of its own. A close() of a copy could
 * wait, since close() flushes files.
 */
int wire_peek_descriptors(int socket)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct msghdr msg = {.msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    struct wire_packet p = {0};
    bool some;
    ssize_t n;

    do
        n = recvmsg(socket, &msg, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;

    some = !wire_take_control(&msg, &p) || p.n_fds > 0 || msg.msg_flags & MSG_CTRUNC;
    wire_packet_close_fds(&p);
    return some;
}

void wire_packet_close_fds(struct wire_packet *p)
{
    for (size_t i = 0; i < p->n_fds; i++)
        (void) close(p->fds[i]);
    p->n_fds = 0;
}
