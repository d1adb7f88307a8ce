/*
 * The tables of a daemon as `kvcobra table list` shows them: aligned rows for people, or a JSON array. Only
 * cmd_table.c uses it.
 */
#pragma once

#include <stddef.h>

#include "client/kvcobra-operator.h"

/* "active"; "unknown" for the state of a newer daemon. */
const char *table_list_state_name(enum kvc_table_state s);

/* Each prints @tables [n] on stdout. Return: an exit code of command.h. */
int table_list_print_json(const kvc_table_info *tables, size_t n);
int table_list_print_text(const kvc_table_info *tables, size_t n);
