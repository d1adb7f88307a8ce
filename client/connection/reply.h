/*
 * A reply of kvcobrad: one unpacked message and the file descriptors that came with it. Owned by the caller
 * of the request, which declares it with _cleanup_(reply_deinit).
 */
#pragma once

#include <stddef.h>

#include "proto/wire.h"

/* {.message = NULL}: empty. */
struct reply {
    Kvcobra__Reply *message;
    struct wire_packet packet; /* its descriptors: taken with reply_take_fd(), else closed with the reply */
};

/* An empty reply is fine. */
void reply_deinit(struct reply *r);

/* Descriptor @i of the reply, which the caller then owns; -1 if the reply has fewer. */
int reply_take_fd(struct reply *r, size_t i);
