/*
 * The row of a request, in the file of its handler: which handler serves it, on which socket, in which state
 * of a connection. No list names it: dispatch.c finds all rows (base/rows.h).
 *
 *     static int drain_handle(struct request *rq)
 *     {
 *         ...
 *     }
 *     REQUEST(request_drain) = {.body = KVCOBRA__REQUEST__BODY_DRAIN,
 *                               .run = drain_handle,
 *                               .needs = CONN_OPEN,
 *                               .sockets = ON_OPERATOR};
 */
#pragma once

#include <stdbool.h>

#include "base/rows.h"
#include "daemon/requests/conn.h"
#include "proto/kvcobra.pb-c.h"

struct request;

enum { ON_CLIENT = 1, ON_OPERATOR = 2, ON_BOTH = 3 };

struct request_row {
    Kvcobra__Request__BodyCase body;
    /*
     * Reads the message, changes the daemon's state and fills the reply's body. Return: 0; negative errno
     * with a sentence in rq->error; REQUEST_PENDING: a job will answer.
     */
    int (*run)(struct request *rq);
    enum conn_state needs; /* the earliest state of the connection in which the request is served */
    unsigned sockets;
    bool changes_state; /* writes files of the state folder: runs through change_run() */
};

#define REQUEST(row) ROW(struct request_row, "kvc_requests", row)
