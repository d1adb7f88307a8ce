/* The fit of a table, which both the list of tables and kvc_table_get_fit() return. */
#pragma once

#include "client/kvcobra-operator.h"
#include "proto/wire.h"

/* @from NULL: all values 0. Numbers that are not finite, which no kvcobrad sends, become 0. */
void trial_api_read_fit(const Kvcobra__Fit *from, kvc_fit *ret);
