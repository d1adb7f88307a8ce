/*
 * The tables of a daemon as `kvcobra table list` shows them: aligned rows for people, or a JSON array. Only
 * cmd_table.c uses it.
 */
#pragma once

#include "tools/command/operator_tables.h"

/* Each prints the tables on stdout. Return: an exit code of command.h. */
int table_list_print_json(const Kvcobra__ListTablesReply *list);
int table_list_print_text(const Kvcobra__ListTablesReply *list);
