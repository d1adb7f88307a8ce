/* kvcobra table fetch: a table of a daemon as a file. */
#pragma once

#include <stdbool.h>

#include "client/kvcobra-call.h"

/**
 * table_fetch() - write the table whose digest begins with the digits @text to the file @output
 *
 * The file gets its name when it is complete, and only if its contents have the digest that was asked for.
 *
 * Return: an exit code; a sentence was printed if it is not COMMAND_OK.
 */
int table_fetch(kvc_client *c, const char *text, const char *output, bool json);
