/*
 * The conversation with kvcobrad: one request, one reply, each with a deadline. Never used on the path of appending
 * or attending.
 *
 * A connection that failed in any way is closed and stays lost: what sequences hold is then private (DESIGN 6), and a
 * client connects successfully at most once.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

struct errmsg;

struct connection {
    int fd;                      /* -1: embedded, or lost */
    bool greeted;                /* was connected once */
    uint64_t next_id;
    uint8_t boot_id[BOOT_ID_BYTES];
    uint32_t items_per_message;  /* what the daemon takes, at most WIRE_ITEMS_MAX */
    uint8_t *packet;             /* WIRE_PACKET_BYTES_MAX */
    char *path;
};

struct reply {
    Kvcobra__Reply *message;
    struct wire_packet packet;   /* its descriptors; whoever uses one takes it with reply_take_fd() */
};

void connection_init(struct connection *c);
void connection_deinit(struct connection *c);

/* See kvc_client_connect(). */
int connection_open(struct connection *c, const char *path, struct errmsg *e);

static inline bool connection_is_open(const struct connection *c)
{
    return c->fd >= 0;
}

/* Closes the socket: the daemon ends the session. */
void connection_lose(struct connection *c);

/**
 * connection_request() - send @request, wait for its reply
 * @request:  id and timeout are set here
 * @fds:      borrowed, sent along
 * @body:     the reply's body case that success must have; KVCOBRA__REPLY__BODY__NOT_SET: none
 * @ret:      reply_free() it; untouched on failure
 *
 * Return: 0; the daemon's errno with its sentence; -ENOTCONN: the connection is lost (or never was); -EPROTO: an
 * answer that makes no sense, the connection is lost; -EMSGSIZE.
 */
int connection_request(struct connection *c, Kvcobra__Request *request, const int *fds, size_t n_fds,
                       Kvcobra__Reply__BodyCase body, struct reply *ret, struct errmsg *e);

/* A request whose reply has no body. */
int connection_tell(struct connection *c, Kvcobra__Request *request, struct errmsg *e);

/* Says goodbye, if there is somebody to say it to. */
void connection_bye(struct connection *c);

void reply_free(struct reply *r);

/* Descriptor @i of the reply, now the caller's; -1 if the reply brought fewer. */
int reply_take_fd(struct reply *r, size_t i);

static inline bool bytes_are(ProtobufCBinaryData b, size_t n)
{
    return b.len == n;
}
