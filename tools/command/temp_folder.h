/* A fresh folder for what a command makes on the way, and its removal with everything in it. */
#pragma once

#include <stddef.h>

struct errmsg;

/**
 * temp_folder_make() - make PARENT/kvcobra-WHAT-XXXXXX, for nobody else
 * @parent: NULL = $TMPDIR, or /tmp
 * @ret:    [bytes]; empty on failure
 *
 * Return: 0; a negative errno with a sentence.
 */
int temp_folder_make(const char *parent, const char *what, char *ret, size_t bytes, struct errmsg *e);

/* Empty: does nothing. Empties @folder. */
void temp_folder_remove(char *folder);
