/*
 * The tables that a person names, and whether a change of a daemon's tables is possible, before a person is
 * asked to confirm it. The daemon decides in the end: another operator may act meanwhile. Only cmd_table.c
 * uses it.
 */
#pragma once

#include "base/digest.h"
#include "client/kvcobra-call.h"

/* The table that an argument TABLE names. */
struct table_target {
    uint8_t digest[KVC_DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];
};

/* @text: digits of a digest that the daemon has, or a table file. Return: an exit code, with a sentence. */
int table_target_find(kvc_client *c, const char *text, struct table_target *ret);

enum table_change { TABLE_CHANGE_SHADOW, TABLE_CHANGE_CANARY, TABLE_CHANGE_ROLLBACK, TABLE_CHANGE_RETIRE };

/**
 * table_check_change() - check that @what can be done with the table @digest
 * @name: what the user typed, for the sentence
 *
 * Return: COMMAND_OK; COMMAND_FAILED with a sentence.
 */
int table_check_change(kvc_client *c, enum table_change what, const uint8_t digest[static KVC_DIGEST_BYTES],
                       const char *name);
