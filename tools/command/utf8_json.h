/*
 * JSON strings of bytes from files, daemons and models, which may not be valid UTF-8; jansson accepts only
 * valid UTF-8.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

/* A JSON string in which every invalid byte is replaced by U+FFFD. NULL when out of memory. */
json_t *utf8_json(const char *text, size_t bytes);
