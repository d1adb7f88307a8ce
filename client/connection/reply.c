/* See reply.h. */
#include "client/connection/reply.h"

#include "base/cleanup.h"

void reply_deinit(struct reply *r)
{
    wire_packet_close_fds(&r->packet);
    wire_reply_free(r->message);
    r->message = NULL;
}

int reply_take_fd(struct reply *r, size_t i)
{
    return i < r->packet.n_fds ? take_fd(&r->packet.fds[i]) : -1;
}
