/*
 * Descriptors of the library do not get the numbers 0 to 2: a program may have closed its standard
 * descriptors, and what it prints would then go into a socket or a memory object. What opens a descriptor
 * passes it through this function; programs of this project open 0 to 2 instead (entry.h).
 */
#pragma once

/**
 * fd_above_standard() - move a new descriptor to a number above 2
 * @fd: transferred; negative: the call that should have opened it failed
 *
 * Return: the descriptor, with close-on-exec if it was moved; -1 with errno.
 */
int fd_above_standard(int fd);
