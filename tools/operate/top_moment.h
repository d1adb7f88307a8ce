/* One reading of a daemon by `kvcobra top`: what its view and its history are made from. */
#pragma once

#include <stddef.h>

#include "client/kvcobra-operator.h"

struct top_moment {
    double seconds; /* of clock_seconds() at the reading */
    const kvc_status *status;
    const kvc_table_info *tables; /* [n_tables] */
    size_t n_tables;
};
