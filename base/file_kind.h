/*
 * What a file is, by its first bytes: for the sentence that refuses a file of another kind. Users give a
 * model where a table is expected, a page of a failed download for a model, or one file of a set.
 */
#pragma once

#include <stddef.h>

#define FILE_KIND_BYTES 512 /* so many of a file's first bytes are enough; fewer if it has fewer */

/**
 * file_kind_of() - a noun phrase and what takes such a file, for use as: "%s is %s"
 * @bytes: [n] of the beginning of the file
 *
 * Return: never NULL; "a file of a kind that kvcobra does not know" if nothing fits.
 */
const char *file_kind_of(const void *bytes, size_t n);

/* The same where a text is expected. NULL: it may be one, perhaps in another character set. */
const char *file_kind_other_than_text(const void *bytes, size_t n);
