/* Tables with a pool of host memory, without a server; with or without a state folder, removed at the end. */
#pragma once

#include <stdbool.h>

#include "daemon/config/config.h"
#include "daemon/store/device.h"
#include "daemon/tables/tables.h"

struct tables_fixture {
    struct config config;
    struct devices devices;
    struct tables tables;
    char folder[64]; /* "": none */
};

void tables_fixture_begin(struct tables_fixture *f, bool with_state);
void tables_fixture_end(struct tables_fixture *f);

/* What begin() and end() do to the tables alone: a start of the daemon and its end. */
void tables_fixture_open(struct tables_fixture *f);
void tables_fixture_close(struct tables_fixture *f);
