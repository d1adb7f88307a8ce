/*
 * JSON of other programs whose integers may have more than the 63 bits of jansson's: hashes of 64 bits
 * without a sign, and numbers in events. Such an integer is read as a string of its digits, instead of an
 * error for the whole text.
 */
#pragma once

#include <jansson.h>

/* As json_loads(). NULL: no JSON, with the reason in @ret_why, or out of memory. */
json_t *json_large_load(const char *text, json_error_t *ret_why);
