/* Temporary folders of a command: created with mode 0700, removed with all their contents. */
#pragma once

#include <stddef.h>

struct errmsg;

/**
 * temp_folder_make() - make PARENT/kvcobra-WHAT-XXXXXX, which only this user can read
 * @parent: NULL: $TMPDIR, or /tmp
 * @ret:    [bytes]; empty on failure
 *
 * Return: 0; a negative errno with a sentence.
 */
int temp_folder_make(const char *parent, const char *what, char *ret, size_t bytes, struct errmsg *e);

/* Removes the folder and sets @folder to "". Does nothing if @folder is "". */
void temp_folder_remove(char *folder);
