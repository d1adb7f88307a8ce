/*
 * Memory objects without a name in a file system (memfd_create), for sharing. Only this file creates them,
 * since their flags depend on the kernel.
 */
#pragma once

/**
 * memory_file_open() - create an empty object that can be sealed and not be executed
 * @name: for /proc, not unique
 *
 * Return: a descriptor above 2, close-on-exec; a negative errno of memfd_create().
 */
int memory_file_open(const char *name);
