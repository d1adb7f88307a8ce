/* Names that only a daemon knows, for the completion of a command line: tables, models, tenants, sessions. */
#pragma once

#include "base/completion.h"

/*
 * Offers the values of the kinds TENANT, DIGEST (a table's), TABLE (the same), MODEL-ID and SESSION that the
 * daemon of the command line has: --socket, else the usual one. Of other kinds, without a daemon, or after
 * two seconds: nothing.
 */
completion_names complete_names;
