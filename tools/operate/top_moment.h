/* One reading of a daemon by `kvcobra top`: what its view and its history are made from. */
#pragma once

#include "proto/kvcobra.pb-c.h"

struct top_moment {
    double seconds; /* of clock_seconds() at the reading */
    const Kvcobra__StatusReply *status;
    const Kvcobra__ListTablesReply *tables;
};
