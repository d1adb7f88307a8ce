/*
 * Whose files are trusted: those of root and of this process's user that others cannot write, or for secrets,
 * not read either.
 */
#pragma once

#include <sys/types.h>

struct errmsg;

/**
 * file_rights_check() - check owner and mode of an open file or folder
 * @others: bits of the mode that must be off
 * @name:   of the file, in the sentence
 * @mode:   that the sentence recommends: "0700"
 *
 * Return: 0; -EPERM: it belongs to another user, or other users have a right; errno of fstat(); with a
 * sentence.
 */
int file_rights_check(int fd, mode_t others, const char *name, const char *mode, struct errmsg *e);

#define FILE_RIGHTS_WRITE 0022 /* of others: to a folder or a file */
#define FILE_RIGHTS_ALL 0077   /* of others: to a secret */
