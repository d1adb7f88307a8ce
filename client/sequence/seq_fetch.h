/*
 * A match without waiting (kvc_fetch_start()): the steps of seq_match.h, each LEASE as a post of the
 * connection (connection_post()).
 *
 * The caller polls an epoll descriptor. It has the socket, where replies arrive, and a timer, which expires
 * at once when another call received the reply or the connection was closed, and otherwise when the reply is
 * overdue. Every event leads to kvc_fetch_result(), which collects replies and goes on.
 */
#pragma once

#include "client/kvcobra.h"

/*
 * Ends the fetch, if it has not ended, and gives its sequence back: with the pages that it had before the
 * fetch, if it had not ended. The handle stays, with the result -ECANCELED. A lease whose reply is still
 * awaited is released when the reply comes.
 */
void seq_fetch_cancel(struct kvc_fetch *f);
