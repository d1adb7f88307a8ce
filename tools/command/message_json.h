/*
 * Messages of kvcobra.proto as JSON, by their descriptors: no command lists the fields of a reply. Keys are
 * the names of the fields, so a field that a reply gains is printed, too.
 */
#pragma once

#include <jansson.h>

#include "proto/kvcobra.pb-c.h"

/*
 * The field @f of @m: a number, true or false, a string, bytes as hexadecimal digits, the name of an
 * enumerator, an object of a message (null: it is absent), or an array of any of these. NULL: out of memory.
 */
json_t *message_json_field(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f);

/* An object of all fields. NULL: out of memory. */
json_t *message_json(const ProtobufCMessage *m);

/* Prints the members of @more, which is transferred, and the fields of @m behind them. @more: NULL is out of
 * memory, as in report_json(). Return: an exit code. */
int message_json_report(json_t *more, const ProtobufCMessage *m);
