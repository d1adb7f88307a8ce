/*
 * Where a daemon's sockets are when the program does not say. Used by connections and by kvc_socket_path(),
 * so that engines, the command and Python packages find the same daemon.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/**
 * socket_path_find() - see kvc_socket_path()
 * @path: NULL or "": not given
 *
 * Return: 0; -ENOSPC: the path does not fit. @ret_path is then untouched.
 */
int socket_path_find(bool of_operators, const char *path, char *ret_path, size_t ret_bytes);
