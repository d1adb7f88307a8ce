/*
 * Exact tables: what is shared of a model that no table was calibrated for. Pages hold the vectors of an
 * engine's cache as it has them, so a table is a geometry and the form of these bytes: it has no codecs, and
 * nothing attends to its pages. The daemon makes them when nothing is active; table.h reads them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table_types.h"

struct errmsg;

/* Name of a number type, such as "bf16"; NULL: there is no such type. */
const char *exact_type_name(uint8_t type);

/* Whether each field has a value that this program knows, and the type is not EXACT_NONE. */
bool exact_form_valid(const struct exact_form *f);

/* A form as kvcobra.h and the protocol have it: type + 4 after_rope + 8 interleaved. Return: whether it is
 * exact_form_valid(). */
bool exact_form_unpack(uint32_t packed, struct exact_form *ret);
uint32_t exact_form_pack(const struct exact_form *f);

/* Room for the text of exact_form_print(). */
enum { EXACT_FORM_TEXT_BYTES = 64 };

/* A form in words: "bf16, keys after RoPE, half-split pairs". Return: @ret_text. */
const char *exact_form_print(const struct exact_form *f, char ret_text[EXACT_FORM_TEXT_BYTES]);

/**
 * table_exact_build() - the canonical bytes of an exact table: the same inputs give the same digest
 * @g:         of the model, of any numbers
 * @form:      exact_form_valid()
 * @ret_bytes: malloc'ed, caller frees. table_parse() accepts them.
 * Return: 0; -EINVAL with a sentence: the geometry is not valid; -ENOMEM.
 */
int table_exact_build(const struct geometry *g, const uint8_t model_digest[static DIGEST_BYTES],
                      const struct exact_form *form, void **ret_bytes, size_t *ret_n_bytes, struct errmsg *e);
