/*
 * One protobuf-c message per SOCK_SEQPACKET packet, with file descriptors.
 * Client and daemon use it; the flags of the socket decide whether calls block. Everything received is
 * hostile until a function here has unpacked it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/kvcobra.pb-c.h"
#include "proto/protocol.h"

struct errmsg;

/**
 * wire_request_unpack() - decode a packet with a byte budget (WIRE_UNPACK_BYTES_MAX) and all counts capped
 * @ret: free with wire_request_free()
 * Return: 0; -EBADMSG; -E2BIG if a repeated field has more items than proto/protocol.h allows; -EOPNOTSUPP if
 * more fields than it allows are not in the schema; -ENOMEM over budget.
 */
int wire_request_unpack(const void *packet, size_t bytes, Kvcobra__Request **ret);
int wire_reply_unpack(const void *packet, size_t bytes, Kvcobra__Reply **ret);
void wire_request_free(Kvcobra__Request *m);
void wire_reply_free(Kvcobra__Reply *m);

/* Packs into @buf of WIRE_PACKET_BYTES_MAX. Return: bytes; -EMSGSIZE. */
ssize_t wire_request_pack(const Kvcobra__Request *m, void *buf);
ssize_t wire_reply_pack(const Kvcobra__Reply *m, void *buf);

/* Why the functions above refuse a packet with @err: the end of a sentence that names the packet. */
const char *wire_refusal(int err);

/* Both ways for messages of any type; the wrappers above and mover_wire.h call these. */
int wire_unpack(const ProtobufCMessageDescriptor *type, const void *packet, size_t bytes,
                ProtobufCMessage **ret);
ssize_t wire_pack(const ProtobufCMessage *m, void *buf);

/**
 * wire_send() - one packet with @n_fds descriptors (borrowed)
 * Return: 0; -EAGAIN (would block), -EPIPE, -ECONNRESET, -ETOOMANYREFS, -EMFILE …
 */
int wire_send(int socket, const void *packet, size_t bytes, const int *fds, size_t n_fds);

struct wire_packet {
    size_t bytes;
    int fds[WIRE_FDS_MAX]; /* CLOEXEC, owned by the receiver */
    size_t n_fds;
    pid_t pid; /* from SCM_CREDENTIALS; 0 if the socket does not pass them */
    uid_t uid;
    gid_t gid;
};

/**
 * wire_receive() - one packet into @buf of WIRE_PACKET_BYTES_MAX
 * Return: 0 with ret->bytes > 0; -EPIPE at end of stream; -EAGAIN; -EBADMSG on truncation of data or control
 * (MSG_TRUNC, MSG_CTRUNC; all received descriptors are closed).
 */
int wire_receive(int socket, void *buf, struct wire_packet *ret);
int wire_receive_now(int socket, void *buf,
                     struct wire_packet *ret); /* never waits, whatever the socket's flags */
void wire_packet_close_fds(struct wire_packet *p);

/*
 * Makes the kernel refuse descriptors that the peer sends: its sendmsg() returns EPERM. Connections inherit
 * this from the listening socket when they are made. Return: 0; -ENOPROTOOPT before Linux 6.16.
 */
int wire_refuse_descriptors(int socket);
bool wire_refuses_descriptors(int socket);

/*
 * Looks whether the next packet brings descriptors, and leaves it in the queue. Never waits. @socket passes
 * credentials (SO_PASSCRED). Return: 1; 0: no, or end of stream; -EAGAIN; errno of the socket.
 */
int wire_peek_descriptors(int socket);
