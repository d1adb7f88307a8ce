/*
 * Packets between kvcobrad and kvcobra-mover (mover.proto), with the limits of wire.h: each side treats the
 * other's bytes as hostile.
 */
#pragma once

#include "proto/mover.pb-c.h"
#include "proto/wire.h"

#define MOVER_SOCKET_FD 3 /* the mover's end of the socket pair */

/* As the functions of wire.h for requests and replies. */
int mover_request_unpack(const void *packet, size_t bytes, Kvcobra__MoverRequest **ret);
int mover_reply_unpack(const void *packet, size_t bytes, Kvcobra__MoverReply **ret);
void mover_request_free(Kvcobra__MoverRequest *m);
void mover_reply_free(Kvcobra__MoverReply *m);
ssize_t mover_request_pack(const Kvcobra__MoverRequest *m, void *buf);
ssize_t mover_reply_pack(const Kvcobra__MoverReply *m, void *buf);
